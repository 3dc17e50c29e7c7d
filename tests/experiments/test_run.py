"""A run is the same for the same seed, whether or not it was killed, and its test is of the best state."""

import dataclasses
import json
import math
import os
import signal
import subprocess
import sys
import time

import pytest
import torch

import headwise
from headwise.config.model import ModelConfig
from headwise.errors import OutputError
from headwise.experiments.recipe import Recipe
from headwise.experiments.recurrent import RecurrentConfig
from headwise.experiments.run import RunSettings, data_seed, evaluate, make_model, run
from headwise.experiments.run_folder import METRICS, STATE
from headwise.experiments.sequence_tasks import MultiOffsetCopy, Transduction

RECIPE = Recipe(steps=11, batch_size=6, learning_rate=5e-3, warmup_steps=3, evaluate_every=4)


def transformer(task, *, num_heads, width=12, dropout_p=0.0):
    """Return one causal block with learned positions, as of the research's pilot."""
    block = headwise.BlockConfig(
        attention=headwise.AttentionConfig(
            embed_dim=width, num_heads=num_heads, mask=headwise.Causal(), projection_bias=True, dropout_p=dropout_p
        ),
        feed_forward=headwise.FeedForwardConfig(embed_dim=width, hidden_dim=4 * width, bias=True),
    )
    return ModelConfig(
        name="pilot",
        model_type="headwise",
        kind="decoder",
        embed_dim=width,
        vocab_size=task.vocab_size,
        max_positions=task.max_len,
        position_table_size=task.max_len,
        blocks=(block,),
        final_norm=True,
        head=headwise.OutputHead(
            kind="language_model", num_outputs=task.num_answers * task.num_classes, bias=True, tied=False
        ),
    )


TASK = MultiOffsetCopy(vocab_size=5, seq_len=9, offsets=(1, 3))
SETTINGS = RunSettings(
    task=TASK, model=transformer(TASK, num_heads=3, dropout_p=0.2), recipe=RECIPE, num_validation=13, num_test=17
)


def without_time(result):
    return dataclasses.replace(result, seconds=0.0)


@pytest.mark.parametrize("num_heads", [1, 8])
def test_the_pilot_has_as_many_parameters_with_one_head_and_with_eight(num_heads):
    task = MultiOffsetCopy()
    model = make_model(transformer(task, num_heads=num_heads, width=64))
    assert sum(one.numel() for one in model.parameters()) == 60_448


def test_a_run_depends_on_its_seed_alone(tmp_path):
    torch.manual_seed(7)
    first = run(SETTINGS, tmp_path / "a")
    torch.manual_seed(8)
    second = run(SETTINGS, tmp_path / "b")
    assert without_time(first) == without_time(second)
    other = run(dataclasses.replace(SETTINGS, seed=1), tmp_path / "c")
    assert other.curve[0]["train_loss"] != first.curve[0]["train_loss"]
    assert [record["step"] for record in first.curve] == [4, 8, 11]
    assert run(SETTINGS, tmp_path / "a") == first  # done: read, not run again


def test_arms_of_one_seed_see_the_same_batches():
    drawn = {split: data_seed(split, 3, 5) for split in ("train", "validation", "test")}
    assert len(set(drawn.values())) == 3
    assert data_seed("train", 3, 5) == drawn["train"] and data_seed("train", 3, 6) != drawn["train"]


def test_a_run_that_was_killed_goes_on_to_the_same_numbers(tmp_path):
    straight = run(SETTINGS, tmp_path / "straight")

    def stop(done, total):
        if done == 6:  # after the state of step 4, which is what it goes on from
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(SETTINGS, tmp_path / "stopped", progress=stop)
    seen = []
    again = run(SETTINGS, tmp_path / "stopped", progress=lambda done, total: seen.append((done, total)))
    assert seen == [(step, 11) for step in range(5, 12)]
    assert without_time(again) == without_time(straight)


