"""A comparison pairs arms seed by seed, each at its own learning rate, however many runs there are at once."""

import dataclasses
import json
import math
import runpy
from pathlib import Path

import pytest
import torch

from headwise.errors import ConfigError, TrainingError
from headwise.experiments.claim_tests import ClaimTest
from headwise.experiments.compare import TUNING_SEED, Arm, Comparison, run_comparison
from headwise.experiments.comparison_folder import read_result
from headwise.experiments.engine import Job, LocalEngine, _run_job
from headwise.experiments.models import recurrent_for, transformer_for
from headwise.experiments.recipe import Recipe
from headwise.experiments.recurrent import RecurrentConfig
from headwise.experiments.run import data_seed, run
from headwise.experiments.run_folder import RUN
from headwise.experiments.sequence_tasks import MultiOffsetCopy, Transduction
from headwise.experiments.text_flops import text_flops
from headwise.experiments.training import Training
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


MEASURED = ("seconds", "steps_per_second", "peak_bytes")


def without_times(result):
    """The result without what no two runs share: times, memory, and where and how they were done."""
    return dataclasses.replace(
        result,
        folder=None,
        environment={},
        arms=tuple(
            dataclasses.replace(
                arm,
                runs=tuple(one.without_measurements() for one in arm.runs),
                numbers={name: value for name, value in arm.numbers.items() if not name.startswith(MEASURED)},
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
    assert difference.what == "loss of gru less that of heads"
    assert result.arms[0].mean == pytest.approx(math.fsum(one.test["loss"] for one in result.arms[0].runs) / 5)
    assert read_result(tmp_path / "all") == result  # as it is kept in the folder
    assert result.arms[0].num_parameters == sum(one.numel() for one in build(COMPARISON.arms[0].model).parameters())
    for given, arm in zip(COMPARISON.arms, result.arms, strict=True):
        assert arm.forward_flops == text_flops(given.model, TASK.max_len)


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


def test_a_process_of_a_pool_that_is_told_to_stop_ends_its_run_between_two_steps(tmp_path, monkeypatch):
    class Stop:
        """Set once it was asked three times: before the run, and after each of two steps."""

        asked = 0

        def is_set(self):
            self.asked += 1
            return self.asked > 3

    job = Job(settings=COMPARISON.settings(COMPARISON.arms[0], 0), folder=tmp_path)
    stop = Stop()
    monkeypatch.setattr("headwise.experiments.engine._stop", [stop])
    with pytest.raises(KeyboardInterrupt):
        _run_job(job, torch.get_num_threads(), None)
    assert stop.asked == 4 and not (tmp_path / "result.json").exists()
    with pytest.raises(KeyboardInterrupt):  # what a pool had given out already does not begin
        _run_job(job, torch.get_num_threads(), None)
    assert stop.asked == 5


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
    with pytest.raises(ConfigError, match="no learning rate of heads trained to its end"):
        run_comparison(
            dataclasses.replace(
                comparison,
                recipe=Recipe(steps=5, batch_size=6, clip_norm=None, warmup_steps=0, max_bad_steps=2),
                learning_rates=(1e30,),
            ),
            tmp_path / "rates",
        )


def test_a_run_that_was_stopped_counts_for_nothing_however_good_it_once_was(tmp_path, monkeypatch):
    """It has a best state, and a test of it: to compare that, or to choose its rate, would favour what diverges."""
    take_step = Training.take_step

    def diverge(training):
        if training.recipe.learning_rate == 0.5 and training.step == 3:
            raise TrainingError("the loss went to the sky")
        return take_step(training)

    monkeypatch.setattr(Training, "take_step", diverge)
    recipe = Recipe(steps=5, batch_size=6, learning_rate=1e-3, warmup_steps=0, evaluate_every=1)
    wild = dataclasses.replace(COMPARISON.arms[0], name="wild", recipe=dataclasses.replace(recipe, learning_rate=0.5))
    comparison = dataclasses.replace(
        COMPARISON, recipe=recipe, arms=(COMPARISON.arms[0], wild), learning_rates=(), seeds=(0,), buckets=(3, 9)
    )
    result = run_comparison(comparison, tmp_path / "runs")
    run_of_wild = result.arms[1].runs[0]
    assert run_of_wild.stopped and math.isfinite(run_of_wild.test["loss"])
    assert result.arms[1].mean is None and result.differences == () and result.arms[1].by_length == {}
    assert {"peak_bytes", "clipped_share"} <= set(result.arms[1].numbers)
    assert not {"steps_per_second", "validation_loss_best", "seconds", "gap"} & set(result.arms[1].numbers)
    assert any("count for nothing (seed 0: the loss went" in note for note in result.notes)
    assert not any("no finite metric" in note for note in result.notes)
    of_rates = dataclasses.replace(comparison, arms=COMPARISON.arms, learning_rates=(0.5, 1e-9))
    tried = run_comparison(of_rates, tmp_path / "rates")
    for arm in tried.arms:
        assert arm.rates_tried["0.5"] is None and arm.learning_rate == 1e-9


def test_runs_of_several_environments_are_told_and_the_date_is_that_of_the_last(tmp_path):
    comparison = dataclasses.replace(COMPARISON, learning_rates=(), seeds=(0,))
    first = run_comparison(comparison, tmp_path)
    (one, other) = sorted(tmp_path.glob(f"arm-*/{RUN}"))
    known = json.loads(one.read_text())
    known["environment"] |= {"torch": "2.1.0", "date": "2031-02-03T00:00:00+00:00"}
    one.write_text(json.dumps(known))
    again = run_comparison(comparison, tmp_path)
    assert first.when == json.loads(other.read_text())["environment"]["date"][:10] and again.when == "2031-02-03"
    assert not any("environment" in note for note in first.notes)
    (note,) = [note for note in again.notes if "environment" in note]
    assert note.startswith(f"Runs were done in more than one environment (torch 2.1.0 and {torch.__version__}): times")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"arms": COMPARISON.arms[:1]}, "two arms or more"),
        ({"arms": (COMPARISON.arms[0],) * 2}, "each of another name; got heads, heads"),
        ({"seeds": (1, 1)}, "seeds must be different numbers"),
        ({"seeds": (TUNING_SEED,)}, "seeds must be different numbers"),
        ({"metric": "bleu"}, "metric must be one of loss, accuracy, exact, whole; got 'bleu'"),
        ({"metric": "macro_f1"}, "metric must be one of loss, accuracy, exact, whole; got 'macro_f1'"),
        ({"learning_rates": (0.0,)}, "learning_rates"),
        ({"learning_rates": (1e-3, 1.0000001e-3)}, "learning_rates must differ in their first six digits"),
        ({"buckets": (3, 2)}, "buckets must be lengths, each longer than the one before"),
        ({"buckets": (0, 2)}, "buckets must be between 1 and"),
    ],
)
def test_what_cannot_be_compared_is_refused(change, message):
    with pytest.raises(ConfigError, match=message):
        dataclasses.replace(COMPARISON, **change)


