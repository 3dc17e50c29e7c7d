"""A run's folder is whole at any moment: what a kill leaves is taken up again, what is damaged is told in one line."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from headwise.errors import OutputError
from headwise.experiments.run_folder import BEST, EVENTS, METRICS, RUN, STATE, RunFolder

SETTINGS = {"arm": "one head", "seed": 3, "offsets": (1, 3)}
TENSORS = {"a": torch.arange(7.0), "b": torch.tensor([1, 2], dtype=torch.int64)}


def test_a_state_comes_back_as_it_was_kept(tmp_path):
    folder = RunFolder(tmp_path / "deep" / "run", SETTINGS)
    assert folder.load() is None and folder.load_best() is None
    folder.append({"step": 5, "loss": 0.5})
    folder.save(TENSORS, {"step": 5, "scaler": {}})
    folder.save_best({"a": TENSORS["a"] * 2}, {"step": 3})
    tensors, numbers = RunFolder(tmp_path / "deep" / "run", SETTINGS).load()
    assert numbers == {"step": 5, "scaler": {}}
    assert all(
        torch.equal(tensors[name], tensor) and tensors[name].dtype == tensor.dtype for name, tensor in TENSORS.items()
    )
    assert torch.equal(folder.load_best()[0]["a"], TENSORS["a"] * 2)
    written = json.loads((folder.path / RUN).read_text())
    assert written["settings"]["seed"] == 3 and written["environment"]["torch"] == torch.__version__


def test_lines_after_the_state_and_a_line_cut_off_are_dropped_when_a_run_goes_on(tmp_path):
    folder = RunFolder(tmp_path, SETTINGS)
    for step in range(5):
        folder.append({"step": step, "loss": 0.5})
    folder.save(TENSORS, {"step": 2})
    with (tmp_path / METRICS).open("a") as file:
        file.write('{"step": 5, "lo')
    assert [record["step"] for record in folder.records()] == [0, 1, 2, 3, 4]
    folder.load()
    folder.append({"step": 3, "loss": 0.25})
    assert folder.records() == [{"step": step, "loss": 0.5} for step in range(3)] + [{"step": 3, "loss": 0.25}]


@pytest.mark.parametrize("content", ["", "x\n", '{"step": "a"}\n', "[]\n[]\n", '{"step": 1}\n', '{"loss": 2}\n'])
def test_lines_that_are_lost_are_told_and_a_run_without_a_state_begins_anew(tmp_path, content):
    """The line of a look is written before its state: a state without it is one whose curve is not whole."""
    folder = RunFolder(tmp_path, SETTINGS)
    for step in (1, 2):
        folder.append({"step": step, "loss": 0.5})
    folder.save(TENSORS, {"step": 2})
    (tmp_path / METRICS).write_text(content)
    with pytest.raises(OutputError, match=f"{METRICS}.*lacks lines of its run, or has others; remove {STATE} there"):
        RunFolder(tmp_path, SETTINGS).load()
    (tmp_path / STATE).unlink()
    assert RunFolder(tmp_path, SETTINGS).load() is None and (tmp_path / METRICS).read_text() == ""


def test_lines_of_a_run_without_a_state_are_dropped(tmp_path):
    folder = RunFolder(tmp_path, SETTINGS)
    folder.append({"step": 0})
    assert folder.load() is None and folder.records() == []


def test_a_folder_of_other_settings_is_refused(tmp_path):
    RunFolder(tmp_path, SETTINGS)
    RunFolder(tmp_path, {**SETTINGS, "offsets": [1, 3]})  # the same, as JSON holds it
    with pytest.raises(OutputError, match="holds a run of other settings"):
        RunFolder(tmp_path, {**SETTINGS, "seed": 4})


@pytest.mark.parametrize("content", [b"", b"{", b"\x08" * 100])
def test_a_damaged_file_is_told_in_one_line(tmp_path, content):
    folder = RunFolder(tmp_path, SETTINGS)
    for name in (STATE, BEST):
        (tmp_path / name).write_bytes(content)
    for load in (folder.load, folder.load_best):
        with pytest.raises(OutputError, match="is damaged; remove it to begin anew") as told:
            load()
        assert "\n" not in str(told.value)
    (tmp_path / RUN).write_bytes(content)
    with pytest.raises(OutputError, match="no record of a run"):
        RunFolder(tmp_path, SETTINGS)


def test_a_folder_that_cannot_be_made_is_told_in_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="cannot write"):
        RunFolder(tmp_path / "file" / "run", SETTINGS)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_full_disk_leaves_the_state_before(tmp_path, monkeypatch):
    folder = RunFolder(tmp_path, SETTINGS)
    folder.append({"step": 1, "loss": 0.5})
    folder.save(TENSORS, {"step": 1})

    def full(tensors, place, metadata):
        with open("/dev/full", "w") as file:  # noqa: PTH123
            file.write("x")

    monkeypatch.setattr("headwise.experiments.run_folder.save_file", full)
    with pytest.raises(OutputError, match="No space left"):
        folder.save(TENSORS, {"step": 2})
    assert folder.load()[1] == {"step": 1} and sorted(path.name for path in tmp_path.iterdir()) == sorted(
        [RUN, STATE, METRICS, EVENTS]
    )


WRITER = """
import sys, torch
from headwise.experiments.run_folder import RunFolder
folder = RunFolder(sys.argv[1], {"seed": 0})
found = folder.load()
step = 0 if found is None else found[1]["step"] + 1
print("ready", flush=True)
while True:
    folder.append({"step": step, "loss": step / 7})
    folder.save({"step": torch.full((1000,), float(step))}, {"step": step})
    step += 1
"""


def test_a_run_killed_at_any_moment_goes_on_from_a_whole_state(tmp_path):
    last = -1
    for wait in (0.05, 0.11, 0.23):
        process = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(tmp_path / "run")], stdout=subprocess.PIPE, text=True
        )
        assert process.stdout.readline() == "ready\n"
        time.sleep(wait)
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()
        folder = RunFolder(tmp_path / "run", {"seed": 0})
        found = folder.load()
        if found is None:  # killed before its first state
            continue
        tensors, numbers = found
        assert numbers["step"] >= last and set(tensors["step"].tolist()) == {numbers["step"]}
        last = numbers["step"]
        assert folder.records() == [{"step": step, "loss": step / 7} for step in range(last + 1)]
    assert last >= 0