def test_a_process_killed_at_a_random_moment_goes_on_to_the_same_numbers(tmp_path):
    script = (
        "import sys, torch; torch.set_num_threads(1); sys.path.insert(0, sys.argv[1]);"
        "from test_run import SETTINGS, run; print('ready', flush=True); run(SETTINGS, sys.argv[2])"
    )
    place = tmp_path / "killed"
    for wait in (0.02, 0.07):
        process = subprocess.Popen(
            [sys.executable, "-c", script, os.path.dirname(__file__), str(place)],  # noqa: PTH120
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdout.readline() == "ready\n"
        time.sleep(wait)
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()
    assert without_time(run(SETTINGS, place)) == without_time(run(SETTINGS, tmp_path / "straight"))


def test_the_state_that_is_tested_is_the_one_with_the_lowest_validation_loss(tmp_path, monkeypatch):
    """With a rate that drives the model apart after its first look, the first look's state is the one."""
    recipe = dataclasses.replace(RECIPE, steps=12, learning_rate=3.0, warmup_steps=8, clip_norm=None)
    settings = dataclasses.replace(SETTINGS, recipe=recipe, model=transformer(TASK, num_heads=2))
    result = run(settings, tmp_path)
    losses = {record["step"]: record["validation_loss"] for record in result.curve}
    assert result.best_step == min(losses, key=losses.get)
    assert losses[12] > losses[result.best_step]
    module = make_model(settings.model)
    recorded = settings.task.draw(17, seed=data_seed("test", 0))
    from headwise.experiments.run_folder import RunFolder

    best, _ = RunFolder(tmp_path, settings.to_dict()).load_best()
    module.load_state_dict({name.removeprefix("module."): tensor for name, tensor in best.items()})
    assert evaluate(module, recorded, TASK) == result.test


def test_lengths_are_told_apart_and_longer_texts_may_be_tested(tmp_path):
    task = Transduction(change="reverse", min_len=1, max_tokens=3, vocab_size=9)
    longer = dataclasses.replace(task, max_tokens=5)
    model = RecurrentConfig(cell="gru", vocab_size=9, embed_dim=7, num_outputs=9, attends=True)
    settings = RunSettings(
        task=task, model=model, recipe=RECIPE, num_validation=5, num_test=61, test_task=longer, buckets=(2, 4)
    )
    result = run(settings, tmp_path)
    assert set(result.test_by_length) == {"<=2", "3-4", ">4"}
    lengths = longer.draw(61, seed=data_seed("test", 0)).lengths
    # an answer a token and one for the end: the mean over buckets, each with its answers
    shares = {"<=2": lengths <= 2, "3-4": (lengths > 2) & (lengths <= 4), ">4": lengths > 4}
    answers = {name: int((lengths[which] + 1).sum()) for name, which in shares.items()}
    mean = sum(answers[name] * result.test_by_length[name]["loss"] for name in answers) / sum(answers.values())
    assert mean == pytest.approx(result.test["loss"], rel=1e-5)


def test_settings_that_differ_in_the_kind_of_one_part_alone_are_others(tmp_path):
    """A mask without numbers differs from another in its name only; so does a position."""
    described = []
    for mask in (headwise.Causal(), headwise.Full()):
        for position in (None, headwise.Rotary(), headwise.ALiBi()):
            attention = headwise.AttentionConfig(embed_dim=12, num_heads=3, mask=mask, position=position)
            block = dataclasses.replace(SETTINGS.model.blocks[0], attention=attention)
            model = dataclasses.replace(SETTINGS.model, blocks=(block,))
            described.append(dataclasses.replace(SETTINGS, model=model).to_dict())
    assert all(one != other for number, one in enumerate(described) for other in described[:number])
    assert json.loads(json.dumps(described)) == described


def test_the_callers_random_numbers_go_on_as_if_nothing_had_run(tmp_path):
    torch.manual_seed(3)
    expected = torch.rand(5)
    torch.manual_seed(3)
    run(SETTINGS, tmp_path)
    assert torch.equal(torch.rand(5), expected)


def test_a_stopped_run_counts_the_seconds_since_its_last_look(tmp_path):
    recipe = dataclasses.replace(RECIPE, learning_rate=1e30, warmup_steps=0, clip_norm=None, max_bad_steps=2)
    result = run(dataclasses.replace(SETTINGS, recipe=recipe), tmp_path)
    assert result.stopped is not None and result.curve == () and result.seconds > 0


def test_a_run_writes_what_it_did_and_refuses_the_folder_of_another(tmp_path):
    result = run(SETTINGS, tmp_path)
    written = json.loads((tmp_path / "run.json").read_text())
    assert written["settings"]["task"] == {"MultiOffsetCopy": {"vocab_size": 5, "seq_len": 9, "offsets": [1, 3]}}
    assert written["settings"]["model"]["ModelConfig"]["embed_dim"] == 12
    assert json.loads((tmp_path / METRICS).read_text().splitlines()[-1])["step"] == 11
    assert (tmp_path / STATE).exists()
    assert result.to_dict()["test"]["accuracy"] == result.test["accuracy"]
    assert 0 <= result.clipped_share <= 1 and math.isfinite(result.test["loss"])
    with pytest.raises(OutputError, match="other settings"):
        run(dataclasses.replace(SETTINGS, seed=5), tmp_path)
