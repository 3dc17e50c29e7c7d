"""The drawing of a mask as a file of its own: SVG, or PNG without a drawing library."""

import os
import struct
import zlib
from pathlib import Path

from headwise.errors import OutputError
from headwise.masks.cover import FULL, NONE, PARTIAL
from headwise.masks.patterns import Mask
from headwise.masks.picture import CELL_PIXELS, find_cells, svg_of
from headwise.report.files import check_writable, write_whole

# black on white; white on black where the reader's screen is dark
STYLE = "svg{color:#111;background:#fff}@media(prefers-color-scheme:dark){svg{color:#eee;background:#111}}"
GREYS = {NONE: 255, PARTIAL: 170, FULL: 20}
PNG_START = b"\x89PNG\r\n\x1a\n"


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
    check_writable(path)
    Path(path).write_bytes(png_of(mask, *lens, batch=batch, head=head))
    return Path(path)


def png_of(mask: Mask, query_len: int, key_len: int, *, batch: int = 0, head: int = 0) -> bytes:
    """Return the drawing as a PNG of one grey a cell: dark = all pairs may attend, grey = some, white = none.

    Args:
        mask: the mask.
        query_len: number of queries; they stand at the end of the keys.
        key_len: number of keys.
        batch: batch row that is drawn.
        head: head that is drawn.

    Source: Portable Network Graphics (third edition), W3C 2025, sections 5 and 11.2: 8 bits of grey, no filter.
    """
    cells, _ = find_cells(mask, query_len, key_len, batch=batch, head=head)
    rows = [bytes(GREYS[state] for state in row for _ in range(CELL_PIXELS)) for row in cells.tolist()] or [b""]
    rows = rows if rows[0] else [bytes([GREYS[NONE]])]  # a picture has one pixel at least
    height = len(rows) * CELL_PIXELS
    header = struct.pack(">IIBBBBB", len(rows[0]), height, 8, 0, 0, 0, 0)
    pixels = b"".join((b"\0" + row) * CELL_PIXELS for row in rows)
    return PNG_START + _chunk(b"IHDR", header) + _chunk(b"IDAT", zlib.compress(pixels)) + _chunk(b"IEND", b"")


def _chunk(name: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))
