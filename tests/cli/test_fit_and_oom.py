"""`headwise fit` and `headwise oom` as their users meet them: exit codes, JSON alone on stdout, one-line refusals."""

import io
import json
import sys

import pytest

from headwise.cli.main import main

SMALL = '{"model_type": "gpt2", "n_embd": 46, "n_layer": 1, "n_head": 2, "vocab_size": 97, "n_positions": 64}'
MESSAGE = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 6.00 GiB. GPU 0 has a total capacity of 31.74 GiB "
    "of which 5.31 GiB is free. Including non-PyTorch memory, this process has 26.43 GiB memory in use. Of the "
    "allocated memory 25.90 GiB is allocated by PyTorch, and 112.00 MiB is reserved by PyTorch but unallocated."
)


@pytest.fixture
def small(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "small.json").write_text(SMALL)
    return "small.json"


def answer(capsys, *words):
    code = main([*words, "--json"])
    printed = capsys.readouterr()
    assert printed.err == ""
    assert printed.out.count("\n") == 1
    return code, json.loads(printed.out)


def test_only_what_fits_exits_0(capsys, small):
    code, plan = answer(capsys, "fit", small, "--gpu", "t4")
    assert (code, plan["fits"]) == (0, "yes")
    code, plan = answer(capsys, "fit", small, "--gpu-memory", "200MiB")
    assert (code, plan["fits"]) == (1, "no")
    code, plan = answer(capsys, "fit", small, "--gpu-memory", "1GiB")
    assert (code, plan["fits"]) == (1, "tight")


def test_the_options_of_the_step_reach_the_workload(capsys, small):
    words = "--batch 3 --seq 5 --precision amp-bf16 --optimizer muon --attention eager --checkpoint full --no-dropout"
    _, plan = answer(capsys, "fit", small, "--gpu", "h100-80gb", *words.split(), "--accumulation", "2")
    expected = {"batch": 3, "seq": 5, "precision": "amp-bf16", "optimizer": "muon", "attention": "eager"}
    expected |= {"checkpoint": "full", "dropout": False, "accumulation": 2, "loss": "cross_entropy"}
    assert {name: plan["workload"][name] for name in expected} == expected
    assert plan["kernel"] is None


def test_a_sweep_and_a_page_are_made(capsys, small, tmp_path):
    words = ("--sweep", "batch=1..4", "seq=8,16", "--out", "page.html", "--gpu", "t4")
    code, plan = answer(capsys, "fit", small, *words)
    assert code == 0
    assert len(plan["sweep"]["points"]) == 3 * 2
    assert plan["page"] == "page.html"
    assert (tmp_path / "page.html").read_text(encoding="utf-8").lower().startswith("<!doctype html")


def test_text_fits_80_columns(capsys, small, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    main(["fit", small, "--gpu-memory", "200MiB", "--sweep", "batch=1..4", "seq=8,16"])
    main(["oom", MESSAGE])
    printed = capsys.readouterr().out
    assert "Does not fit" in printed
    assert "CUDA ran out of memory" in printed
    assert max(map(len, printed.splitlines())) <= 80


def test_an_error_is_read_from_an_argument_a_file_and_standard_input(capsys, tmp_path, monkeypatch):
    log = tmp_path / "train.log"
    log.write_bytes(b"\xff epoch 3\n" + MESSAGE.encode() + b"\n")
    answers = [answer(capsys, "oom", words) for words in (MESSAGE, str(log))]
    for words in (["-"], []):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(MESSAGE.encode())))
        answers.append(answer(capsys, "oom", *words))
    for code, result in answers:
        assert code == 0
        assert result["kind"] == "one huge tensor"
        assert result["requested_bytes"] == pytest.approx(6 * 2**30, rel=0.001)
        assert {"name", "shape", "dtype", "owner", "batch", "seq"} <= set(result["candidates"][0])
        assert result["changes"] == []


def test_an_error_of_a_model_lists_changes_of_its_step(capsys, small):
    words = (
        "--model",
        small,
        "--batch",
        "3",
        "--seq",
        "5",
        "--gpu",
        "t4",
        "--optimizer-step",
        "fused",
        "--num-gpus",
        "2",
    )
    code, result = answer(capsys, "oom", MESSAGE, *words)
    assert code == 0
    assert {name: result["workload"][name] for name in ("batch", "seq", "optimizer_step", "compute_capability")} == {
        "batch": 3,
        "seq": 5,
        "optimizer_step": "fused",
        "compute_capability": [7, 5],
    }
    assert {change["other_gpus"] for change in result["changes"] if change["applies"]} == {0, 1}


