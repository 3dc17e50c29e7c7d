"""A claim is supported or contradicted by its interval alone, on the place and the number that it is about."""

import dataclasses
import runpy
from pathlib import Path

import pytest

from headwise.errors import ConfigError
from headwise.experiments.claim_tests import ClaimTest, decide_claims
from headwise.experiments.intervals import paired_difference, paired_ratio, seed_values
from headwise.experiments.results import ArmResult

RUN = runpy.run_path(str(Path(__file__).parents[1] / "report" / "synthetic_comparison.py"))["make_run"](0, 0.5, 0.0)
LOW = (0.31, 0.29, 0.33, 0.3, 0.32)
HIGH = (0.52, 0.53, 0.51, 0.55, 0.5)
CLAIM = ClaimTest(text="a is better", source="an article", arm="a", other="b")


def arm(name, accuracy, *, long=None, speed=(7.0, 7.1, 6.9, 7.2, 7.0), loss=(1.0,) * 5):
    return ArmResult(
        name=name,
        learning_rate=0.01,
        rates_tried={},
        runs=(RUN,) * len(accuracy),
        num_parameters=1,
        forward_flops=1,
        mean=None,
        metrics={"accuracy": seed_values(accuracy), "loss": seed_values(loss)},
        by_length={} if long is None else {">20": {"accuracy": seed_values(long)}},
        further={"twice": {"accuracy": seed_values(accuracy[::-1])}},
        numbers={"steps_per_second": seed_values(speed), "gap": seed_values((0.1, 0.2, 0.3, 0.4, -0.5))},
    )


def decide(claim, *arms):
    (result,) = decide_claims((claim,), arms, "accuracy")
    return result


@pytest.mark.parametrize(
    ("first", "second", "expects", "verdict"),
    [
        (HIGH, LOW, "higher", "supported"),
        (LOW, HIGH, "higher", "contradicted"),
        (HIGH, LOW, "lower", "contradicted"),
        (LOW, HIGH, "lower", "supported"),
        (HIGH, HIGH[::-1], "higher", "not decided"),
        (HIGH, HIGH, "higher", "not decided"),
        (HIGH[:4], LOW[:4], "higher", "not enough seeds"),
        ((None, *HIGH[1:]), LOW, "higher", "not decided"),
        ((None, *HIGH[1:4]), LOW[:4], "higher", "not enough seeds"),
    ],
)
def test_the_verdict_is_that_of_the_interval(first, second, expects, verdict):
    result = decide(dataclasses.replace(CLAIM, expects=expects), arm("a", first), arm("b", second))
    assert result.verdict == verdict
    if None in first:
        assert result.difference is None
    else:
        assert result.difference == paired_difference(first, second, metric="accuracy", arm="a", other="b")


def test_a_claim_reads_the_place_and_the_metric_that_it_is_about():
    arms = arm("a", HIGH, long=LOW, loss=(2.0,) * 5), arm("b", LOW, long=HIGH)
    assert decide(dataclasses.replace(CLAIM, where=">20"), *arms).verdict == "contradicted"
    assert decide(dataclasses.replace(CLAIM, metric="loss"), *arms).difference.mean == 1.0
    twice = decide(dataclasses.replace(CLAIM, where="twice"), *arms)
    assert twice.difference.values == tuple(one - other for one, other in zip(HIGH[::-1], LOW[::-1], strict=True))


def test_a_claim_about_a_fall_takes_one_place_from_another():
    """a falls from HIGH to LOW, b from LOW to LOW: by so much a falls more, seed by seed."""
    result = decide(
        dataclasses.replace(CLAIM, where=">20", minus="test", expects="lower"),
        arm("a", HIGH, long=LOW),
        arm("b", LOW, long=LOW),
    )
    falls = [low - high for low, high in zip(LOW, HIGH, strict=True)]
    assert result.difference.values == pytest.approx(falls, rel=1e-12)
    assert (result.verdict, result.where) == ("supported", ">20 less test")


def test_speed_is_compared_by_its_ratio_and_a_gap_by_its_difference():
    fast, slow = (14.0, 14.2, 13.8, 14.4, 14.0), (7.0, 7.1, 6.9, 7.2, 7.0)
    arms = arm("a", HIGH, speed=slow), arm("b", HIGH, speed=fast)
    speed = decide(dataclasses.replace(CLAIM, quantity="steps_per_second"), *arms)
    assert speed.difference == paired_ratio(slow, fast, metric="steps_per_second", arm="a", other="b")
    assert speed.difference.mean == pytest.approx(0.5) and speed.verdict == "contradicted"
    gap = decide(dataclasses.replace(CLAIM, quantity="gap"), *arms).difference
    assert gap.kind == "difference" and gap.mean == 0
    assert decide(dataclasses.replace(CLAIM, quantity="seconds_to_0.9"), *arms).verdict == "not decided"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"other": "a"}, "one arm against another; got 'a' twice"),
        ({"source": ""}, "source must not be empty"),
        ({"text": ""}, "text must not be empty"),
        ({"quantity": "gap", "where": "twice"}, "about gap is one about whole runs"),
    ],
)
def test_a_claim_that_says_nothing_is_refused(change, message):
    with pytest.raises(ConfigError, match=message):
        dataclasses.replace(CLAIM, **change)