def test_arms_that_only_guess_are_named(tmp_path):
    task = MultiOffsetCopy(vocab_size=5, seq_len=7, offsets=(1,))
    arms = tuple(
        Arm(name=name, model=transformer_for(task, embed_dim=12, num_heads=3), recipe=recipe)
        for name, recipe in (
            ("barely trained", Recipe(steps=1, batch_size=4, learning_rate=1e-9, warmup_steps=0)),
            ("trained", Recipe(steps=80, batch_size=32, learning_rate=0.01, warmup_steps=5)),
        )
    )
    comparison = Comparison(
        name="guess", task=task, arms=arms, recipe=Recipe(steps=2), seeds=(0, 1), num_validation=7, num_test=23
    )
    result = run_comparison(comparison, tmp_path / "both")
    told = [note for note in result.notes if "nothing was learned" in note]
    assert told == [
        "barely trained: nothing was learned. The loss is that of a guess among 5 classes, and says nothing about the "
        "model: train longer, or at another rate."
    ]
    assert result.arms[1].metrics["loss"].known[0] < 0.9 * math.log(5)
    guessing = dataclasses.replace(comparison, arms=(arms[0], dataclasses.replace(arms[0], name="the same")))
    notes = run_comparison(guessing, tmp_path / "none").notes
    assert any(note.startswith("All arms: nothing was learned.") for note in notes)


