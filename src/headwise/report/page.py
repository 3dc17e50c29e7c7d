"""One report as one HTML file that needs nothing else: style, script and data stand inside it."""

import os
from pathlib import Path

from headwise.api.results import Report
from headwise.report import figures, headlines, sections
from headwise.report.files import write_whole
from headwise.report.html import render_html
from headwise.report.page_data import heads_json, statistics_of
from headwise.report.page_parts import parts_of

STYLES = ("base.css", "tables.css", "heads.css", "sections.css", "image.css", "print.css")
HEAD_SCRIPTS = (
    "dom.js",
    "unpack.js",
    "data.js",
    "reading.js",
    "colour.js",
    "theme.js",
    "zoom.js",
    "map.js",
    "lines.js",
    "tokens.js",
    "steps.js",
    "head.js",
    "grid.js",
    "sort.js",
    "table.js",
    "csv.js",
    "parts.js",
    "similar.js",
    "differences.js",
    "difference_panel.js",
    "image.js",
    "sections.js",
    "main.js",
)


def render_page(report: Report) -> str:
    """Return the whole page of a report as HTML, which loads nothing.

    Raises:
        MissingExtraError: jinja2 is not installed.
    """
    return render_html(
        "page.html",
        styles=STYLES,
        scripts=HEAD_SCRIPTS,
        data=None if report.heads is None else heads_json(report.heads),
        report=report,
        figures=figures,
        headlines=headlines,
        sections=sections,
        statistics=() if report.heads is None else statistics_of(report.heads),
        parts=() if report.heads is None else parts_of(report.heads),
    )


def write_page(page: Report | str, path: str | os.PathLike[str]) -> Path:
    """Write a report, or a page that is rendered already, to `path`, whole or not at all.

    Raises:
        MissingExtraError: jinja2 is not installed.
        OutputError: the path cannot be written.
    """
    return write_whole(page if isinstance(page, str) else render_page(page), path)
