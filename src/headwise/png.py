"""Pictures as PNG, without a drawing library: written, and read where they are plain."""

import struct
import zlib
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from headwise.errors import HeadwiseError

PNG_START = b"\x89PNG\r\n\x1a\n"
GREY, COLOURS, PALETTE, GREY_ALPHA, COLOURS_ALPHA = 0, 2, 3, 4, 6  # colour types
NUM_CHANNELS = {GREY: 1, COLOURS: 3, PALETTE: 1, GREY_ALPHA: 2, COLOURS_ALPHA: 4}
BIT_DEPTHS = {GREY: (1, 2, 4, 8, 16), PALETTE: (1, 2, 4, 8)}  # of the other types: 8 and 16
MAX_PIXELS = 2**26  # 8,192 x 8,192: a file of some kilobytes may claim any size


class Pixels(NamedTuple):
    """A picture: three bytes a pixel (red, green, blue), row by row from the top left."""

    height: int
    width: int
    values: bytes


def write_png(rows: Sequence[bytes], *, palette: bytes | None = None, in_colour: bool = False) -> bytes:
    """Return a PNG of 8 bits a number: greys, places in a palette, or colours.

    Args:
        rows: pixels from top to bottom, all as wide; one pixel at least.
        palette: red, green and blue of each value; None = the values are greys.
        in_colour: whether each pixel is three bytes, red, green and blue; without a palette.

    Source: Portable Network Graphics (third edition), W3C 2025, sections 5 and 11.2: no filter, no interlace.
    """
    assert palette is None or not in_colour
    kind = COLOURS if in_colour else GREY if palette is None else PALETTE
    width = len(rows[0]) // (3 if in_colour else 1)
    header = struct.pack(">IIBBBBB", width, len(rows), 8, kind, 0, 0, 0)
    colours = b"" if palette is None else _chunk(b"PLTE", palette)
    pixels = zlib.compress(b"".join(b"\0" + row for row in rows))
    return PNG_START + _chunk(b"IHDR", header) + colours + _chunk(b"IDAT", pixels) + _chunk(b"IEND", b"")


def read_png(content: bytes) -> Pixels | None:
    """Return the pixels of a PNG as 8-bit colours; transparency is left out, of 16 bits the upper 8 are kept.

    Returns:
        None for an interlaced PNG, which is not read here.

    Raises:
        HeadwiseError: it is no PNG, is broken, or has more than 2**26 pixels.

    Source: Portable Network Graphics (third edition), W3C 2025, sections 7, 9 and 11.
    """
    header, palette, packed = b"", b"", b""
    for name, data in _chunks(content):
        if name == b"IHDR":
            header = data
        elif name == b"PLTE":
            palette = data
        elif name == b"IDAT":
            packed += data
    if len(header) != 13:
        raise HeadwiseError("a PNG must say its size; this one does not")
    width, height, depth, kind, _, _, interlace = struct.unpack(">IIBBBBB", header)
    if kind not in NUM_CHANNELS or depth not in BIT_DEPTHS.get(kind, (8, 16)) or not 0 < width * height <= MAX_PIXELS:
        raise HeadwiseError(
            f"a PNG must have 1 to {MAX_PIXELS} pixels of a known kind; got {width} x {height}, kind {kind} at {depth} "
            "bits"
        )
    if interlace:
        return None
    line_bytes = -(-width * NUM_CHANNELS[kind] * depth // 8)
    try:
        raw = zlib.decompressobj().decompress(packed, height * (1 + line_bytes))
    except zlib.error:
        raw = b""
    if len(raw) != height * (1 + line_bytes):
        raise HeadwiseError(f"a PNG must hold all of its {height} rows; this one is cut short or broken")
    step = max(1, NUM_CHANNELS[kind] * depth // 8)
    rows = _without_filters(raw, line_bytes, step)
    return Pixels(height, width, b"".join(_to_colours(row, width, depth, kind, palette) for row in rows))


def _chunk(name: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))


def _chunks(content: bytes) -> Iterator[tuple[bytes, bytes]]:
    if not content.startswith(PNG_START):
        raise HeadwiseError("a PNG must start with the mark of its kind; this file does not")
    at = len(PNG_START)
    while at + 12 <= len(content):
        (length,) = struct.unpack_from(">I", content, at)
        name, data = content[at + 4 : at + 8], content[at + 8 : at + 8 + length]
        if content[at + 8 + length : at + 12 + length] != struct.pack(">I", zlib.crc32(name + data)):
            raise HeadwiseError(f"a PNG must be whole; its part {name.decode('latin-1')!r} is cut short or broken")
        yield name, data
        if name == b"IEND":
            return
        at += 12 + length
    raise HeadwiseError("a PNG must be whole, from its size to its end; this one is cut short")


def _without_filters(raw: bytes, line_bytes: int, step: int) -> Iterator[bytes]:
    """Yield rows of bytes; each was written as what it differs by from bytes before it and above it."""
    above = bytearray(line_bytes)
    for start in range(0, len(raw), line_bytes + 1):
        kind, line = raw[start], bytearray(raw[start + 1 : start + 1 + line_bytes])
        if kind > 4:
            raise HeadwiseError(f"a row of a PNG must have a filter from 0 to 4; got {kind}")
        if kind == 2:
            line = bytearray((value + up) & 255 for value, up in zip(line, above, strict=True))
        elif kind:
            for at in range(line_bytes):
                left = line[at - step] if at >= step else 0
                corner = above[at - step] if at >= step else 0
                line[at] = (line[at] + _predict(kind, left, above[at], corner)) & 255
        yield bytes(line)
        above = line


def _predict(kind: int, left: int, up: int, corner: int) -> int:
    if kind == 1:
        return left
    if kind == 3:
        return (left + up) // 2
    guess = left + up - corner
    return min((abs(guess - left), 0, left), (abs(guess - up), 1, up), (abs(guess - corner), 2, corner))[2]


def _to_colours(row: bytes, width: int, depth: int, kind: int, palette: bytes) -> bytes:
    if depth == 16:
        row = row[::2]
    elif depth < 8:
        each, top = 8 // depth, 2**depth - 1
        values = [(byte >> (8 - depth * (place + 1))) & top for byte in row for place in range(each)][:width]
        row = bytes(values if kind == PALETTE else [255 * value // top for value in values])
    if kind == PALETTE:
        if 3 * max(row) + 3 > len(palette):
            raise HeadwiseError(f"a pixel of a PNG must be one of its palette's {len(palette) // 3}; got {max(row)}")
        return b"".join(palette[3 * value : 3 * value + 3] for value in row)
    channels = NUM_CHANNELS[kind]
    if channels <= 2:
        row = row[::channels]
        return bytes(value for value in row for _ in range(3))
    return row if channels == 3 else bytes(value for at, value in enumerate(row) if at % 4 != 3)
