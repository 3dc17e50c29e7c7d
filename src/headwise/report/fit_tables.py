"""Tables of a fit and of an explained message for the terminal: tensors, changes, a sweep, runs beside predictions."""

from collections.abc import Sequence

from rich.console import JustifyMethod, RenderableType
from rich.table import Table
from rich.text import Text

from headwise.api.fit_results import FitVerification, TrackedAccuracy, TrackedStep
from headwise.cost.planning.results import Change, Fits, Sweep, SweepPoint
from headwise.report.fit_blocks import change_blocks, plain_reason, reason_words, shorten_reason
from headwise.report.fit_drawing import FrontierBars
from headwise.report.fit_figures import (
    accuracy_words,
    compact_shape,
    format_extra,
    frees_words,
    gap_words,
    thin,
    travel_words,
)
from headwise.report.headlines import VERDICT_TONES
from headwise.report.tensor_groups import TensorGroup
from headwise.report.text import STYLES, safe_text
from headwise.results import BYTES_PER_GIB, format_bytes

MAX_CHANGES = {"ranked": 5, "sharded": 1, "reasons": 2}
MAX_HISTORY = 5
LEGEND = "Each change alone; FLOPs are those of a step for each token; --json lists all."
MAX_REASON_LETTERS = 160
MAX_CELL_GIB = 10_000
MAX_SWEEP_COLUMNS, MAX_SWEEP_ROWS = 7, 8
MARKS: dict[Fits, str] = {"yes": "✓", "tight": "~", "no": "✗"}


def tensors_table(groups: Sequence[TensorGroup], *, when: str = "then") -> Table:
    """Return a line for each group of tensors: how many of what size, whose, shape and dtype."""
    table = figures_table(("bytes", "right"), (safe_text(f"alive {when}").plain, "left"), ("shape", "left"), gap=1)
    for group in groups:
        count = f"{group.count:,} × " if group.count > 1 else ""
        table.add_row(
            f"{count}{format_bytes(group.bytes)}",
            safe_text(_name(group)),
            safe_text(compact_shape(group.shape, group.dtype)),
        )
    return table


def _name(group: TensorGroup) -> str:
    """Name tensors by owner and name; "layer 0 attention" and "attention weights" share a word, which is told once."""
    owner, _, part = group.owner.rpartition(" ")
    return f"{owner}: {group.name}" if owner and group.name.startswith(f"{part} ") else f"{group.owner}: {group.name}"


def changes_parts(changes: Sequence[Change]) -> list[RenderableType]:
    """Return the changes as blocks: the same result, altered, spread over devices; what frees nothing; what is not."""
    blocks = change_blocks(changes)
    parts: list[RenderableType] = [Text(), Text(LEGEND, style="dim")] if blocks else []
    for place, block in enumerate(blocks):
        shown = block.changes[: MAX_CHANGES[block.form]]
        of = f" ({len(shown)} of {len(block.changes)})" if len(shown) < len(block.changes) else ""
        parts += [*([Text()] if place else []), *_BLOCKS[block.form](f"{block.heading}{of}", shown)]
    return parts


def more(count: int) -> list[RenderableType]:
    """Say how many more there are; nothing where there are none."""
    return [Text(f"... and {count:,} more (--json)", style="dim")] if count > 0 else []


def _changes_table(title: str, changes: Sequence[Change]) -> list[RenderableType]:
    table = figures_table(
        ("#", "right"),
        (title, "left"),
        ("frees", "right"),
        ("peak then", "right"),
        ("FLOPs", "right"),
        ("fits", "left"),
    )
    for rank, change in enumerate(changes, start=1):
        table.add_row(
            str(rank),
            safe_text(change.change),
            frees_words(change),
            "–" if change.peak_bytes is None else format_bytes(change.peak_bytes),
            format_extra(change.extra_flops_fraction),
            fits_text(change.fits),
        )
    return [
        table,
        *(_reason(str(rank), plain_reason(change.why)) for rank, change in enumerate(changes, start=1) if change.why),
    ]


def _sharded_table(title: str, changes: Sequence[Change]) -> list[RenderableType]:
    table = figures_table(
        (f"{title}; what each sends", "left"),
        ("frees", "right"),
        ("peak then", "right"),
        ("fits", "left"),
    )
    for change in changes:
        what = safe_text(change.change)
        if change.travels:
            what.append("\n").append_text(safe_text(travel_words(change.travels), style="dim"))
        peak = "–" if change.peak_bytes is None else format_bytes(change.peak_bytes)
        table.add_row(what, frees_words(change), peak, fits_text(change.fits))
    return [table, *(_reason(change.change, plain_reason(change.why)) for change in changes if change.why)]


def _reasons(title: str, changes: Sequence[Change]) -> list[RenderableType]:
    reasons = [_reason(f"- {change.change}", reason_words(change)) for change in changes]
    return [Text(title, style="dim"), *reasons]


