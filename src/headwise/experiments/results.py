"""What comparisons answer with."""

from dataclasses import dataclass

from headwise.experiments.run_result import Run
from headwise.results import Result

MIN_SEEDS = 5  # below it no claim is made


@dataclass(frozen=True, kw_only=True)
class PairedDifference(Result):
    """A metric of one arm less that of another, seed by seed: both arms of a seed saw the same data in the same order.

    Args:
        metric: what is compared.
        values: one difference a seed.
        mean: of the values.
        low, high: bounds of the t interval of the mean; None for a single seed.
        confidence: share of such intervals that hold the true mean.
    """

    metric: str
    values: tuple[float, ...]
    mean: float
    low: float | None
    high: float | None
    confidence: float = 0.95

    @property
    def verdict(self) -> str:
        """Return "higher", "lower", "not decided" where the interval holds 0, or "not enough seeds" below five."""
        if len(self.values) < MIN_SEEDS or self.low is None or self.high is None:
            return "not enough seeds"
        if self.low > 0:
            return "higher"
        return "lower" if self.high < 0 else "not decided"

    def to_text(self) -> str:
        """Return mean, interval, seeds and verdict as one line."""
        interval = "" if self.low is None else f" [{self.low:+.4g}, {self.high:+.4g}]"
        seeds = f"{len(self.values)} {'seed' if len(self.values) == 1 else 'seeds'}"
        return f"{self.metric}: {self.mean:+.4g}{interval}, {seeds}: {self.verdict}"


@dataclass(frozen=True, kw_only=True)
class ArmResult(Result):
    """What came out of one arm of a comparison.

    Args:
        name: of the arm.
        learning_rate: that was chosen for it.
        rates_tried: validation loss of each learning rate on the seed that it was chosen on; NaN = none was a number.
        runs: one a seed.
        num_parameters: of its model.
        forward_flops: of one text, dense, matrix products only; None where there is no closed form.
        seconds_per_step: median over the runs.
        mean: of the comparison's metric over the runs; None where one has none.
    """

    name: str
    learning_rate: float
    rates_tried: dict[str, float]
    runs: tuple[Run, ...]
    num_parameters: int
    forward_flops: int | None
    seconds_per_step: float
    mean: float | None


@dataclass(frozen=True, kw_only=True)
class ComparisonResult(Result):
    """What came out of a comparison.

    Args:
        name: of the comparison.
        metric: that arms are compared by.
        seeds: of the runs, the same for every arm.
        arms: in the order of the comparison.
        differences: of every other arm from the first, seed by seed; an arm with a run without the metric has none.
        notes: what a reader must know.
    """

    name: str
    metric: str
    seeds: tuple[int, ...]
    arms: tuple[ArmResult, ...]
    differences: tuple[PairedDifference, ...]
    notes: tuple[str, ...] = ()
