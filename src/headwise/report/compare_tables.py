"""The cells of the tables on a comparison's page, and how it was made in words."""

import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from headwise.experiments.results import ArmResult, ClaimResult, ComparisonResult, LinearBaseline, PairedDifference
from headwise.report.compare_figures import (
    TONES,
    UNKNOWN,
    claim_reason,
    fields_of,
    format_value,
    interval_words,
    kind_words,
    length_buckets,
    mean_difference,
    mean_words,
    quantity_words,
)
from headwise.report.compare_plots import metric_of
from headwise.report.figures import counted
from headwise.report.headlines import Headline
from headwise.results import format_count, format_flops

COUNT_HEADINGS = ("Parameters", "FLOPs of a text", "Steps/s", "Rate")
MAX_HEADLINES = 4  # of differences, where there are no claims

PlaceTable = tuple[str, str, list[str], list[tuple[str, list[str]]], dict[str, str]]


def headlines_of(result: ComparisonResult, *, named: bool) -> list[Headline]:
    """Return what stands on top: a verdict a claim, or without claims the first differences.

    Args:
        result: of one comparison.
        named: whether each says which comparison it is of.
    """
    part = f"{result.name}: " if named else ""
    if result.claims:
        return [_claim_headline(claim, part) for claim in result.claims]
    return [_difference_headline(difference, part) for difference in result.differences[:MAX_HEADLINES]]


def count_cells(arm: ArmResult) -> list[str]:
    """Return parameters, FLOPs, steps a second and learning rate of an arm."""
    return [
        format_count(arm.num_parameters),
        format_flops(arm.forward_flops),
        mean_words("steps_per_second", arm.numbers.get("steps_per_second")),
        f"{arm.learning_rate:g}",
    ]


def baseline_cells(baseline: LinearBaseline) -> list[str]:
    """Return what the linear baseline has of `count_cells`: parameters."""
    return [format_count(baseline.num_parameters), *(UNKNOWN,) * (len(COUNT_HEADINGS) - 1)]


def seed_cells(result: ComparisonResult, arm: ArmResult) -> list[str]:
    """Return the metric of every seed of an arm."""
    found = arm.metrics.get(result.metric)
    values = (None,) * len(result.seeds) if found is None else found.values
    return [format_value(result.metric, value) for value in values]


def rates_of(result: ComparisonResult) -> list[str]:
    """Return the learning rates that were tried, the lowest first."""
    return sorted(dict.fromkeys(rate for arm in result.arms for rate in arm.rates_tried), key=float)


def is_chosen(arm: ArmResult, rate: str) -> bool:
    """Return whether an arm's runs had that learning rate."""
    return rate in arm.rates_tried and f"{arm.learning_rate:g}" == rate


def place_tables(result: ComparisonResult) -> Iterator[PlaceTable]:
    """Give tables of the metric by bucket and by further test: title, heading, columns, rows, what columns hold."""
    arms = result.arms
    buckets = length_buckets(arms)
    tests = list(dict.fromkeys(name for arm in arms for name in arm.further))
    by_bucket = (
        [arm.by_length for arm in arms],
        buckets,
        {name: f"{n:,} texts" for name, n in arms[0].length_counts.items()},
    )
    by_test = [arm.further for arm in arms], tests, {name: f"{n:,} tokens" for name, n in result.test_lengths.items()}
    baseline = result.baseline
    for where, (each, names, counts) in (("by length", by_bucket), ("on further tests", by_test)):
        metric = metric_of(result.metric, each)
        if names and metric is not None:
            rows = [
                (arm.name, [mean_words(metric, places.get(name, {}).get(metric)) for name in names])
                for arm, places in zip(arms, each, strict=True)
            ]
            if baseline is not None and baseline.test_by_length and names is buckets:
                own = [format_value(metric, baseline.test_by_length.get(name, {}).get(metric)) for name in names]
                rows.append((f"(no arm) {baseline.name}", own))
            yield f"{quantity_words(metric).capitalize()} {where}", "Arm", names, rows, counts


def setup_rows(setup: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the numbers of the task, the recipe and the texts, each with its name."""
    rows: list[tuple[str, str]] = []
    for part in ("task", "test_task", "recipe"):
        found = setup.get(part)
        if not found:
            continue
        kind = kind_words(next(iter(found))) if isinstance(found, Mapping) and part != "recipe" else ""
        own = ("learning_rate",) if setup.get("learning_rates") else ()  # each arm has its own then
        words = ", ".join(f"{name} {_plain(value)}" for name, value in fields_of(found).items() if name not in own)
        rows.append((part.replace("_", " "), f"{kind}: {words}" if kind and words else kind or words))
    texts = [f"{setup[name]:,} {words}" for name, words in TEXTS.items() if isinstance(setup.get(name), int)]
    return [*rows, ("texts", ", ".join(texts))] if texts else rows


TEXTS = {"num_validation": "to choose the best state on", "num_test": "to test it on, once"}


def environment_words(result: ComparisonResult) -> str:
    """Say what the runs depended on beside the settings."""
    kept = {name: value for name, value in result.environment.items() if value not in ("", None) and name != "date"}
    words = [f"{name.replace('_', ' ')} {_plain(value)}" for name, value in kept.items()]
    return ", ".join([*words, *([result.when] if result.when else [])]) or "not known"


def run_command(result: ComparisonResult, name: str) -> str:
    """Return the command that runs it once more, from the beginning, with as many seeds."""
    return f"headwise compare {shlex.quote(name)} --seeds {len(result.seeds)} --folder NEW"


def again_command(result: ComparisonResult) -> str:
    """Return the command that draws what the folder holds, without training."""
    return f"headwise compare --folder {shlex.quote(result.folder or 'FOLDER')} --out page.html"


def _claim_headline(claim: ClaimResult, part: str) -> Headline:
    return Headline(
        label=f"{part}{claim.text}",
        value=claim.verdict.capitalize(),
        detail=claim_reason(claim),
        tone=TONES[claim.verdict],
    )


def _difference_headline(difference: PairedDifference, part: str) -> Headline:
    return Headline(
        label=f"{part}{difference.arm} less {difference.other}",
        value=mean_difference(difference),
        detail=f"{quantity_words(difference.metric)}, 95 % interval {interval_words(difference)}, "
        f"{counted(len(difference.values), 'seed')}: {difference.verdict}",
    )


def _plain(value: Any) -> str:
    if isinstance(value, Mapping):
        return "; ".join(f"{name} {_plain(each)}" for name, each in value.items())
    if isinstance(value, list | tuple):
        return " ".join(_plain(each) for each in value)
    if value is None:
        return "none"
    return f"{value:g}" if isinstance(value, float) else str(value)
