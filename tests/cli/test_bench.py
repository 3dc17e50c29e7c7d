"""`headwise bench` as its users meet it: JSON alone on stdout, text in 80 columns, pages, one-line refusals."""

import json

import pytest

from headwise.cli.main import main

TINY = ["bench", "--seq", "5,7", "--heads", "4", "--head-dim", "3", "--device", "cpu", "--repeats", "2"]


@pytest.fixture(autouse=True)
def small_copy(monkeypatch):
    monkeypatch.setattr("headwise.api.bench_limits.COPIED_BYTES", 4096)
    monkeypatch.setattr("headwise.api.bench_limits.TILES", ((3, 5), (5, 7)))


def test_json_has_a_row_for_each_length_and_implementation(capsys):
    words = "--kv-heads 2 --batch 3 --mask window:2 --impl reference,sdpa --phase train --dtype fp64 --json"
    assert main([*TINY, *words.split()]) == 0
    printed = capsys.readouterr()
    assert printed.err == "" and printed.out.count("\n") == 1
    answer = json.loads(printed.out)
    assert [(row["seq"], row["impl"]) for row in answer["rows"]] == [
        (5, "reference"),
        (5, "sdpa"),
        (7, "reference"),
        (7, "sdpa"),
    ]
    assert answer["case"] == {
        "batch": 3,
        "num_heads": 4,
        "num_kv_heads": 2,
        "head_dim": 3,
        "mask": "window:2",
        "phase": "train",
        "dtype": "float64",
        "device": "cpu",
    }
    assert answer["rows"][0]["pairs"] == 3 * 4 * (1 + 4 * 2)
    assert all(row["seconds"] > 0 and row["peak_bytes"] > 0 for row in answer["rows"])
    assert [growth["impl"] for growth in answer["growth"]] == ["reference", "sdpa"]


def test_text_fits_80_columns_and_a_page_is_made(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    assert main([*TINY, "--impl", "auto,reference", "--out", "page.html"]) == 0
    printed = capsys.readouterr().out
    assert "Limits of this machine: " in printed and "page: page.html" in printed
    assert max(len(line.rstrip()) for line in printed.splitlines()) <= 80
    assert (tmp_path / "page.html").read_text(encoding="utf-8").lower().startswith("<!doctype html")


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--seq", "many"], "seq must be lengths"),
        (["--mask", "windows:3"], "mask must be full, causal"),
        (["--impl", "fast"], "impl must be one of"),
        (["--phase", "decode"], "phase must be"),
        (["--dtype", "int8"], "dtype must be"),
        (["--device", "tpu"], "device must be"),
        (["--kv-heads", "3"], "--num-heads must be a multiple of --num-kv-heads; got 4 and 3"),
        (["--head-dim", "0"], "--head-dim must be between 1"),
        (["--repeats", "0"], "repeats must be between 1"),
        (["--seq", "2000000000"], "at least one row must be possible; none is: inputs take"),
        (["--out", "."], "is a folder"),
        (["--seq"], "requires an argument"),
    ],
)
def test_a_bad_request_is_one_clear_line_and_exit_code_2(capsys, words, text):
    assert main([*TINY, *words]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("headwise: ") and printed.err.count("\n") == 1
    assert text in printed.err
