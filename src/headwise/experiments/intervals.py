"""How sure one is that two arms differ: t intervals of paired differences."""

import math
from collections.abc import Sequence

from headwise.errors import ConfigError, MissingExtraError
from headwise.experiments.results import PairedDifference


def paired_difference(
    first: Sequence[float], second: Sequence[float], *, metric: str, confidence: float = 0.95
) -> PairedDifference:
    """Return how much higher a metric of `first` is than that of `second`, seed by seed, with a t interval of the mean.

    With differences d_1, ..., d_n of mean m and standard deviation s (of n - 1), the interval is
    `m +- t * s / sqrt(n)`, t being the quantile (1 + confidence) / 2 of Student's distribution with n - 1 degrees of
    freedom. It is exact where differences are normal.

    Args:
        first, second: one value a seed, in the same order of seeds.
        metric: what they are.
        confidence: share of such intervals that hold the true mean, between 0 and 1.

    Raises:
        ConfigError: there is no value, there are not as many of both, one is not finite, or the confidence is none.
        MissingExtraError: scipy is not installed.

    Source: Student 1908, "The Probable Error of a Mean".
    """
    if not first or len(first) != len(second):
        raise ConfigError(
            f"both arms must have a value of each of the same seeds, at least one; got {len(first)} and {len(second)}"
        )
    if not 0 < confidence < 1:
        raise ConfigError(f"confidence must be between 0 and 1; got {confidence}")
    values = tuple(one - other for one, other in zip(first, second, strict=True))
    if not all(map(math.isfinite, values)):
        raise ConfigError(f"{metric} must be a finite number of every seed; got {list(first)} and {list(second)}")
    count = len(values)
    mean = math.fsum(values) / count
    if count == 1:
        return PairedDifference(metric=metric, values=values, mean=mean, low=None, high=None, confidence=confidence)
    deviation = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (count - 1))
    reach = _quantile((1 + confidence) / 2, count - 1) * deviation / math.sqrt(count)
    return PairedDifference(
        metric=metric, values=values, mean=mean, low=mean - reach, high=mean + reach, confidence=confidence
    )


def _quantile(probability: float, degrees: int) -> float:
    try:
        from scipy import stats
    except ModuleNotFoundError as error:
        if error.name != "scipy":
            raise
        raise MissingExtraError("scipy", "experiments") from error
    return float(stats.t.ppf(probability, degrees))
