"""Tables of a fit and of an explained message for the terminal: tensors, changes, a sweep, runs beside predictions."""

import textwrap
from collections.abc import Sequence

from rich.console import JustifyMethod, RenderableType
from rich.table import Table
from rich.text import Text

from headwise.api.fit_results import FitVerification, TrackedAccuracy, TrackedStep
from headwise.cost.planning.results import Change, Fits, Sweep, SweepPoint
from headwise.report.fit_drawing import FrontierBars
from headwise.report.fit_figures import (
    accuracy_words,
    compact_shape,
    format_extra,
    format_size,
    frees_words,
    gap_words,
    thin,
    travel_words,
)
from headwise.report.headlines import VERDICT_TONES
from headwise.report.tensor_groups import TensorGroup
from headwise.report.text import STYLES, safe_text
from headwise.results import BYTES_PER_GIB

MAX_SAME, MAX_ALTERS, MAX_SHARDED, MAX_REASONS, MAX_HISTORY = 7, 5, 3, 3, 5
MAX_REASON_LETTERS = 160
MAX_SWEEP_COLUMNS, MAX_SWEEP_ROWS = 7, 8
MARKS: dict[Fits, str] = {"yes": "✓", "tight": "~", "no": "✗"}


def tensors_table(groups: Sequence[TensorGroup], *, when: str = "then") -> Table:
    """Return a line for each group of tensors: how many of what size, whose, shape and dtype."""
    table = figures_table(("bytes", "right"), (safe_text(f"alive {when}").plain, "left"), ("shape", "left"))
    for group in groups:
        count = f"{group.count:,} × " if group.count > 1 else ""
        table.add_row(
            f"{count}{format_size(group.bytes)}",
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
    applied = [change for change in changes if change.applies]
    useful = [change for change in applied if change.frees_bytes > 0]
    alone = [change for change in useful if not change.other_gpus]
    parts: list[RenderableType] = []
    for title, rows, limit in (
        ("same result", [c for c in alone if c.list == "same"], MAX_SAME),
        ("alters the model or the batch", [c for c in alone if c.list == "alters"], MAX_ALTERS),
    ):
        if rows:
            parts += [Text(), _changes_table(title, rows[:limit]), *more(len(rows) - limit)]
    sharded = [change for change in useful if change.other_gpus]
    if sharded:
        parts += [Text(), _sharded_table(sharded[:MAX_SHARDED]), *more(len(sharded) - MAX_SHARDED)]
    parts += _reasons("frees nothing", [change for change in applied if change.frees_bytes <= 0])
    parts += _reasons("not possible here", [change for change in changes if not change.applies])
    return parts


def more(count: int) -> list[RenderableType]:
    """Say how many more there are; nothing where there are none."""
    return [Text(f"... and {count:,} more (--json)", style="dim")] if count > 0 else []


def _changes_table(title: str, changes: Sequence[Change]) -> Table:
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
            _change_words(change),
            frees_words(change),
            "–" if change.peak_bytes is None else format_size(change.peak_bytes),
            format_extra(change.extra_flops_fraction),
            fits_text(change.fits),
        )
    return table


def _sharded_table(changes: Sequence[Change]) -> Table:
    table = figures_table(
        ("over more devices; what each sends in a step", "left"),
        ("frees", "right"),
        ("peak then", "right"),
        ("fits", "left"),
    )
    for change in changes:
        what = _change_words(change)
        if change.travels:
            what.append("\n").append_text(safe_text(travel_words(change.travels), style="dim"))
        peak = "–" if change.peak_bytes is None else format_size(change.peak_bytes)
        table.add_row(what, frees_words(change), peak, fits_text(change.fits))
    return table


def _change_words(change: Change) -> Text:
    words = safe_text(change.change)
    if change.why:
        words.append("\n").append_text(_reason(change.why))
    return words


def _reason(why: str) -> Text:
    """Return why as far as two lines hold it; the page and the JSON have all of it."""
    return safe_text(textwrap.shorten(why, MAX_REASON_LETTERS, placeholder=" ..."), style="dim")


def _reasons(title: str, changes: Sequence[Change]) -> list[RenderableType]:
    if not changes:
        return []
    table = figures_table((title, "left"), ("", "left"))
    for change in changes[:MAX_REASONS]:
        takes = f"takes {format_size(-change.frees_bytes)} more" if change.frees_bytes < 0 else ""
        why = ": ".join(words for words in (takes, change.why or "") if words)
        table.add_row(safe_text(change.change), _reason(why))
    return [Text(), table, *more(len(changes) - MAX_REASONS)]


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
    return [
        Text(f"peak in GiB at each batch and length: {legend}", style="dim"),
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
            format_size(change.predicted_peak_bytes),
            format_size(change.measured_peak_bytes),
            format_size(change.predicted_saved_bytes),
            format_size(change.measured_saved_bytes),
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
            "–" if step.predicted_peak_bytes is None else format_size(step.predicted_peak_bytes),
            format_size(step.measured_peak_bytes),
            gap_words(step.predicted_peak_bytes, step.measured_peak_bytes),
        )
    return [table, *more(len(history) - MAX_HISTORY), *(safe_text(accuracy_words(one)) for one in accuracy)]


def fits_text(fits: Fits | None) -> Text:
    """Return "yes", "tight" or "no" in its colour; – where it is not known."""
    return Text("–") if fits is None else Text(fits, style=STYLES[VERDICT_TONES[fits]])


def _cell(point: SweepPoint | None) -> Text:
    if point is None:
        return Text("–")
    gib = point.peak_bytes / BYTES_PER_GIB
    number = f"{gib:.1e}" if gib >= 1e5 else f"{gib:,.0f}" if gib >= 99.95 else f"{gib:.3g}"
    return Text(f"{number} {MARKS[point.fits]}", style=STYLES[VERDICT_TONES[point.fits]])


def figures_table(*columns: tuple[str, JustifyMethod]) -> Table:
    """Return an empty table: words on the left may be broken, figures on the right not."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for heading, justify in columns:
        is_figure = justify == "right"
        table.add_column(heading, justify=justify, no_wrap=is_figure, overflow="ellipsis" if is_figure else "fold")
    return table
