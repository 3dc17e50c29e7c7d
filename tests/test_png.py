"""PNG files read against what the format's own rules give, every kind, depth and filter of it."""

import struct
import zlib

import pytest

from headwise.errors import HeadwiseError
from headwise.png import MAX_PIXELS, PNG_START, Pixels, read_png, write_png


def chunk(name, content):
    return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))


def png(width, height, depth, kind, rows, *, palette=None, interlace=0, packed=None):
    header = struct.pack(">IIBBBBB", width, height, depth, kind, 0, 0, interlace)
    parts = [chunk(b"IHDR", header)]
    if palette is not None:
        parts.append(chunk(b"PLTE", palette))
    packed = zlib.compress(b"".join(rows)) if packed is None else packed
    parts += [chunk(b"IDAT", packed[:7]), chunk(b"IDAT", packed[7:]), chunk(b"IEND", b"")]
    return PNG_START + b"".join(parts)


def test_what_is_written_in_colour_is_read_back():
    rows = [bytes(range(15)), bytes(range(100, 115)), bytes(range(240, 255))]
    assert read_png(write_png(rows, in_colour=True)) == Pixels(3, 5, b"".join(rows))
    assert read_png(write_png([b"\x00\x07", b"\xff\x09"])).values == bytes([0] * 3 + [7] * 3 + [255] * 3 + [9] * 3)
    assert read_png(write_png([b"\1\0"], palette=b"abcdef")).values == b"defabc"


@pytest.mark.parametrize(
    ("depth", "kind", "row", "colours"),
    [
        (1, 0, b"\xa0", [255, 0, 255]),
        (2, 0, b"\x1b", [0, 85, 170]),
        (4, 0, b"\x0f\x80", [0, 255, 136]),
        (8, 0, b"\x01\x02\x03", [1, 2, 3]),
        (16, 0, b"\x01\xff\x02\xff\x03\xff", [1, 2, 3]),
        (8, 4, b"\x01\xaa\x02\xbb\x03\xcc", [1, 2, 3]),
        (16, 4, b"\x01\xff\xaa\xaa\x02\xff\xbb\xbb\x03\xff\xcc\xcc", [1, 2, 3]),
    ],
)
def test_greys_of_every_depth_become_three_channels_and_lose_transparency(depth, kind, row, colours):
    expected = bytes(value for value in colours for _ in range(3))
    assert read_png(png(3, 1, depth, kind, [b"\0" + row])) == Pixels(1, 3, expected)


def test_colours_of_16_bits_with_transparency_keep_their_upper_bytes():
    assert read_png(png(2, 1, 8, 6, [b"\0" + bytes([1, 2, 3, 99, 4, 5, 6, 99])])).values == bytes([1, 2, 3, 4, 5, 6])
    assert read_png(png(1, 1, 16, 2, [b"\0" + bytes([1, 9, 2, 9, 3, 9])])).values == bytes([1, 2, 3])
    assert read_png(png(1, 1, 16, 6, [b"\0" + bytes([1, 9, 2, 9, 3, 9, 4, 9])])).values == bytes([1, 2, 3])
    assert read_png(png(5, 1, 2, 3, [b"\0\x1b\x40"], palette=b"aaabbbcccddd")).values == b"aaabbbcccdddbbb"


def paeth(left, up, corner):
    """As section 9.4 words it: of left, up and corner the nearest to left + up - corner, the first of equals."""
    guess = left + up - corner
    distances = [abs(guess - left), abs(guess - up), abs(guess - corner)]
    return [left, up, corner][distances.index(min(distances))]


@pytest.mark.parametrize("filter_kind", range(5))
def test_every_filter_is_undone(filter_kind):
    width, step = 7, 3
    rows = [bytes((31 * row + 17 * at * at + 5) % 256 for at in range(step * width)) for row in range(4)]
    written = []
    for number, row in enumerate(rows):
        above = rows[number - 1] if number else bytes(len(row))
        line = bytearray([filter_kind])
        for at, value in enumerate(row):
            left = row[at - step] if at >= step else 0
            corner = above[at - step] if at >= step else 0
            guess = [0, left, above[at], (left + above[at]) // 2, paeth(left, above[at], corner)][filter_kind]
            line.append((value - guess) % 256)
        written.append(bytes(line))
    assert read_png(png(width, 4, 8, 2, written)) == Pixels(4, width, b"".join(rows))


def test_interlaced_pictures_are_left_to_others():
    assert read_png(png(1, 1, 8, 0, [b"\0\5"], interlace=1)) is None


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"GIF89a", "a PNG must start with the mark of its kind; this file does not"),
        (PNG_START, "a PNG must be whole, from its size to its end; this one is cut short"),
        (PNG_START + chunk(b"IEND", b""), "a PNG must say its size; this one does not"),
        (png(2, 2, 8, 0, [b"\0\1\2"]), "a PNG must hold all of its 2 rows; this one is cut short or broken"),
        (png(1, 1, 8, 0, [], packed=b"no zlib stream"), "a PNG must hold all of its 1 rows"),
        (png(1, 1, 8, 0, [b"\5\1"]), "a row of a PNG must have a filter from 0 to 4; got 5"),
        (png(1, 1, 8, 3, [b"\0\2"], palette=b"abcdef"), "a pixel of a PNG must be one of its palette's 2; got 2"),
        (png(0, 1, 8, 0, [b"\0"]), f"a PNG must have 1 to {MAX_PIXELS} pixels of a known kind; got 0 x 1"),
        (png(2**20, 2**20, 8, 0, [b"\0"]), "a PNG must have 1 to 67108864 pixels of a known kind; got 1048576 x"),
        (png(1, 1, 4, 2, [b"\0\1"]), "of a known kind; got 1 x 1, kind 2 at 4 bits"),
        (png(1, 1, 8, 5, [b"\0\1"]), "of a known kind; got 1 x 1, kind 5 at 8 bits"),
        (png(1, 1, 8, 0, [b"\0\1"])[:-20], "a PNG must be whole, from its size to its end; this one is"),
        (png(1, 1, 8, 0, [b"\0\1"]).replace(b"IDAT", b"iDAT"), "a PNG must be whole; its part 'iDAT' is cut short or"),
    ],
)
def test_what_is_no_whole_png_is_refused_in_a_line(content, words):
    with pytest.raises(HeadwiseError) as caught:
        read_png(content)
    assert words in str(caught.value) and "\n" not in str(caught.value)


def test_a_small_file_cannot_unpack_into_more_than_it_claims():
    bomb = png(1, 1, 8, 0, [], packed=zlib.compress(bytes(50_000_000)))
    assert read_png(bomb).values == b"\0\0\0"
