"""A comparison pairs arms seed by seed, each at its own learning rate, however many runs there are at once."""

import dataclasses
import math
import runpy
from pathlib import Path

import pytest

from headwise.errors import ConfigError
from headwise.experiments.compare import TUNING_SEED, Arm, Comparison, run_comparison
from headwise.experiments.engine import LocalEngine
from headwise.experiments.recipe import Recipe
from headwise.experiments.recurrent import RecurrentConfig
from headwise.experiments.run import run
from headwise.experiments.sequence_tasks import MultiOffsetCopy
from headwise.nn.build import build

transformer = runpy.run_path(str(Path(__file__).with_name("test_run.py")))["transformer"]
TASK = MultiOffsetCopy(vocab_size=5, seq_len=9, offsets=(1, 3))
RIVAL = RecurrentConfig(cell="gru", vocab_size=5, embed_dim=8, num_outputs=10)
COMPARISON = Comparison(
    name="small",
    task=TASK,
    arms=(Arm(name="heads", model=transformer(TASK, num_heads=2)), Arm(name="gru", model=RIVAL)),
    recipe=Recipe(steps=5, batch_size=6, warmup_steps=2, evaluate_every=5),
    seeds=(0, 1, 2, 3, 4),
    learning_rates=(1e-3, 1e-2),
    metric="loss",
    num_validation=7,
    num_test=11,
)


def without_times(result):
    return dataclasses.replace(
        result,
        arms=tuple(
            dataclasses.replace(
                arm, seconds_per_step=0.0, runs=tuple(dataclasses.replace(one, seconds=0.0) for one in arm.runs)
            )
            for arm in result.arms
        ),
    )


def test_differences_are_those_of_runs_of_the_same_seed(tmp_path):
    result = run_comparison(COMPARISON, tmp_path / "all")
    (difference,) = result.differences
    for number, seed in enumerate(COMPARISON.seeds):
        losses = {}
        for arm, arm_result in zip(COMPARISON.arms, result.arms, strict=True):
            settings = COMPARISON.settings(arm, seed, arm_result.learning_rate)
            losses[arm.name] = run(settings, tmp_path / f"{arm.name}-{seed}").test["loss"]
        assert difference.values[number] == losses["gru"] - losses["heads"]
    assert difference.metric == "loss of gru less that of heads"
    assert result.arms[0].mean == pytest.approx(math.fsum(one.test["loss"] for one in result.arms[0].runs) / 5)
    assert result.arms[0].num_parameters == sum(one.numel() for one in build(COMPARISON.arms[0].model).parameters())
    assert result.arms[0].forward_flops > 0 and result.arms[1].forward_flops is None


def test_each_arm_takes_the_rate_with_its_lowest_validation_loss_on_a_seed_of_its_own(tmp_path):
    result = run_comparison(COMPARISON, tmp_path)
    for arm, arm_result in zip(COMPARISON.arms, result.arms, strict=True):
        losses = {}
        for rate in COMPARISON.learning_rates:
            curve = run(COMPARISON.settings(arm, TUNING_SEED, rate), tmp_path / f"again-{arm.name}-{rate}").curve
            losses[rate] = min(record["validation_loss"] for record in curve)
        assert arm_result.rates_tried == {f"{rate:g}": loss for rate, loss in losses.items()}
        assert arm_result.learning_rate == min(losses, key=losses.get)


def test_numbers_do_not_depend_on_how_many_runs_there_are_at_once_nor_on_a_stop(tmp_path):
    one = run_comparison(COMPARISON, tmp_path / "one")

    def stop(what, done, total):
        if (what, done) == ("runs", 3):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_comparison(COMPARISON, tmp_path / "two", progress=stop)
    told = []
    two = run_comparison(
        COMPARISON, tmp_path / "two", engine=LocalEngine(workers=2), progress=lambda *now: told.append(now)
    )
    assert without_times(two) == without_times(one)
    assert told[-1] == ("runs", 10, 10) and ("learning rates", 4, 4) in told


def test_an_arm_that_never_learned_has_no_difference_and_a_note(tmp_path):
    wild = Arm(
        name="wild",
        model=transformer(TASK, num_heads=1),
        recipe=Recipe(steps=5, batch_size=6, learning_rate=1e30, clip_norm=None, warmup_steps=0, max_bad_steps=2),
    )
    comparison = dataclasses.replace(COMPARISON, arms=(COMPARISON.arms[0], wild), learning_rates=(), seeds=(0,))
    result = run_comparison(comparison, tmp_path)
    assert "2 steps in a row" in result.arms[1].runs[0].stopped
    assert result.arms[1].mean is None and result.differences == ()
    assert "wild" in result.notes[0]
    with pytest.raises(ConfigError, match="no learning rate of heads gave a finite loss"):
        run_comparison(
            dataclasses.replace(
                comparison,
                recipe=Recipe(steps=5, batch_size=6, clip_norm=None, warmup_steps=0, max_bad_steps=2),
                learning_rates=(1e30,),
            ),
            tmp_path / "rates",
        )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"arms": COMPARISON.arms[:1]}, "two arms or more"),
        ({"arms": (COMPARISON.arms[0],) * 2}, "each of another name; got heads, heads"),
        ({"seeds": (1, 1)}, "seeds must be different numbers"),
        ({"seeds": (TUNING_SEED,)}, "seeds must be different numbers"),
        ({"metric": "bleu"}, "metric must be one of loss, accuracy, exact, whole; got 'bleu'"),
        ({"learning_rates": (0.0,)}, "learning_rates"),
    ],
)
def test_what_cannot_be_compared_is_refused(change, message):
    with pytest.raises(ConfigError, match=message):
        dataclasses.replace(COMPARISON, **change)