def test_a_closed_standard_input_is_one_clear_line(capsys, monkeypatch):
    monkeypatch.setattr(sys, "stdin", None)
    assert main(["oom"]) == 2
    assert capsys.readouterr().err == (
        "headwise: standard input must be open, or a message or a file be given; it is closed\n"
    )


def test_an_endless_standard_input_is_left(capsys, monkeypatch):
    monkeypatch.setattr("headwise.api.oom.MAX_STREAM_BYTES", 1000)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(2000 * b"y")))
    assert main(["oom"]) == 2
    assert "must end within" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("columns", "width"),
    [("0", 80), ("-3", 80), ("many", 80), ("²", 80), ("9" * 5000, 80), ("5", 60), ("40", 60), ("72", 72), ("100", 100)],
)
def test_an_answer_is_readable_in_a_terminal_of_any_width(capsys, monkeypatch, columns, width):
    monkeypatch.setenv("COLUMNS", columns)
    monkeypatch.setenv("LINES", columns)
    assert main(["oom", MESSAGE]) == 0
    printed = capsys.readouterr().out
    assert "CUDA ran out of memory: " in printed
    assert width - 12 < max(map(len, printed.splitlines())) <= width


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["fit", "small.json", "--gpu", "h100"], "h100-80gb"),
        (["fit", "small.json", "--gpu-memory", "24 apples"], "number with a unit"),
        (["fit", "small.json", "--gpu-memory", "0GiB"], "between 1 MiB"),
        (["fit", "small.json", "--phase", "sleep"], "phase must be"),
        (["fit", "small.json", "--optimizer", "adagrad"], "optimizer must be"),
        (["fit", "small.json", "--batch", "0"], "batch must be"),
        (["fit", "small.json", "--seq", "9" * 30], "seq"),
        (["fit", "small.json", "--shard", "fsdp"], 'shard must be "zero1"'),
        (["fit", "small.json", "--sweep", "batch=1..4", "length=3"], "batch or seq"),
        (["fit", "small.json", "--sweep", "batch=4..1", "seq=3"], "must rise"),
        (["fit", "small.json", "--history", "none.jsonl"], "none.jsonl"),
        (["fit", "small.json", "--out", "small.json"], "earlier page only"),
        (["fit", "small.json", "--frozen-layers", "7"], "--frozen-layers must be at most"),
        (["fit", "small.json", "--lora-rank", "0"], "--lora-rank must be between 1"),
        (["fit", "deepseek-v3", "--lora-rank", "8"], "--lora-rank needs a model that projects queries and values"),
        (["fit", "small.json", "--num-gpus", "1"], "--num-gpus must be between 2"),
        (["fit", "small.json", "--shard", "zero1", "--num-gpus", "9999999"], "--num-gpus must be between 2 and"),
        (["fit", "small.json", "--shard", "tensor", "--num-gpus", "5"], "the number of devices divides; got 2 and 5"),
        (["fit", "bert-base", "--phase", "decode"], "decode"),
        (["fit", "bert-bass"], "bert-base"),
        (["fit"], "Missing argument"),
        (["oom", "everything is fine"], "out-of-memory"),
        (["oom", ""], "out-of-memory"),
        (["oom", "train.log"], "there is no file 'train.log'"),
        (["oom", "runs/last"], "there is no file 'runs/last'"),
        (["oom", "."], "is a folder"),
        (["oom", MESSAGE, "--num-gpus", "1"], "--num-gpus must be between 2"),
        (["oom", MESSAGE, "--optimizer-step", "slow"], "--optimizer-step must be"),
        (["oom", MESSAGE, "--model", "bert-base", "--phase", "decode"], "is an encoder"),
        (["oom", MESSAGE, "--model", "bert-base", "--loss", "cross_entropy"], "needs a language-model head"),
        (["oom", MESSAGE, "--model", "vit-b-16", "--seq", "5"], "197; got 5"),
        (["oom", MESSAGE, "--model", "gpt-2000"], "neither a preset"),
        (["oom", MESSAGE, "--batch", "-1"], "batch"),
        (["oom", MESSAGE, "--precision", "fp8"], "precision must be"),
    ],
)
def test_a_bad_request_is_one_clear_line_and_exit_code_2(capsys, small, words, text):
    assert main(words) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("headwise: ")
    assert printed.err.count("\n") == 1
    assert text in printed.err
