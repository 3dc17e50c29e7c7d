"""All heads of a model in one drawing (SVG), without a browser: layers down, heads across, parts side by side."""

import base64
import html
import math
from collections.abc import Sequence

from headwise.inspection.results import AttentionMap, HeadStatistics, Inspection
from headwise.png import write_png
from headwise.report.figures import counted
from headwise.report.page_parts import PagePart, parts_of
from headwise.report.svg_text import cut_text, drawn_text, wrap_text

TILE = 48  # pixels of a head's map
GAP = 4
LEFT, LINE = 60, 18  # of the drawing, in its units: room for the numbers of layers, and a line of text
LEAST_WIDTH = 360  # so that a title beside few heads has room
PARTS_GAP = 6 * GAP
MAX_PARTS = 4  # side by side
MAX_TITLE_LINES = 3
SIZE, SMALL = 12, 11  # of text
STOPS = ((249, 250, 254), (94, 124, 226), (24, 22, 66))  # weight 0, one quarter and 1, as on the page in daylight
STYLE = (
    ".headwise-heads text{font:12px system-ui,sans-serif;fill:#1c1d26}"
    ".headwise-heads .s{fill:#5b5d6b;font-size:11px}"
    ".headwise-heads rect.held{fill:none;stroke:#c2410c;stroke-width:2}"
    ".headwise-heads{background:#fff;max-width:100%;height:auto}.headwise-heads image{image-rendering:pixelated}"
    "@media(prefers-color-scheme:dark){.headwise-heads{background:#14151c}"
    ".headwise-heads text{fill:#eceef8}.headwise-heads .s{fill:#a5a8b8}}"
)

Grid = list[list[HeadStatistics | None]]


def heads_svg(inspection: Inspection, title: str) -> str:
    """Return the heads as an SVG with labels, in which a head that holds a role is framed and says so.

    Parts stand side by side, each below its name, the main one first.

    Args:
        inspection: what is drawn.
        title: what stands above, as plain text; what a drawing may not hold is shown as �, and what has no room as ….
    """
    parts = parts_of(inspection)[:MAX_PARTS]
    widths = [LEFT + (TILE + GAP) * num_columns(part.inspection) + GAP for part in parts]
    width = max(LEAST_WIDTH, sum(widths) + PARTS_GAP * (len(parts) - 1))
    room = width - 2 * GAP
    title = drawn_text(title)
    about = about_picture(inspection)
    lines = [(line, "") for line in wrap_text(title, room, size=SIZE, max_lines=MAX_TITLE_LINES)]
    lines += [(line, ' class="s"') for line in wrap_text(about, room, size=SMALL, max_lines=MAX_TITLE_LINES)]
    drawn = [
        f'<text{kind} x="{GAP}" y="{LINE * number}">{html.escape(line)}</text>'
        for number, (line, kind) in enumerate(lines, start=1)
    ]
    top, left, height = LINE * len(lines) + GAP, 0, 0
    for part, own_width in zip(parts, widths, strict=True):
        panel, panel_height = _draw_panel(part, left, top, own_width, named=len(parts) > 1)
        drawn += panel
        height = max(height, panel_height)
        left += own_width + PARTS_GAP
    height += top
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="headwise-heads" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}" role="img" aria-label="{html.escape(title, quote=True)}">'
        f"<style>{STYLE}</style>{''.join(drawn)}</svg>\n"
    )


def _draw_panel(part: PagePart, left: int, top: int, width: int, *, named: bool) -> tuple[list[str], int]:
    """Return what is drawn of one part, and how high it is."""
    grid, tiles, palette = grid_of(part.inspection), tiles_of(part.inspection), map_palette()
    step = TILE + GAP
    drawn: list[str] = []
    head_line = top + SMALL
    if named:
        name = cut_text(drawn_text(part.name or ""), width - GAP, size=SIZE)
        drawn.append(f'<text x="{left + GAP}" y="{head_line + GAP}">{html.escape(name)}</text>')
        head_line += LINE + GAP
    drawn += [
        f'<text class="s" x="{left + LEFT + step * column + TILE // 2}" y="{head_line}" '
        f'text-anchor="middle">{column}</text>'
        for column in range(num_columns(part.inspection))
    ]
    first = head_line + GAP
    for row, layer in enumerate(grid):
        y = first + step * row
        number = next(head.layer for head in layer if head)
        drawn.append(f'<text class="s" x="{left + GAP}" y="{y + TILE // 2 + 4}">layer {number}</text>')
        for column, head in enumerate(layer):
            if head is not None:
                drawn.append(_draw_head(head, tiles[head.layer, head.head], left + LEFT + step * column, y, palette))
    return drawn, first + step * len(grid) - top


