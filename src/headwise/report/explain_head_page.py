"""One token of one head as a page: the keys with their weights, what made their scores, what they bring."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from headwise.inspection.walkthrough.results import (
    HeadExplanation,
    ScorePart,
    format_percent,
    format_signed,
    format_wavelength,
    or_zero,
    order_brought,
    order_keys,
)
from headwise.report.files import write_whole
from headwise.report.html import render_html

STYLES = ("base.css", "tables.css", "explain.css", "explain_head.css", "print.css")
SCRIPTS = ("dom.js", "theme.js", "bench.js")
MAX_KEYS = 24  # rows of a table of keys, the heaviest first; --json has all
MAX_TOKENS = 400  # of the text that is written out around the query
MAX_PARTS = 8  # rows of a table of dimensions
RAISED = str.maketrans("0123456789-", "⁰¹²³⁴⁵⁶⁷⁸⁹⁻")


class PartRow(NamedTuple):
    """A dimension or pair: where its bar begins and how long it is, as shares of the widest of its table."""

    part: ScorePart
    total: float
    start: float
    length: float


def render_head(explanation: HeadExplanation) -> str:
    """Return the page as HTML, which loads nothing.

    Args:
        explanation: what is shown.

    Raises:
        MissingExtraError: jinja2 is not installed.
    """
    keys = order_keys(explanation)
    return render_html(
        "explain_head.html",
        styles=STYLES,
        scripts=SCRIPTS,
        data=None,
        told=explanation,
        query=explanation.tokens[explanation.query],
        keys=keys[:MAX_KEYS],
        rest=keys[MAX_KEYS:],
        brought=order_brought(explanation)[:MAX_KEYS],
        text=_text_around(explanation),
        has_words=any(token != str(number) for number, token in enumerate(explanation.tokens)),
        part_rows=part_rows,
        num_parts=MAX_PARTS,
        number=write_number,
        percent=write_percent,
        wavelength=write_wavelength,
    )


def write_head(explanation: HeadExplanation, path: str | os.PathLike[str]) -> Path:
    """Write the page to `path`, whole or not at all."""
    return write_whole(render_head(explanation), path)


def write_number(number: float | None, decimals: int = 3) -> str:
    """Write a number as `format_signed` does, in signs of print: 1.38·10⁻⁵, −1.25."""
    return _typeset(format_signed(number, decimals))


def write_percent(share: float | None) -> str:
    """Write a share as percent; – for None."""
    return _typeset(format_percent(share).replace("%", " %"))


def write_wavelength(wavelength: float | None) -> str:
    """Write after how many tokens a pair has turned once; – for None."""
    return format_wavelength(wavelength) or "–"


def _typeset(number: str) -> str:
    mantissa, has_power, power = number.partition("e")
    raised = f"·10{str(int(power)).translate(RAISED)}" if has_power else ""
    return (mantissa + raised).replace("-", "−")


def part_rows(parts: Sequence[ScorePart]) -> tuple[list[PartRow], float]:
    """Return the rows of a table of dimensions, each with its bar, and what the dimensions left out add together."""
    shown = parts[:MAX_PARTS]
    widest = max((abs(or_zero(part.score)) for part in shown), default=0.0) or 1.0
    rows = []
    total = 0.0
    for part in shown:
        total += part.score
        length = 0.5 * abs(or_zero(part.score)) / widest
        rows.append(PartRow(part, total, 0.5 - (length if part.score < 0 else 0.0), length))
    return rows, sum((part.score for part in parts[MAX_PARTS:]), 0.0)


def _text_around(explanation: HeadExplanation) -> list[tuple[int, str, float | None]]:
    """Return (number, word, weight) of the keys of the text, at most MAX_TOKENS around the query; None = hidden."""
    weights = {key.index: or_zero(key.weight) for key in explanation.keys}
    tokens = explanation.tokens if explanation.key_tokens is None else explanation.key_tokens
    start = max(0, min(explanation.query - MAX_TOKENS // 2, len(tokens) - MAX_TOKENS))
    return [(number, tokens[number], weights.get(number)) for number in range(start, len(tokens))[:MAX_TOKENS]]
