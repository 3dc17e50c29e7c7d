"""How long the command line takes: `python -m benchmarks.command_line [--json] [--repeats N]`.

Every command runs in a fresh interpreter; medians of wall time, beside an interpreter that does nothing and one that
imports torch, in one run, so that their ratios mean something on a busy machine.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path

COMMANDS = {
    "python, nothing": ["-c", "pass"],
    "python, import torch": ["-c", "import torch"],
    "headwise --help": ["-m", "headwise.cli", "--help"],
    "headwise count bert-base --json": ["-m", "headwise.cli", "count", "bert-base", "--json"],
    "headwise count mixtral-8x7b": ["-m", "headwise.cli", "count", "mixtral-8x7b"],
}
REPORT = "headwise report (real checkpoint, page written)"


def seconds(words: list[str], folder: str) -> float:
    started = time.perf_counter()
    subprocess.run([sys.executable, *words], cwd=folder, check=True, capture_output=True)
    return time.perf_counter() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--repeats", type=int, default=11)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        times: dict[str, list[float]] = {name: [] for name in COMMANDS}
        for repeat in range(1 + options.repeats):  # interleaved, so that drift meets all alike; the first warms caches
            for name, words in COMMANDS.items():
                taken = seconds(words, folder)
                if repeat:
                    times[name].append(taken)
        medians = {name: statistics.median(values) for name, values in times.items()}
        page = Path(folder) / "page.html"
        medians[REPORT] = seconds(["-m", "headwise.cli", "report", "--out", str(page)], folder)
    result = {
        "machine": {
            "python": platform.python_version(),
            "torch": version("torch"),
            "cpu_cores": os.cpu_count(),
            "repeats": options.repeats,
        },
        "rows": [
            {"command": name, "seconds": round(value, 3), "times_import_torch": value / medians["python, import torch"]}
            for name, value in medians.items()
        ],
    }
    if options.json:
        print(json.dumps(result))
        return
    print(result["machine"])
    for row in result["rows"]:
        print(f"{row['command']:<50} {row['seconds']:>7.3f} s  {row['times_import_torch']:>6.2f} x import torch")


if __name__ == "__main__":
    main()
