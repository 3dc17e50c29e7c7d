"""Intervals of paired differences are scipy's, hold the true mean as often as they say, and claim nothing too soon."""

import math

import numpy as np
import pytest
from scipy import stats

from headwise.errors import ConfigError
from headwise.experiments.intervals import paired_difference, paired_ratio, seed_values

FIRST = (0.71, 0.69, 0.74, 0.7, 0.73)
SECOND = (0.64, 0.66, 0.65, 0.6, 0.69)


@pytest.mark.parametrize("confidence", [0.8, 0.95])
def test_the_interval_is_the_one_of_scipys_paired_test(confidence):
    found = paired_difference(FIRST, SECOND, metric="accuracy", confidence=confidence)
    expected = stats.ttest_rel(FIRST, SECOND).confidence_interval(confidence)
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high), rel=1e-12)
    assert found.mean == pytest.approx(np.mean(np.subtract(FIRST, SECOND)), rel=1e-12)


def test_a_hand_computed_interval():
    """Differences 1, 2, 3, 4, 5: mean 3, standard deviation sqrt(2.5), t with 4 degrees of freedom 2.776445105."""
    found = paired_difference((2.0, 4.0, 6.0, 8.0, 10.0), (1.0, 2.0, 3.0, 4.0, 5.0), metric="m")
    reach = 2.776445105 * math.sqrt(2.5 / 5)
    assert (found.mean, found.low, found.high) == pytest.approx((3, 3 - reach, 3 + reach), rel=1e-9)


def test_95_percent_of_intervals_hold_the_true_mean():
    rng = np.random.default_rng(0)
    true, samples = 0.3, 2000
    held = 0
    for _ in range(samples):
        first = rng.normal(1 + true, 0.5, 5)
        found = paired_difference(first.tolist(), [1.0] * 5, metric="m")
        held += found.low <= true <= found.high
    # a share of 2000 draws at 0.95 has a standard deviation of 0.0049: four of them
    assert 0.93 < held / samples < 0.97


def test_a_claim_needs_five_seeds_and_an_interval_that_does_not_touch_zero():
    assert paired_difference(FIRST, SECOND, metric="m").verdict == "higher"
    assert paired_difference(SECOND, FIRST, metric="m").verdict == "lower"
    assert paired_difference(FIRST, FIRST[::-1], metric="m").verdict == "not decided"
    assert paired_difference((1.0,) * 5, (1.0,) * 5, metric="m").verdict == "not decided"
    assert paired_difference(FIRST[:4], SECOND[:4], metric="m").verdict == "not enough seeds"
    one = paired_difference(FIRST[:1], SECOND[:1], metric="accuracy")
    assert one.verdict == "not enough seeds" and one.low is None
    assert str(one) == "accuracy: +0.07, 1 seed: not enough seeds"


def test_a_ratio_is_the_difference_of_logarithms_and_turns_round():
    found = paired_ratio(FIRST, SECOND, metric="steps_per_second", arm="a", other="b")
    expected = stats.ttest_rel(np.log(FIRST), np.log(SECOND)).confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx((math.exp(expected.low), math.exp(expected.high)), rel=1e-12)
    assert found.mean == pytest.approx(stats.gmean(np.divide(FIRST, SECOND)), rel=1e-12)
    assert found.verdict == "higher" and "steps_per_second of a by that of b: 1.1" in str(found)
    turned = paired_ratio(SECOND, FIRST, metric="steps_per_second")
    assert (turned.mean * found.mean, turned.low * found.high) == pytest.approx((1, 1), rel=1e-12)
    assert turned.verdict == "lower"
    assert paired_ratio((2.0,) * 5, (2.0,) * 5, metric="m").verdict == "not decided"
    with pytest.raises(ConfigError, match="m must be above 0 for a ratio"):
        paired_ratio((1.0, 0.0), (1.0, 1.0), metric="m")


def test_numbers_that_only_rounding_tells_apart_are_the_same():
    """0.1 + 0.2 is not 0.3 in binary: five seeds of it would be a sure difference."""
    found = paired_difference((0.1 + 0.2,) * 5, (0.3,) * 5, metric="m")
    assert found.values == (0.0,) * 5 and found.verdict == "not decided"
    assert paired_difference((0.3 + 1e-9,) * 5, (0.3,) * 5, metric="m").verdict == "higher"


def test_the_mean_of_an_arm_has_scipys_interval_and_needs_every_seed():
    found = seed_values(FIRST)
    expected = stats.t.interval(0.95, 4, np.mean(FIRST), stats.sem(FIRST))
    assert (found.low, found.high) == pytest.approx(expected, rel=1e-12)
    assert found.mean == pytest.approx(np.mean(FIRST), rel=1e-12)
    for missing in (None, math.nan, math.inf):
        lost = seed_values((1.0, missing))
        assert lost.values == (1.0, None) and lost.known == (1.0,) and lost.mean is None
    assert seed_values((1,)).mean == 1.0 and seed_values((1,)).low is None


@pytest.mark.parametrize(
    ("first", "second", "confidence", "message"),
    [
        ((), (), 0.95, "at least one; got 0 and 0"),
        ((1.0, 2.0), (1.0,), 0.95, "got 2 and 1"),
        ((1.0, math.nan), (1.0, 2.0), 0.95, "loss must be a finite number of every seed"),
        ((1.0,), (1.0,), 1.0, "confidence must be between 0 and 1; got 1.0"),
    ],
)
def test_what_cannot_be_paired_is_refused(first, second, confidence, message):
    with pytest.raises(ConfigError, match=message):
        paired_difference(first, second, metric="loss", confidence=confidence)
