"""What a notebook shows of inspections, in a real browser: several outputs in one document leave each other alone."""

from dataclasses import fields, replace

import pytest

from headwise.api.inspect_results import InspectedModel
from headwise.report.inspect_page import notebook_html

pytestmark = pytest.mark.browser
HOSTILE = "</svg></style><img src=x onerror=window.hacked=1><script>window.hacked=1</script>"
# what else a notebook holds: another library's drawing and text, which our outputs must not restyle
NEIGHBOUR = (
    '<svg id="theirs" width="90" height="40"><text id="their-text" y="20">theirs</text>'
    '<rect class="held s" width="9" height="9" id="their-rect"/></svg><p class="s" id="their-paragraph">theirs</p>'
)
STYLE_OF_NEIGHBOUR = """() => ["theirs", "their-text", "their-rect", "their-paragraph"].map((id) => {
  const style = getComputedStyle(document.getElementById(id));
  return [style.font, style.fill, style.stroke, style.backgroundColor, style.color, style.imageRendering].join("|");
})"""


@pytest.fixture(scope="module")
def outputs(synthetic):
    inspection = synthetic.make_inspection()
    known = {field.name: getattr(inspection, field.name) for field in fields(inspection)}
    plain = InspectedModel(**known, model="plain", source="a module in hand")
    without_maps = replace(plain, maps=(), model="without maps")
    return [notebook_html(each) for each in (plain, replace(plain, model=HOSTILE), without_maps)]


def document_of(*outputs):
    cells = "".join(f'<div class="output">{output}</div>' for output in outputs)
    return f"<!doctype html><html><body>{cells}{NEIGHBOUR}</body></html>"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_three_outputs_in_one_document_do_not_restyle_what_stands_beside_them(open_page, outputs, scheme):
    alone = open_page(document_of(), color_scheme=scheme).evaluate(STYLE_OF_NEIGHBOUR)
    page = open_page(document_of(*outputs), color_scheme=scheme)
    assert page.evaluate(STYLE_OF_NEIGHBOUR) == alone
    assert page.locator(".output > svg").count() == 3
    assert page.evaluate("[...document.querySelectorAll('.output [id]')].length") == 0  # no names that could clash
    # all three look alike, and each text can be read on its own ground: at least 7 to 1
    looks = page.evaluate(
        """() => [...document.querySelectorAll(".output > svg")].map((svg) =>
          [getComputedStyle(svg).backgroundColor, getComputedStyle(svg.querySelector("text")).fill].join("|"))"""
    )
    assert len(set(looks)) == 1
    ground, ink = (luminance(colour) for colour in looks[0].split("|"))
    assert (max(ground, ink) + 0.05) / (min(ground, ink) + 0.05) >= 7
    assert (ground > 0.5) == (scheme == "light")


def luminance(colour):
    """As WCAG 2.2 defines it, of rgb(r, g, b)."""
    shares = [int(part) / 255 for part in colour.removeprefix("rgb(").removesuffix(")").split(",")]
    linear = [share / 12.92 if share <= 0.04045 else ((share + 0.055) / 1.055) ** 2.4 for share in shares]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_a_hostile_name_of_a_model_stays_text(open_page, outputs):
    page = open_page(document_of(*outputs))
    assert page.evaluate("window.hacked") is None
    assert page.locator(".output img, .output script").count() == 0
    assert page.locator(".output").nth(1).locator("pre").text_content().replace("\n", " ").startswith(HOSTILE)
    assert page.locator(".output > svg").nth(1).get_attribute("aria-label").startswith(HOSTILE)


def test_a_narrow_notebook_shows_the_whole_drawing_in_its_own_proportions(open_page, synthetic):
    inspection = synthetic.make_inspection(num_heads=12, with_maps=False)
    known = {field.name: getattr(inspection, field.name) for field in fields(inspection)}
    page = open_page(document_of(notebook_html(InspectedModel(**known, model="wide", source="in hand"))), width=390)
    svg = page.locator(".output > svg")
    box, width, height = svg.bounding_box(), *(int(svg.get_attribute(name)) for name in ("width", "height"))
    assert width > 390 and box["x"] + box["width"] <= 390
    assert box["height"] / box["width"] == pytest.approx(height / width, rel=0.01)
