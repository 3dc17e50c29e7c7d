"""A comparison in one picture (PNG), painted pixel by pixel: what the SVG shows, with letters of our own."""

from collections.abc import Sequence

from headwise.experiments.results import ComparisonResult
from headwise.report.canvas import Canvas, Colour
from headwise.report.compare_figures import comparison_facts
from headwise.report.compare_picture import dots_of
from headwise.report.compare_strips import WIDTH, Strips, arm_strips, difference_strips
from headwise.report.pixel_font import ADVANCE, GLYPH_HEIGHT, measure_text
from headwise.report.svg_text import drawn_text

SCALE = 2  # pixels on each side of a letter's pixel
LETTER = SCALE * ADVANCE
GAP = 12
LINE = SCALE * GLYPH_HEIGHT + 6
ROW = 44
PANEL, NUMBER = 340, 10 * LETTER
MOST_NAME = 24  # letters
DOT = 5  # half of its width
PAPER, INK, SOFT, EDGE = (255, 255, 255), (27, 28, 34), (90, 93, 105), (226, 227, 232)
NEAREST = str.maketrans({"?": "", "–": "-", "×": "x", "·": ","})  # what the font has in place of others
DOTS, SPAN = (58, 79, 196), (205, 211, 240)


def compare_png(results: Sequence[ComparisonResult]) -> bytes:
    """Return comparisons, one below the other, as a PNG.

    Args:
        results: the parts; letters that the picture's font lacks are boxes.
    """
    longest = max(len(drawn_text(arm.name)) for result in results for arm in result.arms)
    name_width = LETTER * min(MOST_NAME, longest) + GAP
    width = 2 * GAP + name_width + 2 * (PANEL + NUMBER)
    heights = [4 * LINE + ROW * len(result.arms) + 3 * GAP for result in results]
    canvas = Canvas(width, sum(heights) + GAP, PAPER)
    top = GAP
    for result, height in zip(results, heights, strict=True):
        _paint_part(canvas, result, top, name_width)
        top += height
    return canvas.to_png()


def _paint_part(canvas: Canvas, result: ComparisonResult, top: int, name_width: int) -> None:
    most = (canvas.width - 2 * GAP) // LETTER
    heading = f"{result.name}: {result.question}" if result.question else result.name
    _write(canvas, GAP, top, heading, INK, most)
    _write(canvas, GAP, top + LINE, ", ".join(comparison_facts(result)), SOFT, most)
    top += 2 * LINE + GAP
    first = top + LINE
    for number, arm in enumerate(result.arms):
        middle = first + ROW * number + (ROW - SCALE * GLYPH_HEIGHT) // 2
        _write(canvas, GAP, middle, arm.name, INK, (name_width - GAP) // LETTER)
    places = {arm.name: first + ROW * number for number, arm in enumerate(result.arms)}
    bottom = first + ROW * len(result.arms)
    left = GAP + name_width
    for panel, x in ((arm_strips(result), left), (difference_strips(result), left + PANEL + NUMBER)):
        if panel is not None:
            _paint_panel(canvas, panel, x, top, bottom, places)


def _paint_panel(canvas: Canvas, panel: Strips, left: int, top: int, bottom: int, places: dict[str, int]) -> None:
    def at(place: float) -> int:
        return left + round((PANEL - 1) * min(WIDTH, max(0.0, place)) / WIDTH)

    _write(canvas, left, top, panel.title, SOFT, (PANEL + NUMBER - GAP) // LETTER)
    for place, words in panel.ticks:
        canvas.fill(at(place), top + LINE, 1, bottom - top - LINE, EDGE)
        half = measure_text(words, scale=SCALE) // 2
        canvas.write(max(left, at(place) - half), bottom + 4, words, SOFT, scale=SCALE)
    if panel.neutral is not None:
        canvas.fill(at(panel.neutral), top + LINE, 1, bottom - top - LINE, SOFT)
    for strip in panel.strips:
        y = places[strip.name]
        if strip.low is not None and strip.high is not None:
            start, end = at(strip.low), at(strip.high)
            canvas.fill(start, y + ROW // 2 - 4, end - start + 1, 8, SPAN)
        for place, height in dots_of(strip):
            _paint_dot(canvas, at(place), y + round(ROW * height), left)
        if strip.mean is not None:
            canvas.fill(at(strip.mean) - 1, y + 6, 3, ROW - 12, DOTS)
        middle = y + (ROW - SCALE * GLYPH_HEIGHT) // 2
        _write(canvas, left + PANEL + 6, middle, strip.words, INK, NUMBER // LETTER)


def _paint_dot(canvas: Canvas, x: int, y: int, left: int) -> None:
    """Paint a disc, row by row."""
    x = max(left + DOT, x)
    for row in range(-DOT, DOT + 1):
        half = round((DOT * DOT - row * row) ** 0.5)
        canvas.fill(x - half, y + row, 2 * half + 1, 1, DOTS)


def _write(canvas: Canvas, x: int, y: int, text: str, colour: Colour, most: int) -> None:
    """Write one line of at most so many letters; what has no room ends in dots."""
    shown = drawn_text(text).translate(NEAREST)
    canvas.write(x, y, shown if len(shown) <= most else f"{shown[: max(0, most - 3)]}...", colour, scale=SCALE)
