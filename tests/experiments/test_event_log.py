"""TensorBoard shows what the lines of a run say, each step once, whatever stopped the run."""

import dataclasses
import math
import runpy
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from headwise.errors import OutputError
from headwise.experiments import event_log
from headwise.experiments.event_log import EventLog
from headwise.experiments.run import run
from headwise.experiments.run_folder import EVENTS, METRICS, RunFolder

SETTINGS = runpy.run_path(str(Path(__file__).with_name("test_run.py")))["SETTINGS"]


def shown(folder):
    """Return what TensorBoard reads of a folder: the steps and values of each number."""
    reader = EventAccumulator(str(folder))
    reader.Reload()
    tags = reader.Tags()["scalars"]
    return {tag: [(event.step, event.value) for event in reader.Scalars(tag)] for tag in tags}


def test_tensorboard_shows_the_lines_of_a_run_that_was_stopped_and_went_on(tmp_path, monkeypatch):
    recipe = dataclasses.replace(SETTINGS.recipe, evaluate_every=2)
    settings = dataclasses.replace(SETTINGS, recipe=recipe)
    keep, live = RunFolder.save, []

    def killed(folder, tensors, numbers):
        live.append(shown(tmp_path / EVENTS)["train/loss"][-1][0])  # as somebody who looks on would see it
        if numbers["step"] == 6:  # its line stands, its state does not
            raise KeyboardInterrupt
        keep(folder, tensors, numbers)

    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "save", killed)
        with pytest.raises(KeyboardInterrupt):
            run(settings, tmp_path)
    assert live == [step for step, _ in shown(tmp_path / EVENTS)["train/loss"]] == [2, 4, 6]
    (only,) = (tmp_path / EVENTS).iterdir()
    only.write_bytes(only.read_bytes()[:-5])  # as a kill may leave it
    result = run(settings, tmp_path)
    found = shown(tmp_path / EVENTS)
    names = {"train/loss": "train_loss", "validation/exact": "validation_exact", "optimizer/num_bad": "num_bad"}
    for tag, name in names.items():
        assert [step for step, _ in found[tag]] == [2, 4, 6, 8, 10, 11]
        # TensorBoard keeps float32
        assert [value for _, value in found[tag]] == pytest.approx([line[name] for line in result.curve], rel=2**-24)
    assert len(found) == len(result.curve[0]) - 1  # all but the step itself


def test_a_loss_that_is_no_number_is_shown_as_such(tmp_path):
    log = EventLog(tmp_path)
    log.begin([{"step": 1, "train_loss": None}])
    log.append({"step": 2, "train_loss": math.nan})
    log.close()
    assert all(math.isnan(value) for _, value in shown(tmp_path)["train/loss"])


def test_without_tensorboard_nothing_is_shown_and_all_else_is_as_it_was(tmp_path, monkeypatch):
    monkeypatch.setattr(event_log, "find_spec", lambda name: None)
    run(SETTINGS, tmp_path)
    assert not (tmp_path / EVENTS).exists() and (tmp_path / METRICS).exists()


def test_a_folder_that_cannot_be_written_is_told_in_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="cannot write") as told:
        EventLog(tmp_path / "file" / EVENTS).begin([])
    assert "\n" not in str(told.value)
