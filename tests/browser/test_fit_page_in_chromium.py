"""The page of a fit in a real browser: what a person can do with it, and what it must not do."""

import runpy
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import pytest

from headwise.report.fit_page import render_fit_page

pytestmark = pytest.mark.browser

UNLABELLED = """() => {
  const named = e => e.getAttribute('aria-label') || e.getAttribute('aria-labelledby') || e.textContent.trim()
    || [...(e.labels || [])].some(label => label.textContent.trim());
  return [...document.querySelectorAll('button, input, select, [role=region], svg[role=img], table')]
    .filter(e => e.checkVisibility() && !named(e)).map(e => e.outerHTML.slice(0, 80));
}"""


def texts_of(page, selector):
    return page.locator(selector).evaluate_all("elements => elements.map(element => element.textContent.trim())")


def contrast(page, selector):
    """Least contrast of WCAG 2.2 between ink and ground over all elements, as a canvas sees the two colours."""
    return page.evaluate(
        """selector => {
          const context = new OffscreenCanvas(1, 1).getContext('2d', { willReadFrequently: true });
          const luminance = (colour) => {
            context.fillStyle = colour;
            context.fillRect(0, 0, 1, 1);
            const shares = [...context.getImageData(0, 0, 1, 1).data.slice(0, 3)].map(channel => channel / 255)
              .map(s => s <= 0.04045 ? s / 12.92 : ((s + 0.055) / 1.055) ** 2.4);
            return 0.2126 * shares[0] + 0.7152 * shares[1] + 0.0722 * shares[2];
          };
          return Math.min(...[...document.querySelectorAll(selector)].map(e => {
            const style = getComputedStyle(e);
            const clear = style.backgroundColor === 'rgba(0, 0, 0, 0)';
            const ground = clear ? getComputedStyle(document.body).backgroundColor : style.backgroundColor;
            const [low, high] = [luminance(style.color), luminance(ground)].sort((a, b) => a - b);
            return (high + 0.05) / (low + 0.05);
          }));
        }""",
        selector,
    )


@pytest.fixture(scope="module")
def synthetic_fit():
    return SimpleNamespace(**runpy.run_path(str(Path(__file__).parents[1] / "report" / "synthetic_fit.py")))


@pytest.fixture
def plan(synthetic_fit):
    return synthetic_fit.make_plan(
        sweep=synthetic_fit.make_sweep(),
        verification=synthetic_fit.make_verification(),
        history=synthetic_fit.make_history(),
    )


@pytest.fixture
def open_plan(open_page):
    return lambda plan, **view: open_page(render_fit_page(plan), **view)


def point_at(page, moment, num_moments):
    page.locator("#timeline").scroll_into_view_if_needed()
    box = page.locator("#timeline").bounding_box()
    page.mouse.move(box["x"] + box["width"] * (moment + 0.5) / num_moments, box["y"] + 100)


def test_the_peak_is_shown_first_with_its_tensors(open_plan, plan):
    page = open_plan(plan)
    assert texts_of(page, "#moment-name") == ["backward: layer 3"]
    assert texts_of(page, "#tensors tbody strong")[0] == "24.00 GiB"
    assert texts_of(page, "#tensors tbody tr:first-child th")[0].startswith("attention scores")
    assert page.locator("#to-peak").is_disabled()


def test_pointing_at_a_moment_shows_the_tensors_alive_then(open_plan, plan):
    page = open_plan(plan)
    for moment, column in enumerate(plan.timeline):
        point_at(page, moment, len(plan.timeline))
        assert texts_of(page, "#moment-name") == [column.moment]
        names = page.locator("#tensors tbody th > bdi").all_text_contents()
        assert sorted(set(names)) == sorted({entry.name for entry in plan.ledger.alive(moment)})
        assert page.locator("#cursor").get_attribute("x") == str(moment)
    page.locator("#to-peak").click()
    assert texts_of(page, "#moment-name") == ["backward: layer 3"]


def test_the_script_writes_a_row_as_the_page_was_delivered(open_plan, plan):
    texts = [
        texts_of(open_plan(plan, java_script_enabled=runs), "#tensors tbody, #moment-kinds") for runs in (True, False)
    ]
    assert ["".join(text.split()) for text in texts[0]] == ["".join(text.split()) for text in texts[1]]


def test_the_keyboard_alone_walks_through_the_moments(open_plan, plan):
    page = open_plan(plan)
    page.get_by_label("Moment of the step").focus()
    page.keyboard.press("Home")
    assert texts_of(page, "#moment-name") == ["forward: embeddings"]
    page.keyboard.press("ArrowRight")
    assert page.locator("#moment").get_attribute("aria-valuetext") == "forward: layer 0, 6.29 GiB"
    page.keyboard.press("End")
    assert texts_of(page, "#moment-name") == ["optimizer step"]
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    assert texts_of(page, "#moment-name") == ["backward: layer 3"]


def test_a_tap_shows_a_moment(open_plan, plan):
    page = open_plan(plan, width=390, has_touch=True)
    page.locator("#timeline").scroll_into_view_if_needed()
    box = page.locator("#timeline").bounding_box()
    page.touchscreen.tap(box["x"] + 3, box["y"] + 60)
    assert texts_of(page, "#moment-name") == ["forward: embeddings"]


