"""Pictures of a mask: signs for a terminal, and a drawing that stands in a notebook or a file of its own."""

import html
from itertools import groupby

import torch
from jaxtyping import Int8
from torch import Tensor

from headwise.errors import ConfigError
from headwise.masks.cover import FULL, NONE, PARTIAL
from headwise.masks.patterns import Mask, require_whole_number

SIGNS = {NONE: "·", PARTIAL: "▒", FULL: "■"}
MAX_CELLS = 48  # to a side; a longer mask is drawn by blocks
CELL_PIXELS = 6


def find_side(query_len: int, key_len: int, max_cells: int) -> int:
    """Return the tokens to a side of a cell: the smallest power of two, as blocks mostly are, that makes few enough."""
    return int(2 ** max(0, (-(-max(query_len, key_len) // max_cells) - 1).bit_length()))


def find_cells(
    mask: Mask, query_len: int, key_len: int, *, batch: int = 0, head: int = 0, max_cells: int = MAX_CELLS
) -> tuple[Int8[Tensor, "query_blocks key_blocks"], int]:
    """Return how much of each cell of a picture is allowed (NONE, PARTIAL or FULL), and its side in tokens.

    Args:
        mask: the mask.
        query_len: number of queries; they stand at the end of the keys.
        key_len: number of keys.
        batch: batch row that is drawn.
        head: head that is drawn.
        max_cells: number of cells to a side, at most.

    Raises:
        ConfigError: the mask does not describe such a batch row or head, or holds no values.
    """
    require_whole_number("batch", batch, minimum=0)
    require_whole_number("head", head, minimum=0)
    sizes = _described(mask, batch + 1, head + 1)
    for name, place, size in zip(("batch", "head"), (batch, head), sizes, strict=True):
        if place >= max(1, size):
            raise ConfigError(f"{name} must be one of the {size} that the mask describes, from 0; got {place}")
    side = find_side(query_len, key_len, max_cells)
    any_allowed, all_allowed = mask.block_layout(side, query_len, key_len, batch_size=sizes[0], num_heads=sizes[1])
    row, column = (0 if size == 1 else place for size, place in zip(any_allowed.shape, (batch, head), strict=False))
    return any_allowed[row, column].to(torch.int8) + all_allowed[row, column].to(torch.int8), side


def draw(mask: Mask, query_len: int, key_len: int, *, batch: int = 0, head: int = 0) -> str:
    """Draw a mask as text: a line for the queries, a sign for the keys; a long one by blocks. See `Mask.draw`."""
    cells, side = find_cells(mask, query_len, key_len, batch=batch, head=head)
    lines = ["".join(SIGNS[state] for state in row) for row in cells.tolist()]
    if side > 1:
        legend = f"{SIGNS[FULL]} all, {SIGNS[PARTIAL]} some, {SIGNS[NONE]} none"
        lines.append(f"a sign is {side} queries x {side} keys: {legend}")
    return "\n".join(lines)


def describe(mask: Mask, query_len: int, key_len: int) -> str:
    """Say in a line how many pairs a mask allows, of the batch rows and heads that it describes."""
    batch_size, num_heads = _described(mask, 1, 1)
    sizes = {"batch_size": batch_size, "num_heads": num_heads}
    allowed, part = mask.count_pairs(query_len, key_len, **sizes), mask.density(query_len, key_len, **sizes)
    every = batch_size * num_heads * query_len * key_len
    counted = [f"{count:,} {name}" for count, name in ((batch_size, "batch rows"), (num_heads, "heads")) if count != 1]
    where = f" over {' and '.join(counted)}" if counted else ""
    return f"{query_len:,} queries × {key_len:,} keys: {allowed:,} of {every:,} pairs{where} ({part:.2%})"


def svg_of(mask: Mask, query_len: int, key_len: int, *, batch: int = 0, head: int = 0, style: str = "") -> str:
    """Draw a mask as SVG: queries from top to bottom, keys from left to right.

    A cell all of whose pairs are allowed is filled, one of which some are holds a small square. Both have the colour of
    the text around, so that the drawing suits a light and a dark page.

    Args:
        mask: the mask.
        query_len: number of queries; they stand at the end of the keys.
        key_len: number of keys.
        batch: batch row that is drawn.
        head: head that is drawn.
        style: CSS that the drawing carries.
    """
    cells, _ = find_cells(mask, query_len, key_len, batch=batch, head=head)
    height, width = cells.shape
    whole, some = [], []
    for y, row in enumerate(cells.tolist()):
        x = 0
        for state, run in groupby(row):
            length = len(list(run))
            if state == FULL:
                whole.append(f"M{x} {y}h{length}v1h-{length}z")
            elif state == PARTIAL:
                some += [f"M{x + step}.25 {y}.25h.5v.5h-.5z" for step in range(length)]
            x += length
    label = html.escape(f"Drawing of {mask!r}, {describe(mask, query_len, key_len)}")
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" aria-label="{label}" '
        f'viewBox="-.2 -.2 {width + 0.4:g} {height + 0.4:g}" '
        f'width="{width * CELL_PIXELS}" height="{height * CELL_PIXELS}" style="max-width:100%">'
        f"{f'<style>{style}</style>' if style else ''}<title>{label}</title>"
        f'<rect width="{width}" height="{height}" fill="none" stroke="currentColor" stroke-width=".1"/>'
        f'<path fill="currentColor" d="{"".join(whole)}"/><path fill="currentColor" d="{"".join(some)}"/></svg>'
    )


def figure_of(mask: Mask) -> str:
    """Return a figure for a notebook: the mask's name, a drawing at a length that shows the pattern, what it allows."""
    name = f"<code>{html.escape(repr(mask))}</code>"
    if mask.device is not None and mask.device.type == "meta":  # nothing to draw
        return f"<figure>{name}</figure>"
    query_len, key_len = mask.typical_lens
    side = find_side(query_len, key_len, MAX_CELLS)
    cell = f"a cell is {side} × {side} tokens" if side > 1 else "a cell is a pair"
    drawn = [
        f"{word} 0" for word, count in (("batch row", mask.batch_size), ("head", mask.num_heads)) if count is not None
    ]
    which = f"; drawn: {', '.join(drawn)}" if drawn else ""
    return (
        f'<figure style="margin:.5em 0">{name}<br>{svg_of(mask, query_len, key_len)}<figcaption>'
        f"{html.escape(describe(mask, query_len, key_len))}<br><small>rows are queries, columns keys; {cell}: "
        f"filled = all may attend, small square = some, empty = none{which}</small></figcaption></figure>"
    )


def _described(mask: Mask, batch_size: int, num_heads: int) -> tuple[int, int]:
    """Return how many batch rows and heads a mask describes; of one that serves any number, as many as are given."""
    rows, heads = mask.batch_size, mask.num_heads
    return batch_size if rows is None else rows, num_heads if heads is None else heads
