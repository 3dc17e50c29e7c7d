"""A benchmark as two drawings with logarithmic axes: time and memory of each implementation against the length."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from headwise.api.bench_results import Benchmark, BenchRow
from headwise.report.fit_figures import format_seconds
from headwise.results import format_bytes

SIZE = 1000.0  # of a drawing's own coordinates, both ways; y grows downwards
MARGIN = 60.0  # between the outermost points and the drawing's edges
LEFT = 190.0  # the same on the left, where the words of the other axis stand
MAX_TICKS = 6
LIMIT = "limit"
# pixels of a digit of a length, and of the drawing on the narrowest screen and on a wide one
DIGIT_PIXELS = 7
NARROW_PIXELS, WIDE_PIXELS = 280, 480


@dataclass(frozen=True, kw_only=True)
class Line:
    """The points of one implementation, or of the limit: (x, y) in the drawing, and their values in words."""

    name: str
    points: tuple[tuple[float, float], ...]
    labels: tuple[str, ...]

    @property
    def path(self) -> str:
        """The points joined, as SVG writes it."""
        return "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in self.points)


@dataclass(frozen=True, kw_only=True)
class Tick:
    """A place on an axis with its words. `shown`: on which screens there is room for them."""

    place: float
    words: str
    shown: Literal["always", "wide", "never"] = "always"


@dataclass(frozen=True, kw_only=True)
class Plot:
    """One drawing."""

    title: str
    lines: tuple[Line, ...]
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]


class _Axis:
    """Places of values between the least and the most of them, on a logarithmic scale."""

    def __init__(self, values: Sequence[int | float], *, is_upward: bool) -> None:
        low, high = math.log(min(values)), math.log(max(values))
        if high - low < math.log(2):  # a single value, or nearly so, stands in the middle
            middle = (low + high) / 2
            low, high = middle - math.log(2), middle + math.log(2)
        self.low, self.high = low, high
        self.first, self.last = (SIZE - MARGIN, MARGIN) if is_upward else (LEFT, SIZE - MARGIN)

    def place(self, value: int | float) -> float:
        """Return where a value stands, from 0 to `SIZE`."""
        share = (math.log(value) - self.low) / (self.high - self.low)
        return self.first + (self.last - self.first) * share

    def ticks(self, steps: Sequence[int], base: int) -> list[float]:
        """Return round values inside: the finest of some steps between powers of a base that are not too many."""
        first, last = math.floor(self.low / math.log(base)), math.ceil(self.high / math.log(base))
        margin = 0.5 * MARGIN / abs(self.last - self.first) * (self.high - self.low)

        def inside(multiples: Sequence[int], stride: int) -> list[float]:
            values = [m * float(base) ** power for power in range(first, last + 1, stride) for m in multiples]
            return [value for value in values if self.low - margin <= math.log(value) <= self.high + margin]

        candidates = [inside(steps, 1), *(inside((1,), stride) for stride in range(1, last - first + 2))]
        return next((values for values in candidates if len(values) <= MAX_TICKS), candidates[-1])


def draw_plots(result: Benchmark) -> list[Plot]:
    """Return the drawings of what was measured: time with the limit of the machine, and memory beyond the inputs."""
    rows = [row for row in result.rows if row.seconds is not None]
    plots = [_draw("Time of a call", rows, lambda row: row.seconds, format_seconds, (1, 2, 5), 10, with_limit=True)]
    if any(row.peak_bytes for row in rows):
        title = "Memory beyond the inputs"
        plots.append(_draw(title, rows, lambda row: row.peak_bytes or None, format_bytes, (1, 2), 4))
    return plots


def _draw(
    title: str,
    rows: Sequence[BenchRow],
    value_of: Callable[[BenchRow], int | float | None],
    words_of: Callable[[float], str],
    steps: Sequence[int],
    base: int,
    *,
    with_limit: bool = False,
) -> Plot:
    series: dict[str, list[tuple[int, int | float]]] = {}
    for row in rows:
        value = value_of(row)
        if value is not None:
            series.setdefault(row.impl, []).append((row.seq, value))
    if with_limit:
        series[LIMIT] = sorted({row.seq: row.limit_seconds for row in rows}.items())
    lengths = sorted({seq for points in series.values() for seq, _ in points})
    x_axis = _Axis(lengths, is_upward=False)
    y_axis = _Axis([value for points in series.values() for _, value in points], is_upward=True)
    return Plot(
        title=title,
        lines=tuple(
            Line(
                name=name,
                points=tuple((x_axis.place(seq), y_axis.place(value)) for seq, value in points),
                labels=tuple(f"{name} at {seq:,}: {words_of(value)}" for seq, value in points),
            )
            for name, points in series.items()
        ),
        x_ticks=tuple(_length_ticks(lengths, x_axis)),
        y_ticks=tuple(Tick(place=y_axis.place(value), words=words_of(value)) for value in y_axis.ticks(steps, base)),
    )


def _length_ticks(lengths: Sequence[int], axis: _Axis) -> Iterator[Tick]:
    """Give a tick for every length, with its number where there is room; the longest are first to be named."""
    places = {length: axis.place(length) for length in lengths}
    narrow = _roomy(places, sorted(places, reverse=True), NARROW_PIXELS)
    others = [length for length in sorted(places, reverse=True) if length not in narrow]
    wide = _roomy(places, [*sorted(narrow, reverse=True), *others], WIDE_PIXELS)
    for length, place in places.items():
        shown: Literal["always", "wide", "never"] = (
            "always" if length in narrow else "wide" if length in wide else "never"
        )
        yield Tick(place=place, words=f"{length:,}", shown=shown)


def _roomy(places: dict[int, float], order: Sequence[int], pixels: int) -> set[int]:
    """Return the lengths whose numbers a drawing of so many pixels has room for, those first that come first."""
    taken: list[tuple[float, float]] = []
    named = set()
    for length in order:
        half = (len(f"{length:,}") + 1) * DIGIT_PIXELS / 2
        middle = places[length] / SIZE * pixels
        if all(middle + half <= low or high <= middle - half for low, high in taken):
            taken.append((middle - half, middle + half))
            named.add(length)
    return named
