"""A comparison in one drawing (SVG), without a browser: all seeds of each arm, and paired differences beside them."""

import html
from collections.abc import Sequence

from headwise.experiments.results import ComparisonResult
from headwise.report.compare_figures import comparison_facts
from headwise.report.compare_strips import WIDTH, Strip, Strips, arm_strips, difference_strips
from headwise.report.svg_text import cut_text, drawn_text, text_width

SIZE, SMALL = 13, 11  # of text
LINE, ROW = 20, 34  # heights of a line of text, and of an arm
GAP = 12
PANEL = 250  # width of the dots of one panel
NUMBER = 96  # room for the words beside them
LEAST_NAME, MOST_NAME = 60, 190
DOT = 3.5
STYLE = (
    ".headwise-compare text{font:13px system-ui,sans-serif;fill:#1b1c22}"
    ".headwise-compare .s{fill:#5a5d69;font-size:11px}"
    ".headwise-compare line{stroke:#d3d5de}.headwise-compare .dot{fill:#3a4fc4;fill-opacity:.75}"
    ".headwise-compare .span{stroke:#3a4fc4;stroke-width:6;stroke-opacity:.25}"
    ".headwise-compare .mean{stroke:#3a4fc4;stroke-width:2.5}.headwise-compare .zero{stroke:#5a5d69}"
    ".headwise-compare{background:#fff;max-width:100%;height:auto}"
    "@media(prefers-color-scheme:dark){.headwise-compare{background:#131419}"
    ".headwise-compare text{fill:#e9e9ee}.headwise-compare .s{fill:#a3a6b4}"
    ".headwise-compare line{stroke:#2c2e38}.headwise-compare .dot{fill:#8fa3ff}"
    ".headwise-compare .span{stroke:#8fa3ff}.headwise-compare .mean{stroke:#8fa3ff}"
    ".headwise-compare .zero{stroke:#a3a6b4}}"
)


def compare_svg(results: Sequence[ComparisonResult]) -> str:
    """Return comparisons, one below the other, as an SVG with labels.

    Args:
        results: the parts; in what is drawn, signs that a drawing may not hold are shown as �.
    """
    names = [drawn_text(arm.name) for result in results for arm in result.arms]
    name_width = min(MOST_NAME, max([LEAST_NAME, *(text_width(name, size=SIZE) for name in names)])) + GAP
    width = GAP + name_width + 2 * (PANEL + NUMBER) + GAP
    drawn: list[str] = []
    top: int | float = 0
    for result in results:
        part, top = _draw_part(result, top + GAP, name_width, width)
        drawn += part
    height = top + GAP
    title = html.escape("; ".join(drawn_text(result.name) for result in results), quote=True)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="headwise-compare" viewBox="0 0 {width:.0f} {height:.0f}" '
        f'width="{width:.0f}" height="{height:.0f}" role="img" aria-label="{title}">'
        f"<style>{STYLE}</style>{''.join(drawn)}</svg>\n"
    )


def notebook_html(results: Sequence[ComparisonResult], text: str) -> str:
    """Return what a notebook shows: the drawing, and below it what the command line prints, which opens."""
    return f"{compare_svg(results)}<details><summary>All numbers</summary><pre>{html.escape(text)}</pre></details>"


def _draw_part(
    result: ComparisonResult, top: int | float, name_width: int | float, width: int | float
) -> tuple[list[str], int | float]:
    """Return what is drawn of one comparison, and where it ends."""
    room = width - 2 * GAP
    heading = f"{result.name}: {result.question}" if result.question else result.name
    drawn = [
        _text(GAP, top + LINE - 6, cut_text(drawn_text(heading), room, size=SIZE)),
        _text(
            GAP, top + 2 * LINE - 8, cut_text(drawn_text(" · ".join(comparison_facts(result))), room, size=SMALL), "s"
        ),
    ]
    top += 2 * LINE + GAP
    left = GAP + name_width
    first = top + LINE
    for number, arm in enumerate(result.arms):
        name = cut_text(drawn_text(arm.name), name_width - GAP, size=SIZE)
        drawn.append(_text(GAP, first + ROW * number + ROW / 2 + 4, name))
    bottom = first + ROW * len(result.arms)
    places = {arm.name: first + ROW * number for number, arm in enumerate(result.arms)}
    for panel, x in ((arm_strips(result), left), (difference_strips(result), left + PANEL + NUMBER)):
        if panel is not None:
            drawn += _draw_panel(panel, x, top, bottom, places)
    return drawn, bottom + LINE


def _draw_panel(
    panel: Strips, left: int | float, top: int | float, bottom: int | float, places: dict[str, int | float]
) -> list[str]:
    def at(place: float) -> float:
        return left + PANEL * place / WIDTH

    drawn = [_text(left, top + 10, cut_text(drawn_text(panel.title), PANEL + NUMBER - GAP, size=SMALL), "s")]
    for place, words in panel.ticks:
        x = at(place)
        drawn.append(_line(x, top + LINE, x, bottom))
        drawn.append(_text(x, bottom + 14, words, "s", anchor="middle"))
    if panel.neutral is not None:
        x = at(panel.neutral)
        drawn.append(_line(x, top + LINE, x, bottom, "zero"))
    for strip in panel.strips:
        y = places[strip.name]
        drawn.append(f"<g><title>{html.escape(drawn_text(strip.label))}</title>")
        if strip.low is not None and strip.high is not None:
            drawn.append(_line(at(strip.low), y + ROW / 2, at(strip.high), y + ROW / 2, "span"))
        for x, height in dots_of(strip):
            drawn.append(f'<circle class="dot" cx="{at(x):.1f}" cy="{y + ROW * height:.1f}" r="{DOT}"/>')
        if strip.mean is not None:
            drawn.append(_line(at(strip.mean), y + 6, at(strip.mean), y + ROW - 6, "mean"))
        drawn.append(_text(left + PANEL + 4, y + ROW / 2 + 4, strip.words))
        drawn.append("</g>")
    return drawn


def dots_of(strip: Strip) -> list[tuple[float, float]]:
    """Return where the dots of a strip stand: across, and as shares of its height, each seed a little lower."""
    last = max(1, len(strip.dots) - 1)
    middle = len(strip.dots) == 1
    return [
        (place, 0.5 if middle else 0.25 + 0.5 * number / last)
        for number, place in enumerate(strip.dots)
        if place is not None
    ]


def _text(x: int | float, y: int | float, words: str, kind: str = "", *, anchor: str = "start") -> str:
    of_kind = f' class="{kind}"' if kind else ""
    return f'<text{of_kind} x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{html.escape(words)}</text>'


def _line(x: int | float, y: int | float, to_x: int | float, to_y: int | float, kind: str = "") -> str:
    of_kind = f' class="{kind}"' if kind else ""
    return f'<line{of_kind} x1="{x:.1f}" y1="{y:.1f}" x2="{to_x:.1f}" y2="{to_y:.1f}"/>'
