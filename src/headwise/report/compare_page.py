"""A comparison as one HTML file that needs nothing else: claims, arms, seeds, curves, counts, how it was made."""

from collections.abc import Sequence
from dataclasses import dataclass

from headwise.experiments.results import ComparisonResult
from headwise.report import compare_figures, compare_tables
from headwise.report.compare_picture import dots_of
from headwise.report.compare_plots import Drawing, curve_drawings, further_drawing, length_drawing
from headwise.report.compare_strips import Strips, arm_strips, difference_strips
from headwise.report.html import render_html

STYLES = ("base.css", "tables.css", "bench.css", "compare.css", "print.css")
SCRIPTS = ("dom.js", "theme.js", "bench.js")


@dataclass(frozen=True, kw_only=True)
class PartDrawings:
    """What is drawn of one comparison; None where there is nothing to draw."""

    result: ComparisonResult
    arms: Strips | None
    differences: Strips | None
    curves: tuple[Drawing, ...]
    places: tuple[Drawing, ...]


def render_compare_page(results: Sequence[ComparisonResult], *, name: str = "", question: str = "") -> str:
    """Return the whole page of comparisons as HTML, which loads nothing.

    Args:
        results: the parts, one at least.
        name, question: of all of them together. Default: those of the first.

    Raises:
        MissingExtraError: jinja2 is not installed.
    """
    parts = [
        PartDrawings(
            result=result,
            arms=arm_strips(result),
            differences=difference_strips(result),
            curves=tuple(curve_drawings(result)),
            places=tuple(one for one in (length_drawing(result), further_drawing(result)) if one is not None),
        )
        for result in results
    ]
    return render_html(
        "compare.html",
        styles=STYLES,
        scripts=SCRIPTS,
        data=None,
        name=name or results[0].name,
        question=question or results[0].question,
        parts=parts,
        said=compare_figures,
        tables=compare_tables,
        dots_of=dots_of,
    )
