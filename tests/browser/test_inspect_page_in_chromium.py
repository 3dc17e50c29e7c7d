"""The page of `headwise inspect` in a real browser: heads open, the table is saved, nothing else is asked for."""

import csv
from dataclasses import fields

import pytest

from headwise.api.inspect_results import InspectedModel
from headwise.report.inspect_page import render_inspection

pytestmark = pytest.mark.browser


@pytest.fixture
def result(synthetic):
    inspection = synthetic.make_inspection()
    known = {field.name: getattr(inspection, field.name) for field in fields(inspection)}
    return InspectedModel(**known, model="<img src=x onerror=alert(1)>", source="a module in hand")


def test_heads_open_and_close_by_mouse_and_keys(open_page, result):
    page = open_page(render_inspection(result))
    assert page.locator("h1").text_content() == result.model
    assert page.locator("#grid .cell").count() == len(result.heads)
    page.locator("#grid .cell").nth(4).click()
    assert page.locator("#head-title").text_content() == "Layer 1, head 1"
    page.keyboard.press("Escape")
    assert not page.locator("#head").is_visible()
    page.locator("#grid .cell").first.focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    assert page.locator("#head-title").text_content() == "Layer 0, head 1"


def test_the_table_is_saved_as_csv_with_every_head(open_page, result):
    page = open_page(render_inspection(result), accept_downloads=True)
    with page.expect_download() as download:
        page.locator("#save-csv").click()
    assert download.value.suggested_filename == "heads.csv"
    with open(download.value.path(), newline="", encoding="utf-8") as file:  # noqa: PTH123
        header, *lines = csv.reader(file)
    assert header[:3] == ["layer", "head", "Entropy"] and "role: previous token" in header
    assert [(int(line[0]), int(line[1])) for line in lines] == [(head.layer, head.head) for head in result.heads]
    for line, head in zip(lines, result.heads, strict=True):
        assert float(line[2]) == pytest.approx(head.entropy, abs=5e-7)  # written with six digits


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_phone_needs_no_sideways_scrolling(open_page, result, scheme):
    page = open_page(render_inspection(result), width=390, color_scheme=scheme)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
