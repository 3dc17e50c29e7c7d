"""One benchmark as one HTML file that needs nothing else: the answers, two drawings, every row, how it was measured."""

import os
from pathlib import Path

from headwise.api.bench_results import Benchmark
from headwise.report import bench_figures
from headwise.report.bench_plot import LIMIT, draw_plots
from headwise.report.files import write_whole
from headwise.report.fit_figures import format_rate, format_seconds
from headwise.report.html import render_html

STYLES = ("base.css", "tables.css", "bench.css", "print.css")
SCRIPTS = ("dom.js", "theme.js", "bench.js")


def render_bench_page(result: Benchmark) -> str:
    """Return the whole page of a benchmark as HTML, which loads nothing.

    Raises:
        MissingExtraError: jinja2 is not installed.
    """
    impls = list(dict.fromkeys(row.impl for row in result.rows if row.seconds is not None))
    return render_html(
        "bench.html",
        styles=STYLES,
        scripts=SCRIPTS,
        data=None,
        result=result,
        bench=bench_figures,
        answers=bench_figures.bench_headlines(result),
        plots=draw_plots(result),
        style_of={name: place for place, name in enumerate(impls)},
        limit=LIMIT,
        format_rate=format_rate,
        format_seconds=format_seconds,
    )


def write_bench_page(page: Benchmark | str, path: str | os.PathLike[str]) -> Path:
    """Write a benchmark, or a page that is rendered already, to `path`, whole or not at all.

    Raises:
        MissingExtraError: jinja2 is not installed.
        OutputError: the path cannot be written.
    """
    return write_whole(page if isinstance(page, str) else render_bench_page(page), path)
