"""The history of tracked steps: what a line holds, and that no accident with the file loses or invents a step."""

import json
import os
import resource
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwise.api import history
from headwise.api.fit_results import TrackedAccuracy, TrackedStep
from headwise.api.history import list_recent, open_history, read_history, summarise_history
from headwise.errors import HeadwiseError, OutputError

STEP = TrackedStep(
    when="2026-11-29T20:19:30+00:00",
    model="gpt2",
    device="CPU",
    batch=3,
    seq=11,
    predicted_peak_bytes=110,
    measured_peak_bytes=100,
)
ON_GPU = replace(STEP, device="NVIDIA A100", predicted_reserved_bytes=130, measured_reserved_bytes=127)


def keep(path, *steps):
    for step in steps:
        with open_history(path) as file:
            file.append(step)


def test_what_is_kept_is_read_back_in_its_order(tmp_path):
    path = tmp_path / "steps.jsonl"
    keep(path, STEP, ON_GPU, replace(STEP, predicted_peak_bytes=None, batch=None, seq=None))
    steps, notes = read_history(path)
    assert steps == (STEP, ON_GPU, replace(STEP, predicted_peak_bytes=None, batch=None, seq=None))
    assert notes == ()
    lines = path.read_text().splitlines()
    assert len(lines) == 3
    assert json.loads(lines[0]) == STEP.to_dict()


def test_a_line_that_was_cut_costs_no_other_step(tmp_path):
    path = tmp_path / "steps.jsonl"
    keep(path, STEP)
    path.write_bytes(path.read_bytes() + json.dumps(STEP.to_dict()).encode()[:40])  # kill -9 in the middle of a line
    assert read_history(path) == (
        (STEP,),
        ("Of the history line 2 is left out: cut short, or not written by headwise.",),
    )
    keep(path, ON_GPU)
    assert read_history(path)[0] == (STEP, ON_GPU)


@pytest.mark.parametrize(
    "line",
    [
        b"a diary",
        b"[]",
        b"{}",
        b"\xff\xfe\x00",
        b"[" * 3000,
        b"9" * 4000,
        json.dumps(STEP.to_dict() | {"diary": "x" * 5000}).encode(),
        json.dumps(STEP.to_dict() | {"measured_peak_bytes": "100"}).encode(),
        json.dumps(STEP.to_dict() | {"measured_peak_bytes": -1}).encode(),
        json.dumps(STEP.to_dict() | {"measured_peak_bytes": True}).encode(),
        json.dumps(STEP.to_dict() | {"measured_peak_bytes": 10**30}).encode(),
        json.dumps(STEP.to_dict() | {"measured_peak_bytes": float("nan")}).encode(),
        json.dumps(STEP.to_dict() | {"batch": 1.5}).encode(),
        json.dumps(STEP.to_dict() | {"model": "\x1b[2J"}).encode(),
        json.dumps(STEP.to_dict() | {"device": ""}).encode(),
        json.dumps(STEP.to_dict() | {"device": "x" * 300}).encode(),
        json.dumps(STEP.to_dict() | {"when": "yesterday"}).encode(),
        json.dumps(STEP.to_dict() | {"when": "2026-11-29"}).encode(),
        json.dumps({name: value for name, value in STEP.to_dict().items() if name != "model"}).encode(),
    ],
)
def test_a_line_of_another_kind_is_left_out_with_a_note(tmp_path, line):
    path = tmp_path / "steps.jsonl"
    keep(path, STEP)
    with path.open("ab") as file:
        file.write(line + b"\n\n")
    keep(path, STEP)
    steps, (note,) = read_history(path)
    assert steps == (STEP, STEP)
    assert "line 2 is left out" in note


def test_many_foreign_lines_are_one_note(tmp_path):
    path = tmp_path / "steps.jsonl"
    path.write_text("\n" + "nothing\n" * 7)
    assert read_history(path)[1] == (
        "Of the history 7 lines, the first is 2, are left out: cut short, or not written by headwise.",
    )


@given(st.binary(max_size=200))
def test_no_bytes_stop_the_reading(tmp_path_factory, content):
    path = tmp_path_factory.mktemp("any") / "steps.jsonl"
    path.write_bytes(content)
    assert read_history(path)[0] == ()


def test_a_later_version_may_say_more_of_a_step(tmp_path):
    path = tmp_path / "steps.jsonl"
    path.write_text(json.dumps(STEP.to_dict() | {"temperature": 451}) + "\n")
    assert read_history(path) == ((STEP,), ())


def test_processes_that_write_at_the_same_time_lose_no_line(tmp_path):
    path = tmp_path / "steps.jsonl"
    code = (
        "import sys; from headwise.api.fit_results import TrackedStep; from headwise.api.history import open_history\n"
        "for number in range(50):\n"
        "    with open_history(sys.argv[1]) as file:\n"
        "        file.append(TrackedStep(when='2026-11-29T20:19:30+00:00', model=sys.argv[2] * 150, device='CPU',\n"
        "            batch=number + 1, seq=1, predicted_peak_bytes=None, measured_peak_bytes=1))\n"
    )
    writers = [subprocess.Popen([sys.executable, "-c", code, path, letter]) for letter in "abc"]
    assert [writer.wait(60) for writer in writers] == [0, 0, 0]
    steps, notes = read_history(path)
    assert notes == ()
    assert sorted((step.model[0], step.batch) for step in steps) == [
        (letter, number) for letter in "abc" for number in range(1, 51)
    ]


