"""`--image` on the command line."""

import json
import subprocess
import sys

import pytest

from headwise.cli.main import main

USERS_FILE = """
from headwise.config.vision import C3TRConfig

block = C3TRConfig(in_channels=67, out_channels=97, num_heads=3)
"""


@pytest.fixture
def users_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "image_blocks.py").write_text(USERS_FILE, encoding="utf-8")
    yield "image_blocks.py:block"
    sys.modules.pop("image_blocks", None)


def test_count_and_fit_take_an_image(users_file, capsys):
    assert main(["count", users_file, "--image", "640", "--json"]) == 0
    counted = json.loads(capsys.readouterr().out)
    assert counted["seq"] == 400
    assert counted["parameters"]["total"] > 0 and counted["memory"]["peak_bytes"] > 0
    assert main(["fit", users_file, "--image", "640", "--stride", "64", "--gpu", "t4", "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["workload"]["seq"] == 100
    assert plan["largest_image"] % 64 == 0 < plan["largest_image"]


def test_what_is_printed_says_what_the_image_is(users_file, capsys):
    assert main(["count", users_file, "--image", "640"]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "640 x 640 pixels at stride 32 is a feature map of 20 x 20 places = 400 tokens" in printed


@pytest.mark.parametrize("words", [["--image", "650"], ["--image", "640", "--seq", "400"], [], ["--image", "many"]])
@pytest.mark.parametrize("verb", ["count", "fit"])
def test_a_bad_image_is_one_line_and_exit_code_2(users_file, capsys, verb, words):
    assert main([verb, users_file, *words]) == 2
    printed = capsys.readouterr()
    assert printed.out == "" and printed.err.count("\n") == 1 and printed.err.startswith("headwise: ")


def test_a_config_is_counted_and_fitted_without_torch(users_file):
    code = (
        "import sys; from headwise.cli.main import main; "
        f"codes = [main([*verb, {users_file!r}, '--image', '640', '--json']) "
        "for verb in (['count'], ['fit', '--gpu', 't4'])]; "
        "assert codes == [0, 0], codes; assert 'torch' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
