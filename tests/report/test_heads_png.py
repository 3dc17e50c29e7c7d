"""The picture of all heads as PNG: every head where its numbers say, a scale, and words in our own letters."""

from dataclasses import replace

import pytest

from headwise.png import read_png
from headwise.report.canvas import Canvas
from headwise.report.heads_picture import GAP, MAX_PARTS, PARTS_GAP, TILE, map_palette
from headwise.report.heads_png import BAR_HEIGHT, HELD, LINE, MARGIN, SCALE, SOFT, heads_png, lay_out_png
from headwise.report.pixel_font import BANDS, GLYPH_HEIGHT, GLYPH_WIDTH, draw_text, measure_text

PALETTE = [tuple(map_palette()[3 * byte : 3 * byte + 3]) for byte in range(256)]


class Picture:
    """The pixels of a PNG, and where its heads stand."""

    def __init__(self, inspection, title="a model"):
        self.pixels = read_png(heads_png(inspection, title))
        self.layout = lay_out_png(inspection, title)
        assert (self.pixels.width, self.pixels.height) == (self.layout.width, self.layout.height)

    def at(self, x, y):
        start = 3 * (y * self.pixels.width + x)
        return tuple(self.pixels.values[start : start + 3])

    def square(self, layer, head, part=0):
        left, top = self.layout.tiles[part, layer, head]
        return [[self.at(left + x, top + y) for x in range(TILE)] for y in range(TILE)]

    def holds_word(self, x, y, text, colour):
        """Whether exactly a text stands at (x, y) in a colour."""
        wanted = {
            (column, row)
            for row, stretches in enumerate(draw_text(text, scale=SCALE))
            for start, end in stretches
            for column in range(start, end)
        }
        width, height = measure_text(text, scale=SCALE), SCALE * GLYPH_HEIGHT
        seen = {
            (column, row) for column in range(width) for row in range(height) if self.at(x + column, y + row) == colour
        }
        return seen == wanted


@pytest.fixture
def inspection(synthetic):
    return synthetic.make_inspection(2, 3)


def test_each_map_stands_where_its_layer_and_head_say(inspection):
    picture = Picture(inspection)
    lefts = {head: picture.layout.tiles[0, 0, head][0] for head in range(3)}
    tops = {layer: picture.layout.tiles[0, layer, 0][1] for layer in range(2)}
    for map_ in inspection.maps:
        assert picture.layout.tiles[0, map_.layer, map_.head] == (lefts[map_.head], tops[map_.layer])
        square = picture.square(map_.layer, map_.head)
        for row in range(0, TILE, 5):
            for column in range(0, TILE, 5):
                query, key = row * map_.num_queries // TILE, column * map_.num_keys // TILE
                assert square[row][column] == PALETTE[map_.weights[query * map_.num_keys + key]]
    assert lefts[1] - lefts[0] == lefts[2] - lefts[1] == tops[1] - tops[0] == TILE + GAP


def test_layers_and_heads_are_numbered(inspection):
    layers = {0: 7, 1: 10}  # a model of which some layers were read
    heads = tuple(replace(head, layer=layers[head.layer]) for head in inspection.heads)
    maps = tuple(replace(one, layer=layers[one.layer]) for one in inspection.maps)
    picture = Picture(replace(inspection, heads=heads, maps=maps))
    for head in range(3):
        left, top = picture.layout.tiles[0, 7, head]
        middle = left + TILE // 2 - measure_text(str(head), scale=SCALE) // 2
        assert picture.holds_word(middle, top - LINE, str(head), SOFT)
    for layer, words in ((7, "layer 7"), (10, "10")):
        left, top = picture.layout.tiles[0, layer, 0]
        right = left - 2 * GAP
        middle = top + (TILE - SCALE * GLYPH_HEIGHT) // 2
        assert picture.holds_word(right - measure_text(words, scale=SCALE), middle, words, SOFT)
    left, top = picture.layout.tiles[0, 7, 0]
    assert picture.holds_word(left - 2 * GAP - measure_text("head", scale=SCALE), top - LINE, "head", SOFT)


