"""What comparisons answer with."""

from dataclasses import dataclass, field
from typing import Any, Literal

from headwise.experiments.run_result import Run
from headwise.results import Result

MIN_SEEDS = 5  # below it no claim is made

Verdict = Literal["supported", "contradicted", "not decided", "not enough seeds"]


@dataclass(frozen=True, kw_only=True)
class SeedValues(Result):
    """One number of every seed of an arm.

    Args:
        values: one a seed, in the order of the seeds; None where a run has none, or none that is finite.
        mean: of the values; None unless every seed has one.
        low, high: bounds of the t interval of the mean, 95 %; None for a single seed.
    """

    values: tuple[float | None, ...]
    mean: float | None = None
    low: float | None = None
    high: float | None = None

    @property
    def known(self) -> tuple[float, ...]:
        """Return the values that are there."""
        return tuple(value for value in self.values if value is not None)


@dataclass(frozen=True, kw_only=True)
class PairedDifference(Result):
    """A metric of one arm less that of another, seed by seed: both arms of a seed saw the same data in the same order.

    Args:
        metric: what is compared.
        values: one difference a seed, or one ratio.
        mean: of the values; of ratios the geometric mean.
        low, high: bounds of the t interval of the mean, of ratios of their logarithms; None for a single seed.
        arm, other: whose metric is higher by so much, and than whose.
        kind: "difference", arm less other; "ratio", arm by other.
        confidence: share of such intervals that hold the true mean.
    """

    metric: str
    values: tuple[float, ...]
    mean: float
    low: float | None
    high: float | None
    arm: str = ""
    other: str = ""
    kind: Literal["difference", "ratio"] = "difference"
    confidence: float = 0.95

    @property
    def neutral(self) -> float:
        """Return the value of two arms that are alike: 0, of ratios 1."""
        return 1.0 if self.kind == "ratio" else 0.0

    @property
    def verdict(self) -> str:
        """Return "higher", "lower", "not decided" where the interval holds 0 (a ratio's: 1), or "not enough seeds"."""
        if len(self.values) < MIN_SEEDS or self.low is None or self.high is None:
            return "not enough seeds"
        if self.low > self.neutral:
            return "higher"
        return "lower" if self.high < self.neutral else "not decided"

    @property
    def what(self) -> str:
        """Return what is compared in words."""
        if not self.arm:
            return self.metric
        between = "by" if self.kind == "ratio" else "less"
        return f"{self.metric} of {self.arm} {between} that of {self.other}"

    def to_dict(self) -> dict[str, Any]:
        """As every result, with the number of `seeds` and the `verdict`."""
        return {**super().to_dict(), "seeds": len(self.values), "verdict": self.verdict}

    def to_text(self) -> str:
        """Return mean, interval, seeds and verdict as one line."""
        sign = "" if self.kind == "ratio" else "+"
        interval = "" if self.low is None else f" [{self.low:{sign}.4g}, {self.high:{sign}.4g}]"
        seeds = f"{len(self.values)} {'seed' if len(self.values) == 1 else 'seeds'}"
        return f"{self.what}: {self.mean:{sign}.4g}{interval}, {seeds}: {self.verdict}"


@dataclass(frozen=True, kw_only=True)
class ClaimResult(Result):
    """What became of a claim.

    Args:
        text: the claim as it is made.
        source: by whom.
        verdict: "supported", "contradicted", "not decided" (the interval holds no difference, or a run has no such
            number), or "not enough seeds" (fewer than five).
        difference: that decides it; None where a run has no such number.
        expects: what the claim says of the arm: "higher" or "lower" than the other.
        where: what it was measured on, in words.
    """

    text: str
    source: str
    verdict: Verdict
    difference: PairedDifference | None
    expects: Literal["higher", "lower"]
    where: str = "test"


@dataclass(frozen=True, kw_only=True)
class Published(Result):
    """A figure that others published, to stand beside ours.

    Args:
        text: the figure, with what it is of.
        source: where it stands.
        differs: how their experiment differs from ours.
    """

    text: str
    source: str
    differs: str


