"""What heads do as a file: a page, a picture, or a table for a spreadsheet."""

import csv
import html
import io
import os
from collections.abc import Callable
from pathlib import Path

from headwise.api.inspect_results import InspectedModel
from headwise.inspection.results import Inspection
from headwise.report import figures, headlines, sections
from headwise.report.files import write_whole
from headwise.report.heads_picture import heads_svg
from headwise.report.heads_png import heads_png
from headwise.report.html import render_html
from headwise.report.page import HEAD_SCRIPTS, STYLES
from headwise.report.page_data import heads_json, role_names_of, saved_only, statistics_of
from headwise.report.page_parts import parts_of

FORMULA_STARTS = ("=", "+", "-", "@", "\t")  # a spreadsheet runs a field that begins so


def write_inspection(result: InspectedModel, path: str | os.PathLike[str]) -> Path:
    """Write an inspection as what the ending of `path` says: .html, .svg, .png or .csv.

    Raises:
        MissingExtraError: a page without jinja2.
        OutputError: the path cannot be written.
    """
    kind = Path(path).suffix.lower()
    writers: dict[str, Callable[[InspectedModel], str | bytes]]
    writers = {".svg": _as_svg, ".png": _as_png, ".csv": heads_csv}
    return write_whole(writers.get(kind, render_inspection)(result), path)


def render_inspection(result: InspectedModel) -> str:
    """Return the page of an inspection as HTML, which loads nothing."""
    return render_html(
        "inspect.html",
        styles=STYLES,
        scripts=HEAD_SCRIPTS,
        data=heads_json(result),
        result=result,
        figures=figures,
        headlines=headlines,
        sections=sections,
        statistics=statistics_of(result),
        parts=parts_of(result),
    )


def heads_csv(inspection: Inspection) -> str:
    """Return the statistics and roles of all heads, one a line, below a line of names; what is not known is empty.

    Names are the fields of HeadStatistics and the roles, as in the page's own table for a spreadsheet. Where there are
    several parts, the first column names that of the head, behind ' where a spreadsheet would take it for a formula.
    """
    roles, measured, parts = role_names_of(inspection), statistics_of(inspection), parts_of(inspection)
    written = io.StringIO()
    table = csv.writer(written, lineterminator="\n")
    first = ["part"] if len(parts) > 1 else []
    fields = [*(statistic.name for statistic in measured), *saved_only(inspection)]
    table.writerow([*first, "layer", "head", *fields, *roles])
    for part in parts:
        for head in part.inspection.heads:
            scores = {role.name: role.score for role in head.roles}
            values = [getattr(head, name) for name in fields] + [scores.get(name) for name in roles]
            own = [_as_name(part.name or "")] if first else []
            table.writerow([*own, head.layer, head.head, *("" if value is None else value for value in values)])
    return written.getvalue()


def _as_name(name: str) -> str:
    line = name.replace("\r", " ").replace("\n", " ")
    return f"'{line}" if line.startswith(FORMULA_STARTS) else line


def notebook_html(result: InspectedModel) -> str:
    """Return what a notebook shows: the picture of all heads, and below it what is printed."""
    return f"{_as_svg(result)}<pre>{html.escape(str(result))}</pre>"


def _as_svg(result: InspectedModel) -> str:
    return heads_svg(result, result.model)


def _as_png(result: InspectedModel) -> bytes:
    return heads_png(result, result.model)