def _reason(what: str, why: str) -> Text:
    """Return why in about two lines; the page and the JSON have all of it."""
    return safe_text(f"{what}: {shorten_reason(why, MAX_REASON_LETTERS)}" if why else what, style="dim")


_BLOCKS = {"ranked": _changes_table, "sharded": _sharded_table, "reasons": _reasons}


def sweep_parts(sweep: Sweep) -> list[RenderableType]:
    """Return the peaks over batches and lengths, each with its mark, and the frontier; of many a few."""
    points = {(point.batch, point.seq): point for point in sweep.points}
    seqs = thin(sorted({point.seq for point in sweep.points}), MAX_SWEEP_COLUMNS)
    batches = thin(sorted({point.batch for point in sweep.points}), MAX_SWEEP_ROWS)
    table = figures_table(("batch", "right"), *((f"{seq:,}", "right") for seq in seqs))
    for batch in batches:
        table.add_row(f"{batch:,}", *(_cell(points.get((batch, seq))) for seq in seqs))
    legend = ", ".join(
        f"{mark} {word}" for mark, word in zip(MARKS.values(), ("fits", "tight", "does not"), strict=True)
    )
    larger = " (T = TiB)" if any(point.peak_bytes >= MAX_CELL_GIB * BYTES_PER_GIB for point in sweep.points) else ""
    return [
        Text(f"peak in GiB{larger} at each batch and length: {legend}", style="dim"),
        table,
        *more(len(points) - len(batches) * len(seqs)),
        Text("the largest length that fits", style="dim"),
        FrontierBars([point for point in sweep.frontier if point.batch in batches]),
    ]


def verification_table(verification: FitVerification) -> Table:
    """Return predicted beside measured for every change that was run here."""
    table = figures_table(
        ("run here, scaled down", "left"),
        ("peak", "right"),
        ("measured", "right"),
        ("saved", "right"),
        ("measured", "right"),
        ("", "left"),
    )
    for change in verification.changes:
        verdict = (
            Text(f"within {change.tolerance:.0%}", style="green") if change.holds else Text("differs", style="red")
        )
        table.add_row(
            safe_text(change.change),
            format_bytes(change.predicted_peak_bytes),
            format_bytes(change.measured_peak_bytes),
            format_bytes(change.predicted_saved_bytes),
            format_bytes(change.measured_saved_bytes),
            verdict,
        )
    return table


def history_table(history: Sequence[TrackedStep], accuracy: Sequence[TrackedAccuracy]) -> list[RenderableType]:
    """Return the latest steps that were tracked, predicted beside measured, and how near all of them came."""
    table = figures_table(
        ("tracked steps", "left"),
        ("model, device", "left"),
        ("predicted", "right"),
        ("measured", "right"),
        ("gap", "right"),
    )
    for step in history[-MAX_HISTORY:]:
        size = "" if step.batch is None or step.seq is None else f", {step.batch:,} × {step.seq:,}"
        table.add_row(
            safe_text(step.when),
            safe_text(f"{step.model}, {step.device}{size}"),
            "–" if step.predicted_peak_bytes is None else format_bytes(step.predicted_peak_bytes),
            format_bytes(step.measured_peak_bytes),
            gap_words(step.predicted_peak_bytes, step.measured_peak_bytes),
        )
    return [table, *more(len(history) - MAX_HISTORY), *(safe_text(accuracy_words(one)) for one in accuracy)]


def fits_text(fits: Fits | None) -> Text:
    """Return "yes", "tight" or "no" in its colour; – where it is not known."""
    return Text("–") if fits is None else Text(fits, style=STYLES[VERDICT_TONES[fits]])


def _cell(point: SweepPoint | None) -> Text:
    if point is None:
        return Text("–")
    return Text(f"{_cell_words(point.peak_bytes)} {MARKS[point.fits]}", style=STYLES[VERDICT_TONES[point.fits]])


def _cell_words(num_bytes: int) -> str:
    """Write GiB in few characters, and what is beyond all devices with the letter of its unit: 3.62, 512, 16T."""
    gib = num_bytes / BYTES_PER_GIB
    if gib < MAX_CELL_GIB:
        return f"{gib:.3g}" if gib < 99.95 else f"{gib:,.0f}"
    number, unit = format_bytes(num_bytes).split(" ")
    return f"{float(number):.0f}{unit[0]}"


def figures_table(*columns: tuple[str, JustifyMethod], gap: int = 2) -> Table:
    """Return an empty table, `gap` blanks between columns: words on the left may break, figures on the right not."""
    table = Table(box=None, pad_edge=False, padding=(0, gap, 0, 0), header_style="dim")
    for heading, justify in columns:
        is_figure = justify == "right"
        table.add_column(heading, justify=justify, no_wrap=is_figure, overflow="ellipsis" if is_figure else "fold")
    return table
