"""What heads do as text, page, picture and table."""

import csv
import io
import json
import re
import struct
import zlib
from dataclasses import fields, replace
from xml.etree import ElementTree as ET

import pytest

from headwise.api.inspect_results import InspectedModel, InspectedPart
from headwise.errors import OutputError
from headwise.report.heads_picture import GAP, TILE, heads_png, heads_svg
from headwise.report.inspect import inspection_text
from headwise.report.inspect_page import heads_csv, notebook_html, render_inspection, write_inspection

HOSTILE = "<script>window.hacked=1</script>\x1b[2J"


@pytest.fixture
def result(synthetic):
    inspection = synthetic.make_inspection(notes=("a note of <b>some</b> length",))
    known = {field.name: getattr(inspection, field.name) for field in fields(inspection)}
    return InspectedModel(**known, model=HOSTILE, source="a module in hand", seconds=1.5)


def pixels_of(png):
    """Return width, height and rows of a PNG of 8 bits a pixel without filters, and its palette."""
    width, height = struct.unpack(">II", png[16:24])
    chunks, at = {}, 8
    while at < len(png):
        (length,) = struct.unpack(">I", png[at : at + 4])
        content = png[at + 8 : at + 8 + length]
        assert struct.unpack(">I", png[at + 8 + length :][:4])[0] == zlib.crc32(png[at + 4 : at + 8] + content)
        chunks[png[at + 4 : at + 8]] = content
        at += 12 + length
    lines = zlib.decompress(chunks[b"IDAT"])
    return [lines[row * (width + 1) + 1 : (row + 1) * (width + 1)] for row in range(height)], chunks.get(b"PLTE")


def test_text_fits_80_columns_and_names_what_a_reader_needs(result):
    text = inspection_text(result)
    assert max(map(len, text.splitlines())) <= 80 and "\x1b" not in text
    for part in (
        "6 heads, over 2,881 tokens of 24 texts",
        "layer 0 head 2",
        "previous token",
        "layer 1 ",
        "note: a note",
    ):
        assert part in text
    assert str(result) == text


def test_json_has_every_head_and_no_maps(result):
    answer = json.loads(json.dumps(result.to_dict()))
    assert "maps" not in answer and answer["source"] == "a module in hand"
    wanted = {"layer", "head", "entropy", "sparsity", "distance", "sink_mass", "roles"}
    assert len(answer["heads"]) == 6 and wanted <= set(answer["heads"][0])


def test_a_table_has_a_line_for_each_head_with_the_numbers_as_they_are(result):
    header, *lines = csv.reader(io.StringIO(heads_csv(result)))
    assert header[:4] == ["layer", "head", "entropy", "normalized_entropy"] and "previous token" in header
    assert len(lines) == len(result.heads)
    for line, head in zip(lines, result.heads, strict=True):
        row = dict(zip(header, line, strict=True))
        assert float(row["entropy"]) == head.entropy and int(row["head"]) == head.head
        assert row["previous token"] == str(head.roles[0].score)


def test_a_table_of_several_parts_names_the_part_of_each_head_first(result, synthetic):
    other = synthetic.make_inspection(1, 1, ("a", "b"))
    several = replace(result, part="main, text", others=(InspectedPart(name="b", inspection=other, comparable=False),))
    header, *lines = csv.reader(io.StringIO(heads_csv(several)))
    assert header[:3] == ["part", "layer", "head"]
    assert [line[:3] for line in lines] == [
        *(["main, text", str(head.layer), str(head.head)] for head in result.heads),
        ["b", "0", "0"],
    ]


HOSTILE_NAMES = (
    "</script><script>window.hacked=1</script>",
    "<!--",
    "]]>",
    "'\"`${1}",
    "{{ 7*7 }}{% raw %}",
    "\u2028\u2029\u202e\u2066",
    "\ud800",
    "\x00\x1b",
    "x" * 1_000_000,
)


