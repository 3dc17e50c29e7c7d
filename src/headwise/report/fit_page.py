"""One fit as one HTML file that needs nothing else: the answer, the step over time, the changes, the sweep."""

import os
from pathlib import Path

from headwise.api.fit_results import FitPlan
from headwise.report import figures, fit_blocks, fit_figures, fit_headlines, headlines
from headwise.report.files import write_whole
from headwise.report.fit_heat import heat_map
from headwise.report.fit_timeline import draw_timeline, tensor_words, timeline_data
from headwise.report.html import render_html
from headwise.report.page_data import json_inside_html

STYLES = ("base.css", "tables.css", "fit.css", "print.css")
SCRIPTS = ("dom.js", "theme.js", "sort.js", "timeline.js", "changes.js", "fit.js")


def render_fit_page(plan: FitPlan) -> str:
    """Return the whole page of a fit as HTML, which loads nothing.

    Raises:
        MissingExtraError: jinja2 is not installed.
    """
    timeline = draw_timeline(plan)
    return render_html(
        "fit.html",
        styles=STYLES,
        scripts=SCRIPTS,
        data=None if timeline is None else json_inside_html(timeline_data(timeline)),
        plan=plan,
        figures=figures,
        headlines=headlines,
        fit=fit_figures,
        answers=fit_headlines.fit_headlines(plan),
        blocks=fit_blocks.change_blocks(plan.changes),
        reason_words=fit_blocks.reason_words,
        plain_reason=fit_blocks.plain_reason,
        timeline=timeline,
        tensor_words=tensor_words,
        heat=None if plan.sweep is None else heat_map(plan.sweep, plan.capacity_bytes),
    )


def write_fit_page(page: FitPlan | str, path: str | os.PathLike[str]) -> Path:
    """Write a fit, or a page that is rendered already, to `path`, whole or not at all.

    Raises:
        MissingExtraError: jinja2 is not installed.
        OutputError: the path cannot be written.
    """
    return write_whole(page if isinstance(page, str) else render_fit_page(page), path)
