"""The page in a real browser: what a person can do with it, and what it must not do."""

import json
from dataclasses import replace
from itertools import pairwise

import pytest

pytestmark = pytest.mark.browser

# the pixels of a canvas as they are now, read from a copy: reading one canvas twice makes Chromium complain
PIXELS_OF = """canvas => {
  const copy = new OffscreenCanvas(canvas.width, canvas.height);
  const context = copy.getContext("2d");
  context.drawImage(canvas, 0, 0);
  return [...context.getImageData(0, 0, canvas.width, canvas.height).data];
}"""


def relative_luminance(colour):
    """Of WCAG 2.2, for 8-bit red, green and blue."""
    shares = [channel / 255 for channel in colour]
    linear = [s / 12.92 if s <= 0.04045 else ((s + 0.055) / 1.055) ** 2.4 for s in shares]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def shown(value):
    """A statistic as the page shows it: in two or three digits, and as 1.00 only where it is 1."""
    return f"{value:.1f}" if value >= 9.995 else f"{value:.3f}" if 0.995 <= value < 1 else f"{value:.2f}"


def texts_of(page, selector):
    return page.locator(selector).evaluate_all("elements => elements.map(element => element.textContent)")


@pytest.fixture
def report(synthetic):
    return synthetic.make_report(synthetic.make_inspection(num_layers=2, num_heads=3))


def test_every_head_has_one_cell_with_its_map_number_and_role(open_page, report):
    page = open_page(report)
    assert page.locator("#grid .cell").count() == len(report.heads.heads) == 6
    assert page.locator("#grid .cell canvas").count() == 6
    assert texts_of(page, "#grid .value") == [shown(head.entropy) for head in report.heads.heads]
    held = [any(role.holds for role in head.roles) for head in report.heads.heads]
    assert [cell.locator(".badge").count() == 1 for cell in page.locator("#grid .cell").all()] == held
    label = page.locator("#grid .cell").nth(2).get_attribute("aria-label")
    assert label.startswith("Layer 0, head 2: Entropy ") and label.endswith("previous token head")


def test_a_click_opens_one_head_with_its_statistics_and_roles(open_page, report):
    page = open_page(report)
    assert not page.locator("#head").is_visible()
    page.locator("#grid .cell").nth(4).click()
    head = report.heads.heads[4]
    assert page.locator("#head").is_visible()
    assert page.locator("#head-title").text_content() == "Layer 1, head 1"
    assert texts_of(page, "#head-statistics dd") == [
        f"{shown(head.entropy)} nats",
        shown(head.normalized_entropy),
        shown(head.sparsity),
        f"{shown(head.distance)} tokens",
        shown(head.sink_mass),
        shown(head.max_weight),
    ]
    assert texts_of(page, "#head-scores dt") == [role.name.capitalize() for role in head.roles]
    assert texts_of(page, "#head-scores dd") == [shown(role.score) for role in head.roles]
    page.locator("#head-next").click()
    assert page.locator("#head-title").text_content() == "Layer 1, head 2"
    assert page.locator("#head-next").is_disabled()
    page.locator("#head-close").click()
    assert not page.locator("#head").is_visible()


def test_the_chip_of_a_role_opens_its_head(open_page, report):
    page = open_page(report)
    page.get_by_role("button", name="layer 0 head 2 previous token").click()
    assert page.locator("#head-title").text_content() == "Layer 0, head 2"
    assert texts_of(page, "#head-roles .role") == ["previous token"]


