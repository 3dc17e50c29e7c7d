"""Drawings in characters: need against capacity, memory over the step, the frontier; in ASCII where it must be."""

import math
from collections.abc import Iterator, Sequence
from itertools import accumulate, groupby, pairwise

from rich.console import Console, ConsoleOptions
from rich.text import Text

from headwise.api.fit_results import FitPlan
from headwise.cost.planning.results import FrontierPoint, Moment
from headwise.report.fit_figures import (
    Part,
    beside_tensors,
    beside_words,
    need_high_bytes,
    parts_of,
    peak_index,
)
from headwise.report.text import safe_text
from headwise.results import format_bytes

# what a part is drawn with: (block, ASCII letter, colour); told apart without colours too
GLYPHS = {
    "parameter": ("█", "P", "blue"),
    "gradient": ("▓", "G", "cyan"),
    "optimizer": ("▒", "O", "magenta"),
    "kv_cache": ("▙", "K", "green"),
    "input": ("▖", "i", "white"),
    "saved": ("▚", "S", "yellow"),
    "temporary": ("░", "T", "red"),
    "reserved": ("╱", "/", "bright_black"),
    "beside": ("·", ".", "bright_black"),
}
LEVELS = ("▁▂▃▄▅▆▇█", "._-=+*%#")
MAX_COLUMNS = 72
_LABEL_WIDTH = len("needs  ")


class NeedBar:
    """What a step needs at its peak by kind, and what the device holds, on one scale."""

    def __init__(self, plan: FitPlan) -> None:
        self.plan = plan
        self.parts = [*parts_of(plan.timeline[peak_index(plan.timeline)])] if plan.timeline else []
        self.beside = beside_tensors(plan)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        need, capacity = need_high_bytes(self.plan), self.plan.capacity_bytes
        sizes = [format_bytes(need), format_bytes(capacity)]
        width = max(10, options.max_width - _LABEL_WIDTH - max(map(len, sizes)) - 2)
        whole = max(need, capacity, 1)
        drawn = [*self.parts, *(Part(key=part.key, label=part.label, bytes=part.high) for part in self.beside)]
        line = Text("needs  ")
        for part, cells in zip(drawn, _share_cells([part.bytes for part in drawn], whole, width), strict=True):
            line.append(_glyph(part.key, options) * cells, style=GLYPHS[part.key][2])
        yield _end_with(line, sizes[0], options)
        held = ("=" if options.ascii_only else "━") * max(1, round(capacity / whole * width))
        yield _end_with(Text(f"holds  {held}"), sizes[1], options)
        yield from self._legend(options)

    def _legend(self, options: ConsoleOptions) -> Iterator[Text]:
        words = [(part.key, f"{part.label} {format_bytes(part.bytes)}") for part in self.parts]
        words += [(part.key, f"{part.label} {beside_words(part)}") for part in self.beside]
        line = Text()
        for key, label in words:
            if line and line.cell_len + len(label) + 4 > options.max_width:  # a glyph stays with its words
                yield line
                line = Text()
            line.append("  " if line else "").append(_glyph(key, options), style=GLYPHS[key][2]).append(f" {label}")
        yield line


class Sparkline:
    """The bytes at every moment of a step from nothing to the peak, and the phases of the step under them."""

    def __init__(self, timeline: Sequence[Moment], capacity_bytes: int) -> None:
        self.timeline = timeline
        self.capacity_bytes = capacity_bytes

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        width = max(10, min(MAX_COLUMNS, options.max_width))
        columns = spread(len(self.timeline), width)
        totals = [max(self.timeline[index].total for index in column) for column in columns]
        levels = LEVELS[1 if options.ascii_only else 0]
        largest = max(*totals, 1)
        line = Text()
        for total in totals:
            level = levels[min(len(levels) - 1, total * len(levels) // largest)]
            line.append(level, style="red" if total > self.capacity_bytes else "green")
        yield line
        yield Text(self._phases(columns), style="dim")
        place = totals.index(max(totals))
        peak = f"peak {format_bytes(largest)}"
        yield Text(f"{' ' * place}^ {peak}" if place + len(peak) + 2 <= width else f"{peak} ^".rjust(place + 1))

    def _phases(self, columns: Sequence[range]) -> str:
        """Name each phase where it begins, cut to the columns that it has."""
        names = [self.timeline[column[0]].moment.split(":")[0] for column in columns]
        runs = [(name, len(list(run))) for name, run in groupby(names)]
        return "".join(safe_text(f"|{name}").plain[:length].ljust(length) for name, length in runs)


def spread(num_items: int, num_columns: int) -> list[range]:
    """Spread items over columns in order: several in one column, or one in several that are alike."""
    if num_items >= num_columns:
        edges = [num_items * column // num_columns for column in range(num_columns + 1)]
        return [range(edges[column], edges[column + 1]) for column in range(num_columns)]
    repeats = num_columns // num_items
    return [range(item, item + 1) for item in range(num_items) for _ in range(repeats)]


class FrontierBars:
    """For each batch a bar to the largest length that fits; each doubling of the length is as wide as the next."""

    def __init__(self, frontier: Sequence[FrontierPoint]) -> None:
        self.frontier = frontier

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        labels = [f"batch {point.batch:,}" for point in self.frontier]
        ends = [_frontier_words(point) for point in self.frontier]
        indent = max(map(len, labels), default=0) + 2
        width = max(4, min(MAX_COLUMNS, options.max_width) - indent - max(map(len, ends), default=0))
        known = [math.log2(point.largest_seq) for point in self.frontier if point.largest_seq]
        nothing = min(known, default=0) - 1  # so that the shortest bar can be seen too
        scale = width / max(1.0, max(known, default=0) - nothing)
        for point, label, end in zip(self.frontier, labels, ends, strict=True):
            cells = max(1, round((math.log2(point.largest_seq) - nothing) * scale)) if point.largest_seq else 0
            bar = Text(label.rjust(indent - 2) + "  ").append(
                ("=" if options.ascii_only else "━") * cells, style="green"
            )
            yield bar.append(end)


def _frontier_words(point: FrontierPoint) -> str:
    if not point.largest_seq:
        return "not even one token"
    return f" {point.largest_seq:,}{' or more' if point.is_limit else ''}"


def _glyph(key: str, options: ConsoleOptions) -> str:
    return GLYPHS[key][1 if options.ascii_only else 0]


def _share_cells(sizes: Sequence[int], whole: int, width: int) -> list[int]:
    """Share out a bar's cells so that each edge is the nearest to its own share: parts never add up wrong."""
    edges = [0, *(round(size / whole * width) for size in accumulate(sizes))]
    return [after - before for before, after in pairwise(edges)]


def _end_with(line: Text, size: str, options: ConsoleOptions) -> Text:
    line.append(size.rjust(options.max_width - line.cell_len))
    return line
