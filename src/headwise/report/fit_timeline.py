"""The memory of a step as a stacked drawing, and the tensors alive at each of its moments."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from headwise.api.fit_results import FitPlan
from headwise.cost.planning.results import Moment
from headwise.report.fit_drawing import spread
from headwise.report.fit_figures import KINDS, format_size, peak_index, shape_words
from headwise.report.tensor_groups import TensorGroup, largest_groups

MAX_COLUMNS = 240
MAX_TENSORS = 10
HEIGHT = 1000
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
    """A part of the step: where it begins and ends, from 0 to 1, and its middle."""

    name: str
    start: float
    end: float

    @property
    def middle(self) -> float:
        """Half way between the two."""
        return (self.start + self.end) / 2


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
        kinds = {key: format_size(getattr(column.moment, key)) for key in KINDS if getattr(column.moment, key)}
        columns.append(
            {"name": column.name, "total": format_size(column.moment.total), "kinds": kinds, "tensors": rows}
        )
    return {"columns": columns, "tensors": list(tensors), "peak": timeline.peak}


def tensor_words(group: TensorGroup) -> tuple[str, ...]:
    """Return the cells of a tensor's row: kind, owner, name, shape, dtype, how many of what size, all."""
    each = f"{group.count:,} × {format_size(group.bytes)}" if group.count > 1 else ""
    total = format_size(group.total_bytes)
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
    phases = []
    start = 0
    for name, run in groupby(moment.moment.split(":")[0] for moment in moments):
        end = start + len(list(run))
        phases.append(Phase(name=name, start=start / len(moments), end=end / len(moments)))
        start = end
    return phases
