"""A benchmark as text and as a page: what they say, what the drawings are made of, that the page needs nothing else."""

import base64
import hashlib
import re
import runpy
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import pytest

from headwise.report.bench import bench_text
from headwise.report.bench_figures import bench_headlines, format_percent, format_speed, growth_words
from headwise.report.bench_page import render_bench_page, write_bench_page
from headwise.report.bench_plot import LEFT, LIMIT, MARGIN, MAX_TICKS, SIZE, draw_plots

HOSTILE = '<b onclick="x">&\'"</b>{{ 1 }}</script>注意'


@pytest.fixture(scope="module")
def synthetic_bench():
    return SimpleNamespace(**runpy.run_path(str(Path(__file__).with_name("synthetic_bench.py"))))


@pytest.fixture
def result(synthetic_bench):
    return synthetic_bench.make_bench()


def lines_of(plot):
    return {line.name: line for line in plot.lines}


def slopes(line):
    return [(y - before_y) / (x - before_x) for (before_x, before_y), (x, y) in pairwise(line.points)]


def test_text_has_a_line_for_each_row_in_80_columns(result):
    text = bench_text(result)
    assert max(map(len, text.splitlines())) <= 80
    joined = " ".join(text.split())
    assert "batch 1 · 8 heads of 64 on 2 key/value heads · window:64 · forward and backward · fp32" in joined
    assert "94 GFLOP/s in products of 256 queries, 512 keys and 64 numbers; 38.6 GB/s in copies." in joined
    assert re.search(r"256 +auto \(blocked\) +1 µs +33\.6 TFLOP/s +20 % +512\.0 KiB +flash_cpu", text)
    assert re.search(r"^ +sdpa +1 µs", text, re.MULTILINE)  # a length is written once
    assert re.search(r"^ +flex +not run +– +– +– +–", text, re.MULTILINE)
    assert re.search(r"sdpa +L\^2\.00 +L\^2\.00 +256, 512, 1,024, 4,096", text)
    assert "note: flex at 256 was not run: flex computes no gradients on a CPU" in joined


def test_the_longest_names_and_figures_keep_80_columns(result):
    rows = tuple(replace(row, impl="reference", seq=1_048_576, kernels=("flash_cpu", "math")) for row in result.rows)
    assert max(map(len, bench_text(replace(result, rows=rows)).splitlines())) <= 80


def test_the_headlines_speak_of_the_fastest_at_the_longest_length(result):
    fastest, share, growth, machine = bench_headlines(result)
    assert (fastest.label, fastest.value, fastest.detail) == (
        "Fastest at 4,096 tokens",
        "16 µs",
        "auto (blocked); sdpa 256 µs",
    )
    assert (share.value, share.detail) == ("20 %", "at least 3.2 µs for the allowed pairs")
    assert (growth.value, growth.detail) == ("L^1.00", "auto; memory as L^1.00")
    assert machine.value == "94 GFLOP/s"


@pytest.mark.parametrize(
    ("share", "words"),
    [(None, "–"), (0.0004, "< 0.1 %"), (0.004, "0.4 %"), (0.099, "9.9 %"), (0.0996, "10 %"), (1.0, "100 %")],
)
def test_percent_keeps_two_digits(share, words):
    assert format_percent(share) == words


@pytest.mark.parametrize(("exponent", "words"), [(None, "–"), (-0.004, "L^0.00"), (-0.5, "L^-0.50"), (1.976, "L^1.98")])
def test_exponents_have_two_decimals_and_zero_no_sign(exponent, words):
    assert growth_words(exponent) == words


@pytest.mark.parametrize(("rate", "words"), [(94e9, "94 GFLOP/s"), (672e6, "672 MFLOP/s"), (1.5e3, "0.0015 MFLOP/s")])
def test_slow_rates_are_written_without_exponents(rate, words):
    assert format_speed(rate, "FLOP") == words


def test_powers_of_the_length_are_straight_lines_whose_slopes_are_the_exponents(result):
    for plot in draw_plots(result):
        lines = lines_of(plot)
        linear, square = slopes(lines["auto"]), slopes(lines["sdpa"])
        assert linear == pytest.approx([linear[0]] * len(linear))
        assert square == pytest.approx([2 * slope for slope in linear])
        assert linear[0] < 0  # upwards is towards 0


def test_every_point_stands_inside_and_what_was_not_run_has_none(result):
    time, memory = draw_plots(result)
    assert set(lines_of(time)) == {"auto", "sdpa", LIMIT} and set(lines_of(memory)) == {"auto", "sdpa"}
    for plot in (time, memory):
        points = [point for line in plot.lines for point in line.points]
        xs, ys = zip(*points, strict=True)
        assert (min(xs), max(xs)) == pytest.approx((LEFT, SIZE - MARGIN))
        assert (min(ys), max(ys)) == pytest.approx((MARGIN, SIZE - MARGIN))
    assert lines_of(time)[LIMIT].points[0][1] > lines_of(time)["auto"].points[0][1]  # less time stands lower


