"""The map of a head laid over the image, in a real browser: on a model whose head finds the red patch by arithmetic."""

import runpy
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace

import pytest

from headwise.api.inspect_results import InspectedModel
from headwise.inspection.images.inspect_image import inspect_image
from headwise.report.inspect_page import render_inspection

pytestmark = pytest.mark.browser
SEEING = SimpleNamespace(**runpy.run_path(str(Path(__file__).parents[1] / "inspection" / "seeing_vit.py")))
READ_OVERLAY = """() => {
  const canvas = document.getElementById("image-overlay");
  const copy = Object.assign(document.createElement("canvas"), { width: canvas.width, height: canvas.height });
  const drawn = copy.getContext("2d", { willReadFrequently: true });
  drawn.drawImage(canvas, 0, 0);
  const { data } = drawn.getImageData(0, 0, canvas.width, canvas.height);
  return { width: canvas.width, height: canvas.height, strengths: Array.from(data).filter((_, at) => at % 4 === 3) };
}"""


def render(**keywords):
    inspection = inspect_image(
        SEEING.make_model(), {"pixel_values": SEEING.make_pixels()}, mean=SEEING.MEAN, std=SEEING.STD, **keywords
    )
    known = {field.name: getattr(inspection, field.name) for field in fields(inspection)}
    return render_inspection(InspectedModel(**known, model="seeing", source="a module in hand"))


@pytest.fixture(scope="module")
def html():
    return render()


def open_head(open_page, html, number, **view):
    page = open_page(html, **view)
    page.locator("#grid .cell").nth(number).click()
    return page


def strengths(page):
    """Strength of the overlay on each patch, row by row."""
    found = page.evaluate(READ_OVERLAY)
    assert (found["width"], found["height"]) == (SEEING.COLUMNS, SEEING.ROWS)
    return [found["strengths"][row * SEEING.COLUMNS :][: SEEING.COLUMNS] for row in range(SEEING.ROWS)]


def place_on(page, row, column):
    box = page.locator("#image").bounding_box()
    return {
        "x": box["width"] * (column + 0.5) / SEEING.COLUMNS,
        "y": box["height"] * (row + 0.5) / SEEING.ROWS,
    }


def test_the_strongest_cell_lies_on_the_red_patch_whichever_patch_asks(open_page, html):
    page = open_head(open_page, html, 0)
    row, column = SEEING.RED
    for asking in ((0, 0), (2, 4), (1, 3)):
        page.locator("#image").click(position=place_on(page, *asking))
        seen = strengths(page)
        assert seen[row][column] == round(255 * 0.75)
        assert sum(map(sum, seen)) == seen[row][column]
        words = page.locator("#image-readout").text_content()
        assert words.startswith(f"Row {asking[0]}, column {asking[1]} reads: row 1, column 3 with 1.00.")
    # the canvas stands over the picture, cell over patch
    overlay, picture = (page.locator(each).bounding_box() for each in ("#image-overlay", "#image-picture"))
    assert overlay == picture and picture["width"] / picture["height"] == pytest.approx(20 / 12, rel=0.01)


def test_arrow_keys_move_the_chosen_patch_and_the_text_follows(open_page, html):
    page = open_head(open_page, html, 0)
    page.locator("#image").focus()
    page.keyboard.press("Home")
    page.keyboard.press("ArrowLeft")  # there is nothing to the left
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowDown")
    assert page.locator("#image-readout").text_content().startswith("Row 1, column 1 reads:")
    chosen, image = (page.locator(each).bounding_box() for each in ("#image-chosen", "#image"))
    assert chosen["x"] - image["x"] == pytest.approx(image["width"] / 5, abs=1)
    assert chosen["y"] - image["y"] == pytest.approx(image["height"] / 3, abs=1)
    page.keyboard.press("End")
    assert page.locator("#image-readout").text_content().startswith("Row 2, column 4 reads:")
    assert page.locator("#from-tokens [aria-selected=true]").text_content() == "r2 c4"


