"""The memory of a step as a stacked drawing, and the tensors alive at each of its moments."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, groupby
from typing import Any, Literal

from headwise.api.fit_results import FitPlan
from headwise.cost.planning.results import Moment
from headwise.report.fit_drawing import spread
from headwise.report.fit_figures import KINDS, peak_index, shape_words
from headwise.report.tensor_groups import TensorGroup, largest_groups
from headwise.results import format_bytes

MAX_COLUMNS = 240
MAX_TENSORS = 10
HEIGHT = 1000
# pixels of a letter of a phase's name, and of the drawing on the narrowest screen and on the narrowest wide one
LETTER_PIXELS = 8
NARROW_PIXELS, WIDE_PIXELS = 280, 720
# beyond so many times the peak a capacity is told in words: drawn to its scale, the step would be a thin line
MAX_SCALE = 1.6


@dataclass(frozen=True, kw_only=True)
class Layer:
    """The area of one kind in the drawing, on top of those before it."""

    key: str
    label: str
    path: str


@dataclass(frozen=True, kw_only=True)
class Phase:
    """A part of the step: where it begins and ends, from 0 to 1. `shown`: on which screens there is room for its name.

    The name of the last phase ends where the step ends, the others stand in the middle of theirs.
    """

    name: str
    start: float
    end: float
    is_last: bool
    shown: Literal["always", "wide", "never"] = "never"

    def name_pixels(self, width: int) -> tuple[float, float]:
        """Return where the name begins and ends in a drawing of so many pixels."""
        length = float(len(self.name) * LETTER_PIXELS)
        first = width - length if self.is_last else (self.start + self.end) / 2 * width - length / 2
        return first, first + length


@dataclass(frozen=True, kw_only=True)
class Column:
    """One column of the drawing: the fullest of its moments, its bytes by kind, and the largest tensors alive then."""

    name: str
    moment: Moment
    tensors: tuple[TensorGroup, ...]


@dataclass(frozen=True, kw_only=True)
class Timeline:
    """A drawing `num_columns` wide and `HEIGHT` high; y grows downwards. `limit`: the capacity's y, None: above it."""

    columns: tuple[Column, ...]
    layers: tuple[Layer, ...]
    phases: tuple[Phase, ...]
    top_bytes: int
    limit: float | None
    peak: int

    @property
    def num_columns(self) -> int:
        """Number of columns."""
        return len(self.columns)


def draw_timeline(plan: FitPlan) -> Timeline | None:
    """Return the drawing of a step, of many moments the fullest in each of `MAX_COLUMNS` columns; None without any."""
    timeline = plan.timeline
    if not timeline:
        return None
    spans = spread(len(timeline), min(len(timeline), MAX_COLUMNS))
    chosen = [max(span, key=lambda index: timeline[index].total) for span in spans]
    tensors = largest_groups(plan.ledger, chosen, limit=MAX_TENSORS)
    largest = max(timeline[peak_index(timeline)].total, 1)
    is_drawn = plan.capacity_bytes <= MAX_SCALE * largest
    top = max(largest, plan.capacity_bytes) if is_drawn else largest
    moments = [timeline[index] for index in chosen]
    totals = [moment.total for moment in moments]
    return Timeline(
        columns=tuple(
            Column(name=moment.moment, moment=moment, tensors=tensors[index])
            for index, moment in zip(chosen, moments, strict=True)
        ),
        layers=tuple(_layers(moments, top)),
        phases=tuple(_phases(moments)),
        top_bytes=top,
        limit=_height(plan.capacity_bytes, top) if is_drawn else None,
        peak=totals.index(max(totals)),
    )


def timeline_data(timeline: Timeline) -> dict[str, Any]:
    """Return what the page's script reads: of every column its name, total, bytes by kind and tensors, in words.

    A tensor stands once in `tensors`, however many columns show it.
    """
    tensors: dict[tuple[str, ...], int] = {}
    columns = []
    for column in timeline.columns:
        rows = [tensors.setdefault(tensor_words(group), len(tensors)) for group in column.tensors]
        kinds = {key: format_bytes(getattr(column.moment, key)) for key in KINDS if getattr(column.moment, key)}
        columns.append(
            {"name": column.name, "total": format_bytes(column.moment.total), "kinds": kinds, "tensors": rows}
        )
    return {"columns": columns, "tensors": list(tensors), "peak": timeline.peak}


def tensor_words(group: TensorGroup) -> tuple[str, ...]:
    """Return the cells of a tensor's row: kind, owner, name, shape, dtype, how many of what size, all."""
    each = f"{group.count:,} × {format_bytes(group.bytes)}" if group.count > 1 else ""
    total = format_bytes(group.total_bytes)
    return (group.kind, group.owner, group.name, shape_words(group.shape), group.dtype, each, total)


def _layers(moments: Sequence[Moment], top: int) -> list[Layer]:
    below = [0] * len(moments)
    layers = []
    for key, label in KINDS.items():
        above = [base + getattr(moment, key) for base, moment in zip(below, moments, strict=True)]
        if above != below:
            layers.append(Layer(key=key, label=label, path=_area(below, above, top)))
        below = above
    return layers


def _area(below: Sequence[int], above: Sequence[int], top: int) -> str:
    """Write the outline of the steps of two lines: to the right along the upper one, back along the lower one."""
    forth = [f"V{_height(num_bytes, top)}H{column + 1}" for column, num_bytes in enumerate(above)]
    back = [f"V{_height(num_bytes, top)}H{column}" for column, num_bytes in reversed(list(enumerate(below)))]
    return f"M0 {HEIGHT}{''.join(forth)}{''.join(back)}Z"


def _height(num_bytes: int, top: int) -> float:
    return round(HEIGHT - HEIGHT * num_bytes / top, 1)


def _phases(moments: Sequence[Moment]) -> list[Phase]:
    runs = [(name, len(list(run))) for name, run in groupby(moment.moment.split(":")[0] for moment in moments)]
    ends = list(accumulate(length for _, length in runs))
    phases = [
        Phase(
            name=name,
            start=(end - length) / len(moments),
            end=end / len(moments),
            is_last=end == len(moments) > length,
        )
        for (name, length), end in zip(runs, ends, strict=True)
    ]
    wide, narrow = _named(phases, WIDE_PIXELS), _named(phases, NARROW_PIXELS)
    return [
        replace(phase, shown="always" if place in narrow else "wide" if place in wide else "never")
        for place, phase in enumerate(phases)
    ]


def _named(phases: Sequence[Phase], width: int) -> set[int]:
    """Return the phases whose names a drawing of so many pixels has room for: the longest phases before the others."""
    named: dict[int, tuple[float, float]] = {}
    for place in sorted(range(len(phases)), key=lambda place: phases[place].start - phases[place].end):
        first, last = phases[place].name_pixels(width)
        clear = all(last + LETTER_PIXELS <= low or high + LETTER_PIXELS <= first for low, high in named.values())
        if clear and first >= 0 and last <= width:
            named[place] = (first, last)
    return set(named)