def test_a_heading_sorts_the_changes_and_turns_them_round(open_plan, plan, synthetic_fit):
    sizes = [3.0, 1.0, 2.0]
    changes = [synthetic_fit.make_change(f"c{s}", f"frees {s}", s, peak_gib=9 - s) for s in sizes]
    unknown = replace(changes[0], change="unknown", peak_bytes=None, extra_flops_fraction=None, fits=None)
    page = open_plan(replace(plan, changes=(*changes, unknown)))
    names = ".changes tbody th bdi"
    assert texts_of(page, names) == ["frees 3.0", "frees 1.0", "frees 2.0", "unknown"]
    assert page.locator(".changes [aria-sort]").text_content() == "#"
    heading = page.locator(".changes thead button", has_text="Peak then")
    heading.click()
    assert texts_of(page, names) == ["frees 3.0", "frees 2.0", "frees 1.0", "unknown"]
    heading.click()
    assert texts_of(page, names) == ["frees 1.0", "frees 2.0", "frees 3.0", "unknown"]
    assert page.locator(".changes [aria-sort]").get_attribute("aria-sort") == "descending"
    page.locator(".changes thead button", has_text="Frees").click()
    assert texts_of(page, names)[-1] == "frees 1.0"


def test_every_control_table_and_drawing_has_a_name(open_plan, plan):
    page = open_plan(plan)
    assert page.evaluate(UNLABELLED) == []
    levels = page.evaluate("[...document.querySelectorAll('h1, h2, h3, h4')].map(h => Number(h.tagName[1]))")
    assert levels[0] == 1 and all(after - before <= 1 for before, after in pairwise(levels))
    assert page.evaluate("document.documentElement.lang") == "en"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_word_can_be_read_on_its_ground(open_plan, plan, scheme):
    page = open_plan(plan, color_scheme=scheme)
    for selector in (
        ".word",
        ".heat td",
        ".heat small",
        ".hint",
        ".legend dt",
        ".reasons dd",
        "#main th",
        "#main small",
    ):
        assert contrast(page, selector) >= 4.5, selector


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_kinds_differ_from_their_neighbours_and_the_page(open_plan, plan, scheme):
    page = open_plan(plan, color_scheme=scheme)
    colours = page.evaluate(
        "['parameter', 'gradient', 'optimizer', 'input', 'saved', 'temporary'].map(kind => {"
        " const e = document.createElement('span'); e.className = `key kind ${kind}`; document.body.append(e);"
        " const colour = getComputedStyle(e).backgroundColor; e.remove();"
        " return colour.match(/[0-9.]+/g).map(Number); })"
    )
    for place, one in enumerate(colours):
        for other in colours[place + 1 :]:
            assert sum(abs(a - b) for a, b in zip(one, other, strict=True)) > 90


@pytest.mark.parametrize("width", [320, 390, 768])
def test_a_narrow_screen_never_scrolls_sideways(open_plan, plan, width):
    long = "a_name_" * 40
    entries = tuple(replace(entry, name=long, owner=long) for entry in plan.ledger.entries)
    plan = replace(
        plan,
        model=replace(plan.model, name=long, source=long),
        ledger=replace(plan.ledger, entries=entries),
        changes=tuple(replace(change, change=long, why=long) for change in plan.changes),
        notes=(long,),
        device=replace(plan.device, name=long),
    )
    page = open_plan(plan, width=width)
    assert page.evaluate("document.scrollingElement.scrollWidth") <= width
    assert page.locator("#tensors").evaluate("table => table.scrollWidth <= table.parentElement.clientWidth")


@pytest.mark.parametrize("width", [320, 390, 768, 1200])
@pytest.mark.parametrize("num_layers", [1, 4, 12, 48])
def test_no_name_of_a_phase_touches_another_or_leaves_the_drawing(open_plan, plan, synthetic_fit, width, num_layers):
    page = open_plan(synthetic_fit.make_plan(synthetic_fit.make_ledger(num_layers)), width=width)
    boxes = page.locator("text.phase:visible").evaluate_all(
        "names => names.map(name => { const box = name.getBoundingClientRect(); return [box.left, box.right]; })"
    )
    assert boxes and all(right < left for (_, right), (left, _) in pairwise(sorted(boxes)))
    frame = page.locator("#timeline").bounding_box()
    assert boxes[0][0] >= frame["x"] - 1 and boxes[-1][1] <= frame["x"] + frame["width"] + 1


def test_hostile_text_shows_as_itself_and_runs_nothing(open_plan, plan):
    hostile = "<script>window.hacked=1</script><img src=x onerror=window.hacked=1>"
    entries = tuple(replace(entry, name=hostile, owner=hostile) for entry in plan.ledger.entries)
    page = open_plan(
        replace(
            plan,
            model=replace(plan.model, name=hostile),
            ledger=replace(plan.ledger, entries=entries),
            notes=(hostile,),
        )
    )
    point_at(page, 3, len(plan.timeline))
    assert page.locator("h1").text_content() == hostile
    assert set(page.locator("#tensors tbody th > bdi").all_text_contents()) == {hostile}
    assert page.evaluate("window.hacked") is None and page.locator("#main img, #main script").count() == 0


def test_the_button_turns_the_colours_over(open_plan, plan):
    page = open_plan(plan, color_scheme="light")
    paper = "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(paper)
    page.locator("#theme").click()
    assert page.evaluate(paper) != light
    assert page.locator("#theme").get_attribute("aria-label") == "Switch to light colours"


def test_printed_the_page_is_light_and_shows_no_controls(open_plan, plan):
    page = open_plan(plan, color_scheme="dark")
    page.emulate_media(media="print", color_scheme="dark")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.evaluate("document.documentElement.dataset.theme") == "light"
    assert not page.locator("#moment").is_visible() and not page.locator("#to-peak").is_visible()
    assert page.locator("#timeline").is_visible() and page.locator("#tensors").is_visible()


def test_without_script_the_page_still_tells_the_peak(open_plan, plan):
    page = open_plan(plan, java_script_enabled=False)
    assert page.get_by_text("Without scripts the tensors at the peak alone").is_visible()
    assert not page.locator("#moment").is_visible()
    assert texts_of(page, "#tensors tbody strong")[0] == "24.00 GiB"