def test_the_keyboard_alone_reaches_moves_opens_reads_and_closes(open_page, report):
    page = open_page(report)
    page.locator("#only").focus()
    page.keyboard.press("Tab")
    focused = "document.activeElement.getAttribute('aria-label') || ''"
    assert page.evaluate(focused).startswith("Layer 0, head 0")
    for key, place in [
        ("ArrowRight", "Layer 0, head 1"),
        ("ArrowDown", "Layer 1, head 1"),
        ("End", "Layer 1, head 2"),
        ("ArrowRight", "Layer 1, head 2"),
        ("Home", "Layer 1, head 0"),
        ("ArrowUp", "Layer 0, head 0"),
        ("ArrowRight", "Layer 0, head 1"),
    ]:
        page.keyboard.press(key)
        assert page.evaluate(focused).startswith(place), key
    outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert outline == "solid"
    page.keyboard.press("Enter")
    assert page.locator("#head-title").text_content() == "Layer 0, head 1"
    page.keyboard.press("Escape")
    assert not page.locator("#head").is_visible()
    assert page.evaluate(focused).startswith("Layer 0, head 1")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.closest('#grid')") is None  # one stop for the whole grid


def test_the_map_reads_the_weight_that_the_report_holds(open_page, report):
    page = open_page(report)
    page.locator("#grid .cell").nth(1).click()
    page.locator("#map").focus()
    for _ in range(40):
        page.keyboard.press("ArrowUp")
        page.keyboard.press("ArrowLeft")
    for _ in range(5):
        page.keyboard.press("ArrowDown")
    for _ in range(3):
        page.keyboard.press("ArrowRight")
    map_ = report.heads.maps[1]
    weight = (map_.weights[5 * map_.num_keys + 3] / 255) ** 2
    assert texts_of(page, "#map-readout .token") == [report.heads.tokens[5], report.heads.tokens[3]]
    shown = page.locator("#map-readout .number").text_content()
    assert (shown == "under 0.001") if 0 < weight < 0.001 else abs(float(shown) - weight) <= 0.005
    page.keyboard.press("Enter")
    assert page.locator("#from-tokens [aria-selected=true]").text_content() == report.heads.tokens[5]


def test_pointing_at_the_map_reads_that_query_and_key(open_page, report):
    page = open_page(report)
    page.locator("#grid .cell").nth(2).click()
    length = len(report.heads.tokens)
    box = page.locator("#map canvas").bounding_box()
    page.mouse.move(box["x"] + box["width"] * (4.5 / length), box["y"] + box["height"] * (5.5 / length))
    assert texts_of(page, "#map-readout .token") == [report.heads.tokens[5], report.heads.tokens[4]]
    assert float(page.locator("#map-readout .number").text_content()) > 0.9


def test_a_chosen_token_shades_what_it_reads(open_page, report):
    page = open_page(report)
    page.locator("#grid .cell").nth(2).click()
    page.locator("#from-tokens [role=option]").nth(10).click()
    ramp = page.evaluate(
        "[...document.querySelectorAll('#from-tokens [role=option]')].map(e => getComputedStyle(e).backgroundColor)"
    )
    strongest = ramp[9]
    assert ramp.count(strongest) == 1  # the previous token alone
    assert page.locator("#from-tokens [role=option]").nth(9).get_attribute("title").startswith("weight ")
    assert texts_of(page, "#top-keys dt .token")[0] == report.heads.tokens[9]
    page.keyboard.press("Escape")
    page.locator("#grid .cell").nth(2).click()
    page.locator("#from-tokens [tabindex='0']").focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    assert page.locator("#from-tokens [aria-selected=true]").text_content() == report.heads.tokens[11]


def test_the_map_is_drawn_from_the_weights(open_page, report):
    page = open_page(report)
    canvas = page.locator("#grid .cell canvas").nth(2)
    width, height = canvas.evaluate("canvas => [canvas.width, canvas.height]")
    pixels = canvas.evaluate(PIXELS_OF)
    map_ = report.heads.maps[2]
    assert (width, height) == (map_.num_keys, map_.num_queries)
    colour_of = {}
    for index, byte in enumerate(map_.weights):
        assert colour_of.setdefault(byte, pixels[4 * index : 4 * index + 4]) == pixels[4 * index : 4 * index + 4]
    assert len({tuple(colour) for colour in colour_of.values()}) > 2


# What who lacks one kind of cones sees, in linear RGB. Source: Machado et al. 2009, "A Physiologically-based Model for
# Simulation of Color Vision Deficiency", table 1, severity 1.
EYES = {
    "any": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    "without red": ((0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216), (-0.003882, -0.048116, 1.051998)),
    "without green": ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.01182, 0.04294, 0.968881)),
    "without blue": ((1.255528, -0.076749, -0.178779), (-0.078411, 0.930809, 0.147602), (0.004733, 0.691367, 0.3039)),
}


