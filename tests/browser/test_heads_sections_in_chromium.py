"""Roles, relations, likeness and differences on the page of heads, in a real browser."""

import math
from dataclasses import fields, replace

import pytest

from headwise.api.inspect_results import InspectedModel, InspectedPart
from headwise.inspection.changes import head_changes
from headwise.inspection.results import HeadDivergence, HeadRelation, Inspection, RelationScores
from headwise.inspection.roles.results import HeadRole, HeadRoles, RoleExample, RoleProbe
from headwise.report.heads_picture import heads_svg
from headwise.report.inspect_page import render_inspection

pytestmark = pytest.mark.browser

HOSTILE = "<img src=x onerror=alert(1)>"
TOKENS = ("[CLS]", HOSTILE, "קשב", "b", "[SEP]")
ENTROPY_CHANGES = (0.5, -0.25, 0.0, 0.125, -1.0, 0.03)  # of the six heads, in B
DIVERGENCES = ((0.0, 0.1, 0.4), (0.1, 0.0, 0.65), (0.4, 0.65, 0.0))


def role_of(name, score, *, holds):
    example = RoleExample(text=0, query_index=1, key_index=0, query=HOSTILE, key="קשב", weight=0.9)
    return HeadRole(
        name=name, offset=None, score=score, untrained_null=0.1, shuffled_null=0.2, threshold=0.5, holds=holds,
        num_queries=101, largest_share=0.8, example=example,
    )  # fmt: skip


def with_sections(inspection, relation):
    places = [(head.layer, head.head) for head in inspection.heads]
    heads = tuple(
        HeadRelation(layer=layer, head=head, share=0.15 * (head + layer), weight=0.1) for layer, head in places
    )
    return replace(
        inspection,
        relations=(RelationScores(name=relation, num_pairs=7, best_offset=1, offset_share=0.2, heads=heads),),
        divergences=tuple(
            HeadDivergence(heads=tuple((layer, head) for head in range(3)), divergence=DIVERGENCES)
            for layer in range(2)
        ),
        divergence_across_layers=HeadDivergence(
            heads=tuple(places),
            divergence=tuple(tuple(0.02 * float(abs(a - b)) for b in range(6)) for a in range(6)),
        ),
    )


@pytest.fixture
def result(synthetic):
    main = with_sections(synthetic.make_inspection(2, 3, TOKENS), f"main {HOSTILE}")
    changed = tuple(
        replace(head, entropy=head.entropy + change) for head, change in zip(main.heads, ENTROPY_CHANGES, strict=True)
    )
    maps = tuple(replace(one, weights=bytes(255 - byte for byte in one.weights)) for one in main.maps)
    other = replace(with_sections(main, "other"), heads=changed, maps=maps)
    probe = RoleProbe(
        heads=tuple(
            HeadRoles(
                layer=head.layer,
                head=head.head,
                roles=(
                    role_of("previous token", 0.9 if head == main.heads[5] else 0.3, holds=head == main.heads[5]),
                    role_of("induction", 0.1, holds=False),
                ),
            )
            for head in main.heads
        ),
        num_windows=1, num_tokens=5, window=5, num_repeats=4, num_random=50, seed=0,
    )  # fmt: skip
    known = {field.name: getattr(main, field.name) for field in fields(Inspection)}
    return InspectedModel(
        **known, model=HOSTILE, source="s", probe=probe, part=f"before {HOSTILE}",
        others=(
            InspectedPart(
                name=f"after {HOSTILE}", inspection=other, comparable=True, changes=head_changes(main, other)
            ),
            InspectedPart(name="cross", inspection=synthetic.make_inspection(1, 1, TOKENS), comparable=False),
        ),
    )  # fmt: skip


def test_a_head_of_a_probed_role_opens_in_its_own_part(open_page, result):
    page = open_page(render_inspection(result))
    page.locator("#part").select_option("1")
    page.locator("#probe button").first.click()
    assert page.locator("#head-title").text_content().startswith("Layer 1, head 2")
    assert page.locator("#part").input_value() == "0"
    assert f"“{HOSTILE}” reads “קשב”" in page.locator("#probe").text_content()
    assert "induction (at best 0.10" in page.locator("#probe-missed").text_content()


