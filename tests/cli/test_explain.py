"""`headwise explain`: text in 80 columns, JSON, a page, one-line refusals."""

import json

import pytest

from headwise.cli.main import main
from headwise.report.explain import draw_bars

MODULE = """
import headwise

def tiny():
    print("a module may print")
    return headwise.MultiHeadAttention(12, 3, mask=headwise.Causal())
"""


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(MODULE)
    (tmp_path / "text.txt").write_text("The cat sat on the mat and the dog ran.")
    return tmp_path


def test_an_example_as_text_json_and_page(capsys, tmp_path):
    page = tmp_path / "page.html"
    assert main(["explain", "--example", "two-heads", "--out", str(page)]) == 0
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 80
    assert page.read_text().startswith("<!doctype html>")
    assert main(["explain", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["steps"][-1]["name"] == "output"
    assert [variant["name"] for variant in answer["variants"]] == ["without the scale", "with a causal mask"]


def test_an_unknown_example_is_one_line(capsys):
    assert main(["explain", "--example", "three"]) == 2
    assert "example must be one of two-tokens, two-heads; got 'three'" in capsys.readouterr().err


def test_a_module_of_ones_own_as_json_text_and_page(capsys, here):
    words = ["explain", "mine.py:tiny", "--head", "1", "--token", "6", "--against-token", "2", "--keys", "2"]
    assert main([*words, "--json"]) == 0
    printed = capsys.readouterr().out
    assert printed.count("\n") == 1
    answer = json.loads(printed)
    assert (answer["layer"], answer["head"], answer["query"]) == (0, 1, 6)
    assert {"name", "equation", "shape", "values"} == set(answer["steps"][0])
    assert len(answer["keys"]) == 7 and len(answer["scores"]) == 2 and answer["hidden"] == [7, 8, 9, 10]
    assert main([*words, "--out", "page.html"]) == 0
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= 80 and "written: page.html" in text and "why " in text
    assert (here / "page.html").read_text().startswith("<!doctype html>")


@pytest.mark.checkpoint
def test_a_word_of_a_text_in_the_default_checkpoint(capsys, here):
    assert main(["explain", "--text", "text.txt", "--word", "mat", "--layer", "0", "--head", "2", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["model"] == "all-MiniLM-L6-v2" and answer["scores"][0]["token"] == "the"
    assert answer["scores"][0]["index"] == answer["query"] - 1
    assert main(["explain", "--text", "text.txt", "--word", "the"]) == 2
    assert "'the' stands in 2: give its token, one of 5, 8" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("mine.py:tiny --example two-heads", "an example is walked through without a model"),
        ("mine.py:tiny --sentence cat", "a text needs a tokenizer"),
        ("mine.py:tiny --layer 1", "layer must be a number from 0 to 0; got 1"),
        ("mine.py:tiny --head 3", "head must be a number from 0 to 2; got 3"),
        ("mine.py:tiny --token 11", "from 0 to 10; got 11"),
        ("mine.py:tiny --word cat", "a word is found in a text"),
        ("mine.py:tiny --token 1 --word cat", "got both --token 1 and 'cat'"),
        ("mine.py:tiny --token 3 --against-token 4", "token 3 may not read token 4"),
        ("mine.py:tiny --stack cross", "stack must be one of MultiHeadAttention's: 'self' (1 layer)"),
        ("--text missing.txt", "missing.txt"),
        ("--text text.txt --sentence cat", "got more than one"),
        ("bert-base --layer 0", "bert-base has none: give a checkpoint"),
        ("nobody", "nobody"),
    ],
)
def test_a_bad_request_is_one_line(words, line, capsys, here):
    assert main(["explain", *words.split()]) == 2
    printed = capsys.readouterr()
    said = printed.err.replace("a module may print\n", "").strip()
    assert printed.out == "" and line in said and "\n" not in said


def test_bars_are_letters_where_the_terminal_has_no_blocks(capsys, here):
    assert main(["explain", "mine.py:tiny", "--head", "1"]) == 0
    text = capsys.readouterr().out
    assert "█" in text and draw_bars(text, "utf-8") == text
    assert draw_bars(text, "ascii") == text.replace("█", "#")
