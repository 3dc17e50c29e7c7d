"""All heads of a model in one picture (PNG), painted pixel by pixel: numbers of layers and heads, maps, and a scale."""

import math
import textwrap
from dataclasses import dataclass

from headwise.inspection.results import Inspection
from headwise.report.canvas import Canvas
from headwise.report.heads_picture import (
    GAP,
    MAX_PARTS,
    MAX_TITLE_LINES,
    PARTS_GAP,
    TILE,
    about_picture,
    drawn_maps,
    grid_of,
    map_palette,
    num_columns,
    tiles_of,
)
from headwise.report.page_parts import PagePart, parts_of
from headwise.report.pixel_font import ADVANCE, GLYPH_HEIGHT, measure_text
from headwise.report.svg_text import drawn_text

SCALE = 2  # pixels on each side of a letter's pixel
LINE = SCALE * GLYPH_HEIGHT + GAP
MARGIN = 2 * GAP
LEAST_WIDTH = 420  # so that words beside few heads have room
PAPER, INK, SOFT, EDGE, HELD = (255, 255, 255), (28, 29, 38), (91, 93, 107), (226, 227, 232), (194, 65, 12)
BAR_WIDTH, BAR_HEIGHT = 256, 12  # one column for each byte of a map
# where a number stands under the bar: a map keeps the square roots of weights
WEIGHT_TICKS = ((0.0, "0"), (0.1, "0.1"), (0.25, "0.25"), (0.5, "0.5"), (1.0, "1"))
ENTROPY_TICKS = ((0.0, "0"), (0.5, "0.5"), (1.0, "1"))

Place = tuple[int, int, int]  # number of the part, layer, head


@dataclass(frozen=True, kw_only=True)
class PngLayout:
    """Where the parts of a picture stand, in pixels from its top left.

    Args:
        width, height: of the picture.
        title, about: lines of words that stand on top.
        tiles: the top left of each head's square.
        scales_top: where the scales begin.
    """

    width: int
    height: int
    title: tuple[str, ...]
    about: tuple[str, ...]
    tiles: dict[Place, tuple[int, int]]
    scales_top: int


def heads_png(inspection: Inspection, title: str) -> bytes:
    """Return the heads as a PNG: their maps, or where none are kept squares as dark as their normalised entropy.

    Parts stand side by side, the main one first; a head that holds a role is framed.

    Args:
        inspection: what is drawn.
        title: what stands above; letters that the picture's font lacks are boxes.
    """
    layout = lay_out_png(inspection, title)
    canvas = Canvas(layout.width, layout.height, PAPER)
    for number, line in enumerate((*layout.title, *layout.about)):
        colour = INK if number < len(layout.title) else SOFT
        canvas.write(MARGIN, MARGIN + LINE * number, line, colour, scale=SCALE)
    parts = parts_of(inspection)
    for index, part in enumerate(parts[:MAX_PARTS]):
        _paint_part(canvas, layout, index, part, named=len(parts) > 1)
    top = layout.scales_top
    for name, ticks in _scales(inspection):
        _paint_scale(canvas, top, name, ticks)
        top += _scale_height()
    return canvas.to_png()


def lay_out_png(inspection: Inspection, title: str) -> PngLayout:
    """Return where everything of the picture stands."""
    parts = parts_of(inspection)[:MAX_PARTS]
    widths = [_label_width(part) + (TILE + GAP) * num_columns(part.inspection) + GAP for part in parts]
    width = max(LEAST_WIDTH, 2 * MARGIN + sum(widths) + PARTS_GAP * (len(parts) - 1))
    titles, about = (_wrapped(words, width) for words in (title, about_picture(inspection)))
    top = MARGIN + LINE * (len(titles) + len(about)) + GAP + LINE * (2 if len(parts) > 1 else 1)
    left, bottom = MARGIN, top
    tiles: dict[Place, tuple[int, int]] = {}
    for index, (part, own_width) in enumerate(zip(parts, widths, strict=True)):
        for row, layer in enumerate(grid_of(part.inspection)):
            y = top + (TILE + GAP) * row
            bottom = max(bottom, y + TILE)
            for column, head in enumerate(layer):
                if head is not None:
                    x = left + _label_width(part) + (TILE + GAP) * column
                    tiles[index, head.layer, head.head] = (x, y)
        left += own_width + PARTS_GAP
    scales_top = bottom + 3 * GAP
    height = scales_top + _scale_height() * len(_scales(inspection)) + MARGIN - GAP
    return PngLayout(width=width, height=height, title=titles, about=about, tiles=tiles, scales_top=scales_top)