def seen_luminance(colour, eye):
    linear = [c / 3294.6 if c <= 10.31475 else ((c / 255 + 0.055) / 1.055) ** 2.4 for c in colour]
    seen = [min(1, max(0, sum(share * c for share, c in zip(row, linear, strict=True)))) for row in eye]
    return sum(share * c for share, c in zip((0.2126, 0.7152, 0.0722), seen, strict=True))


@pytest.mark.parametrize(("scheme", "direction"), [("light", -1), ("dark", 1)])
def test_the_colour_map_is_ordered_for_any_eye_and_in_grey(open_page, report, scheme, direction):
    page = open_page(report, color_scheme=scheme)
    page.locator("#grid .cell").nth(0).click()
    pixels = page.locator("#map-ramp").evaluate(PIXELS_OF)
    colours = [pixels[i : i + 3] for i in range(0, len(pixels), 4)]
    assert len(colours) == 256
    for eye in EYES.values():
        luminance = [seen_luminance(colour, eye) for colour in colours]
        # two neighbours may be the same colour, as one has but 8 bits; never may they change places
        assert min(direction * (after - before) for before, after in pairwise(luminance)) >= 0
        assert min(direction * (luminance[at + 2] - luminance[at]) for at in range(254)) > 0


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_number_can_be_read_on_every_shade(open_page, report, scheme):
    page = open_page(report, color_scheme=scheme)
    for position in range(page.locator("#shade option").count()):
        page.locator("#shade").select_option(index=position)
        pairs = page.evaluate(
            "[...document.querySelectorAll('#grid .value')].map(e => [getComputedStyle(e).color,"
            " getComputedStyle(e).backgroundColor].map(c => c.match(/[0-9.]+/g).map(Number)))"
        )
        assert len({tuple(paper) for _, paper in pairs}) > 1
        for ink, paper in pairs:
            low, high = sorted((relative_luminance(ink), relative_luminance(paper)))
            assert (high + 0.05) / (low + 0.05) >= 4.5


def test_the_grid_is_shaded_by_any_statistic_or_role(open_page, report):
    page = open_page(report)
    options = texts_of(page, "#shade option")
    assert options[:6] == [
        "Entropy",
        "Normalised entropy",
        "Sparsity",
        "Mean distance",
        "First-token mass",
        "Largest weight",
    ]
    assert options[6:] == [f"Role: {role.name}" for role in report.heads.heads[0].roles]
    page.locator("#shade").select_option("Role: previous token")
    assert texts_of(page, "#grid .value") == [shown(head.roles[0].score) for head in report.heads.heads]
    assert page.locator("#ramp-high").text_content() == "1.00"


def test_a_heading_sorts_the_table_and_turns_it_round(open_page, report):
    page = open_page(report)
    column = page.locator("#statistics thead button", has_text="Mean distance")
    read = "rows => rows.map(row => row.cells[5].textContent)"
    rows = page.locator("#statistics tbody tr")
    assert rows.count() == 6
    expected = sorted((head.distance for head in report.heads.heads), reverse=True)
    column.click()
    assert rows.evaluate_all(read) == [shown(value) for value in expected]
    assert page.locator("#statistics [aria-sort]").get_attribute("aria-sort") == "descending"
    column.click()
    assert rows.evaluate_all(read) == [shown(value) for value in reversed(expected)]
    assert page.locator("#statistics [aria-sort]").get_attribute("aria-sort") == "ascending"
    assert page.locator("#statistics .holds").count() == sum(r.holds for h in report.heads.heads for r in h.roles)


def test_what_is_not_a_number_stands_last_either_way(open_page, report):
    heads = [replace(head, entropy=float("nan")) if head.head == 1 else head for head in report.heads.heads]
    page = open_page(replace(report, heads=replace(report.heads, heads=tuple(heads))))
    for _ in range(2):
        page.locator("#statistics thead button", has_text="Entropy").first.click()
        assert texts_of(page, "#statistics tbody tr td:nth-child(3)")[-2:] == ["–", "–"]