def test_a_disk_that_fills_is_one_clear_error_and_costs_no_other_step(tmp_path):
    path = tmp_path / "steps.jsonl"
    keep(path, STEP)
    size = path.stat().st_size
    with open_history(path) as file:
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size + 40, before[1]))
        try:
            with pytest.raises(OutputError, match="the disk took a part of the line only; name another file"):
                file.append(STEP)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
    keep(path, ON_GPU)
    assert read_history(path)[0] == (STEP, ON_GPU)


def test_a_disk_that_is_full_is_known_before_a_step(tmp_path, monkeypatch):
    full = os.statvfs_result((4096, 4096, 9, 0, 0, 9, 9, 9, 0, 255))
    monkeypatch.setattr(os, "fstatvfs", lambda _: full)
    with pytest.raises(OutputError, match="the disk is full"), open_history(tmp_path / "steps.jsonl"):
        pytest.fail("the step ran")


@pytest.mark.parametrize("place", ["", "nowhere/steps.jsonl", "pipe", "a\0b", "/dev/full"])
def test_what_cannot_be_written_is_known_before_a_step(tmp_path, place):
    os.mkfifo(tmp_path / "pipe")
    path = tmp_path / place
    with pytest.raises(OutputError, match="the history must be a file that can be written"), open_history(path):
        pytest.fail("the step ran")


@pytest.mark.parametrize("place", ["", "nowhere.jsonl", "pipe", "a\0b"])
def test_what_is_no_file_cannot_be_read(tmp_path, place):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(HeadwiseError, match="a history"):
        read_history(tmp_path / place)


def test_of_a_long_history_the_last_whole_lines_are_read(tmp_path, monkeypatch):
    path = tmp_path / "steps.jsonl"
    steps = [replace(STEP, batch=batch) for batch in range(1, 8)]
    keep(path, *steps)
    sizes = [len(line) for line in path.read_bytes().splitlines(keepends=True)]
    for num_bytes, num_read in ((sum(sizes[-3:]), 3), (sum(sizes[-3:]) - 1, 2), (sum(sizes[-3:]) + 1, 3), (1, 0)):
        monkeypatch.setattr(history, "MAX_READ_BYTES", num_bytes)
        assert read_history(path) == (
            tuple(steps[len(steps) - num_read :]),
            ("Of the history the last 0 MiB are read.",),
        )
    monkeypatch.setattr(history, "MAX_READ_BYTES", sum(sizes))
    assert read_history(path) == (tuple(steps), ())


def test_a_file_of_endless_length_is_read_from_its_end(tmp_path):
    path = tmp_path / "steps.jsonl"
    with path.open("wb") as file:
        file.truncate(2**40)
    with path.open("ab") as file:
        file.write(b"\nx\n" + json.dumps(STEP.to_dict()).encode())
    steps, (_, note) = read_history(path)
    assert steps == (STEP,)
    assert note == "Of the history one line is left out: cut short, or not written by headwise."


def test_an_answer_lists_the_last_steps():
    steps = tuple(replace(STEP, batch=batch) for batch in range(1, 107))
    assert list_recent(steps) == (steps[6:], ("Of 106 steps of the history the last 100 are listed.",))
    assert list_recent(steps[:100]) == (steps[:100], ())


def test_errors_are_summed_up_by_device():
    steps = [replace(STEP, measured_peak_bytes=64, predicted_peak_bytes=bytes_) for bytes_ in (66, 60, 67, None)]
    on_gpu = replace(ON_GPU, measured_peak_bytes=64, predicted_peak_bytes=48)
    cpu, gpu = summarise_history([*steps, on_gpu, replace(on_gpu, predicted_peak_bytes=None)])
    assert cpu == TrackedAccuracy(device="CPU", num_steps=4, num_predicted=3, median_error=3 / 64, worst_error=-4 / 64)
    assert gpu == TrackedAccuracy(
        device="NVIDIA A100", num_steps=2, num_predicted=1, median_error=16 / 64, worst_error=-16 / 64
    )


def test_without_a_prediction_there_is_no_error():
    nothing = replace(STEP, predicted_peak_bytes=None)
    empty = replace(STEP, measured_peak_bytes=0)
    (only,) = summarise_history([nothing, empty])
    assert (only.num_steps, only.num_predicted, only.median_error, only.worst_error) == (2, 0, None, None)
    assert summarise_history([]) == ()


def test_reading_a_history_imports_no_torch(tmp_path):
    path = tmp_path / "steps.jsonl"
    keep(path, STEP)
    code = (
        "import sys; from headwise.api.history import read_history\n"
        "read_history(sys.argv[1]); print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code, path], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
    assert Path(path).is_file()


@pytest.mark.parametrize("content", [b"print(1)\n", b"\x00\x01\x02", b"{}\n"])
def test_a_file_that_is_no_history_is_never_written_to(tmp_path, content):
    path = tmp_path / "mine.py"
    path.write_bytes(content)
    with pytest.raises(OutputError, match="holds something else"), open_history(path):
        pass
    assert path.read_bytes() == content
