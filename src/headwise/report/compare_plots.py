"""The drawings of a comparison: curves of training, the metric by length, and by further test."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from headwise.experiments.results import ArmResult, ComparisonResult, SeedValues
from headwise.report.bench_plot import LEFT, MARGIN, SIZE, Tick
from headwise.report.compare_axis import Axis, axis_of, tick_words
from headwise.report.compare_figures import format_value, length_buckets, quantity_words

MAX_TICKS = 6
DIGIT_PIXELS, NARROW_PIXELS = 7, 280  # of a sign of an axis, and of the drawing on the narrowest screen
FAR = 3.0  # times the first losses: what lies beyond stands at the edge of the drawing
TEST = "test"


@dataclass(frozen=True, kw_only=True)
class Point:
    """A place in a drawing, the ends of the interval above and below it, and what it says."""

    x: float
    y: float
    low: float | None
    high: float | None
    label: str


@dataclass(frozen=True, kw_only=True)
class Series:
    """One arm in a drawing: its mean, and thin lines of the seeds."""

    name: str
    points: tuple[Point, ...]
    seeds: tuple[str, ...] = ()

    @property
    def path(self) -> str:
        """The points joined, as SVG writes it."""
        return path_of([(point.x, point.y) for point in self.points])


@dataclass(frozen=True, kw_only=True)
class Drawing:
    """One drawing with what its axes say.

    Args:
        title: of the drawing.
        about: what the horizontal axis is.
        series: one an arm.
        x_ticks, y_ticks: places with their words.
        has_marks: whether points are drawn, with their intervals; not of long curves.
    """

    title: str
    about: str
    series: tuple[Series, ...]
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]
    has_marks: bool


def path_of(points: Sequence[tuple[float, float]]) -> str:
    """Return points joined by straight lines, as SVG writes it."""
    return "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points) if points else ""


def curve_drawings(result: ComparisonResult) -> list[Drawing]:
    """Return the losses of training and of validation against the steps, and the metric on the validation set."""
    names = {"train_loss": "Training loss", "validation_loss": "Validation loss"}
    if result.metric != "loss":
        names[f"validation_{result.metric}"] = f"Validation: {quantity_words(result.metric)}"
    drawn = (_curves(result, name, title) for name, title in names.items())
    return [drawing for drawing in drawn if drawing is not None]


def length_drawing(result: ComparisonResult) -> Drawing | None:
    """Return the metric by bucket of lengths; None where there is none."""
    buckets = length_buckets(result.arms)
    metric = metric_of(result.metric, [arm.by_length for arm in result.arms])
    if len(buckets) < 2 or metric is None:
        return None
    return _places(
        result,
        title=f"{quantity_words(metric).capitalize()} by length",
        about="length of the text",
        metric=metric,
        each=[arm.by_length for arm in result.arms],
        names=buckets,
        lengths={},
    )


def further_drawing(result: ComparisonResult) -> Drawing | None:
    """Return the metric on the test and on each further test, against their lengths where no two are as long."""
    names = list(dict.fromkeys(name for arm in result.arms for name in arm.further))
    metric = metric_of(result.metric, [arm.further for arm in result.arms])
    if not names or metric is None:
        return None
    lengths = {name: result.test_lengths[name] for name in (TEST, *names) if name in result.test_lengths}
    # where one further test is as long as the test, it stands for it
    shown = next((some for some in ([TEST, *names], names) if _differ(some, lengths)), None)
    if shown is None:
        shown, lengths = [TEST, *names], {}
    else:
        shown = sorted(shown, key=lambda name: lengths[name])
    return _places(
        result,
        title=f"{quantity_words(metric).capitalize()} on further tests",
        about="tokens of the longest text" if lengths else "test",
        metric=metric,
        each=[{TEST: arm.metrics, **arm.further} for arm in result.arms],
        names=shown,
        lengths=lengths,
    )


def _differ(names: Sequence[str], lengths: Mapping[str, int]) -> bool:
    """Return whether every name has a length of its own."""
    return all(name in lengths for name in names) and len({lengths[name] for name in names}) == len(names)


def metric_of(wanted: str, each: Sequence[Mapping[str, Mapping[str, SeedValues]]]) -> str | None:
    """Return the metric if some place has it, else the first that is there."""
    names = list(dict.fromkeys(name for places in each for metrics in places.values() for name in metrics))
    return wanted if wanted in names else next(iter(names), None)


def _curves(result: ComparisonResult, name: str, title: str) -> Drawing | None:
    curves = {arm.name: _curve_of(arm, name) for arm in result.arms}
    points = [(step, value) for seeds in curves.values() for seed in seeds for step, value in seed.items()]
    if not points:
        return None
    firsts = [next(iter(seed.values())) for seeds in curves.values() for seed in seeds if seed]
    limit = FAR * abs(statistics.median(firsts)) if "loss" in name else math.inf
    y_axis = axis_of([min(value, limit) for _, value in points], first=SIZE - MARGIN, last=MARGIN)
    steps = [step for step, _ in points]
    x_axis = Axis(low=min(0, *steps), high=max(*steps, 1), first=LEFT, last=SIZE - MARGIN)
    series = []
    for arm, seeds in curves.items():
        shared = sorted(set.intersection(*(set(seed) for seed in seeds))) if seeds else []
        means = [(step, statistics.fmean(seed[step] for seed in seeds)) for step in shared]
        series.append(
            Series(
                name=arm,
                points=tuple(
                    Point(
                        x=x_axis.place(step), y=y_axis.place(value), low=None, high=None, label=f"{step}: {value:.4g}"
                    )
                    for step, value in means
                ),
                seeds=tuple(
                    path_of([(x_axis.place(step), y_axis.place(value)) for step, value in seed.items()])
                    for seed in seeds
                    if len(seed) > 1
                ),
            )
        )
    return Drawing(
        title=title,
        about="steps",
        series=tuple(series),
        x_ticks=_number_ticks(x_axis, MAX_TICKS - 1),
        y_ticks=_number_ticks(y_axis, MAX_TICKS),
        has_marks=len(set(steps)) == 1,
    )


def _curve_of(arm: ArmResult, name: str) -> list[dict[int, float]]:
    """Return one number of every look, by step, of each run."""
    return [
        {
            record["step"]: record[name]
            for record in run.curve
            if isinstance(record.get(name), int | float) and math.isfinite(record[name])
        }
        for run in arm.runs
    ]


def _places(
    result: ComparisonResult,
    *,
    title: str,
    about: str,
    metric: str,
    each: Sequence[Mapping[str, Mapping[str, SeedValues]]],
    names: Sequence[str],
    lengths: Mapping[str, int],
) -> Drawing:
    """Draw means with intervals: names side by side, or where lengths are given at their logarithms."""
    values = [places[name][metric] for places in each for name in names if metric in places.get(name, {})]
    dots = [value for one in values for value in (*one.known, one.mean) if value is not None] or [0.0]
    y_axis = axis_of(dots, first=SIZE - MARGIN, last=MARGIN)
    spots = _spots(names, lengths)
    series = []
    for arm, places in zip(result.arms, each, strict=True):
        points = []
        for name in names:
            found = places.get(name, {}).get(metric)
            if found is None or found.mean is None:
                continue
            points.append(
                Point(
                    x=spots[name],
                    y=y_axis.place(found.mean),
                    low=None if found.low is None else y_axis.place(found.low),
                    high=None if found.high is None else y_axis.place(found.high),
                    label=f"{arm.name}, {name}: {format_value(metric, found.mean)}",
                )
            )
        series.append(Series(name=arm.name, points=tuple(points)))
    words = {name: f"{lengths[name]:,}" if lengths else name for name in names}
    room = (NARROW_PIXELS - DIGIT_PIXELS * 8) / max(1, len(names))
    return Drawing(
        title=title,
        about=about,
        series=tuple(series),
        x_ticks=tuple(
            Tick(
                place=spots[name],
                words=words[name],
                # on a narrow screen, where not all have room, every second one
                shown="always" if number % 2 == 0 or max(map(len, words.values())) * DIGIT_PIXELS < room else "wide",
            )
            for number, name in enumerate(names)
        ),
        y_ticks=_number_ticks(y_axis, MAX_TICKS),
        has_marks=True,
    )


def _spots(names: Sequence[str], lengths: Mapping[str, int]) -> dict[str, float]:
    """Return where each name stands across: alike far apart, or at the logarithm of its length."""
    first, last = LEFT + MARGIN, SIZE - 2 * MARGIN
    if lengths and min(lengths[name] for name in names) < max(lengths[name] for name in names):
        low, high = min(lengths[name] for name in names), max(lengths[name] for name in names)
        axis = Axis(low=low, high=high, first=first, last=last, is_logarithmic=True)
        return {name: axis.place(lengths[name]) for name in names}
    return {name: first + (last - first) * (number + 0.5) / len(names) for number, name in enumerate(names)}


def _number_ticks(axis: Axis, most: int) -> tuple[Tick, ...]:
    values = axis.ticks(most)
    words = [f"{value:,.0f}" for value in values] if axis.low >= 0 and axis.high >= 1000 else tick_words(values)
    return tuple(Tick(place=axis.place(value), words=word) for value, word in zip(values, words, strict=True))