def _draw_head(head: HeadStatistics, rows: list[bytes], x: int, y: int, palette: bytes) -> str:
    picture = base64.b64encode(write_png(rows, palette=palette)).decode("ascii")
    held = ", ".join(role.name for role in head.roles if role.holds)
    about = f"layer {head.layer} head {head.head}{': ' + drawn_text(held) if held else ''}"
    frame = f'<rect class="held" x="{x}" y="{y}" width="{TILE}" height="{TILE}"/>' if held else ""
    return (
        f'<image x="{x}" y="{y}" width="{TILE}" height="{TILE}" preserveAspectRatio="none" '
        f'href="data:image/png;base64,{picture}"><title>{html.escape(about)}</title></image>{frame}'
    )


def about_picture(inspection: Inspection) -> str:
    """Return what the squares of each part show, what a frame means, and whether parts are left out."""
    all_parts = parts_of(inspection)
    parts = all_parts[:MAX_PARTS]
    said = []
    for part in parts:
        own = part.inspection
        maps = drawn_maps(own)
        if not maps:
            words = "squares as dark as normalised entropy, from 0 to 1"
        elif maps[0].tile > 1 or (own.key_tokens is None and maps[0].num_queries < len(own.tokens)):
            covered = min(maps[0].num_queries * maps[0].tile, len(own.tokens) or maps[0].num_queries * maps[0].tile)
            which = "all" if covered >= len(own.tokens) else "the first"
            words = f"{which} {counted(covered, 'token')}, queries down, keys across"
        else:
            words = (
                f"{counted(maps[0].num_queries, 'query', 'queries')} down, {counted(maps[0].num_keys, 'key')} across"
            )
        said.append(f"{counted(len(own.heads), 'head')}, {words}")
    if len(parts) > 1 and len(set(said)) == 1:
        said = [f"in each {said[0]}"]
    elif len(parts) > 1:
        said = [f"{drawn_text(part.name or '')}: {words}" for part, words in zip(parts, said, strict=True)]
    beside = []
    if len(parts) < len(all_parts):
        beside.append(f"the first {len(parts)} of {len(all_parts)} parts")
    if any(role.holds for part in parts for head in part.inspection.heads for role in head.roles):
        beside.append("framed: holds a role")
    # long names of parts must not push out what holds for all of them
    return "; ".join([*beside, *said] if len(parts) > 1 else [*said, *beside])


def grid_of(inspection: Inspection) -> Grid:
    """Return the heads of each layer, in order; None where a layer has fewer than another."""
    layers: dict[int, list[HeadStatistics | None]] = {}
    for head in inspection.heads:
        layers.setdefault(head.layer, []).append(head)
    most = max(map(len, layers.values()))
    return [layer + [None] * (most - len(layer)) for layer in layers.values()]


def num_columns(inspection: Inspection) -> int:
    """Return the largest number of heads of a layer."""
    return len(grid_of(inspection)[0])


def drawn_maps(inspection: Inspection) -> tuple[AttentionMap, ...]:
    """Return the maps that show most of the text: exact ones, or overviews where those end before the text does."""
    exact, overviews = inspection.maps, inspection.overviews
    if exact and (not overviews or exact[0].num_queries * exact[0].tile >= len(inspection.tokens)):
        return exact
    return overviews


def tiles_of(inspection: Inspection) -> dict[tuple[int, int], list[bytes]]:
    """Return each head's rows of pixels: all squares of one size."""
    maps = {(one.layer, one.head): one for one in drawn_maps(inspection)}
    places = {(head.layer, head.head): head for head in inspection.heads}
    return {
        place: _shrink(maps[place]) if place in maps else [bytes([_shade(head)]) * TILE] * TILE
        for place, head in places.items()
    }


def _shade(head: HeadStatistics) -> int:
    entropy = head.normalized_entropy
    return round(255 * min(1.0, max(0.0, entropy))) if math.isfinite(entropy) else 0


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


def map_palette() -> bytes:
    """Return red, green and blue of the bytes of a map, which hold the square roots of weights."""
    colours = bytearray()
    for byte in range(256):
        first, share = (0, byte / 127.5) if byte < 127.5 else (1, byte / 127.5 - 1)
        colours += bytes(round(a + (b - a) * share) for a, b in zip(STOPS[first], STOPS[first + 1], strict=True))
    return bytes(colours)
