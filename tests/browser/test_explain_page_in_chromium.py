"""The page of one head in a real browser: nothing runs, nothing is asked for, a phone needs no sideways scrolling."""

import pytest
import torch

import headwise
from headwise.config.attention import AttentionConfig, Rotary
from headwise.inspection.walkthrough.head_reading import read_head
from headwise.inspection.walkthrough.head_steps import explain_reading
from headwise.inspection.walkthrough.pairs import RotationPairs
from headwise.masks.patterns import Causal
from headwise.report.explain_head_page import render_head

pytestmark = pytest.mark.browser
HOSTILE = "<img src=x onerror=alert(1)><script>alert(2)</script>"


@pytest.fixture
def open_head(open_page):
    """Open the page of a head whose words are hostile, long, and written from right to left."""
    torch.manual_seed(0)
    config = AttentionConfig(embed_dim=24, num_heads=2, position=Rotary(), mask=Causal())
    layer = headwise.MultiHeadAttention.from_config(config)
    reading = read_head(layer, {"query": torch.randn(1, 7, 24)}, head=1, query=5)
    words = (HOSTILE, "مرحبا", "漢字", "x" * 64, "e", "שלום", "g")
    pairs = RotationPairs(frequencies=tuple(10000 ** (-pair / 6) for pair in range(6)), pairing="half")
    told = explain_reading(reading, model=HOSTILE, tokens=words, pairs=pairs, against=0, notes=(HOSTILE,))
    return lambda **view: open_page(render_head(told), **view)


@pytest.mark.parametrize("width", [320, 390, 768, 1280])
def test_no_width_scrolls_sideways_and_hostile_words_show_as_themselves(open_head, width):
    page = open_head(width=width)
    assert page.evaluate("document.scrollingElement.scrollWidth") <= width
    assert HOSTILE in page.locator(".word").first.inner_text()
    assert page.locator("main img, main script").count() == 0
    assert page.locator(".word.asked").inner_text().strip() == "שלום"
    assert page.locator(".word.hidden-key").count() == 1


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_words_stand_out_from_the_page_and_drawings_have_names(open_head, scheme):
    page = open_head(color_scheme=scheme)
    unnamed = (
        "[...document.querySelectorAll('svg[role=img], [role=region]')].filter(e => !e.getAttribute('aria-label'))"
    )
    assert page.evaluate(f"{unnamed}.length") == 0
    assert page.locator("svg[role=img]").count() > 6
    ink, paper = page.evaluate(
        "[getComputedStyle(document.body).color, getComputedStyle(document.body).backgroundColor]"
    )
    assert ink != paper
    page.get_by_role("button", name="Switch to").click()
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") != paper