@pytest.mark.parametrize("name", HOSTILE_NAMES)
def test_names_tokens_and_keys_never_change_what_the_page_is_made_of(synthetic, elements_of, tmp_path, name):
    def page_of(word):
        main = synthetic.make_inspection(
            1, 1, (word, word), key_tokens=(word,), stack=word, notes=(word,), num_prompt_tokens=1
        )
        other = synthetic.make_inspection(1, 1, (word,))
        result = synthetic.make_inspected(main, (word, other, True), model=word, part=word)
        return write_inspection(result, tmp_path / "page.html").read_text(encoding="utf-8")

    page = page_of(name)
    plain, hostile = elements_of(page_of("word")), elements_of(page)
    assert [tag for tag, _ in hostile.tags] == [tag for tag, _ in plain.tags]
    assert page.count("</script") == 2
    data = json.loads(hostile.texts["script"][0])
    shown = name if len(name) <= 200 else name[:200] + "… (1,000,000 characters)"
    assert data["parts"][0]["tokens"] == [shown, shown] and data["parts"][0]["key_tokens"] == [shown]
    assert data["parts"][1]["name"] == name


def test_a_picture_shows_each_head_where_it_belongs(result):
    rows, palette = pixels_of(heads_png(result))
    assert len(rows) == 2 * (TILE + GAP) + GAP and len(rows[0]) == 3 * (TILE + GAP) + GAP
    assert len(palette) == 3 * 256 and palette[:3] == bytes((249, 250, 254))
    map_ = result.maps[4]  # layer 1, head 1
    top, left = TILE + 2 * GAP, TILE + 2 * GAP
    for row, column in ((0, 0), (TILE - 1, 0), (20, 40), (TILE - 1, TILE - 1)):
        query, key = row * map_.num_queries // TILE, column * map_.num_keys // TILE
        assert rows[top + row][left + column] == map_.weights[query * map_.num_keys + key]


def test_of_the_weights_that_fall_on_one_pixel_the_largest_is_shown(synthetic):
    length = 2 * TILE + 1
    inspection = synthetic.make_inspection(1, 1, [str(number) for number in range(length)])
    rows, _ = pixels_of(heads_png(inspection))
    weights = inspection.maps[0].weights
    ends = [(at * length // TILE, (at + 1) * length // TILE) for at in range(TILE)]
    for row, (first, end) in enumerate(ends):
        for column, (start, stop) in enumerate(ends):
            tile = [weights[query * length + key] for query in range(first, end) for key in range(start, stop)]
            assert rows[GAP + row][GAP + column] == max(tile)


@pytest.mark.parametrize("entropy", [0.5, float("nan")])
def test_without_maps_heads_are_as_dark_as_their_entropy(result, entropy):
    heads = tuple(replace(head, normalized_entropy=entropy) for head in result.heads)
    rows, _ = pixels_of(heads_png(replace(result, maps=(), heads=heads)))
    assert rows[GAP][GAP] == (128 if entropy == 0.5 else 0)


def test_a_drawing_is_well_formed_names_heads_and_frames_those_that_hold_a_role(result):
    root = ET.fromstring(heads_svg(result, HOSTILE.replace("\x1b", "")))
    named = [title.text for title in root.iter("{http://www.w3.org/2000/svg}title")]
    assert len(named) == 6 and "layer 0 head 2: previous token" in named
    framed = [one for one in root.iter("{http://www.w3.org/2000/svg}rect") if one.get("class") == "held"]
    assert len(framed) == sum(any(role.holds for role in head.roles) for head in result.heads)
    assert not list(root.iter("{http://www.w3.org/2000/svg}script"))


def test_the_page_escapes_all_and_asks_for_nothing(result):
    page = render_inspection(result)
    assert "<script>window.hacked" not in page and not re.search(r"(?:src|href)=\"(?:https?:)?//", page)
    assert "What the heads do" in page and "Attention is not an explanation" in page
    assert "<script>window.hacked" not in notebook_html(result)


def test_the_ending_says_what_is_written(result, tmp_path):
    starts = {".html": b"<!doctype html", ".svg": b"<svg", ".png": b"\x89PNG", ".csv": b"layer,head"}
    for ending, start in starts.items():
        place = tmp_path / f"heads{ending}"
        assert write_inspection(result, place) == place
        assert place.read_bytes().lower().startswith(start.lower())
    with pytest.raises(OutputError, match="cannot write"):
        write_inspection(result, tmp_path / "missing" / "heads.png")