def test_relations_of_the_shown_part_are_shown_and_their_heads_open(open_page, result):
    page = open_page(render_inspection(result))
    shown = page.locator('[data-section="relations"]:visible')
    assert shown.count() == 1 and f"main {HOSTILE}" in shown.text_content()
    assert shown.locator("tbody button").first.text_content() == "layer 1 head 2"  # 0.45, the largest share
    page.locator("#part").select_option("1")
    shown = page.locator('[data-section="relations"]:visible')
    assert shown.count() == 1 and "other" in shown.text_content()
    page.locator("#part").select_option("2")  # it has none: the first one stays, under its name
    shown = page.locator('[data-section="relations"]:visible')
    assert shown.count() == 1 and f"before {HOSTILE}" in shown.text_content()
    shown.locator("tbody button").first.click()
    assert page.locator("#head-title").text_content().startswith("Layer 1, head 2")


def test_squares_of_divergences_are_read_by_mouse_and_keys(open_page, result):
    page = open_page(render_inspection(result))
    squares = page.locator('[data-section="similar"]:visible .similar-map')
    assert squares.count() == 2
    readout = page.locator('[data-section="similar"]:visible .similar-readout')
    squares.nth(1).scroll_into_view_if_needed()
    box = squares.nth(1).bounding_box()
    page.mouse.move(box["x"] + box["width"] * 5 / 6, box["y"] + box["height"] / 2)
    assert readout.text_content() == "Layer 1 heads 1 and 20.65 nats"
    squares.nth(0).focus()
    assert readout.text_content() == "Layer 0 heads 0 and 10.10 nats"
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")  # the last column
    assert readout.text_content() == "Layer 0 heads 0 and 20.40 nats"
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    assert readout.text_content() == "Layer 0 heads 2 and 20.00 nats"


def test_a_disc_of_the_plane_opens_its_head(open_page, result):
    page = open_page(render_inspection(result))
    discs = page.locator('[data-section="similar"]:visible .disc')
    assert discs.count() == 6
    discs.nth(4).click()
    assert page.locator("#head-title").text_content().startswith("Layer 1, head 1")


def colour_of(locator):
    return locator.evaluate("element => getComputedStyle(element).backgroundColor.match(/[0-9]+/g).map(Number)")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_grid_of_differences_says_and_shades_what_changed(open_page, result, scheme):
    page = open_page(render_inspection(result), color_scheme=scheme)
    cells = page.locator(".difference-cell")
    page.locator("#difference-statistic").select_option(label="Entropy")
    assert cells.all_text_contents() == ["+0.50", "−0.25", "0", "+0.13", "−1.00", "+0.03"]
    assert cells.nth(4).get_attribute("aria-label") == "Layer 1, head 1: Entropy −1.00 nats"
    red, _, blue = colour_of(cells.nth(4))
    assert blue > red + 40
    red, _, blue = colour_of(cells.nth(0))
    assert red > blue + 40
    assert max(colour_of(cells.nth(2))) - min(colour_of(cells.nth(2))) <= 12  # 0 is grey
    assert page.locator("#difference-low").text_content() == "−1.00 nats"
    before = colour_of(cells.nth(4))
    page.locator("#theme").click()
    assert colour_of(cells.nth(4)) != before
    page.locator("#difference-statistic").select_option(label="Sparsity")
    assert set(cells.all_text_contents()) == {"0"}