def test_both_directions_and_the_mean_over_all_queries(open_page, html):
    page = open_head(open_page, html, 0)
    row, column = SEEING.RED
    page.locator("#image").click(position=place_on(page, row, column))
    page.get_by_label("who reads it").nth(0).check()
    seen = strengths(page)
    assert {strength for line in seen for strength in line} == {round(255 * 0.75)}  # all of them do, alike
    assert page.locator("#image-readout").text_content().startswith("Row 1, column 3 is read by: row 0, column 0 with")
    page.get_by_label("mean over all queries").check()
    seen = strengths(page)
    assert seen[row][column] == round(255 * 0.75) and sum(map(sum, seen)) == seen[row][column]
    assert page.locator("#image-readout").text_content().startswith("All queries together read: row 1, column 3 with")
    assert not page.locator("#image-chosen").is_visible()
    page.locator("#head-next").click()  # the next head sees all 16 tokens alike: 1/16 each
    assert {strength for line in strengths(page) for strength in line} == {round(255 * 0.75)}
    assert "with 0.063;" in page.locator("#image-readout").text_content()


def test_tokens_beside_the_patches_are_buttons_with_their_weight(open_page, html):
    page = open_head(open_page, html, 1)
    button = page.locator("#image-others button")
    assert button.count() == 1 and button.text_content() == "[CLS]0.063"  # 1/16, kept in 8 bits: (64 / 255)^2
    button.click()
    assert button.get_attribute("aria-pressed") == "true"
    assert page.locator("#image-readout").text_content().startswith("[CLS] reads:")
    assert not page.locator("#image-chosen").is_visible()
    assert page.locator("#image-readout").text_content().endswith("Tokens beside the patches get 0.063.")


def test_the_slider_goes_from_the_image_to_the_map(open_page, html):
    page = open_head(open_page, html, 0)
    page.locator("#image-strength").fill("0")
    assert sum(map(sum, strengths(page))) == 0
    assert page.evaluate("getComputedStyle(document.getElementById('image-picture')).filter") == "grayscale(0)"
    page.locator("#image-strength").fill("100")
    assert strengths(page)[1][3] == 255
    size = page.evaluate("(() => { const p = document.getElementById('image-picture'); "
                         "return [p.naturalWidth, p.naturalHeight]; })()")  # fmt: skip
    assert size == [20, 12]


def test_pointing_at_a_patch_tells_its_weight(open_page, html):
    page = open_head(open_page, html, 0)
    page.locator("#image").hover(position=place_on(page, 1, 3))
    assert page.locator("#image-pointer").text_content() == "row 1, column 31.00"
    page.locator("#image").hover(position=place_on(page, 2, 0))
    assert page.locator("#image-pointer").text_content() == "row 2, column 00.00"


def test_of_an_image_of_many_patches_the_heaviest_keys_are_shown_and_it_says_so(open_page):
    page = open_head(open_page, render(max_map_tokens=15), 0)
    assert strengths(page)[1][3] == round(255 * 0.75)
    assert page.locator("#image-known").is_visible()
    page = open_head(open_page, render(), 0)
    assert not page.locator("#image-known").is_visible()


def test_a_text_has_no_image(open_page, synthetic):
    inspection = synthetic.make_inspection()
    known = {field.name: getattr(inspection, field.name) for field in fields(inspection)}
    page = open_page(render_inspection(InspectedModel(**known, model="text", source="a module in hand")))
    page.locator("#grid .cell").first.click()
    assert not page.locator("#head-image").is_visible()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_phone_needs_no_sideways_scrolling(open_page, html, scheme):
    page = open_head(open_page, html, 0, width=390, color_scheme=scheme)
    assert page.locator("#head").evaluate("dialog => dialog.scrollWidth <= dialog.clientWidth")
    box = page.locator("#image").bounding_box()
    assert box["x"] >= 0 and box["x"] + box["width"] <= 390
