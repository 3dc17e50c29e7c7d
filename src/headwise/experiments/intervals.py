"""How sure one is of a mean, and that two arms differ: t intervals of values and of paired differences and ratios."""

import math
from collections.abc import Sequence

from headwise.errors import ConfigError, MissingExtraError
from headwise.experiments.results import PairedDifference, SeedValues

SAME = 2.0**-44  # share of the larger number by which two that are the same may differ, their sums being rounded


def paired_difference(
    first: Sequence[float],
    second: Sequence[float],
    *,
    metric: str,
    arm: str = "",
    other: str = "",
    confidence: float = 0.95,
) -> PairedDifference:
    """Return how much higher a metric of `first` is than that of `second`, seed by seed, with a t interval of the mean.

    With differences d_1, ..., d_n of mean m and standard deviation s (of n - 1), the interval is
    `m +- t * s / sqrt(n)`, t being the quantile (1 + confidence) / 2 of Student's distribution with n - 1 degrees of
    freedom. It is exact where differences are normal. Numbers that only rounding can tell apart are the same: else such
    a difference, alike for all seeds, would be sure.

    Args:
        first, second: one value a seed, in the same order of seeds.
        metric: what they are.
        arm, other: whose they are.
        confidence: share of such intervals that hold the true mean, between 0 and 1.

    Raises:
        ConfigError: there is no value, there are not as many of both, one is not finite, or the confidence is none.
        MissingExtraError: scipy is not installed.

    Source: Student 1908, "The Probable Error of a Mean".
    """
    _check(first, second, metric)
    values = tuple(
        0.0 if math.isclose(one, another, rel_tol=SAME, abs_tol=SAME) else one - another
        for one, another in zip(first, second, strict=True)
    )
    mean, low, high = t_interval(values, confidence=confidence)
    return PairedDifference(
        metric=metric, values=values, mean=mean, low=low, high=high, arm=arm, other=other, confidence=confidence
    )


def paired_ratio(
    first: Sequence[float],
    second: Sequence[float],
    *,
    metric: str,
    arm: str = "",
    other: str = "",
    confidence: float = 0.95,
) -> PairedDifference:
    """Return how many times `second` the values of `first` are, seed by seed: `paired_difference` of the logarithms.

    The mean is geometric, so that the ratio of `second` by `first` is one by it.

    Args:
        first, second, metric, arm, other, confidence: as of `paired_difference`; values above 0.

    Raises:
        ConfigError: as of `paired_difference`, or a value is not above 0.
        MissingExtraError: scipy is not installed.
    """
    _check(first, second, metric)
    if min(*first, *second) <= 0:
        raise ConfigError(f"{metric} must be above 0 for a ratio; got {list(first)} and {list(second)}")
    logs = [math.log(one / another) for one, another in zip(first, second, strict=True)]
    mean, low, high = t_interval(logs, confidence=confidence)
    return PairedDifference(
        metric=metric,
        values=tuple(one / another for one, another in zip(first, second, strict=True)),
        mean=math.exp(mean),
        low=None if low is None else math.exp(low),
        high=None if high is None else math.exp(high),
        arm=arm,
        other=other,
        kind="ratio",
        confidence=confidence,
    )


def seed_values(values: Sequence[int | float | None]) -> SeedValues:
    """Return the values of an arm with their mean and its t interval; one that is not finite counts as missing."""
    kept = tuple(None if value is None or not math.isfinite(value) else float(value) for value in values)
    known = [value for value in kept if value is not None]
    if not known or len(known) < len(kept):
        return SeedValues(values=kept)
    mean, low, high = t_interval(known)
    return SeedValues(values=kept, mean=mean, low=low, high=high)


def t_interval(values: Sequence[float], *, confidence: float = 0.95) -> tuple[float, float | None, float | None]:
    """Return mean, lower and upper bound of finite values (see `paired_difference`); no bounds for a single one."""
    if not 0 < confidence < 1:
        raise ConfigError(f"confidence must be between 0 and 1; got {confidence}")
    count = len(values)
    mean = math.fsum(values) / count
    if count == 1:
        return mean, None, None
    deviation = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (count - 1))
    reach = _quantile((1 + confidence) / 2, count - 1) * deviation / math.sqrt(count)
    return mean, mean - reach, mean + reach


def _check(first: Sequence[float], second: Sequence[float], metric: str) -> None:
    if not first or len(first) != len(second):
        raise ConfigError(
            f"both arms must have a value of each of the same seeds, at least one; got {len(first)} and {len(second)}"
        )
    if not all(map(math.isfinite, (*first, *second))):
        raise ConfigError(f"{metric} must be a finite number of every seed; got {list(first)} and {list(second)}")


def _quantile(probability: float, degrees: int) -> float:
    try:
        from scipy import stats
    except ModuleNotFoundError as error:
        if error.name != "scipy":
            raise
        raise MissingExtraError("scipy", "experiments") from error
    return float(stats.t.ppf(probability, degrees))
