"""Pictures as PNG, without a drawing library."""

import struct
import zlib
from collections.abc import Sequence

PNG_START = b"\x89PNG\r\n\x1a\n"
GREY, PALETTE = 0, 3  # colour types


def write_png(rows: Sequence[bytes], *, palette: bytes | None = None) -> bytes:
    """Return a PNG of 8 bits a pixel: greys, or places in a palette.

    Args:
        rows: pixels from top to bottom, all as wide; one pixel at least.
        palette: red, green and blue of each value; None = the values are greys.

    Source: Portable Network Graphics (third edition), W3C 2025, sections 5 and 11.2: no filter, no interlace.
    """
    header = struct.pack(">IIBBBBB", len(rows[0]), len(rows), 8, GREY if palette is None else PALETTE, 0, 0, 0)
    colours = b"" if palette is None else _chunk(b"PLTE", palette)
    pixels = zlib.compress(b"".join(b"\0" + row for row in rows))
    return PNG_START + _chunk(b"IHDR", header) + colours + _chunk(b"IDAT", pixels) + _chunk(b"IEND", b"")


def _chunk(name: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))