def test_a_length_at_which_nothing_was_run_is_not_drawn(synthetic_bench, result):
    missing = {"seconds": None, "peak_bytes": None}
    rows = (*result.rows, synthetic_bench.make_row("auto", 65_536, 1, **missing, obstacle="too large"))
    assert draw_plots(replace(result, rows=rows)) == draw_plots(result)


@pytest.mark.parametrize("seqs", [(256,), (256, 257), (256, 512, 1024), (1, 1_000_000), tuple(range(100, 3000, 100))])
def test_axes_have_a_few_ticks_in_their_order_and_room_for_their_words(synthetic_bench, seqs):
    for plot in draw_plots(synthetic_bench.make_bench(seqs)):
        places = [tick.place for tick in plot.y_ticks]
        assert 1 <= len(places) <= MAX_TICKS and places == sorted(places, reverse=True)
        assert all(0 <= place <= SIZE for place in places)
        assert len({tick.words for tick in plot.y_ticks}) == len(places)
        assert [tick.words for tick in plot.x_ticks] == [f"{seq:,}" for seq in seqs]
        always = [tick for tick in plot.x_ticks if tick.shown == "always"]
        assert always and always[-1].words == f"{seqs[-1]:,}"
        for before, after in pairwise(always):
            assert (after.place - before.place) / SIZE * 280 > 7 * (len(before.words) + len(after.words)) / 2


def test_a_single_length_stands_in_the_middle(synthetic_bench):
    plot = draw_plots(synthetic_bench.make_bench((512,)))[0]
    assert {point[0] for line in plot.lines for point in line.points} == {(LEFT + SIZE - MARGIN) / 2}


def test_without_any_bytes_there_is_no_drawing_of_memory(result):
    plots = draw_plots(replace(result, rows=tuple(replace(row, peak_bytes=0) for row in result.rows)))
    assert [plot.title for plot in plots] == ["Time of a call"]


def test_the_page_names_no_other_place_and_allows_its_own_style_and_script_alone(result, elements_of):
    page = render_bench_page(result)
    elements = elements_of(page)
    assert {tag for tag, _ in elements.tags}.isdisjoint({"img", "iframe", "object", "embed", "base"})
    for tag, attributes in elements.tags:
        assert not {"src", "srcset", "action", "style"} & set(attributes), tag
        assert not [name for name in attributes if name.startswith("on")], tag
        assert attributes.get("href", "#main") in ("data:,", "#main")
    assert "@import" not in page and "url(" not in page
    policy = next(a["content"] for t, a in elements.tags if a.get("http-equiv") == "Content-Security-Policy")
    for kind in ("style", "script"):
        digest = hashlib.sha256(elements.texts[kind][-1].encode()).digest()
        assert f"{kind}-src 'sha256-{base64.b64encode(digest).decode()}'" in policy
    ids = [attributes["id"] for _, attributes in elements.tags if "id" in attributes]
    assert len(ids) == len(set(ids))


def test_the_page_says_every_row_and_how_it_was_measured(result, elements_of):
    words = elements_of(render_bench_page(result)).words
    assert "Fastest at 4,096 tokens 16 µs auto (blocked); sdpa 256 µs" in words
    assert "256 auto served by blocked 1 µs 99 calls 33.6 TFLOP/s 20 % FLOPs 512.0 KiB flash_cpu" in words
    assert words.count("Not run: flex computes no gradients on a CPU") == 4
    assert "auto time L^1.00, memory L^1.00" in words and "sdpa time L^2.00, memory L^2.00" in words
    assert "2.5 times as many backward" in words
    assert "sdpa at 256: 1 µs" in words and "sdpa at 4,096: 256 µs" in words and "auto at 512: 1.0 MiB" in words
    assert "64 queries × 512 keys × 64: 85 GFLOP/s; 256 queries × 512 keys × 64: 94 GFLOP/s. The fastest" in words


def test_hostile_words_stand_as_text(result, elements_of):
    rows = tuple(replace(row, obstacle=HOSTILE if row.obstacle else None) for row in result.rows)
    hostile = replace(result, case=replace(result.case, mask=HOSTILE), machine=HOSTILE, rows=rows, notes=(HOSTILE,))
    elements = elements_of(render_bench_page(hostile))
    assert sum(HOSTILE in text for text in elements.texts[""]) >= 8
    assert "b" not in {tag for tag, _ in elements.tags}
    assert "\x1b" not in bench_text(replace(hostile, machine="\x1b[31m"))


def test_a_page_is_written_whole(result, tmp_path):
    path = write_bench_page(result, tmp_path / "page.html")
    assert path.read_text(encoding="utf-8") == render_bench_page(result)