def test_every_number_of_every_seed_is_kept_by_place_with_counts(tmp_path):
    """Texts of 1 to 9 letters, all lengths alike in probability; a further test of 11 to 13."""
    task = Transduction(min_len=1, max_tokens=9, vocab_size=7)
    longer = Transduction(min_len=11, max_tokens=13, vocab_size=7)
    small = {"embed_dim": 8, "num_heads": 2, "num_layers": 1}
    comparison = Comparison(
        name="by length",
        task=task,
        arms=(
            Arm(name="copies", model=transformer_for(task, **small)),
            Arm(name="gru", model=recurrent_for(task, "gru", embed_dim=8)),
        ),
        recipe=Recipe(steps=2, batch_size=5, warmup_steps=1, evaluate_every=2),
        seeds=(0, 3),
        buckets=(3, 6),
        num_validation=7,
        num_test=29,
        further_tests=(("longer", longer),),
        claims=(ClaimTest(text="a claim", source="us", arm="gru", other="copies", where=">6", minus="<=3"),),
    )
    result = run_comparison(comparison, tmp_path)
    lengths = [
        length
        for seed in comparison.seeds
        for length in task.draw(29, seed=data_seed("test", seed), split="test").lengths.tolist()
    ]
    for arm in result.arms:
        assert arm.length_counts == {
            "<=3": sum(length <= 3 for length in lengths),
            "4-6": sum(3 < length <= 6 for length in lengths),
            ">6": sum(length > 6 for length in lengths),
        }
        assert sum(arm.length_counts.values()) == 2 * 29
        assert arm.metrics["accuracy"].values == tuple(run.test["accuracy"] for run in arm.runs)
        assert arm.by_length[">6"]["whole"].mean == sum(run.test_by_length[">6"]["whole"] for run in arm.runs) / 2
        assert arm.numbers["gap"].values == tuple(run.gap for run in arm.runs)
        assert arm.numbers["peak_bytes"].values == tuple(float(run.peak_bytes) for run in arm.runs)
    copies, gru = result.arms
    assert gru.further["longer"]["loss"].values == tuple(run.further["longer"]["loss"] for run in gru.runs)
    # a table of positions that is not made longer has no row for such texts, and the result says so
    assert copies.further["longer"] == {} and [note for note in result.notes if note.startswith("copies, longer: ")]
    assert result.test_lengths == {"training": task.max_len, "test": task.max_len, "longer": longer.max_len}
    assert [claim.verdict for claim in result.claims] == ["not enough seeds"]
    assert result.environment["runs_at_once"] == 1 and "torch" in result.environment
    assert read_result(tmp_path) == result


def test_a_claim_must_be_about_arms_and_places_that_are_there():
    claim = ClaimTest(text="it is better", source="an article", arm="gru", other="heads")
    dataclasses.replace(COMPARISON, claims=(claim,))
    for change, message in (
        ({"arm": "lstm"}, "one of heads, gru; got 'lstm': it is better"),
        ({"where": ">9"}, "one of test; got '>9'"),
        ({"metric": "bleu"}, "exact, whole; got 'bleu'"),
        ({"quantity": "step_per_second"}, "steps_per_second, .*; got 'step_per_second'"),
        ({"quantity": "seconds_to_0.95"}, "seconds_to_0.9, .*; got 'seconds_to_0.95'"),
    ):
        with pytest.raises(ConfigError, match=message):
            dataclasses.replace(COMPARISON, claims=(dataclasses.replace(claim, **change),))
