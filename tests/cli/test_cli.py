"""The command line as its users meet it: exit codes, one-line refusals, JSON alone on stdout."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from headwise.cli.interrupts import heed_interrupts
from headwise.cli.main import main


def run(*words: str, **options: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "headwise.cli", *words], capture_output=True, text=True, check=False, **options
    )


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["count", "bert-bass"], "did you mean bert-base"),
        (["count", "missing.json"], "no file or folder"),
        (["count"], "Missing argument"),
        (["count", "bert-base", "--batch", "0"], "batch must be"),
        (["count", "bert-base", "--batch", "many"], "valid integer"),
        (["count", "bert-base", "--seq", "-3"], "seq must be"),
        (["count", "bert-base", "--seq", "513"], "at most 512"),
        (["count", "bert-base", "--seq", "9" * 40], "seq"),
        (["count", "bert-base", "--dtype", "float31"], "float31"),
        (["count", "no_such_module:make"], "no module"),
        (["report", "bert-base", "--gpu", "h100"], "h100-80gb"),
        (["report", "bert-base", "--text", "missing.txt"], "weights"),
        (["report", "bert-base", "--out", "no/such/folder/page.html"], "no/such/folder/page.html"),
        (["report", "--text", "missing.txt"], "missing.txt"),
        (["no-such-verb"], "no-such-verb"),
        (["count", "bert-base", "--no-such-option"], "--no-such-option"),
    ],
)
def test_a_bad_request_is_one_clear_line_and_exit_code_2(capsys, tmp_path, monkeypatch, words, text):
    monkeypatch.chdir(tmp_path)
    assert main(words) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("headwise: ")
    assert printed.err.count("\n") == 1
    assert text in printed.err
    assert list(tmp_path.iterdir()) == []


def test_json_is_one_object_and_nothing_else(capsys):
    assert main(["count", "bert-base", "--json"]) == 0
    printed = capsys.readouterr()
    answer = json.loads(printed.out)
    assert answer["parameters"]["total"] == 109_482_240
    assert answer["kv_cache_bytes"] is None
    assert printed.err == ""


def test_json_has_the_promised_keys(capsys):
    main(["count", "llama-3-8b", "--json"])
    answer = json.loads(capsys.readouterr().out)
    assert {"total", "attention", "feed_forward", "embedding", "norm", "other"} <= set(answer["parameters"])
    assert set(answer["flops"]) == {"forward", "backward", "recomputed", "train", "hardware", "decode"}
    assert {"dense", "attended"} <= set(answer["flops"]["forward"]) == set(answer["flops"]["train"])
    assert answer["kv_cache_bytes_per_token"] == 32 * 2 * 8 * 128 * 2  # layers, K and V, heads, head size, bfloat16
    assert answer["kv_cache_bytes"] == 512 * answer["kv_cache_bytes_per_token"]


def test_help_names_every_verb(capsys):
    assert main(["--help"]) == 0
    text = capsys.readouterr().out
    assert all(verb in text for verb in ("report", "count", "explain"))


def test_tables_fit_80_columns(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    for words in (["count", "mixtral-8x7b", "--batch", "7", "--seq", "4000"], ["explain"]):
        assert main(words) == 0
        lines = capsys.readouterr().out.splitlines()
        assert lines
        assert max(map(len, lines)) <= 80


def test_a_report_on_paper_predicts_and_says_why_there_are_no_heads(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["report", "gpt2", "--gpu", "t4", "--batch", "3", "--seq", "101", "--out", "page.html", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert {"model", "parameters", "flops", "memory", "heads", "page"} <= set(answer)
    assert answer["heads"] is None
    assert "no weights" in answer["heads_notes"][0]
    assert answer["memory"]["measured"] is None
    assert answer["memory"]["predicted"]["peak_bytes"] > 0
    assert answer["memory"]["fit"]["device"]["name"] == "t4"
    assert Path(answer["page"]).read_text(encoding="utf-8").startswith("<!doctype html>")


def test_a_broken_pipe_ends_quietly():
    for options in ("--json", ""):
        command = f"{sys.executable} -m headwise.cli count gpt2 {options} | true; exit ${{PIPESTATUS[0]}}"
        result = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
        assert (result.returncode, result.stderr) == (0, "")


def test_the_module_runs_as_the_command_does():
    result = run("count", "gpt2", "--json")
    assert result.returncode == 0
    assert json.loads(result.stdout)["parameters"]["total"] == 124_439_808


def test_the_version_is_printed(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.split()[0] == "headwise"


def test_help_lists_presets_and_devices(capsys):
    assert main(["count", "--help"]) == 0
    assert "mistral-nemo-12b" in capsys.readouterr().out.replace("\n", "").replace("  ", "")
    assert main(["report", "--help"]) == 0
    assert "rtx-4090" in capsys.readouterr().out


@pytest.mark.parametrize("words", [["count", "gpt2"], ["count", "gpt2", "--json"], ["explain"], ["--help"]])
def test_a_terminal_that_knows_only_ascii_and_one_that_is_full_get_no_traceback(words):
    ascii_only = run(*words, env={"PYTHONIOENCODING": "ascii", "PATH": "/usr/bin:/bin"})
    assert (ascii_only.returncode, ascii_only.stderr) == (0, "")
    with Path("/dev/full").open("w", encoding="utf-8") as full:
        command = [sys.executable, "-m", "headwise.cli", *words]
        result = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert result.returncode == 2
    assert result.stderr == "headwise: the answer cannot be written: No space left on device\n"


def test_a_file_that_is_no_page_is_never_replaced(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config = '{"model_type": "gpt2"}'
    Path("model.json").write_text(config, encoding="utf-8")
    assert main(["report", "model.json", "--out", "model.json"]) == 2
    assert "earlier page only" in capsys.readouterr().err
    assert Path("model.json").read_text(encoding="utf-8") == config
    assert main(["report", "model.json", "--out", "page.html"]) == 0
    assert main(["report", "model.json", "--out", "page.html", "--batch", "2"]) == 0


@pytest.mark.parametrize("closed", [">&-", "2>&-", "2>/dev/full"])
def test_a_closed_or_full_stream_changes_no_exit_code(closed):
    for words, code in (("count gpt2 --json", 0), ("count no-such-model", 2)):
        command = f"{sys.executable} -m headwise.cli {words} {closed}"
        result = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
        assert result.returncode == code
        assert "Traceback" not in result.stderr
        assert "headwise:" not in result.stdout


def test_control_characters_and_endless_names_do_not_reach_the_terminal(capsys):
    assert main(["count", "esc\x1b[31mX\x07\u202e.json"]) == 2
    assert capsys.readouterr().err.rstrip("\n").isprintable()
    assert main(["count", "x" * 20_000]) == 2
    assert len(capsys.readouterr().err) < 2100


def test_the_reason_stands_behind_a_long_name(capsys, tmp_path):
    long_words = " ".join(["part"] * 1000)
    for name in ("x" * 5000, f"{tmp_path}/{'x' * 5000}.json", long_words, f"./{long_words}/config.json"):
        assert main(["count", name]) == 2
        line = capsys.readouterr().err
        assert "MODEL must be" in line or "cannot be looked up: File name too long" in line
        assert "..." in line and len(line) < (2100 if " " in name else 700)
    assert main(["report", "gpt2", "--out", f"{tmp_path}/{'x' * 5000}.html"]) == 2
    assert "File name too long; name a file in a folder that can be written" in capsys.readouterr().err


def test_a_refusal_names_options_of_the_command_line(capsys, tmp_path):
    assert main(["fit", "gpt2", "--lora-rank", "0"]) == 2
    assert capsys.readouterr().err.startswith("headwise: --lora-rank must be between 1 and")
    assert main(["fit", "gpt2", "--frozen-layers", "3", "--lora-rank", "3"]) == 2
    assert capsys.readouterr().err.startswith("headwise: --frozen-layers must be 0 beside lora")
    for path in ("./lora_rank", "lora_rank/gpu_memory.json", f"{tmp_path}/num_gpus.json"):  # the user's own words
        assert main(["count", path]) == 2
        assert path in capsys.readouterr().err
    assert main(["report", "--text", f"{tmp_path}/lora_rank"]) == 2
    assert f"{tmp_path}/lora_rank cannot be read" in capsys.readouterr().err


INTERRUPTED = """
import sys
class Interrupting:
    def find_spec(self, name, path=None, target=None):
        if name == sys.argv[1]:
            raise KeyboardInterrupt
