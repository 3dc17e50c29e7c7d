"""`headwise compare` as its users meet it: a list, a file, JSON alone on stdout, a folder that is drawn once more."""

import json
import re
from pathlib import Path

import pytest

from headwise.cli.main import main
from headwise.cli.output import Remaining

FILE = """
name = "tiny"
question = "Does a second head help?"
metric = "exact"
seeds = [0, 1]

[task]
kind = "multi-offset-copy"
vocab_size = 5
seq_len = 7
offsets = [1, 2]

[recipe]
steps = 3
batch_size = 3
warmup_steps = 1
evaluate_every = 3

[[arms]]
name = "1 head"
num_heads = 1
embed_dim = 8

[[arms]]
name = "2 heads"
num_heads = 2
embed_dim = 8

[[claims]]
text = "Two heads read two places"
source = "us"
arm = "2 heads"
other = "1 head"
"""


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    Path("tiny.toml").write_text(FILE, encoding="utf-8")
    return tmp_path


def test_without_a_name_the_built_in_ones_are_listed(capsys):
    assert main(["compare"]) == 0
    printed = capsys.readouterr().out
    assert "heads" in printed and "Do more heads learn better" in printed
    assert main(["compare", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)["comparisons"]
    assert {"heads", "positions", "stability"} <= {one["name"] for one in listed}


def test_a_file_is_run_printed_and_drawn_again_from_its_folder(place, capsys):
    words = ["compare", "tiny.toml", "--workers", "1", "--folder", "runs"]
    assert main([*words, "--json"]) == 0
    printed = capsys.readouterr()
    assert printed.out.count("\n") == 1 and printed.err == ""
    answer = json.loads(printed.out)
    assert [arm["name"] for arm in answer["arms"]] == ["1 head", "2 heads"]
    assert answer["differences"][0]["seeds"] == 2 and answer["differences"][0]["metric"] == "exact"
    assert answer["claims"][0]["verdict"] == "not enough seeds"
    assert main(words) == 2
    refused = capsys.readouterr()
    assert refused.out == "" and refused.err.count("\n") == 1 and "--resume" in refused.err
    assert main(["compare", "--folder", "runs", "--out", "page.html"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "tiny: Does a second head help?" and lines[-1] == "page: page.html"
    assert max(map(len, lines)) <= 80
    assert "Two heads read two places" in Path("page.html").read_text(encoding="utf-8")
    assert main([*words, "--resume", "--out", "picture.png"]) == 0
    assert Path("picture.png").read_bytes().startswith(b"\x89PNG")


def test_the_file_of_the_documentation_is_one(place, capsys):
    """With few steps and seeds; the rest as it stands there."""
    page = (Path(__file__).parents[2] / "docs" / "compare.md").read_text(encoding="utf-8")
    (shown,) = re.findall(r"^```toml\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    assert "steps = 300" in shown
    Path("copy.toml").write_text(shown.replace("steps = 300", "steps = 3"), encoding="utf-8")
    assert main(["compare", "copy.toml", "--seeds", "2", "--workers", "1", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert [claim["difference"]["metric"] for claim in answer["claims"]] == ["exact", "steps_per_second"]
    assert list(answer["arms"][0]["rates_tried"]) == ["0.003", "0.01"]


def test_an_interrupt_says_how_to_go_on(place, capsys, monkeypatch):
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("headwise.api.compare.run_comparison", interrupt)
    assert main(["compare", "tiny.toml", "--workers", "1"]) == 130
    assert capsys.readouterr().err == "headwise: stopped; the same command with --resume goes on from here\n"


def test_the_time_that_is_left_is_told_from_runs_and_not_from_what_was_only_read():
    now = [0.0]
    remaining = Remaining(clock=lambda: now[0])

    def after(seconds, *words):
        now[0] += seconds
        return remaining.words(*words)

    assert after(3.0, "rates", 0, 9) == " 0 of 9"
    assert after(0.01, "rates", 1, 9) == " 1 of 9"  # read
    assert after(10.0, "rates", 2, 9) == " 2 of 9, about 70 s left"
    assert after(0.01, "rates", 3, 9) == " 3 of 9, about 30 s left"  # two at once
    assert after(1000.0, "rates", 4, 9) == " 4 of 9, about 28 min left"
    assert after(1.0, "rates", 9, 9) == " 9 of 9"
    assert after(9.0, "runs", 0, 2) == " 0 of 2"
