"""The benchmark of costs runs without its peers, says which are absent, and survives one that breaks."""

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
WITH_AN_ABSENT_TOOL = """
from benchmarks import cost
cost.TOOLS["nobody"] = ("headwise-no-such-package", {})
cost.main()
"""


def test_we_are_right_in_every_row_though_one_peer_is_absent_and_one_ends_the_process(tmp_path):
    """A stand-in for a peer comes first on the path; whatever it is asked, it ends the process."""
    (tmp_path / "thop.py").write_text("import os\n\n\ndef profile(*args, **kwargs):\n    os._exit(3)\n")
    (tmp_path / "thop-1.0.dist-info").mkdir()
    (tmp_path / "thop-1.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: thop\nVersion: 1.0\n")
    tools = [word for name in ("thop", "nobody", "headwise") for word in ("--tool", name)]
    run = subprocess.run(
        [sys.executable, "-c", WITH_AN_ABSENT_TOOL, "--json", "--quick", *tools],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    tools = json.loads(run.stdout)["tools"]
    assert set(tools["thop"]["answers"].values()) == {"the process died"}
    assert tools["nobody"] == {"version": None, "status": "absent", "answers": {}, "right": {}, "ways": 0}
    assert tools["headwise"]["status"] == "ok"
    kinds = tools["headwise"]["right"]
    assert set(kinds) == {"flops", "parameters", "step bytes", "cache bytes"}
    assert all(count["right"] == count["close"] == count["rows"] for count in kinds.values()), tools["headwise"]
    assert tools["headwise"]["ways"] == 11


def test_no_drawn_step_has_more_holes_than_are_allowed():
    run = subprocess.run(
        [sys.executable, "-m", "benchmarks.holes", "--json", "--cases", "12"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    rows = json.loads(run.stdout)
    assert sum(row["cases"] for row in rows) == 12
    assert all(0 < row["most_percent"] < row["allowed_percent"] for row in rows)