@pytest.mark.parametrize(("with_maps", "name"), [(True, "weight"), (False, "normalised entropy")])
def test_a_scale_says_what_the_shades_are(inspection, with_maps, name):
    shown = inspection if with_maps else replace(inspection, maps=())
    picture = Picture(shown)
    top = picture.layout.scales_top
    assert picture.holds_word(MARGIN, top, name, SOFT)
    bar = [picture.at(MARGIN + byte, top + LINE + BAR_HEIGHT // 2) for byte in range(256)]
    assert bar == PALETTE
    # the number 0.5 stands where that shade is: of a weight at its square root, of an entropy in the middle
    x = MARGIN + (180 if with_maps else 128)
    numbers = top + LINE + BAR_HEIGHT + 2 * GAP
    assert picture.at(x, numbers - GAP - 1) == SOFT
    assert picture.holds_word(x - measure_text("0.5", scale=SCALE) // 2, numbers, "0.5", SOFT)


def test_of_the_weights_that_fall_on_one_pixel_the_largest_is_shown(synthetic):
    length = 2 * TILE + 1
    inspection = synthetic.make_inspection(1, 1, [str(number) for number in range(length)])
    square = Picture(inspection).square(0, 0)
    weights = inspection.maps[0].weights
    ends = [(at * length // TILE, (at + 1) * length // TILE) for at in range(TILE)]
    for row, (first, end) in enumerate(ends):
        for column, (start, stop) in enumerate(ends):
            tile = [weights[query * length + key] for query in range(first, end) for key in range(start, stop)]
            assert square[row][column] == PALETTE[max(tile)]


@pytest.mark.parametrize("entropy", [0.5, float("nan")])
def test_without_maps_heads_are_as_dark_as_their_entropy(inspection, entropy):
    heads = tuple(replace(head, normalized_entropy=entropy) for head in inspection.heads)
    square = Picture(replace(inspection, maps=(), heads=heads)).square(1, 2)
    assert {colour for row in square for colour in row} == {PALETTE[128 if entropy == 0.5 else 0]}


def test_heads_that_hold_a_role_are_framed_and_no_others(inspection):
    picture = Picture(inspection)
    for head in inspection.heads:
        left, top = picture.layout.tiles[0, head.layer, head.head]
        framed = any(role.holds for role in head.roles)
        for x, y in ((-2, -2), (TILE + 1, -2), (-1, TILE + 1), (TILE + 1, TILE // 2)):
            assert (picture.at(left + x, top + y) == HELD) == framed
    assert 0 < sum(any(role.holds for role in head.roles) for head in inspection.heads) < 6


def test_parts_stand_side_by_side_below_their_names(inspection, synthetic):
    other = synthetic.make_inspection(3, 1, ("a", "b", "c"))
    picture = Picture(synthetic.make_inspected(inspection, ("other", other, False), part="main"))
    (left, top), (right, other_top) = picture.layout.tiles[0, 0, 0], picture.layout.tiles[1, 0, 0]
    room = measure_text("layer 0", scale=SCALE) + 2 * GAP
    assert top == other_top and right == left + 3 * (TILE + GAP) + GAP + PARTS_GAP + room
    assert picture.holds_word(left - room, top - 2 * LINE, "main", (28, 29, 38))
    assert picture.holds_word(right - room, top - 2 * LINE, "other", (28, 29, 38))
    many = synthetic.make_inspected(inspection, *[("x", other, False)] * (MAX_PARTS + 2))
    assert {place[0] for place in lay_out_png(many, "m").tiles} == set(range(MAX_PARTS))
    assert f"the first {MAX_PARTS} of {MAX_PARTS + 3} parts" in " ".join(lay_out_png(many, "m").about)


@pytest.mark.parametrize("name", ["", "x" * 1_000_000, "注意\u202e\n\x00", "\ud800", "A b C"])
def test_any_title_and_name_of_a_part_fits(inspection, synthetic, name):
    several = synthetic.make_inspected(inspection, (name, inspection, True), part=name)
    layout = lay_out_png(several, name)
    heads_png(several, name)  # what is painted beside the picture is refused by the canvas
    assert len(layout.title) <= 3
    assert all(MARGIN + measure_text(line, scale=SCALE) <= layout.width - MARGIN for line in layout.title)


def test_letters_differ_from_one_another_and_the_rest_is_a_box():
    signs = "".join(signs for signs, _ in BANDS)
    drawn = {sign: str(draw_text(sign, scale=1)) for sign in signs + " ☃"}
    assert len(set(drawn.values())) == len(drawn)
    assert {*"abcdefghijklmnopqrstuvwxyz0123456789.,:;-"} <= set(signs)
    assert draw_text("Aé☃", scale=3) == draw_text("a☃é", scale=3)
    assert measure_text("ab", scale=2) == 2 * (2 * GLYPH_WIDTH + 1) and measure_text("", scale=2) == 0
    for scale in (1, 2):
        rows = draw_text("hg", scale=scale)
        assert len(rows) == scale * GLYPH_HEIGHT
        assert max(end for row in rows for _, end in row) <= measure_text("hg", scale=scale)


def test_a_canvas_paints_what_it_is_told_and_refuses_what_lies_beside_it():
    canvas = Canvas(7, 5, (1, 2, 3))
    canvas.paste(2, 1, [bytes((0, 1)), bytes((1, 0))], bytes((10, 11, 12, 20, 21, 22)))
    canvas.frame(2, 1, 2, (9, 9, 9), line=1)
    pixels = read_png(canvas.to_png())
    rows = [pixels.values[21 * y : 21 * (y + 1)] for y in range(5)]
    ground, line, first, second = (bytes(colour) for colour in ((1, 2, 3), (9, 9, 9), (10, 11, 12), (20, 21, 22)))
    assert rows[0] == rows[3] == ground + 4 * line + 2 * ground
    assert rows[1] == ground + line + first + second + line + 2 * ground
    assert rows[2] == ground + line + second + first + line + 2 * ground
    assert rows[4] == 7 * ground
    with pytest.raises(AssertionError):
        canvas.fill(6, 0, 2, 1, (0, 0, 0))
