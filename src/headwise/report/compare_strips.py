"""All seeds of every arm on one line each, with their mean and its interval; and paired differences likewise."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from headwise.experiments.results import ComparisonResult, SeedValues
from headwise.report.compare_axis import Axis, axis_of, tick_words
from headwise.report.compare_figures import (
    UNKNOWN,
    format_value,
    interval_words,
    mean_difference,
    mean_words,
    quantity_words,
)

WIDTH = 100.0  # of a strip's own coordinates
MARGIN = 6.0  # left and right of its axis, so that a dot and a number at an end are whole
SHARES = ("accuracy", "exact", "whole", "macro_f1")  # no number of an axis is above 1


@dataclass(frozen=True, kw_only=True)
class Strip:
    """One line: the dots of its seeds, the mean and the interval, all as places on the axis, and what they say.

    Args:
        name: of the arm.
        dots: one a seed; None where a seed has no value.
        mean, low, high: places; None where they are not known.
        words: the mean as it is written.
        detail: interval and verdict.
        label: all of it in a sentence, for who cannot see it.
    """

    name: str
    dots: tuple[float | None, ...]
    mean: float | None
    low: float | None
    high: float | None
    words: str
    detail: str
    label: str


@dataclass(frozen=True, kw_only=True)
class Strips:
    """Lines on one axis.

    Args:
        title: what the axis is of.
        strips: from top to bottom.
        ticks: places on the axis and their words.
        neutral: where two arms that are alike would stand; None = nowhere.
    """

    title: str
    strips: tuple[Strip, ...]
    ticks: tuple[tuple[float, str], ...]
    neutral: float | None = None


def arm_strips(result: ComparisonResult) -> Strips | None:
    """Return the metric of every arm; None where no run has it."""
    name = result.metric
    rows = [(arm.name, arm.metrics.get(name, SeedValues(values=()))) for arm in result.arms]
    known = [value for _, values in rows for value in (*values.known, values.low, values.high) if value is not None]
    if not known:
        return None
    # the interval of a few seeds may reach far beyond what is possible: the axis ends a little beyond the dots
    axis = _around([value for _, values in rows for value in values.known], known)
    strips = tuple(
        Strip(
            name=arm,
            dots=tuple(None if value is None else axis.place(value) for value in values.values),
            mean=_place(axis, values.mean),
            low=_place(axis, values.low),
            high=_place(axis, values.high),
            words=mean_words(name, values),
            detail=""
            if values.low is None
            else f"[{format_value(name, values.low)}, {format_value(name, values.high)}]",
            label=f"{arm}: {_listed(name, values)}; mean {mean_words(name, values)}",
        )
        for arm, values in rows
    )
    return Strips(
        title=quantity_words(name), strips=strips, ticks=_ticks(axis, most=1.0 if name in SHARES else math.inf)
    )


def difference_strips(result: ComparisonResult) -> Strips | None:
    """Return the paired differences from the first arm; None where there are none."""
    if not result.differences:
        return None
    values = [value for difference in result.differences for value in difference.values]
    bounds = [bound for one in result.differences for bound in (one.low, one.high) if bound is not None]
    axis = _around(values, [*values, *bounds], held=(0.0,))
    strips = tuple(
        Strip(
            name=one.arm,
            dots=tuple(axis.place(value) for value in one.values),
            mean=axis.place(one.mean),
            low=_place(axis, one.low),
            high=_place(axis, one.high),
            words=mean_difference(one),
            detail=f"{interval_words(one)} {one.verdict}",
            label=(
                f"{one.arm} less {one.other}, seed by seed: {', '.join(f'{value:+.3g}' for value in one.values)}; "
                f"mean {mean_difference(one)}, 95 % interval {interval_words(one)}: {one.verdict}"
            ),
        )
        for one in result.differences
    )
    title = f"{quantity_words(result.metric)} less that of {result.arms[0].name}"
    return Strips(title=title, strips=strips, ticks=_ticks(axis, sign=True), neutral=axis.place(0.0))


def _around(dots: Sequence[float], known: Sequence[float], *, held: tuple[float, ...] = ()) -> Axis:
    """Return an axis for dots, and for the bounds of intervals as far as they are near them."""
    ends = (*dots, *held)
    reach = max(ends) - min(ends)
    near = [value for value in known if min(ends) - reach / 2 <= value <= max(ends) + reach / 2]
    return axis_of(near or dots, first=MARGIN, last=WIDTH - MARGIN, held=held)


def _ticks(axis: Axis, *, sign: bool = False, most: float = math.inf) -> tuple[tuple[float, str], ...]:
    values = [value for value in axis.ticks(5) if value <= most]
    return tuple((axis.place(value), words) for value, words in zip(values, tick_words(values, sign=sign), strict=True))


def _place(axis: Axis, value: float | None) -> float | None:
    return None if value is None else axis.place(value)


def _listed(name: str, values: SeedValues) -> str:
    return ", ".join(UNKNOWN if value is None else format_value(name, value) for value in values.values) or "no value"
