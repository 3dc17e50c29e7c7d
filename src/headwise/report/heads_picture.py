"""All heads of a model in one picture, SVG or PNG, without a browser: layers down, heads across."""

import base64
import html
import math
from collections.abc import Sequence

from headwise.inspection.results import AttentionMap, HeadStatistics, Inspection
from headwise.report.png import write_png

TILE = 48  # pixels of a head's map at most
GAP = 4
LEFT, TOP, LINE = 52, 44, 18  # of the drawing, in its units: room for layers, for the title and heads, and a line
STOPS = ((249, 250, 254), (94, 124, 226), (24, 22, 66))  # weight 0, one quarter and 1, as on the page in daylight
STYLE = (
    "text{font:12px system-ui,sans-serif;fill:#1c1d26}.s{fill:#5b5d6b;font-size:11px}"
    "rect.held{fill:none;stroke:#c2410c;stroke-width:2}svg{background:#fff}image{image-rendering:pixelated}"
    "@media(prefers-color-scheme:dark){svg{background:#14151c}text{fill:#eceef8}.s{fill:#a5a8b8}}"
)


def heads_png(inspection: Inspection) -> bytes:
    """Return the heads as a PNG: their maps, or where none are kept squares as dark as their normalised entropy."""
    grid, tiles = _grid(inspection), _tiles(inspection)
    blank = bytes(GAP)
    side = len(next(iter(tiles.values())))
    rows: list[bytes] = []
    for layer in grid:
        rows += [bytes((side + GAP) * max(map(len, grid)) + GAP)] * GAP
        for line in range(side):
            pixels = [tiles[head.layer, head.head][line] if head else bytes(side) for head in layer]
            rows.append(blank + b"".join(row + blank for row in pixels))
    rows += [bytes(len(rows[0]))] * GAP
    return write_png(rows, palette=_palette())


def heads_svg(inspection: Inspection, title: str) -> str:
    """Return the heads as an SVG with labels, in which a head that holds a role is framed and says so.

    Args:
        inspection: what is drawn.
        title: what stands above, as plain text.
    """
    grid, tiles = _grid(inspection), _tiles(inspection)
    palette = _palette()
    step = TILE + GAP
    width, height = LEFT + step * max(map(len, grid)) + GAP, TOP + step * len(grid) + GAP
    parts = [f'<text x="{GAP}" y="{LINE}">{html.escape(title)}</text>']
    parts += [
        f'<text class="s" x="{LEFT + step * column + TILE // 2}" y="{TOP - GAP}" text-anchor="middle">{column}</text>'
        for column in range(max(map(len, grid)))
    ]
    for row, layer in enumerate(grid):
        y = TOP + step * row
        number = next(head.layer for head in layer if head)
        parts.append(f'<text class="s" x="{GAP}" y="{y + TILE // 2 + 4}">layer {number}</text>')
        for column, head in enumerate(layer):
            if head is None:
                continue
            x = LEFT + step * column
            picture = base64.b64encode(write_png(tiles[head.layer, head.head], palette=palette)).decode("ascii")
            held = ", ".join(role.name for role in head.roles if role.holds)
            about = f"layer {head.layer} head {head.head}{': ' + held if held else ''}"
            parts.append(
                f'<image x="{x}" y="{y}" width="{TILE}" height="{TILE}" preserveAspectRatio="none" '
                f'href="data:image/png;base64,{picture}"><title>{html.escape(about)}</title></image>'
            )
            if held:
                parts.append(f'<rect class="held" x="{x}" y="{y}" width="{TILE}" height="{TILE}"/>')
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'role="img" aria-label="{html.escape(title, quote=True)}"><style>{STYLE}</style>{"".join(parts)}</svg>\n'
    )


def _grid(inspection: Inspection) -> list[list[HeadStatistics | None]]:
    """Return the heads of each layer, in order; None where a layer has fewer than another."""
    layers: dict[int, list[HeadStatistics | None]] = {}
    for head in inspection.heads:
        layers.setdefault(head.layer, []).append(head)
    most = max(map(len, layers.values()))
    return [layer + [None] * (most - len(layer)) for layer in layers.values()]


def _tiles(inspection: Inspection) -> dict[tuple[int, int], list[bytes]]:
    """Return each head's rows of pixels: all squares of one size."""
    maps = {(one.layer, one.head): one for one in inspection.maps}
    if not maps:
        return {(head.layer, head.head): [bytes([_shade(head)]) * TILE] * TILE for head in inspection.heads}
    return {head: _shrink(one) for head, one in maps.items()}


def _shade(head: HeadStatistics) -> int:
    entropy = head.normalized_entropy
    return round(255 * entropy) if math.isfinite(entropy) else 0


def _shrink(map_: AttentionMap) -> list[bytes]:
    """Return a map as TILE by TILE pixels: of the weights that fall on one the largest; small maps are drawn larger."""
    row_ends, column_ends = _ends(map_.num_queries), _ends(map_.num_keys)
    rows = [map_.weights[start * map_.num_keys :][: map_.num_keys] for start in range(map_.num_queries)]
    shrunk = []
    for first, end in row_ends:
        largest = rows[first] if end == first + 1 else bytes(map(max, *rows[first:end]))
        shrunk.append(bytes(max(largest[start:stop]) for start, stop in column_ends))
    return shrunk


def _ends(length: int) -> Sequence[tuple[int, int]]:
    """Return the first and last token of each pixel of a side."""
    return [(at * length // TILE, max((at + 1) * length // TILE, at * length // TILE + 1)) for at in range(TILE)]


def _palette() -> bytes:
    """Return red, green and blue of the bytes of a map, which hold the square roots of weights."""
    colours = bytearray()
    for byte in range(256):
        first, share = (0, byte / 127.5) if byte < 127.5 else (1, byte / 127.5 - 1)
        colours += bytes(round(a + (b - a) * share) for a, b in zip(STOPS[first], STOPS[first + 1], strict=True))
    return bytes(colours)
