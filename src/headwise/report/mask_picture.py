"""The drawing of a mask as a file of its own: SVG, or PNG without a drawing library."""

import os
from pathlib import Path

from headwise.errors import OutputError
from headwise.masks.cover import FULL, NONE, PARTIAL
from headwise.masks.patterns import Mask
from headwise.masks.picture import CELL_PIXELS, find_cells, svg_of
from headwise.png import write_png
from headwise.report.files import write_whole

# black on white; white on black where the reader's screen is dark
STYLE = "svg{color:#111;background:#fff}@media(prefers-color-scheme:dark){svg{color:#eee;background:#111}}"
GREYS = {NONE: 255, PARTIAL: 170, FULL: 20}


def write_mask_picture(
    mask: Mask,
    path: str | os.PathLike[str],
    query_len: int | None = None,
    key_len: int | None = None,
    *,
    batch: int = 0,
    head: int = 0,
) -> Path:
    """Write the drawing of a mask to a file: queries from top to bottom, keys from left to right.

    Args:
        mask: the mask.
        path: a new or old file, whose name ends in .svg or .png.
        query_len: number of queries; they stand at the end of the keys. Default: what shows the pattern.
        key_len: number of keys. Default: likewise.
        batch: batch row that is drawn.
        head: head that is drawn.

    Returns:
        The path as given.

    Raises:
        OutputError: another ending, or the path cannot be written.
        ConfigError: the mask holds no values (the meta device).
    """
    kind = Path(path).suffix.lower()
    if kind not in (".svg", ".png"):
        raise OutputError(f"the picture of a mask must be named .svg or .png; got {str(path)!r}")
    typical = mask.typical_lens
    lens = (typical[0] if query_len is None else query_len, typical[1] if key_len is None else key_len)
    if kind == ".svg":
        return write_whole(svg_of(mask, *lens, batch=batch, head=head, style=STYLE), path)
    return write_whole(png_of(mask, *lens, batch=batch, head=head), path)


def png_of(mask: Mask, query_len: int, key_len: int, *, batch: int = 0, head: int = 0) -> bytes:
    """Return the drawing as a PNG of one grey a cell: dark = all pairs may attend, grey = some, white = none.

    Args:
        mask: the mask.
        query_len: number of queries; they stand at the end of the keys.
        key_len: number of keys.
        batch: batch row that is drawn.
        head: head that is drawn.
    """
    cells, _ = find_cells(mask, query_len, key_len, batch=batch, head=head)
    rows = [bytes(GREYS[state] for state in row for _ in range(CELL_PIXELS)) for row in cells.tolist()] or [b""]
    rows = rows if rows[0] else [bytes([GREYS[NONE]])]  # a picture has one pixel at least
    return write_png([row for row in rows for _ in range(CELL_PIXELS)])
