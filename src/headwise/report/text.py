"""A report for the terminal: the answers, predicted beside measured, the heads that hold a role."""

import codecs
import io
import os
import re
import sys
from dataclasses import replace

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from headwise.api.results import Report
from headwise.cost.results import FitVerdict
from headwise.inspection.results import Inspection
from headwise.report.figures import (
    Row,
    flop_rows,
    format_share,
    held_roles,
    memory_rows,
    model_facts,
    parameter_rows,
    workload_facts,
)
from headwise.report.headlines import CANNOT_TELL, NOTHING_PREDICTED, VERDICT_TONES, as_sentence

MAX_HELD_ROLES = 8
ASCII = {"·": "|", "×": "x", "–": "-", "−": "-", "…": "~", "µ": "u", "✓": "+", "✗": "x"}
SIZES = ("COLUMNS", "LINES")
_SIZE = re.compile(r"0*[1-9][0-9]{0,3}")
STYLES = {"good": "green", "warn": "yellow", "bad": "red"}


def print_report(report: Report) -> None:
    """Print a report on stdout, in colours where that is a terminal."""
    print_renderable(report_renderable(report))


LEAST_WIDTH = 60  # columns; a terminal that has fewer wraps the lines itself


def print_renderable(renderable: RenderableType) -> None:
    """Print on stdout, in colours where that is a terminal; a reader who leaves early is no failure.

    What the stream's encoding does not have is printed as the nearest ASCII character.
    """
    console = _Console(_environ=console_environment())
    console.width = max(console.width, LEAST_WIDTH)
    if console.options.ascii_only and isinstance(sys.stdout, io.TextIOWrapper):
        codecs.register_error("headwise.ascii", _nearest_ascii)
        sys.stdout.reconfigure(errors="headwise.ascii")
    console.print(renderable)


def console_environment() -> dict[str, str]:
    """Return the environment for rich, without a width or height that is none: 0 columns, a letter, a million."""
    return {name: value for name, value in os.environ.items() if name not in SIZES or _SIZE.fullmatch(value)}


def _nearest_ascii(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeEncodeError)
    return "".join(ASCII.get(letter, "?") for letter in error.object[error.start : error.end]), error.end


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Drop what is left, and do not exit with 1, as rich does: 1 says that the answer is no."""
        self.quiet = True
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def report_text(report: Report, *, width: int = 80) -> str:
    """Return a report as lines of plain text, without colours, at most `width` columns wide."""
    return plain_text(report_renderable(report), width=width)


def report_renderable(report: Report) -> RenderableType:
    """Return a report as what rich prints; made for 80 columns."""
    parts: list[RenderableType] = [
        safe_text(report.model.name, style="bold"),
        safe_text(" · ".join(model_facts(report.model)), style="dim"),
        safe_text(" · ".join(workload_facts(report)), style="dim"),
        Text(),
        rows_table(_short_rows(report)),
    ]
    parts += [Text(), fit_text(report.memory.fit)]
    if report.heads is not None:
        parts += [Text(), held_roles_table(report.heads)]
    notes = report.parameters.notes + report.flops.notes + report.memory.notes + report.heads_notes
    if report.heads is not None:
        notes += report.heads.notes
    parts += notes_text(notes)
    if report.page is not None:
        parts += [Text(), safe_text(f"page: {report.page}")]
    return Group(*parts)


def rows_table(rows: list[Row], *, measured: str = "measured") -> Table:
    """Return rows of figures as a table: what, predicted, measured, gap."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("")
    for heading in ("predicted", measured, "gap"):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        gap = Text(row.gap or "–", style="green" if row.gap == "equal" else "")
        table.add_row(safe_text(row.label), row.predicted.value or "–", row.measured.value or "–", gap)
    return table


def fit_text(verdict: FitVerdict | None) -> Text:
    """Return whether a step fits a device, and why; None = it cannot be told."""
    if verdict is None:
        return Text(f"Does it fit? {CANNOT_TELL}: {NOTHING_PREDICTED}.")
    text = safe_text(f"Fits {verdict.device.name}: ")
    text.append(verdict.fits, style=f"bold {STYLES[VERDICT_TONES[verdict.fits]]}")
    return text.append("\n").append_text(safe_text(as_sentence(verdict.reason)))


def held_roles_table(inspection: Inspection, *, limit: int = MAX_HELD_ROLES) -> RenderableType:
    """Return the heads that hold a role, the clearest first, at most `limit` of them."""
    held = held_roles(inspection)
    if not held:
        return Text(f"No head of {len(inspection.heads)} holds a positional role here.")
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("heads that hold a role", no_wrap=True)
    table.add_column("")
    table.add_column("score", justify="right")
    for head, role in held[:limit]:
        table.add_row(f"layer {head.layer} head {head.head}", safe_text(role.name), format_share(role.score))
    if len(held) <= limit:
        return table
    return Group(table, Text(f"and {len(held) - limit} more", style="dim"))


def notes_text(notes: tuple[str, ...]) -> list[RenderableType]:
    """Return the notes, each once, after an empty line; nothing where there is none."""
    lines = [safe_text(f"note: {note}", style="dim") for note in dict.fromkeys(notes)]
    return [Text(), *lines] if lines else []


def safe_text(text: str, *, style: str = "") -> Text:
    """Return the user's text as rich text that is taken literally and moves no cursor.

    What cannot be printed (an escape sequence in a model's name, half of a surrogate pair) is shown as U+FFFD.
    """
    return Text("".join(c if c.isprintable() else "\ufffd" for c in text), style=style)


def plain_text(renderable: RenderableType, *, width: int = 80) -> str:
    """Return what rich would print, without colours and without blanks at the ends of lines."""
    console = Console(file=io.StringIO(), width=width, color_system=None, legacy_windows=False)
    with console.capture() as capture:
        console.print(renderable)
    text = capture.get()
    return "\n".join(line.rstrip() for line in text.split("\n")).strip("\n")


def _short_rows(report: Report) -> list[Row]:
    parameters = [replace(total, label="Parameters") for total in parameter_rows(report.parameters)[-1:]]
    rows = parameters + flop_rows(report.flops) + memory_rows(report.memory)
    return [row for row in rows if row.predicted.value or row.measured.value]
