"""The page of a comparison in a real browser: what a person can see and do, and what it must not do."""

import runpy
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import pytest

from headwise.report.compare_page import render_compare_page

pytestmark = pytest.mark.browser

HERE = Path(__file__).parent
BENCH = SimpleNamespace(**runpy.run_path(str(HERE / "test_bench_page_in_chromium.py")))
UNLABELLED, CONTRAST = BENCH.UNLABELLED, BENCH.CONTRAST


@pytest.fixture(scope="module")
def pages():
    made_up = SimpleNamespace(**runpy.run_path(str(HERE.parent / "report" / "synthetic_comparison.py")))
    one = made_up.make_comparison()
    other = made_up.make_comparison(name="other", num_seeds=3, lost=True, num_arms=7)
    return {"one": render_compare_page([one]), "two": render_compare_page([one, other])}


@pytest.fixture
def open_compare(open_page, pages):
    return lambda which="one", **view: open_page(pages[which], **view)


def test_every_dot_lies_in_its_strip_and_means_the_same_without_script(open_compare):
    for options in ({"width": 390}, {"width": 1280, "java_script_enabled": False}):
        page = open_compare(**options)
        strips = page.locator(".strips tbody .strip")
        assert strips.count() == 4 + 3 and page.locator(".strips .dot").count() == (4 + 3) * 5
        inside = page.evaluate(
            """() => [...document.querySelectorAll('.strips .dot')].every(dot => {
              const [a, b] = [dot, dot.ownerSVGElement].map(e => e.getBoundingClientRect());
              return a.left >= b.left && a.right <= b.right && a.top >= b.top && a.bottom <= b.bottom;
            })"""
        )
        assert inside


@pytest.mark.parametrize("width", [320, 390, 1280])
def test_a_narrow_screen_never_scrolls_sideways_and_no_words_of_an_axis_touch(open_compare, width):
    page = open_compare("two", width=width)
    assert page.evaluate("document.scrollingElement.scrollWidth") <= width
    touching = page.evaluate(
        """() => [...document.querySelectorAll('.plot > svg, tfoot .strip')].flatMap(svg => {
          const words = [...svg.querySelectorAll('text[text-anchor=middle]')].filter(e => e.checkVisibility())
            .map(e => e.getBoundingClientRect()).sort((a, b) => a.left - b.left);
          return words.filter((box, at) => at && box.left < words[at - 1].right).map(box => [box.left, box.top]);
        })"""
    )
    assert touching == []


def test_every_control_table_and_drawing_has_a_name_and_headings_go_down_by_one(open_compare):
    page = open_compare("two")
    assert page.evaluate(UNLABELLED) == []
    levels = page.evaluate("[...document.querySelectorAll('h1, h2, h3, h4')].map(h => Number(h.tagName[1]))")
    assert levels[0] == 1 and all(after - before <= 1 for before, after in pairwise(levels))
    label = page.locator(".strips .strip").nth(1).get_attribute("aria-label")
    assert label == "8 heads: 0.919, 0.947, 0.932, 0.927, 0.937; mean 0.932"
    page.locator(".masthead a").nth(1).click()
    assert page.url.endswith("#part-2")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_words_dots_and_lines_stand_out_from_the_page(open_compare, scheme):
    page = open_compare(color_scheme=scheme)
    for selector in ("#main th", "#main small", ".arms-legend li", ".conventions dd", ".published cite", ".value"):
        assert page.evaluate(CONTRAST, [selector, "color"]) >= 4.5, selector
    assert page.evaluate(CONTRAST, [".plot text, .strip text", "fill"]) >= 4.5
    for selector in (".plot path.series:not(.seed)", ".strip .mean", ".strip .neutral"):
        assert page.evaluate(CONTRAST, [selector, "stroke"]) >= 3, selector  # WCAG 2.2, 1.4.11
    assert page.evaluate(CONTRAST, [".strip .dot", "fill"]) >= 3


def test_paper_is_light_and_wide_tables_are_whole(open_compare):
    page = open_compare(color_scheme="dark")
    paper = "getComputedStyle(document.body).backgroundColor"
    dark = page.evaluate(paper)
    page.emulate_media(media="print")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.evaluate(paper) != dark
    assert page.locator("#theme").is_hidden()
    cut = "[...document.querySelectorAll('.scroll')].filter(e => getComputedStyle(e).overflowX !== 'visible').length"
    assert page.evaluate(cut) == 0
