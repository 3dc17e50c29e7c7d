"""A walkthrough as a page: every step a table, with its equation."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from headwise.inspection.results import Walkthrough
from headwise.inspection.walkthrough.results import format_number
from headwise.report.files import write_whole
from headwise.report.html import render_html

STYLES = ("base.css", "tables.css", "explain.css", "print.css")
SCRIPTS = ("dom.js", "theme.js", "bench.js")


def render_explanation(walkthrough: Walkthrough, name: str) -> str:
    """Return the page as HTML, which loads nothing.

    Args:
        walkthrough: what is shown.
        name: of the example.

    Raises:
        MissingExtraError: jinja2 is not installed.
    """
    return render_html(
        "explain.html",
        styles=STYLES,
        scripts=SCRIPTS,
        data=None,
        name=name,
        walkthrough=walkthrough,
        matrices_of=matrices_of,
        format_number=format_number,
    )


def write_explanation(walkthrough: Walkthrough, name: str, path: str | os.PathLike[str]) -> Path:
    """Write the page to `path`, whole or not at all."""
    return write_whole(render_explanation(walkthrough, name), path)


def matrices_of(values: Any) -> Sequence[Any]:
    """Return the matrices of a step: one, or one a head; a single number as a matrix of one."""
    if not isinstance(values, Sequence):
        return [[[values]]]
    return values if isinstance(values[0][0], Sequence) else [values]
