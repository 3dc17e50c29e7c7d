"""`headwise inspect` as its users meet it: JSON alone on stdout, text in 80 columns, files, one-line refusals."""

import json

import pytest

from headwise.cli.main import main

pytestmark = pytest.mark.checkpoint
MODULE = """
import torch
import headwise

def tiny():
    print("a module may print")
    return headwise.MultiHeadAttention(12, 3, mask=headwise.Causal())
"""


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    (tmp_path / "one.txt").write_text("The cat that the dogs chased sat on the mat. " * 3)
    (tmp_path / "two.txt").write_text("Nothing is said here twice.")
    (tmp_path / "mine.py").write_text(MODULE)
    return tmp_path


def test_json_is_all_that_is_printed(capsys):
    words = "inspect --text one.txt --text two.txt --window 16 --map-tokens 7 --json"
    assert main(words.split()) == 0
    printed = capsys.readouterr()
    assert printed.out.count("\n") == 1
    answer = json.loads(printed.out)
    assert len(answer["heads"]) == 72 and answer["num_texts"] == 2 and answer["window"] == 16
    assert answer["num_windows"] > 2 and "maps" not in answer


@pytest.mark.parametrize("out", ["heads.html", "heads.svg", "heads.png", "heads.csv"])
def test_text_fits_80_columns_and_a_file_is_written(capsys, here, out):
    assert main(["inspect", "--text", "two.txt", "--out", out]) == 0
    printed = capsys.readouterr().out
    assert max(map(len, printed.splitlines())) <= 80
    assert f"written: {out}" in printed and (here / out).stat().st_size > 1000


def test_costly_statistics_and_probed_roles_come_on_request(capsys):
    assert main(["inspect", "--text", "two.txt", "--costly", "--roles", "--map-tokens", "0", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert all(head["stable_rank"] >= 1 for head in answer["heads"])
    assert len(answer["probe"]["heads"]) == 72
    assert main(["inspect", "mine.py:tiny", "--roles"]) == 2
    assert "roles are probed with a tokenizer" in capsys.readouterr().err


def test_heads_are_compared_on_two_texts_and_with_another_checkpoint(capsys):
    assert main(["inspect", "--text", "one.txt", "--against-text", "two.txt", "--map-tokens", "7"]) == 0
    printed = capsys.readouterr().out
    assert max(map(len, printed.splitlines())) <= 80
    assert "against two.txt" in printed and "heads that differ most" in printed
    assert main(["inspect", "mine.py:tiny", "--against", "mine.py:tiny", "--json"]) == 0
    (part,) = json.loads(capsys.readouterr().out)["others"]
    assert part["comparable"] and len(part["changes"]) == 3
    assert {change["divergence"] for change in part["changes"]} != {0.0}  # each has random weights of its own


def test_a_module_of_ones_own_is_read_on_random_input(capsys):
    assert main(["inspect", "mine.py:tiny", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert [(head["layer"], head["head"]) for head in answer["heads"]] == [(0, 0), (0, 1), (0, 2)]
    assert answer["is_example"] and answer["is_causal"]


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("bert-base", "heads are shown of a model with weights, and bert-base has none"),
        ("nobody", "nobody"),
        ("--text missing.txt", "missing.txt"),
        ("--text mine.py --window 2", "window must leave room for a token"),
        ("--window 9999", "window must"),
        ("--max-length 0", "max-length must be between 1"),
        ("--map-tokens -1", "map-tokens must be between 0"),
        ("--out heads.pdf", "must end in .html, .svg, .png or .csv"),
        ("--out missing/heads.html", "cannot write"),
        ("--out one.txt.html/x.html", "cannot write"),
        ("mine.py:tiny --text one.txt", "a text needs a tokenizer"),
        ("--generate 5", "BertModel cannot generate"),
        ("--generate 0", "generate must be between 1"),
        ("mine.py:tiny --generate 5", "generate goes with a text that a tokenizer reads"),
        ("--text one.txt --target two.txt", "a target is what the decoder of an encoder-decoder reads"),
        ("--target missing.txt", "missing.txt"),
        ("--stack encoder", "stack must be one of BertModel's: 'self' (6 layers); got 'encoder'"),
        ("--against mine.py:tiny", "heads are compared on the same text"),
        ("--against bert-base", "heads are shown of a model with weights, and bert-base has none"),
        ("--against-text two.txt --against mine.py:tiny", "on another text; got both"),
    ],
)
def test_a_bad_request_is_one_line(words, line, capsys):
    assert main(["inspect", *words.split()]) == 2
    printed = capsys.readouterr()
    said = printed.err.replace("a module may print\n", "").strip()
    assert printed.out == "" and line in said and "\n" not in said