def _paint_part(canvas: Canvas, layout: PngLayout, index: int, part: PagePart, *, named: bool) -> None:
    """Paint one part: its name where there are several, the numbers of its layers and heads, and their squares."""
    squares, palette = tiles_of(part.inspection), map_palette()
    grid = [[head for head in layer if head is not None] for layer in grid_of(part.inspection)]
    left, top = layout.tiles[index, grid[0][0].layer, grid[0][0].head]
    if named:
        most = max(1, (num_columns(part.inspection) * (TILE + GAP) + _label_width(part)) // (SCALE * ADVANCE))
        name = _shortened(part.name or "", most)
        canvas.write(left - _label_width(part), top - 2 * LINE, name, INK, scale=SCALE)
    _write_right(canvas, left - 2 * GAP, top - LINE, "head")
    for column in range(num_columns(part.inspection)):
        number = str(column)
        middle = left + (TILE + GAP) * column + TILE // 2
        canvas.write(middle - measure_text(number, scale=SCALE) // 2, top - LINE, number, SOFT, scale=SCALE)
    for layer in grid:
        _, y = layout.tiles[index, layer[0].layer, layer[0].head]
        label = f"layer {layer[0].layer}" if y == top else str(layer[0].layer)
        _write_right(canvas, left - 2 * GAP, y + (TILE - SCALE * GLYPH_HEIGHT) // 2, label)
        for head in layer:
            x, y = layout.tiles[index, head.layer, head.head]
            canvas.paste(x, y, squares[head.layer, head.head], palette)
            if any(role.holds for role in head.roles):
                canvas.frame(x, y, TILE, HELD, line=2)
            else:
                canvas.frame(x, y, TILE, EDGE, line=1)


def _paint_scale(canvas: Canvas, top: int, name: str, ticks: tuple[tuple[float, str], ...]) -> None:
    """Paint the shades from 0 to 1 with numbers under them; `ticks` are shares of the bar and what stands there."""
    canvas.write(MARGIN, top, name, SOFT, scale=SCALE)
    bar_top = top + LINE
    canvas.paste(MARGIN, bar_top, [bytes(range(BAR_WIDTH))] * BAR_HEIGHT, map_palette())
    for place, words in ticks:
        x = MARGIN + round(place * (BAR_WIDTH - 1))
        canvas.fill(x, bar_top + BAR_HEIGHT, 1, GAP, SOFT)
        width = measure_text(words, scale=SCALE)
        start = min(MARGIN + BAR_WIDTH - width, max(MARGIN, x - width // 2))
        canvas.write(start, bar_top + BAR_HEIGHT + 2 * GAP, words, SOFT, scale=SCALE)


def _scales(inspection: Inspection) -> list[tuple[str, tuple[tuple[float, str], ...]]]:
    """Return the name and the ticks of each scale that some part of the picture is shaded by."""
    parts = parts_of(inspection)[:MAX_PARTS]
    scales = []
    if any(drawn_maps(part.inspection) for part in parts):
        scales.append(("weight", tuple((math.sqrt(weight), words) for weight, words in WEIGHT_TICKS)))
    if not all(drawn_maps(part.inspection) for part in parts):
        scales.append(("normalised entropy", ENTROPY_TICKS))
    return scales


def _scale_height() -> int:
    return 2 * LINE + BAR_HEIGHT + 3 * GAP


def _label_width(part: PagePart) -> int:
    """Return the room for the numbers of layers: "layer" and the longest of them."""
    longest = max(len(str(head.layer)) for head in part.inspection.heads)
    return measure_text(f"layer {'0' * longest}", scale=SCALE) + 2 * GAP


def _write_right(canvas: Canvas, right: int, top: int, text: str) -> None:
    """Write a line that ends at `right`."""
    canvas.write(right - measure_text(text, scale=SCALE), top, text, SOFT, scale=SCALE)


def _wrapped(words: str, width: int) -> tuple[str, ...]:
    """Return words in lines that fit; what has no room ends in dots."""
    most = (width - 2 * MARGIN) // (SCALE * ADVANCE)
    shown = drawn_text(words)[: most * (MAX_TITLE_LINES + 1)]  # no more is ever looked at
    return tuple(textwrap.wrap(shown, most, max_lines=MAX_TITLE_LINES, placeholder="..."))


def _shortened(text: str, most: int) -> str:
    shown = drawn_text(text)
    return shown if len(shown) <= most else shown[: max(0, most - 3)] + "..."