def test_a_score_that_no_query_has_is_a_dash_without_a_shade_and_stands_last(open_page, report):
    heads = [
        replace(head, roles=(*head.roles[:1], replace(head.roles[1], score=None, holds=False), *head.roles[2:]))
        if head.head == 1
        else head
        for head in report.heads.heads
    ]
    page = open_page(replace(report, heads=replace(report.heads, heads=tuple(heads))))
    page.locator("#shade").select_option("Role: next token")
    assert [text == "–" for text in texts_of(page, "#grid .value")] == [False, True, False] * 2
    assert page.locator("#grid .value").nth(1).evaluate("cell => cell.style.backgroundColor") == ""
    column = page.locator("#statistics thead button", has_text="next token")
    for _ in range(2):
        column.click()
        assert texts_of(page, "#statistics tbody tr td:nth-child(10)")[-2:] == ["–", "–"]
    page.locator("#grid .cell").nth(1).click()
    assert page.locator("#head-scores dd").nth(1).text_content() == "–"


def test_the_button_turns_the_colours_over_and_the_maps_with_them(open_page, report):
    page = open_page(report, color_scheme="light")
    paper = "getComputedStyle(document.body).backgroundColor"
    canvas = page.locator("#grid canvas").first
    light, light_pixels = page.evaluate(paper), canvas.evaluate(PIXELS_OF)
    page.locator("#theme").click()
    assert page.evaluate(paper) != light and canvas.evaluate(PIXELS_OF) != light_pixels
    assert page.locator("#theme").get_attribute("aria-label") == "Switch to light colours"
    page.locator("#theme").click()
    assert page.evaluate(paper) == light and canvas.evaluate(PIXELS_OF) == light_pixels


def test_hostile_text_shows_as_itself_and_runs_nothing(open_page, synthetic, report):
    hostile = "<script>window.hacked=1</script><img src=x onerror=window.hacked=1>"
    page = open_page(replace(report, model=replace(report.model, name=hostile), heads_notes=(hostile,)))
    tokens = list(synthetic.HOSTILE_TOKENS)
    page.locator("details.text summary").click()
    assert texts_of(page, "#text .token") == tokens
    assert page.locator("h1").text_content() == hostile
    assert page.title() == f"{hostile} · headwise report"
    page.locator("#grid .cell").nth(0).click()
    assert texts_of(page, "#from-tokens .token") == tokens
    for index in range(len(tokens)):
        page.locator("#from-tokens [role=option]").nth(index).click()
        assert page.locator("#from-heading .token").text_content() == tokens[index]
    assert page.evaluate("window.hacked") is None
    assert page.locator(".token").count() > 2 * len(tokens) and page.locator(".token *").count() == 0
    assert page.locator("#text .token").evaluate_all(
        "all => all.every(e => getComputedStyle(e).unicodeBidi == 'isolate')"
    )
    assert page.locator("#text .token", has_text="انتباه").evaluate("e => getComputedStyle(e).direction") == "rtl"


def test_the_policy_stops_a_script_that_is_not_ours(open_page, report):
    page = open_page(report)
    page.evaluate(
        "() => { const script = document.createElement('script'); script.textContent = 'window.hacked = 1';"
        " document.body.append(script); }"
    )
    assert page.evaluate("window.hacked") is None
    assert len(open_page.complaints) == 1 and "Content Security Policy" in open_page.complaints.pop()


