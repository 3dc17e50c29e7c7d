"""What the text, the page and the pictures of a comparison say in words: numbers, arms, differences, claims."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from headwise.experiments.results import (
    MIN_SEEDS,
    ArmResult,
    ClaimResult,
    ComparisonResult,
    PairedDifference,
    SeedValues,
)
from headwise.report.figures import counted
from headwise.report.fit_figures import format_seconds
from headwise.report.headlines import Tone
from headwise.results import format_bytes, format_count

QUANTITIES = {
    "loss": "loss",
    "accuracy": "accuracy",
    "exact": "places all right",
    "whole": "texts all right",
    "macro_f1": "macro F1",
    "steps_per_second": "steps a second",
    "peak_bytes": "memory of a step",
    "predicted_peak_bytes": "predicted memory of a step",
    "peak_gap": "prediction less measurement",
    "gap": "loss gap",
    "seconds": "time of training",
    "train_loss_end": "training loss at the end",
    "validation_loss_end": "validation loss at the end",
    "validation_loss_best": "best validation loss",
    "clipped_share": "share of clipped steps",
}
SHORT = {
    "peak_bytes": "memory",
    "predicted_peak_bytes": "predicted",
    "peak_gap": "off by",
    "seconds": "time",
    "steps_per_second": "steps/s",
}
MEANINGS = {
    "loss": "cross-entropy of an answer in nats; lower is better",
    "accuracy": "share of answers that are right",
    "exact": "share of places all of whose answers are right",
    "whole": "share of texts all of whose answers are right",
    "macro_f1": "mean over classes of the harmonic mean of precision and recall",
}
TONES: dict[str, Tone] = {
    "supported": "good",
    "contradicted": "bad",
    "not decided": "warn",
    "not enough seeds": "plain",
}
UNKNOWN = "–"
MEMORY = ("peak_bytes", "predicted_peak_bytes", "peak_gap")  # of a step: measured, predicted, one less the other


def quantity_words(name: str) -> str:
    """Say what a metric or a number of the runs is called."""
    if name.startswith("seconds_to_"):
        return f"time to accuracy {name.removeprefix('seconds_to_')}"
    return QUANTITIES.get(name, name.replace("_", " "))


def short_words(name: str) -> str:
    """Say what a number of the runs is called at the head of a column."""
    if name.startswith("seconds_to_"):
        return f"to {name.removeprefix('seconds_to_')}"
    return SHORT.get(name, quantity_words(name))


def format_value(name: str, value: int | float | None) -> str:
    """Write a metric or a number of the runs: 0.987, 24.0 MiB, +0.02 %, 12 s; – where it is not known."""
    if value is None:
        return UNKNOWN
    if name.endswith("peak_bytes"):
        return format_bytes(value)
    if name == "peak_gap":
        return f"{round(100 * value, 2) + 0.0:+.2f} %"  # no -0.00
    if name.startswith("seconds"):
        return format_seconds(value)
    return f"{value:.3g}" if name == "steps_per_second" else _decimals(value)


def format_difference(difference: PairedDifference, value: int | float | None) -> str:
    """Write a mean or a bound of a difference, with its sign; a ratio without."""
    if value is None:
        return UNKNOWN
    if difference.kind == "ratio":
        return _ratio(value)
    if difference.metric.endswith("peak_bytes") or difference.metric.startswith("seconds"):
        sign = "-" if value < 0 else "+"
        return sign + format_value(difference.metric, abs(value))
    return _decimals(value, sign=True)


def _ratio(value: float) -> str:
    """Write a ratio with three decimals, and next to 1 with as many as tell it from 1: 0.829, 0.99986."""
    if not 0.01 <= value < 10:
        return f"{value:.3g}"
    off = abs(value - 1)
    return f"{value:.3f}" if off == 0 or off >= 0.0005 else f"{value:.{1 - math.floor(math.log10(off))}f}"


def mean_difference(difference: PairedDifference) -> str:
    """Write the mean of a difference: +0.031; of a ratio: 0.83 ×."""
    times = " ×" if difference.kind == "ratio" else ""
    return f"{format_difference(difference, difference.mean)}{times}"


def interval_words(difference: PairedDifference) -> str:
    """Write the bounds of a difference: [+0.02, +0.05]."""
    if difference.low is None or difference.high is None:
        return UNKNOWN
    return f"[{format_difference(difference, difference.low)}, {format_difference(difference, difference.high)}]"


def range_words(name: str, values: SeedValues | None) -> str:
    """Write the least and the most of all seeds, and one number where both are written alike."""
    if values is None or not values.known:
        return UNKNOWN
    low, high = (format_value(name, bound(values.known)) for bound in (min, max))
    return low if low == high else f"{low} to {high}"


def mean_words(name: str, values: SeedValues | None) -> str:
    """Write the mean of all seeds."""
    return UNKNOWN if values is None else format_value(name, values.mean)


def difference_words(difference: PairedDifference, where: str = "test") -> str:
    """Say a difference with its interval, its seeds and, where that is not the whole test, what it was measured on."""
    between = "by" if difference.kind == "ratio" else "less"
    place = "" if where == "test" else f" on {where}"
    interval = "" if difference.low is None else f" {interval_words(difference)}"
    if len(difference.values) > 1 and len(set(difference.values)) == 1:
        interval = " in every seed alike"
    return (
        f"{quantity_words(difference.metric)}{place}: {difference.arm} {between} {difference.other} "
        f"{mean_difference(difference)}{interval}, {counted(len(difference.values), 'seed')}"
    )


def claim_reason(claim: ClaimResult) -> str:
    """Say what decides a claim, or why nothing does."""
    if claim.difference is None:
        return f"a run has no such number on {claim.where}" if claim.where != "test" else "a run has no such number"
    reason = difference_words(claim.difference, claim.where)
    if claim.verdict == "not decided":
        return f"{reason}; the interval holds {'1' if claim.difference.kind == 'ratio' else '0'}"
    return f"{reason}; {MIN_SEEDS} are needed" if claim.verdict == "not enough seeds" else reason


def comparison_facts(result: ComparisonResult) -> list[str]:
    """Return what was compared, a few words each."""
    facts = [
        quantity_words(result.metric),
        counted(len(result.arms), "arm"),
        counted(len(result.seeds), "seed"),
        *task_facts(result.setup),
    ]
    rates = result.setup.get("learning_rates") or ()
    if rates:
        facts.append(f"best of {counted(len(rates), 'learning rate')} each")
    return [*facts, result.when] if result.when else facts


def task_facts(setup: Mapping[str, Any]) -> list[str]:
    """Return the task and the training in a few words each."""
    facts = []
    task = setup.get("task")
    if isinstance(task, Mapping) and task:
        kind = next(iter(task))
        facts.append(kind_words(kind))
    recipe = fields_of(setup.get("recipe"))
    if "steps" in recipe and "batch_size" in recipe:
        facts.append(f"{counted(recipe['steps'], 'step')} of {counted(recipe['batch_size'], 'text')}")
    return facts


def kind_words(kind: str) -> str:
    """Write the name of a class as words: MultiOffsetCopy as multi offset copy."""
    return "".join(f" {sign.lower()}" if sign.isupper() else sign for sign in kind).strip()


def arm_cells(result: ComparisonResult, arm: ArmResult) -> list[str]:
    """Return what the table of arms says of one: mean, range, parameters, FLOPs, steps a second, learning rate."""
    values = arm.metrics.get(result.metric)
    return [
        mean_words(result.metric, values),
        range_words(result.metric, values),
        format_count(arm.num_parameters),
        format_count(arm.forward_flops),
        mean_words("steps_per_second", arm.numbers.get("steps_per_second")),
        f"{arm.learning_rate:g}",
    ]


def baseline_value(result: ComparisonResult, place: str = "test") -> str:
    """Write the metric of the linear baseline on the test, or on a bucket of lengths."""
    if result.baseline is None:
        return UNKNOWN
    metrics = result.baseline.test if place == "test" else result.baseline.test_by_length.get(place, {})
    return format_value(result.metric, metrics.get(result.metric))


def baseline_words(result: ComparisonResult) -> list[str]:
    """Say in a sentence or two what the linear baseline reaches, and whether the best arm loses to it."""
    baseline = result.baseline
    if baseline is None:
        return []
    metrics = ", ".join(
        f"{quantity_words(name)} {format_value(name, baseline.test[name])}"
        for name in ("accuracy", "macro_f1")
        if name in baseline.test
    )
    said = [f"{baseline.name} is no arm but the plain rival of all: {metrics}, in {format_seconds(baseline.seconds)}."]
    metric = result.metric if result.metric in baseline.test else "accuracy"
    means = {arm.name: arm.metrics[metric].mean for arm in result.arms if metric in arm.metrics}
    known = {name: mean for name, mean in means.items() if mean is not None}
    if known and metric in baseline.test:
        best = max(known, key=lambda name: known[name])
        if known[best] < baseline.test[metric]:
            own, plain = format_value(metric, known[best]), format_value(metric, baseline.test[metric])
            said.append(f"The best arm, {best}, loses to it: {quantity_words(metric)} {own} against {plain}.")
    return said


def run_numbers(arms: Sequence[ArmResult]) -> list[str]:
    """Return the names of the numbers of runs that a table shows, where some arm has them."""
    wanted = ["gap", *MEMORY, "seconds"]
    wanted += sorted({name for arm in arms for name in arm.numbers if name.startswith("seconds_to_")})
    return [name for name in wanted if any(name in arm.numbers for arm in arms)]


def length_buckets(arms: Sequence[ArmResult]) -> list[str]:
    """Return the buckets of lengths in their order, the shortest first."""
    named = [name for arm in arms for name in (*arm.length_counts, *arm.by_length)]
    return sorted(dict.fromkeys(named), key=_bucket_start)


def _bucket_start(name: str) -> float:
    """Return where a bucket begins: "<=10" at 0, "11-20" at 11, ">40" after 40."""
    if name.startswith("<="):
        return 0.0
    digits = name.removeprefix(">").split("-")[0]
    return float(digits) + 0.5 * name.startswith(">") if digits.isdigit() else float("inf")


def fields_of(described: Any) -> Mapping[str, Any]:
    """Return the fields of what is described as its kind and its fields."""
    if isinstance(described, Mapping) and len(described) == 1:
        (inner,) = described.values()
        return inner if isinstance(inner, Mapping) else described
    return described if isinstance(described, Mapping) else {}


def _decimals(value: int | float, *, sign: bool = False) -> str:
    """Write with three decimals, a small number with two digits, a large one with four."""
    size = abs(value)
    precision = ".3f" if size == 0 or 0.01 <= size < 100 else ".2g" if size < 0.01 else ".4g"
    return f"{value:{'+' if sign else ''}{precision}}"
