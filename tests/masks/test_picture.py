import re
from xml.etree import ElementTree as ET

import pytest
import torch

from headwise.errors import ConfigError
from headwise.masks.bigbird import BigBird
from headwise.masks.data import KeyPadding
from headwise.masks.patterns import Causal, Full, SlidingWindow
from headwise.masks.picture import describe, find_cells, svg_of
from headwise.masks.sparse import Dilated, GlobalTokens, LocalWindow, PrefixLM, Strided
from headwise.masks.tables import BlockSparse, Documents, Explicit

SVG = "{http://www.w3.org/2000/svg}"
TABLE = torch.tensor([[[True, False], [False, False]], [[True, True], [False, True]]])


def test_a_short_mask_is_drawn_pair_by_pair():
    assert SlidingWindow(2).draw(3, 4).splitlines() == ["■■··", "·■■·", "··■■"]
    assert KeyPadding(torch.tensor([1, 2])).draw(1, 3, batch=1) == "■■·"
    assert Explicit(TABLE).draw(2, 2, head=1).splitlines() == ["■■", "·■"]
    assert Causal().draw(1, 2, batch=3, head=5) == "■■"
    assert (Full().draw(0, 3), Full().draw(2, 0)) == ("", "\n")


def test_a_long_mask_is_drawn_by_blocks_with_a_shade_for_parts():
    lines = Causal().draw(96, 96).splitlines()
    assert len(lines) == 49
    for row, line in enumerate(lines[:48]):
        assert line == "■" * row + "▒" + "·" * (47 - row)
    assert lines[48] == "a sign is 2 queries x 2 keys: ■ all, ▒ some, · none"


@pytest.mark.parametrize("length", [48, 49, 96, 97, 65_536])
def test_a_picture_has_at_most_48_cells_to_a_side_and_more_than_24(length):
    cells, side = find_cells(SlidingWindow(7), 1, length)
    assert cells.shape == (1, -(-length // side))
    assert 24 < cells.shape[1] <= 48


def rectangles(path):
    """Upper left corners, widths and heights of the rectangles of an SVG path."""
    numbers = r"M([\d.]+) ([\d.]+)h([\d.]+)v([\d.]+)h-([\d.]+)z"
    found = [tuple(map(float, match)) for match in re.findall(numbers, path.get("d"))]
    assert len(found) == path.get("d").count("M")
    assert all(there == back for _, _, there, _, back in found)
    return [rectangle[:4] for rectangle in found]


@pytest.mark.parametrize("mask", [Causal(), LocalWindow(20, 3) | GlobalTokens(1)])
def test_the_svg_holds_a_square_for_each_cell_that_may_attend(mask):
    svg = ET.fromstring(svg_of(mask, 94, 96))
    whole, some = svg.findall(f"{SVG}path")
    cells, _ = find_cells(mask, 94, 96)
    drawn = torch.zeros(47, 48, dtype=torch.int8)
    for x, y, width, height in rectangles(whole):
        assert height == 1
        drawn[int(y), int(x) : int(x + width)] += 2
    for x, y, width, height in rectangles(some):
        assert (x % 1, y % 1, width, height) == (0.25, 0.25, 0.5, 0.5)
        drawn[int(y), int(x)] += 1
    assert torch.equal(drawn, cells)
    assert set(cells.flatten().tolist()) == {0, 1, 2}


def test_the_drawing_is_read_out_and_takes_the_colour_of_the_page():
    html = (SlidingWindow(300) & Causal())._repr_html_()
    svg = ET.fromstring(html[html.index("<svg") : html.index("</svg>") + 6])
    assert svg.get("role") == "img"
    label = (
        "Drawing of (SlidingWindow(window_size=300) & Causal()), 1,200 queries × 1,200 keys: 315,150 of 1,440,000 pairs"
    )
    assert svg.get("aria-label").startswith(label)
    assert svg.find(f"{SVG}title").text == svg.get("aria-label")
    assert {path.get("fill") for path in svg.iter(f"{SVG}path")} == {"currentColor"}
    assert "#" not in html
    assert "a cell is 32 × 32 tokens" in html


def test_names_are_escaped():
    html = Documents(torch.tensor([2, 3]))._repr_html_()
    assert "Documents(&lt;2 lengths&gt;)" in html
    assert "<2 lengths>" not in html


def test_the_words_count_all_batch_rows_and_heads():
    assert describe(Causal(), 3, 5) == "3 queries × 5 keys: 12 of 15 pairs (80.00%)"
    padding = KeyPadding(torch.tensor([1, 2, 3]))
    assert describe(padding, 2, 4) == "2 queries × 4 keys: 12 of 24 pairs over 3 batch rows (50.00%)"
    assert describe(Explicit(TABLE), 2, 2) == "2 queries × 2 keys: 4 of 8 pairs over 2 heads (50.00%)"
    assert "drawn: batch row 0</small>" in padding._repr_html_()
    assert "drawn: head 0</small>" in Explicit(TABLE)._repr_html_()


@pytest.mark.parametrize(
    ("mask", "lens"),
    [
        (Causal(), (12, 12)),
        (SlidingWindow(2), (12, 12)),
        (SlidingWindow(256), (1024, 1024)),
        (LocalWindow(256, 128) | GlobalTokens(16), (1028, 1028)),
        (GlobalTokens(100), (400, 400)),
        (Dilated(100, 3), (600, 600)),
        (Strided(100), (400, 400)),
        (PrefixLM(100), (200, 200)),
        (BigBird(9, 16) & Causal(), (144, 144)),
        (~KeyPadding(torch.tensor([100, 3])), (100, 100)),
        (KeyPadding(torch.tensor([100, 3]), padded_len=120), (120, 120)),
        (Documents(torch.tensor([[2, 30], [7, 8]])), (32, 32)),
        (Explicit(torch.ones(3, 7, dtype=torch.bool)), (3, 7)),
        (Explicit(torch.ones(1, 7, dtype=torch.bool)), (7, 7)),
        (BlockSparse(torch.ones(3, 7, dtype=torch.bool), 4), (12, 28)),
    ],
    ids=repr,
)
def test_a_mask_knows_a_length_that_shows_its_pattern(mask, lens):
    assert mask.typical_lens == lens
    assert "<svg" in mask._repr_html_()


def test_a_mask_without_values_or_rows_still_shows_its_name():
    assert Documents(torch.zeros(2, device="meta").long())._repr_html_() == (
        "<figure><code>Documents(&lt;2 lengths&gt;)</code></figure>"
    )
    assert "KeyPadding" in KeyPadding(torch.zeros(0, dtype=torch.long))._repr_html_()


@pytest.mark.parametrize(
    ("draw", "text"),
    [
        (
            lambda: Explicit(TABLE).draw(2, 2, head=2),
            "one of the 2 that the mask describes, from 0; got 2",
        ),
        (lambda: KeyPadding(torch.tensor([1])).draw(2, 2, batch=1), "batch must be one of the 1 that"),
        (lambda: Causal().draw(2, 2, batch=-1), "batch must be a whole number, at least 0; got -1"),
    ],
)
def test_a_row_or_head_that_is_not_there_is_refused(draw, text):
    with pytest.raises(ConfigError, match=text):
        draw()