sys.meta_path.insert(0, Interrupting())
from headwise.cli.main import main
sys.exit(main(["fit", "gpt2", "--gpu", "t4"]))
"""


@pytest.mark.parametrize(
    "module", ["headwise.cli.run", "typer", "headwise.api.catalogue", "headwise.cost.planning.plan"]
)
def test_an_interrupt_while_modules_are_imported_ends_cleanly(module):
    result = subprocess.run([sys.executable, "-c", INTERRUPTED, module], capture_output=True, text=True, check=False)
    assert (result.returncode, result.stdout, result.stderr) == (130, "", "")


class Last:
    def __del__(self):
        signal.raise_signal(signal.SIGINT)


def test_an_interrupt_is_not_lost_in_a_finaliser():
    outside = signal.signal(signal.SIGINT, signal.default_int_handler)  # whoever runs the tests may ignore interrupts
    try:
        _interrupt_a_finaliser()
    finally:
        signal.signal(signal.SIGINT, outside)


def _interrupt_a_finaliser():
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt), heed_interrupts():
        Last()  # is gone at once
        time.sleep(30)
    assert signal.getsignal(signal.SIGINT) is before


def test_what_a_users_module_prints_does_not_mix_with_the_answer(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    Path("printing_model.py").write_text(
        "import headwise\nprint('hello')\n"
        "def make():\n    print('again')\n    return headwise.MultiHeadAttention(6, 2)\n",
        encoding="utf-8",
    )
    assert main(["count", "printing_model:make", "--seq", "5", "--json"]) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out)["seq"] == 5
    assert printed.err.split() == ["hello", "again"]