@dataclass(frozen=True, kw_only=True)
class LinearBaseline(Result):
    """How a linear model of word counts does on a corpus.

    Args:
        name: what it is called.
        corpus: that it was fitted to.
        max_tokens: that were read of a text, as `Classification` counts them; None = all.
        inverse_penalty: scikit-learn's `C`, the one with the highest validation accuracy of those that were tried.
        num_features: words that are weighed.
        num_parameters: weights and biases.
        seconds: of everything.
        validation: metrics on the validation split.
        test: metrics on the test split: `accuracy`, `macro_f1` (the mean of the classes' F1 scores), `texts`.
        test_by_length: the same by bucket of words; empty where none were asked for.
    """

    name: str = "TF-IDF and logistic regression"
    corpus: str
    max_tokens: int | None
    inverse_penalty: float
    num_features: int
    num_parameters: int
    seconds: float
    validation: dict[str, float]
    test: dict[str, float]
    test_by_length: dict[str, dict[str, float]] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class ArmResult(Result):
    """What came out of one arm of a comparison.

    Args:
        name: of the arm.
        about: its model in a few words.
        learning_rate: that was chosen for it.
        rates_tried: validation loss of each learning rate on the seed that it was chosen on; None = none was a number.
        runs: one a seed.
        num_parameters: of its model.
        forward_flops: of one text, as long as the longest of training (`text_flops`).
        mean: of the comparison's metric over the runs; None where one has none.
        metrics: of the test, by name.
        by_length: metrics by bucket of lengths and name.
        length_counts: texts of each bucket, over all seeds; empty where they were not counted.
        further: metrics by further test and name.
        numbers: of the runs themselves: "steps_per_second", "peak_bytes", "gap", "seconds_to_0.9" and others; beside
            them "predicted_peak_bytes" and "peak_gap", the predicted peak less the measured one by the measured one.
        no_prediction: why a peak is not predicted; None = all are.
    """

    name: str
    about: str = ""
    learning_rate: float
    rates_tried: dict[str, float | None]
    runs: tuple[Run, ...]
    num_parameters: int
    forward_flops: int
    mean: float | None
    metrics: dict[str, SeedValues] = field(default_factory=dict)
    by_length: dict[str, dict[str, SeedValues]] = field(default_factory=dict)
    length_counts: dict[str, int] = field(default_factory=dict)
    further: dict[str, dict[str, SeedValues]] = field(default_factory=dict)
    numbers: dict[str, SeedValues] = field(default_factory=dict)
    no_prediction: str | None = None


@dataclass(frozen=True, kw_only=True)
class ComparisonResult(Result):
    """What came out of a comparison.

    Args:
        name: of the comparison.
        question: that it asks.
        metric: that arms are compared by.
        seeds: of the runs, the same for every arm.
        arms: in the order of the comparison.
        differences: of every other arm from the first, seed by seed; an arm with a run without the metric has none.
        claims: what became of each.
        published: figures of others.
        baseline: of a task that classifies a corpus's texts, the plain rival of all arms, which is no arm itself.
        test_lengths: tokens of the longest text of the training ("training"), of the test ("test") and of each further
            test.
        setup: what all arms share: task, recipe, texts.
        environment: what numbers, times above all, depend on beside that.
        when: the day of the last run, as 2026-03-07.
        folder: where the runs are kept.
        notes: what a reader must know.
    """

    name: str
    question: str = ""
    metric: str
    seeds: tuple[int, ...]
    arms: tuple[ArmResult, ...]
    differences: tuple[PairedDifference, ...]
    claims: tuple[ClaimResult, ...] = ()
    published: tuple[Published, ...] = ()
    baseline: LinearBaseline | None = None
    test_lengths: dict[str, int] = field(default_factory=dict)
    setup: dict[str, Any] = field(default_factory=dict)
    environment: dict[str, Any] = field(default_factory=dict)
    when: str = ""
    folder: str | None = None
    notes: tuple[str, ...] = ()
