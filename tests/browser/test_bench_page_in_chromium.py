"""The page of a benchmark in a real browser: what a person can see and do, and what it must not do."""

import runpy
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import pytest

from headwise.report.bench_page import render_bench_page

pytestmark = pytest.mark.browser

UNLABELLED = """() => {
  const named = e => e.getAttribute('aria-label') || e.getAttribute('aria-labelledby') || e.textContent.trim();
  return [...document.querySelectorAll('button, [role=region], svg[role=img], table')]
    .filter(e => e.checkVisibility() && !named(e)).map(e => e.outerHTML.slice(0, 80));
}"""
CONTRAST = """([selector, property]) => {
  const context = new OffscreenCanvas(1, 1).getContext('2d', { willReadFrequently: true });
  const luminance = (colour) => {
    context.fillStyle = colour;
    context.fillRect(0, 0, 1, 1);
    const shares = [...context.getImageData(0, 0, 1, 1).data.slice(0, 3)].map(channel => channel / 255)
      .map(s => s <= 0.04045 ? s / 12.92 : ((s + 0.055) / 1.055) ** 2.4);
    return 0.2126 * shares[0] + 0.7152 * shares[1] + 0.0722 * shares[2];
  };
  const ground = luminance(getComputedStyle(document.body).backgroundColor);
  return Math.min(...[...document.querySelectorAll(selector)].map(e => {
    const [low, high] = [luminance(getComputedStyle(e)[property]), ground].sort((a, b) => a - b);
    return (high + 0.05) / (low + 0.05);
  }));
}"""


@pytest.fixture(scope="module")
def synthetic_bench():
    return SimpleNamespace(**runpy.run_path(str(Path(__file__).parents[1] / "report" / "synthetic_bench.py")))


@pytest.fixture
def open_bench(open_page, synthetic_bench):
    return lambda seqs=synthetic_bench.SEQS, **view: open_page(
        render_bench_page(synthetic_bench.make_bench(seqs)), **view
    )


def boxes_of(page, selector):
    return page.locator(selector).evaluate_all(
        "all => all.map(e => { const b = e.getBoundingClientRect(); return [b.left, b.right, b.top, b.bottom]; })"
    )


def test_every_point_and_every_row_is_shown(open_bench):
    page = open_bench()
    assert page.locator(".plot").count() == 2
    for plot in range(2):
        marks = page.locator(".plot").nth(plot).locator(".mark")
        assert marks.count() == 2 * 4
        frame = page.locator(".plot > svg").nth(plot).bounding_box()
        for place in range(marks.count()):
            box = marks.nth(place).bounding_box()
            assert frame["x"] <= box["x"] and box["x"] + box["width"] <= frame["x"] + frame["width"]
            assert frame["y"] <= box["y"] and box["y"] + box["height"] <= frame["y"] + frame["height"]
    assert page.locator(".plot path.series").count() == 3 + 2
    assert page.locator(".rows tbody tr").count() == 3 * 4


ENDS = """path => [0, path.getTotalLength()].map(length => {
  const point = path.getPointAtLength(length).matrixTransform(path.getScreenCTM());
  return [point.x, point.y];
})"""


def test_a_mark_stands_on_its_line_at_any_width(open_bench):
    for width in (390, 1280):
        page = open_bench(width=width)
        ends = page.locator(".plot path.series").first.evaluate(ENDS)
        marks = boxes_of(page, ".plot:first-child g.series-0 .mark")
        for (left, right, top, bottom), end in zip((marks[0], marks[-1]), ends, strict=True):
            assert [(left + right) / 2, (top + bottom) / 2] == pytest.approx(end, abs=1)


@pytest.mark.parametrize("width", [320, 390, 768, 1280])
@pytest.mark.parametrize("seqs", [(512,), (256, 512, 1024, 4096), tuple(range(1000, 9000, 500))])
def test_a_narrow_screen_never_scrolls_sideways_and_no_words_touch(open_bench, width, seqs):
    page = open_bench(seqs, width=width)
    assert page.evaluate("document.scrollingElement.scrollWidth") <= width
    for plot in range(2):
        words = sorted(boxes_of(page, f".plot:nth-child({plot + 1}) text[text-anchor=middle]:visible"))
        assert words and all(right < left for (_, right, *_), (left, *_) in pairwise(words))
        assert words[0][0] >= 0 and words[-1][1] <= width


def test_every_control_table_and_drawing_has_a_name(open_bench):
    page = open_bench()
    assert page.evaluate(UNLABELLED) == []
    levels = page.evaluate("[...document.querySelectorAll('h1, h2, h3, h4')].map(h => Number(h.tagName[1]))")
    assert levels[0] == 1 and all(after - before <= 1 for before, after in pairwise(levels))


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_words_and_lines_stand_out_from_the_page(open_bench, scheme):
    page = open_bench(color_scheme=scheme)
    for selector in ("#main th", "#main small", ".legend dt", ".conventions dd", ".obstacle"):
        assert page.evaluate(CONTRAST, [selector, "color"]) >= 4.5, selector
    assert page.evaluate(CONTRAST, [".plot text", "fill"]) >= 4.5
    assert page.evaluate(CONTRAST, [".plot path.series", "stroke"]) >= 3  # WCAG 2.2, 1.4.11


def test_the_button_turns_the_colours_over_and_paper_is_light(open_bench):
    page = open_bench(color_scheme="light")
    paper = "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(paper)
    page.locator("#theme").click()
    assert page.evaluate(paper) != light
    page.emulate_media(media="print")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.evaluate(paper) == light


def test_without_script_the_page_says_the_same(open_bench):
    page = open_bench(java_script_enabled=False)
    assert page.locator(".plot .mark").count() == 2 * 2 * 4 and page.locator(".rows tbody tr").count() == 12
