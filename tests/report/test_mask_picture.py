import errno
import os
import struct
import zlib
from xml.etree import ElementTree as ET

import pytest
import torch

from headwise.errors import OutputError
from headwise.masks.patterns import Causal, SlidingWindow
from headwise.masks.picture import CELL_PIXELS, find_cells
from headwise.masks.tables import Explicit
from headwise.png import PNG_START
from headwise.report.mask_picture import GREYS, write_mask_picture


def read_png(content):
    """Width, height and rows of pixels of a PNG of 8 bits of grey, whose checksums must be right."""
    assert content.startswith(PNG_START)
    chunks, place = {}, len(PNG_START)
    while place < len(content):
        (size,) = struct.unpack(">I", content[place : place + 4])
        name, body = content[place + 4 : place + 8], content[place + 8 : place + 8 + size]
        assert struct.unpack(">I", content[place + 8 + size : place + 12 + size]) == (zlib.crc32(name + body),)
        chunks[name] = body
        place += 12 + size
    assert list(chunks) == [b"IHDR", b"IDAT", b"IEND"]
    width, height, *kind = struct.unpack(">IIBBBBB", chunks[b"IHDR"])
    assert kind == [8, 0, 0, 0, 0]
    lines = zlib.decompress(chunks[b"IDAT"])
    assert len(lines) == height * (width + 1)
    rows = [lines[start : start + width + 1] for start in range(0, len(lines), width + 1)]
    assert all(row[0] == 0 for row in rows)
    return width, height, [row[1:] for row in rows]


def test_a_png_has_the_grey_of_every_cell(tmp_path):
    path = write_mask_picture(Causal(), tmp_path / "causal.png", 94, 96)
    width, height, rows = read_png(path.read_bytes())
    cells, _ = find_cells(Causal(), 94, 96)
    assert (width, height) == (48 * CELL_PIXELS, 47 * CELL_PIXELS)
    for y, row in enumerate(cells.tolist()):
        for x, state in enumerate(row):
            for step in (0, CELL_PIXELS - 1):
                assert rows[y * CELL_PIXELS + step][x * CELL_PIXELS + step] == GREYS[state]
    assert len(set(GREYS.values())) == 3


def test_a_svg_brings_its_colours_for_light_and_dark(tmp_path):
    table = torch.tensor([[[True, False]], [[True, True]]])
    path = write_mask_picture(Explicit(table), tmp_path / "table.SVG", head=1)
    svg = ET.fromstring(path.read_text(encoding="utf-8"))
    assert "prefers-color-scheme:dark" in svg[0].text
    assert "M0 0h2v1h-2z" in svg[3].get("d")


def test_without_lengths_a_picture_has_those_that_show_the_pattern(tmp_path):
    path = write_mask_picture(SlidingWindow(4), tmp_path / "window.png")
    assert read_png(path.read_bytes())[0] == 16 * CELL_PIXELS
    empty = write_mask_picture(SlidingWindow(4), tmp_path / "window.png", 0, 5)
    assert read_png(empty.read_bytes()) == (1, CELL_PIXELS, [bytes([GREYS[0]])] * CELL_PIXELS)


@pytest.mark.parametrize("ending", [".png", ".svg"])
def test_a_full_disk_leaves_the_old_picture_and_nothing_else(tmp_path, monkeypatch, ending):
    path = write_mask_picture(Causal(), tmp_path / f"mask{ending}")
    before = path.read_bytes()

    def fail(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("os.fsync", fail)
    with pytest.raises(OutputError, match="No space left on device"):
        write_mask_picture(SlidingWindow(4), path)
    assert path.read_bytes() == before and [one.name for one in tmp_path.iterdir()] == [path.name]


def test_a_place_that_cannot_be_written_is_named(tmp_path):
    with pytest.raises(OutputError, match=r"must be named \.svg or \.png; got 'mask\.jpg'"):
        write_mask_picture(Causal(), "mask.jpg")
    for name in ("mask.png", "mask.svg"):
        with pytest.raises(OutputError, match="cannot write"):
            write_mask_picture(Causal(), tmp_path / "nowhere" / name)