@pytest.mark.parametrize("size", ["one head", "many heads", "no maps", "no heads"])
def test_a_narrow_screen_never_scrolls_sideways(open_page, synthetic, size):
    heads = {
        "one head": lambda: synthetic.make_inspection(1, 1, tokens=("one",)),
        "many heads": lambda: synthetic.make_inspection(2, 12, notes=("a" * 300,)),
        "no maps": lambda: synthetic.make_inspection(2, 3, with_maps=False),
        "no heads": lambda: None,
    }[size]()
    page = open_page(synthetic.make_report(heads, name="a-model-with-" + "a-very-" * 20 + "long-name"), width=390)
    if page.locator("details.text").count():
        page.locator("details.text summary").click()
    for opened in (False, True):
        if opened and heads is not None:
            page.locator("#grid .cell").first.click()
            assert page.locator("#head").evaluate("dialog => dialog.scrollWidth <= dialog.clientWidth")
        for width in (768, 320, 390):
            page.set_viewport_size({"width": width, "height": 844})
            assert page.evaluate("document.scrollingElement.scrollWidth") <= width


def test_without_maps_a_head_still_opens_with_its_statistics(open_page, synthetic):
    page = open_page(synthetic.make_report(synthetic.make_inspection(2, 3, with_maps=False)))
    page.locator("#grid .cell").nth(5).click()
    assert page.locator("#head-statistics dd").count() == 6
    assert not page.locator("#map").is_visible() and not page.locator("#from-token").is_visible()


def test_one_head_on_one_token_opens(open_page, synthetic):
    page = open_page(synthetic.make_report(synthetic.make_inspection(1, 1, tokens=("one",))))
    page.locator("#grid .cell").click()
    assert page.locator("#map-readout .number").text_content() == "1.00"
    assert page.locator("#head-statistics dd").nth(1).text_content() == "–"
    assert page.locator("#head-previous").is_disabled() and page.locator("#head-next").is_disabled()


def test_a_page_without_heads_says_why(open_page, synthetic):
    page = open_page(synthetic.make_report(None, heads_notes=("A preset has no weights.",)))
    assert "A preset has no weights." in page.locator("#see").text_content()
    page.locator("#theme").click()


def test_a_page_without_script_still_tells_the_numbers(open_page, report):
    page = open_page(report, java_script_enabled=False)
    assert page.get_by_text("does not run here").is_visible()
    assert page.get_by_text("22,713,216").first.is_visible()


def test_twelve_layers_of_twelve_heads_make_a_page_of_under_four_megabytes(open_page, synthetic):
    inspection = synthetic.make_inspection(1, 1, tokens=[f"t{i}" for i in range(128)])
    heads = tuple(replace(inspection.heads[0], layer=i // 12, head=i % 12) for i in range(144))
    maps = tuple(replace(inspection.maps[0], layer=i // 12, head=i % 12) for i in range(144))
    page = open_page(synthetic.make_report(replace(inspection, heads=heads, maps=maps)))
    assert page.locator("#grid .cell").count() == 144
    assert page.evaluate("new Blob([document.documentElement.outerHTML]).size") < 4 * 2**20
    page.locator("#grid .cell").nth(143).click()
    assert page.locator("#head-title").text_content() == "Layer 11, head 11"


def test_the_data_of_the_page_is_what_the_report_holds(open_page, report):
    page = open_page(report)
    data = json.loads(page.locator("#heads-data").text_content())
    (part,) = data["parts"]
    assert [(head["layer"], head["head"]) for head in part["heads"]] == [(h.layer, h.head) for h in report.heads.heads]
    assert part["tokens"] == list(report.heads.tokens)


def test_a_picture_is_taken_of_every_view(take_screenshots, synthetic, tmp_path):
    from headwise.report.page import write_page

    small = synthetic.make_report(synthetic.make_inspection(1, 1, ("one", "two")))
    pictures = take_screenshots(write_page(small, tmp_path / "page.html"), tmp_path / "pictures")
    assert len(pictures) == 12
    assert all(picture.stat().st_size > 10_000 for picture in pictures)


def test_printed_the_page_is_light_and_shows_whole_tables(open_page, report):
    page = open_page(report, color_scheme="dark")
    page.emulate_media(media="print", color_scheme="dark")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.evaluate("document.documentElement.dataset.theme") == "light"
    assert page.evaluate("getComputedStyle(document.querySelector('.scroll.tall')).maxHeight") == "none"
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert page.evaluate("document.documentElement.dataset.theme") is None
