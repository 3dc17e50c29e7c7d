"""What heads do as text, page, picture and table."""

import csv
import errno
import io
import json
import os
import re
from dataclasses import fields, replace
from xml.etree import ElementTree as ET

import pytest

from headwise.api.inspect_results import InspectedModel, InspectedPart
from headwise.errors import OutputError
from headwise.inspection.capture.reading import shorten
from headwise.report.heads_picture import heads_svg
from headwise.report.inspect import inspection_text
from headwise.report.inspect_page import heads_csv, notebook_html, render_inspection, write_inspection

HOSTILE = "<script>window.hacked=1</script>\x1b[2J"


@pytest.fixture
def result(synthetic):
    inspection = synthetic.make_inspection(notes=("a note of <b>some</b> length",))
    known = {field.name: getattr(inspection, field.name) for field in fields(inspection)}
    return InspectedModel(**known, model=HOSTILE, source="a module in hand", seconds=1.5)


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


def test_a_table_has_what_the_page_has_no_column_for_where_it_is_known(result):
    known = replace(result.heads[0], num_nan_queries=3, max_abs_score=-0.5)
    header, first, second, *_ = csv.reader(io.StringIO(heads_csv(replace(result, heads=(known, *result.heads[1:])))))
    row, other = (dict(zip(header, line, strict=True)) for line in (first, second))
    assert (row["num_nan_queries"], row["max_abs_score"]) == ("3", "-0.5")
    assert (other["num_nan_queries"], other["max_abs_score"]) == ("", "")
    assert "score_spread" not in header and header[-5:] == [role.name for role in known.roles]


@pytest.mark.parametrize("name", ["=1+1", "+1", "-1", "@SUM(1)", "\t=1"])
def test_no_name_in_a_table_is_a_formula(result, name):
    other = InspectedPart(name=name, inspection=result, comparable=True)
    lines = list(csv.reader(io.StringIO(heads_csv(replace(result, part=name, others=(other,))), newline="")))
    assert {line[0] for line in lines[1:]} == {f"'{name}"}


def test_a_name_of_two_lines_leaves_one_line_a_head(result):
    other = InspectedPart(name="a\r\nb", inspection=result, comparable=True)
    table = heads_csv(replace(result, part="a\rb\nc", others=(other,)))
    assert len(table.splitlines()) == 1 + 2 * len(result.heads)
    assert {line.split(",")[0] for line in table.splitlines()[1:]} == {"a b c", "a  b"}


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
        token = shorten(word)  # as every inspection holds it
        main = synthetic.make_inspection(
            1, 1, (token, token), key_tokens=(token,), stack=word, notes=(word,), num_prompt_tokens=1
        )
        other = synthetic.make_inspection(1, 1, (token,))
        result = synthetic.make_inspected(main, (word, other, True), model=word, part=word)
        return write_inspection(result, tmp_path / "page.html").read_text(encoding="utf-8")

    page = page_of(name)
    plain, hostile = elements_of(page_of("word")), elements_of(page)
    assert [tag for tag, _ in hostile.tags] == [tag for tag, _ in plain.tags]
    assert page.count("</script") == 2
    data = json.loads(hostile.texts["script"][0])
    shown = shorten(name)
    assert data["parts"][0]["tokens"] == [shown, shown] and data["parts"][0]["key_tokens"] == [shown]
    assert data["parts"][1]["name"] == name


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


@pytest.mark.parametrize("ending", [".html", ".svg", ".png", ".csv"])
def test_a_full_disk_leaves_the_old_file_and_nothing_else(result, tmp_path, monkeypatch, ending):
    place = tmp_path / f"heads{ending}"
    place.write_bytes(b"old")

    def fail(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("os.fsync", fail)
    with pytest.raises(OutputError, match="No space left on device"):
        write_inspection(result, place)
    assert place.read_bytes() == b"old" and [one.name for one in tmp_path.iterdir()] == [place.name]