def test_heads_are_sorted_by_how_much_they_changed(open_page, result):
    page = open_page(render_inspection(result))
    page.locator("#difference-statistic").select_option(label="Entropy")
    rows = page.locator("#difference-table tbody tr")

    def heads():
        return [tuple(row.locator("td").all_text_contents()[:2]) for row in rows.all()]

    order = sorted(range(6), key=lambda place: -abs(ENTROPY_CHANGES[place]))
    assert heads() == [(str(place // 3), str(place % 3)) for place in order]
    first = rows.first.locator("td").all_text_contents()
    entropy = result.heads[4].entropy
    assert [float(number) for number in first[2:4]] == pytest.approx([entropy, entropy - 1], abs=0.005)
    assert first[4] == "−1.00"
    page.locator("#difference-table thead button", has_text="Layer").click()
    assert heads()[0] == ("0", "0")
    largest = max(head.entropy for part in (result, result.others[0].inspection) for head in part.heads)
    overall = float(rows.first.locator("td").last.text_content())
    num_statistics = len(page.locator("#difference-statistic option").all()) - 1  # the first is the divergence
    assert overall == pytest.approx(0.5 / largest / num_statistics, abs=0.005)


def test_divergences_come_first_where_both_have_maps_of_the_same_tokens(open_page, result):
    page = open_page(render_inspection(result))
    assert page.locator("#difference-statistic").input_value() == "divergence"
    (worst, *_) = result.others[0].changes
    first = page.locator("#difference-table tbody tr").first.locator("td").all_text_contents()
    assert first[:3] == [str(worst.layer), str(worst.head), f"{worst.divergence:.2f}"]
    about = page.locator("#difference-about").text_content()
    largest = max(change.divergence_error for change in result.others[0].changes)
    told = float(about.split("off by ")[1].split(" nats at most")[0])
    assert largest <= told <= largest + 0.01  # rounded up
    cell = page.locator(".difference-cell").nth(3 * worst.layer + worst.head)
    assert cell.text_content() == f"{worst.divergence:.2f}"


def test_tiny_divergences_are_told_in_digits_that_say_something(open_page, result):
    changes = tuple(
        replace(change, divergence=0.0003 * change.layer, divergence_error=0.000451)
        for change in result.others[0].changes
    )
    page = open_page(render_inspection(replace(result, others=(replace(result.others[0], changes=changes),))))
    assert page.locator(".difference-cell").all_text_contents() == ["0"] * 3 + ["0.00030"] * 3
    assert page.locator("#difference-high").text_content() == "0.00030 nats"
    assert "off by 0.00046 nats at most" in page.locator("#difference-about").text_content()
    assert page.locator("#difference-table tbody tr").first.locator("td").nth(2).text_content() == "0.00030"


def test_arrow_keys_move_in_the_grid_and_a_head_opens_with_both_maps(open_page, result):
    page = open_page(render_inspection(result))
    page.locator(".difference-cell").first.focus()
    for key in ("ArrowRight", "ArrowDown", "ArrowDown", "Enter"):
        page.keyboard.press(key)
    assert page.locator("#head-title").text_content().startswith("Layer 1, head 1")
    panel = page.locator("#head-difference")
    pictures = panel.locator(".map")
    assert pictures.count() == 2
    tops = page.locator("#head .map:visible").evaluate_all("all => all.map(one => one.getBoundingClientRect().top)")
    assert tops[0] == tops[1] < tops[2]  # A and B beside each other, above A alone
    assert page.locator("#head").evaluate("dialog => dialog.scrollTop") == 0 and tops[0] < 450
    pictures.nth(1).scroll_into_view_if_needed()
    box = pictures.nth(1).bounding_box()
    page.mouse.move(box["x"] + box["width"] * 0.3, box["y"] + box["height"] * 0.9)
    byte = result.maps[4].weights[4 * len(TOKENS) + 1]
    told = panel.locator(".readout").text_content()
    assert told.startswith(f"[SEP]4 reads {HOSTILE}1A ")
    a, b = (float(part.split()[-1]) for part in told.split("1A ")[1].split(", "))
    assert (a, b) == pytest.approx(((byte / 255) ** 2, ((255 - byte) / 255) ** 2), abs=0.005)
    entropy = panel.locator("tbody tr").first.locator("td").all_text_contents()
    assert entropy[2] == "−1.00 nats"
    page.keyboard.press("Escape")
    page.locator("#grid .cell").first.click()  # from the grid of one part its own map comes first
    assert page.locator("#head .map").first.get_attribute("id") == "map" and panel.is_visible()
    page.keyboard.press("Escape")
    page.locator("#part").select_option("2")
    page.locator("#grid .cell").first.click()
    assert not panel.is_visible()  # another stack has nothing to be held against


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_phone_needs_no_sideways_scrolling(open_page, result, scheme):
    page = open_page(render_inspection(result), width=390, color_scheme=scheme)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    page.locator(".difference-cell").first.click()
    assert page.locator("#head").evaluate("dialog => dialog.scrollWidth <= dialog.clientWidth")


def test_a_page_without_these_sections_runs_as_before(open_page, synthetic):
    inspection = synthetic.make_inspection(1, 1, TOKENS)
    known = {field.name: getattr(inspection, field.name) for field in fields(Inspection)}
    page = open_page(render_inspection(InspectedModel(**known, model="m", source="s")))
    page.locator("#grid .cell").first.click()
    assert page.locator("#head-title").text_content() == "Layer 0, head 0"
    assert page.locator("#head-difference").count() == 0 and math.isfinite(inspection.heads[0].entropy)


@pytest.mark.parametrize("sign", ["W", "@", "%", "m", "注", "ア", "🧠", "ŵ", "a b"])
def test_titles_of_drawings_stay_inside_in_the_browsers_own_font(open_page, tmp_path, synthetic, sign):
    path = tmp_path / "heads.svg"
    path.write_text(heads_svg(synthetic.make_inspection(1, 1, TOKENS), sign * 150), encoding="utf-8")
    page = open_page(path)
    right = page.evaluate(
        "Math.max(...[...document.querySelectorAll('text')].map((t) => t.getBBox().x + t.getBBox().width))"
    )
    assert right <= page.evaluate("document.documentElement.viewBox.baseVal.width")
