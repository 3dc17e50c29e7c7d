"""The page of `headwise inspect` in a real browser: hover, click, keyboard, sort, zoom, parts, steps and download."""

import base64
import csv
import io
import random
import zlib
from dataclasses import replace
from importlib.resources import files
from itertools import pairwise

import pytest

from headwise.inspection.capture.reading import shorten
from headwise.report.inspect_page import heads_csv, render_inspection
from headwise.report.page_data import SAVED_ONLY, STATISTICS

pytestmark = pytest.mark.browser
LONG, MAP_TOKENS, TILE, TOP_KEYS = 277, 80, 5, 7
LINE_ROW = 24  # pixels, as in lines.js
A4 = 718  # pixels between margins of a centimetre: 190 mm at 96 pixels an inch
PIXELS = (  # of a copy, as reading a canvas makes the browser warn
    "canvas => { const copy = new OffscreenCanvas(canvas.width, canvas.height)"
    ".getContext('2d', { willReadFrequently: true }); copy.drawImage(canvas, 0, 0);"
    " return [...copy.getImageData(0, 0, canvas.width, canvas.height).data]; }"
)
CHOSEN = "#lines .line-row[aria-selected=true]"
ROW = "#lines-{side} [data-index='{index}']"


@pytest.fixture(scope="module")
def short(synthetic):
    """Prose of 31 tokens, causal: short enough to see all lines at once."""
    return synthetic.make_inspection(tokens=synthetic.PROSE_TOKENS[:31], causal=True)


@pytest.fixture(scope="module")
def long(synthetic):
    """More tokens than a page of the text view, of which maps cover the first few."""
    tokens = tuple(f"{word}{number}" for number, word in enumerate(synthetic.PROSE_TOKENS * 4))[:LONG]
    assert len(tokens) == LONG
    return synthetic.make_inspection(1, 2, tokens, causal=True, map_tokens=MAP_TOKENS, tile=TILE, top_keys=TOP_KEYS)


@pytest.fixture(scope="module")
def several(synthetic, short):
    """A text that was written, the same heads on a hostile one, and cross-attention of another size."""
    main = synthetic.make_inspection(tokens=synthetic.PROSE_TOKENS[:17], causal=True, num_prompt_tokens=11)
    keys = tuple(f"key{number}" for number in range(13))
    cross = synthetic.make_inspection(1, 2, synthetic.PROSE_TOKENS[:5], key_tokens=keys)
    hostile = synthetic.make_inspection()
    return synthetic.make_inspected(
        main, ("</script><b>hostile", hostile, True), ("cross", cross, False), part="written", model="<img src=x>"
    )


@pytest.fixture
def open_inspection(open_page, synthetic):
    def open_one(inspection, **view):
        result = inspection if hasattr(inspection, "others") else synthetic.make_inspected(inspection)
        return open_page(render_inspection(result), **view)

    return open_one


def weight_of(map_, query, key):
    return (map_.weights[query * map_.num_keys + key] / 255) ** 2


def row_of(map_, query):
    return [weight_of(map_, query, key) for key in range(map_.num_keys)]


def column_of(map_, key):
    return [weight_of(map_, query, key) for query in range(map_.num_queries)]


def heaviest(weights, count):
    """Numbers of the largest weights, the first of equals first."""
    return sorted((i for i, w in enumerate(weights) if w > 0), key=lambda i: (-weights[i], i))[:count]


def places_in(page, selector):
    """The numbers beside the tokens of some text."""
    return [int(text) for text in page.locator(f"{selector} sub").all_text_contents()]


def meters_in(page):
    """The meters under the text: (number of the token or None for the rest, share)."""
    return page.locator("#top-keys .meter").evaluate_all(
        "all => all.map(m => [m.querySelector('sub') ? +m.querySelector('sub').textContent : null,"
        " +m.querySelector('dd').textContent.replace('under ', '')])"
    )


def test_packed_bytes_come_out_as_they_went_in(open_page):
    random_bytes = random.Random(7).randbytes
    few_values = bytes(byte & 0b1110 for byte in random_bytes(20_000))
    contents = [
        b"",
        b"a",
        b"abcabcabcabc" * 3,  # a fixed code
        bytes(20_000),  # the longest matches
        few_values + random_bytes(40_000),  # codes of its own, then what is stored as it is, in more than one block
        b"".join(random_bytes(40) + bytes(gap) for gap in (2, 3, 10, 11, 138, 139, 257, 258, 259, 5000)),
        random_bytes(300) + bytes(32_000) + random_bytes(300) * 2,  # far matches
    ]
    page = open_page("<!doctype html>")
    script = (files("headwise.report") / "assets" / "unpack.js").read_text(encoding="utf-8")
    streams = [(zlib.compress(content, level), content) for level in (0, 1, 6, 9) for content in contents]
    for length in range(100, 120):  # a block that ends anywhere in a byte, then an empty one that is stored
        writer = zlib.compressobj()
        stream = writer.compress(few_values[:length]) + writer.flush(zlib.Z_SYNC_FLUSH) + writer.compress(b"end")
        streams.append((stream + writer.flush(), few_values[:length] + b"end"))
    packed = [[base64.b64encode(stream).decode("ascii"), len(content)] for stream, content in streams]
    come_out = page.evaluate(
        f"packed => {{ {script}; return packed.map(([text, size]) => {{ let binary = '';"
        " for (const byte of unpack(text, size)) binary += String.fromCharCode(byte); return btoa(binary); }); }",
        packed,
    )
    assert [base64.b64decode(one) for one in come_out] == [content for _, content in streams]


def test_heads_open_by_click_and_by_keyboard_and_close(open_inspection, synthetic):
    page = open_inspection(synthetic.make_inspection())
    assert page.locator("#grid .cell").count() == 6
    page.locator("#grid .cell").nth(4).click()
    assert page.locator("#head-title").text_content() == "Layer 1, head 1"
    page.keyboard.press("Escape")
    assert not page.locator("#head").is_visible()
    page.locator("#grid .cell").first.focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    assert page.locator("#head-title").text_content() == "Layer 0, head 1"


def test_a_head_that_the_shown_part_has_not_opens_nothing(open_inspection, synthetic):
    page = open_inspection(synthetic.make_inspection())
    chip = page.locator("#held .chip").first
    chip.evaluate("chip => { chip.dataset.layer = '99'; }")
    chip.click()
    assert not page.locator("#head").is_visible()


def test_pointing_at_either_side_of_the_lines_tells_who_reads_whom(open_inspection, short):
    page = open_inspection(short)
    page.locator("#grid .cell").nth(0).click()
    map_ = short.maps[0]
    said = "#lines-readout"
    page.locator(ROW.format(side="queries", index=7)).hover()
    assert places_in(page, said)[0] == 7 and " reads " in page.locator(said).text_content()
    assert places_in(page, said)[1:3] == heaviest(row_of(map_, 7), 2)
    page.locator(ROW.format(side="keys", index=3)).hover()
    assert " is read by " in page.locator(said).text_content()
    assert places_in(page, said)[:3] == [3, *heaviest(column_of(map_, 3), 2)]
    shaded = page.locator(ROW.format(side="queries", index=heaviest(column_of(map_, 3), 1)[0]))
    assert float(shaded.locator(".number").text_content()) == pytest.approx(max(column_of(map_, 3)), abs=0.005)
    page.mouse.move(5, 5)  # away: the chosen token again
    assert places_in(page, said)[0] == len(short.tokens) // 3
    page.locator(ROW.format(side="keys", index=3)).click()
    page.mouse.move(5, 5)
    assert places_in(page, said)[:2] == [3, heaviest(column_of(map_, 3), 1)[0]]
    assert page.locator(CHOSEN).get_attribute("id") == "lines-key-3"


def test_lines_are_drawn_to_what_the_token_reads_and_the_others_are_fainter(open_inspection, short):
    page = open_inspection(short, color_scheme="light")
    page.locator("#grid .cell").nth(2).click()  # looks one back
    page.locator(ROW.format(side="queries", index=9)).click()
    scrolled = page.locator("#lines").evaluate("box => box.scrollTop")
    # beside the queries, at some heights in rows: lines start in the middle of a row
    accent, other, blank = page.locator("#lines-canvas").evaluate(
        "(canvas, heights) => { const copy = new OffscreenCanvas(canvas.width, canvas.height)"
        ".getContext('2d', { willReadFrequently: true }); copy.drawImage(canvas, 0, 0);"
        " return heights.map(y => [...copy.getImageData(canvas.width / 20, Math.round(y), 1, 1).data]); }",
        [LINE_ROW * row - scrolled for row in (9.5, 12.5, 9)],
    )
    assert accent[3] > other[3] > 0 == blank[3]
    assert accent[2] > accent[0] + 50  # blue; the others are grey
    assert abs(other[2] - other[0]) < 40


def test_the_keyboard_moves_in_the_lines_and_changes_sides(open_inspection, short):
    page = open_inspection(short)
    page.locator("#grid .cell").nth(2).click()
    page.locator("#lines-queries").focus()
    start = len(short.tokens) // 3
    last = len(short.tokens) - 1
    for key, chosen in [
        ("ArrowDown", f"lines-query-{start + 1}"),
        ("ArrowUp", f"lines-query-{start}"),
        ("ArrowRight", f"lines-key-{start - 1}"),  # what it reads most
        ("End", f"lines-key-{last}"),
        ("ArrowDown", f"lines-key-{last}"),
        ("Home", "lines-key-0"),
        ("ArrowLeft", None),
    ]:
        page.keyboard.press(key)
        active = page.evaluate("document.activeElement.getAttribute('aria-activedescendant')")
        assert active == page.locator(CHOSEN).get_attribute("id")
        assert chosen is None or active == chosen, key
    assert page.evaluate("document.activeElement.id") == "lines-queries"
    assert page.locator("#lines-readout").get_attribute("aria-live") == "polite"


def test_the_text_tells_what_a_token_reads_and_who_reads_it(open_inspection, short):
    page = open_inspection(short)
    page.locator("#grid .cell").nth(3).click()
    map_ = short.maps[3]
    page.locator("#from-tokens [role=option]").nth(12).click()
    *top, rest = meters_in(page)
    assert [place for place, _ in top] == heaviest(row_of(map_, 12), 6)
    others = sum(row_of(map_, 12)) - sum(row_of(map_, 12)[place] for place, _ in top)
    assert rest == [None, pytest.approx(others, abs=0.005)]
    page.locator("#from-token").get_by_label("who reads it").check()
    assert page.locator("#top-heading").text_content() == "Who reads it most"
    assert page.locator("#from-heading").text_content().startswith("To one token")
    assert [place for place, _ in meters_in(page)] == heaviest(column_of(map_, 12), 6)
    page.locator("#from-tokens [role=option]").nth(2).click()  # the direction stays
    assert [place for place, _ in meters_in(page)] == heaviest(column_of(map_, 2), 6)
    assert page.locator(CHOSEN).get_attribute("id") == "lines-key-2"


def test_the_map_zooms_by_button_key_and_wheel_and_pans(open_inspection, short):
    page = open_inspection(short)
    page.locator("#grid .cell").nth(0).click()
    length = len(short.tokens)
    size = "canvas => [canvas.width, canvas.height]"
    canvas = page.locator("#map canvas")
    assert canvas.evaluate(size) == [length, length]
    assert page.locator("#map-zoom").text_content() == "all queries and keys"
    page.locator("#map-in").click()
    assert canvas.evaluate(size) == [16, 16] and page.locator("#map-zoom").text_content().startswith("queries ")
    page.locator("#map-whole").click()
    canvas.click(position={"x": 1, "y": 1})
    page.locator("#map").focus()
    for _ in range(2):
        page.keyboard.press("+")
    assert canvas.evaluate(size) == [8, 8] and page.locator("#map-in").is_disabled()
    page.keyboard.press("ArrowUp")
    for _ in range(length // 3):  # the click went to the key that the query reads most
        page.keyboard.press("ArrowLeft")
    assert page.locator("#map-zoom").text_content() == "queries 0–7, keys 0–7"
    for _ in range(9):
        page.keyboard.press("ArrowDown")  # out of sight: the map follows
    assert page.locator("#map-zoom").text_content() == "queries 2–9, keys 0–7"
    weight = weight_of(short.maps[0], 9, 0)
    assert float(page.locator("#map-readout .number").text_content()) == pytest.approx(weight, abs=0.005)
    box = canvas.bounding_box()
    centre = (box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    page.mouse.move(*centre)
    page.mouse.down()
    page.mouse.move(centre[0] - box["width"] / 4, centre[1], steps=4)  # two cells to the left
    page.mouse.up()
    assert page.locator("#map-zoom").text_content() == "queries 2–9, keys 2–9"
    page.mouse.wheel(0, 100)
    page.wait_for_function("document.querySelector('#map-zoom').textContent == 'queries 3–10, keys 2–9'")
    page.keyboard.down("Control")
    page.mouse.wheel(0, 100)
    page.keyboard.up("Control")
    page.wait_for_function("document.querySelector('#map canvas').width == 16")
    page.keyboard.press("0")
    assert canvas.evaluate(size) == [length, length] and page.locator("#map-whole").is_disabled()


def test_the_zoomed_map_is_drawn_from_the_same_weights(open_inspection, short):
    page = open_inspection(short)
    page.locator("#grid .cell").nth(0).click()
    whole = page.locator("#map canvas").evaluate(PIXELS)
    page.locator("#map-in").click()
    queries, keys = (
        int(part.split()[1].split("–")[0]) for part in page.locator("#map-zoom").text_content().split(", ")
    )
    seen = page.locator("#map canvas").evaluate(PIXELS)
    for row in range(16):
        start = 4 * ((queries + row) * len(short.tokens) + keys)
        assert seen[64 * row : 64 * (row + 1)] == whole[start : start + 64]


def test_without_the_first_token_the_others_share_the_whole_weight(open_inspection, short):
    page = open_inspection(short)
    page.locator("#grid .cell").nth(4).click()  # the first token is a sink
    page.locator("#from-tokens [role=option]").nth(20).click()
    row = row_of(short.maps[4], 20)
    assert row[0] > 0.3 and meters_in(page)[0][0] == 0
    assert not page.locator("#without-first-note").is_visible()
    page.get_by_label("Without the first token").check()
    assert "Not what the model computed" in page.locator("#without-first-note").text_content()
    assert page.locator("#without-first-note").is_visible()
    scaled = [0.0, *(weight / sum(row[1:]) for weight in row[1:])]
    top = meters_in(page)[:3]
    assert [place for place, _ in top] == heaviest(scaled, 3)
    for place, weight in top:
        assert weight == pytest.approx(scaled[place], abs=0.005)
    page.locator("#map").focus()
    page.keyboard.press("Home")
    assert places_in(page, "#map-readout") == [20, heaviest(scaled, 1)[0]]
    # a shown byte is the nearest of 255: its root is off by half a step, twice
    assert float(page.locator("#map-readout .number").text_content()) == pytest.approx(max(scaled), abs=0.012)
    page.locator("#from-token").get_by_label("who reads it").check()
    page.locator("#from-tokens [role=option]").nth(0).click()
    assert meters_in(page) == []
    page.get_by_label("Without the first token").uncheck()
    assert meters_in(page)[0][0] == heaviest(column_of(short.maps[4], 0), 1)[0]


def test_of_a_long_text_the_map_is_whole_in_tiles_and_exact_where_it_is_zoomed(open_inspection, long):
    page = open_inspection(long)
    page.locator("#grid .cell").nth(0).click()
    cells = -(-LONG // TILE)
    assert page.locator("#map canvas").evaluate("c => [c.width, c.height]") == [cells, cells]
    query = LONG // 3
    first = query // TILE * TILE
    assert f"tokens {first}–{first + TILE - 1} read tokens" in page.locator("#map-readout").text_content()
    page.locator("#map canvas").click(position={"x": 1, "y": 1})
    page.locator("#map").focus()
    for _ in range(2):
        page.keyboard.press("+")
    assert page.locator("#map canvas").evaluate("c => c.width") == cells // 4
    assert page.locator("#map-source").input_value() == "0"
    page.keyboard.press("+")  # all that is seen is exact: the same tokens, now one a cell
    assert page.locator("#map canvas").evaluate("c => c.width") == cells // 4 * TILE <= MAP_TOKENS
    assert page.locator("#map-source").input_value() == "1"
    assert "exactly" in page.locator("#map-source option:checked").text_content()
    assert places_in(page, "#map-readout") == [0, 0] and page.locator("#map-readout .number").text_content() == "1.00"
    for _ in range(8):
        page.keyboard.press("-")
    assert page.locator("#map-source").input_value() == "0"
    page.locator("#map-source").select_option(index=1)
    assert page.locator("#map canvas").evaluate("c => [c.width, c.height]") == [MAP_TOKENS, MAP_TOKENS]


def test_from_tiles_to_tokens_and_back_the_same_tokens_stay_pointed_at(open_inspection, long):
    page = open_inspection(long)
    page.locator("#grid .cell").nth(0).click()
    page.locator("#from-tokens [role=option]").nth(43).click()
    tile = 43 // TILE * TILE
    assert f"tokens {tile}–{tile + TILE - 1} read" in page.locator("#map-readout").text_content()
    column = int(page.locator("#map-readout .end").nth(1).text_content().removeprefix("tokens ").split("–")[0])
    page.locator("#map-source").select_option(index=1)
    assert places_in(page, "#map-readout") == [43, column]
    page.locator("#map-source").select_option(index=0)
    assert f"tokens {tile}–{tile + TILE - 1} read" in page.locator("#map-readout").text_content()


def test_an_order_chosen_again_and_again_leaves_one_listener_a_button(open_inspection, short):
    page = open_inspection(short, fresh=True)
    tree = page.context.new_cdp_session(page)

    def listeners():
        button = tree.send("Runtime.evaluate", {"expression": "document.querySelector('#grid .cell')"})["result"]
        found = tree.send("DOMDebugger.getEventListeners", {"objectId": button["objectId"]})["listeners"]
        return sorted(one["type"] for one in found)

    before = listeners()
    for choice in ("Mean distance", "layer and head", "Entropy", "layer and head"):
        page.locator("#order").select_option(choice)
    assert listeners() == before and "focus" in before


def test_of_a_long_text_a_query_has_its_exact_heaviest_keys_and_one_rest(open_inspection, long):
    page = open_inspection(long)
    page.locator("#grid .cell").nth(1).click()
    top = long.top_keys[1]
    assert page.locator("#from-tokens [role=option]").count() == 256
    assert page.locator("#query-page-readout").text_content() == f"tokens 0 to 255 of {LONG}"
    page.locator("#query-page-forth").click()
    assert page.locator("#from-tokens [role=option]").count() == LONG - 256
    page.locator("#from-tokens [role=option]").nth(9).click()
    *meters, rest = meters_in(page)
    wanted = top.of_query(265)[:6]
    assert [place for place, _ in meters] == [key for key, _ in wanted]
    for (_, shown), (_, weight) in zip(meters, wanted, strict=True):
        # half a step of the root, and what two or three digits leave out
        assert shown == pytest.approx(weight, abs=1 / 255 + 0.005)
    assert rest[0] is None and rest[1] == pytest.approx(1 - sum(w for _, w in wanted), abs=2 / 255 + 0.005)
    assert page.locator("#top-keys .meter").last.locator("dt").text_content() == "the rest, all other keys"


def test_a_long_text_keeps_few_tokens_on_the_page(open_inspection, long):
    page = open_inspection(long)
    assert page.locator("#text .token").count() == 0  # until it is asked for
    page.locator("#grid .cell").nth(0).click()
    height = page.locator("#lines").evaluate("box => box.clientHeight")
    most = 2 * (height // LINE_ROW + 2 + 2 * 6)
    assert 0 < page.locator(".line-row").count() <= most
    page.locator("#lines-queries").focus()
    page.keyboard.press("End")
    assert page.locator(CHOSEN).get_attribute("id") == f"lines-query-{LONG - 1}"
    assert page.locator(CHOSEN).is_visible() and page.locator(".line-row").count() <= most
    assert page.locator(CHOSEN).get_attribute("aria-posinset") == str(LONG)
    assert page.locator("#query-page-readout").text_content() == f"tokens 256 to {LONG - 1} of {LONG}"
    page.locator("#lines").evaluate("box => { box.scrollTop = 0; }")
    page.wait_for_selector("#lines-query-0")
    assert page.locator(".line-row").count() <= most


def test_who_reads_a_key_is_told_as_far_as_it_is_known(open_inspection, long):
    page = open_inspection(long)
    page.locator("#grid .cell").nth(0).click()
    page.locator("#from-token").get_by_label("who reads it").check()
    key = LONG // 3
    known = {query: dict(long.top_keys[0].of_query(query)).get(key, 0.0) for query in range(key, LONG)}
    shown = meters_in(page)
    assert len(shown) == min(6, sum(weight >= 0.001 for weight in known.values())) > 1
    for (query, weight), expected in zip(shown, sorted(known.values(), reverse=True), strict=False):
        assert known[query] == pytest.approx(expected, abs=1 / 255) and weight == pytest.approx(
            expected, abs=1 / 255 + 0.005
        )
    assert "not among the heaviest keys" in page.locator("#lines-readout").text_content()
    assert page.locator("#top-heading").text_content() == "Who reads it most, of those known"
    page.locator("#from-token").get_by_label("what it reads").check()
    assert page.locator("#top-heading").text_content() == "What it reads most"


def test_a_text_that_was_written_is_stepped_through(open_inspection, several):
    page = open_inspection(several, fresh=True)
    page.clock.install()
    page.locator("#grid .cell").nth(0).click()
    readout = page.locator("#step-readout")
    tokens = several.tokens
    assert readout.text_content().startswith("Step 1 of 6: ")
    assert places_in(page, "#step-readout") == [11, 10]
    assert page.locator("#step-readout .token").all_text_contents() == [tokens[11], tokens[10]]
    assert page.locator("#step-back").is_disabled()
    page.locator("#step-forth").click()
    assert places_in(page, "#step-readout") == [12, 11]
    assert places_in(page, "#lines-readout")[0] == 11 and places_in(page, "#map-readout")[0] == 11
    page.locator("#step").focus()
    page.keyboard.press("End")
    assert places_in(page, "#step-readout") == [16, 15] and page.locator("#step-forth").is_disabled()
    page.locator("#step-play").click()  # from the start again
    assert page.locator("#step-play").text_content() == "Pause"
    page.clock.run_for(1800)
    assert places_in(page, "#step-readout") == [13, 12]
    page.locator("#step-play").click()
    page.clock.run_for(5000)
    assert places_in(page, "#step-readout") == [13, 12]
    page.locator("#step").focus()
    page.keyboard.press("End")
    page.locator("#step-back").click()
    page.locator("#step-play").click()  # one step is left: there is nothing more to pause
    assert places_in(page, "#step-readout") == [16, 15] and page.locator("#step-play").text_content() == "Play"
    page.locator("#from-tokens [role=option]").nth(3).click()  # no step
    assert "11 tokens were given, the model wrote 6" in readout.text_content()
    assert page.locator("#from-tokens .written").count() == 6
    assert page.locator("#from-tokens .says").text_content() == "written by the model:"
    page.locator("#lines-queries").focus()
    page.keyboard.press("End")
    assert page.locator(CHOSEN).text_content().endswith("written by the model")


def test_whoever_asked_for_less_motion_steps_by_hand(open_inspection, several):
    page = open_inspection(several, reduced_motion="reduce")
    page.locator("#grid .cell").nth(0).click()
    assert not page.locator("#step-play").is_visible() and page.locator("#step-forth").is_visible()


def test_the_grid_is_ordered_by_a_statistic_and_keeps_only_heads_with_a_role(open_inspection, synthetic):
    inspection = synthetic.make_inspection()
    page = open_inspection(inspection)
    page.locator("#order").select_option("Mean distance")
    wanted = sorted(inspection.heads, key=lambda head: -head.distance)
    places = page.locator("#grid .place")
    assert places.all_text_contents() == [f"L{head.layer} H{head.head}" for head in wanted]
    page.locator("#grid .cell").first.focus()
    page.keyboard.press("ArrowDown")  # three in a row, as there are heads in a layer
    label = page.evaluate("document.activeElement.getAttribute('aria-label')")
    assert label.startswith(f"Layer {wanted[3].layer}, head {wanted[3].head}:")
    held = [h for h in inspection.heads if any(r.holds and r.name == "previous token" for r in h.roles)]
    page.locator("#only").select_option("heads that hold “previous token”")
    assert places.all_text_contents() == [f"L{head.layer} H{head.head}" for head in held]
    assert page.locator("#grid-count").text_content() == f"{len(held)} of 6 heads"
    page.locator("#order").select_option("layer and head")
    assert page.locator("#grid .cell").count() == len(held)
    page.locator("#only").select_option("all heads")
    assert page.locator("#grid .cell").count() == 6 and page.locator("#grid tbody tr").count() == 2


def test_another_part_brings_its_own_heads_text_table_and_notes(open_inspection, several):
    page = open_inspection(several)
    part = page.locator("#part")
    assert part.locator("option").all_text_contents() == ["written", "</script><b>hostile", "cross"]
    page.locator("#grid .cell").nth(5).click()
    assert page.locator("#head-title").text_content() == "Layer 1, head 2 written"
    page.keyboard.press("Escape")
    part.select_option("cross")
    cross = several.others[1].inspection
    assert page.locator("#grid .cell").count() == page.locator("#statistics tbody tr").count() == 2
    assert page.locator("h3.part-name:visible").text_content() == "cross"
    assert "keys of another text" in page.locator("[data-part='2']:visible").first.text_content()
    page.locator("#text-box summary").click()
    assert page.locator("#text .token").all_text_contents() == list(cross.tokens)
    assert page.locator("#text-keys .token").all_text_contents() == list(cross.key_tokens)
    page.locator("#grid .cell").nth(1).click()
    assert not page.locator("#steps").is_visible()
    assert page.locator("#map canvas").evaluate("c => [c.width, c.height]") == [13, 5]
    assert page.locator("#lines-keys .token").all_text_contents() == list(cross.key_tokens)
    page.locator("#from-tokens [role=option]").nth(4).click()
    assert meters_in(page)[0][0] == heaviest(row_of(cross.maps[1], 4), 1)[0]
    key = heaviest(row_of(cross.maps[1], 4), 1)[0]
    page.locator("#from-keys [role=option]").nth(key).click()
    assert meters_in(page)[0][0] == heaviest(column_of(cross.maps[1], key), 1)[0]
    assert page.locator("#from-heading .token").text_content() == f"key{key}"
    page.keyboard.press("Escape")
    part.select_option("written")
    assert page.locator("#grid .cell").count() == 6 and page.locator("#text .token").count() == 0


def test_the_table_is_saved_as_csv_with_every_head_of_every_part(open_inspection, several, short):
    for inspection, parts in ((short, [(None, short)]), (several, [("written", several), *_named(several)])):
        page = open_inspection(inspection)
        with page.expect_download() as download:
            page.locator("#save-csv").click()
        assert download.value.suggested_filename == "heads.csv"
        with open(download.value.path(), newline="", encoding="utf-8") as file:  # noqa: PTH123
            header, *lines = csv.reader(file)
        first = 0 if len(parts) == 1 else 1
        assert header[first : first + 3] == ["layer", "head", "entropy"] and "previous token" in header
        heads = [(name, head) for name, part in parts for head in part.heads]
        for line, (name, head) in zip(lines, heads, strict=True):
            assert line[:first] == [name][:first]
            assert [int(place) for place in line[first : first + 2]] == [head.layer, head.head]
            assert float(line[first + 2]) == pytest.approx(head.entropy, abs=5e-7)  # written with six digits


def test_the_saved_table_is_that_of_the_command_and_no_name_is_a_formula(open_inspection, synthetic):
    numbers = {name: -number if name.startswith("num_") else -number / 7 for number, name in enumerate(SAVED_ONLY, 1)}
    inspection = synthetic.make_inspection(1, 2)
    inspection = replace(inspection, heads=(replace(inspection.heads[0], **numbers), inspection.heads[1]))
    names = ("=1+1", "+1", "-1", "@SUM(1)", "\t=1", "two\r\nlines", "a=b")
    result = synthetic.make_inspected(inspection, *((name, inspection, True) for name in names), part="main")
    page = open_inspection(result)
    with page.expect_download() as download:
        page.locator("#save-csv").click()
    with open(download.value.path(), newline="", encoding="utf-8") as file:  # noqa: PTH123
        header, *lines = csv.reader(file)
    written, *rows = csv.reader(io.StringIO(heads_csv(result)))
    assert header == written and set(SAVED_ONLY) <= set(header)
    assert [line[0] for line in lines] == [row[0] for row in rows]
    kept = ("main", "'=1+1", "'+1", "'-1", "'@SUM(1)", "'\t=1", "two  lines", "a=b")
    assert [line[0] for line in lines[::2]] == list(kept)
    for line, row in zip(lines, rows, strict=True):
        for name, told, exact in zip(header[1:], line[1:], row[1:], strict=True):
            assert told == exact == "" or float(told) == pytest.approx(float(exact), abs=5e-7), name


def _named(result):
    return [(other.name, other.inspection) for other in result.others]


def test_a_phone_needs_no_sideways_scrolling_in_any_part(open_inspection, several, long):
    for inspection, count in ((several, 3), (long, 1)):
        page = open_inspection(inspection, width=390)
        for index in range(count):
            if count > 1:
                page.locator("#part").select_option(index=index)
            assert page.evaluate("document.documentElement.scrollWidth") <= 390
            page.locator("#grid .cell").first.click()
            assert page.locator("#head").evaluate("dialog => dialog.scrollWidth <= dialog.clientWidth")
            assert page.locator("#lines").evaluate("box => box.scrollWidth <= box.clientWidth")
            assert page.locator("#lines-canvas").evaluate("canvas => canvas.clientWidth") >= 40
            page.keyboard.press("Escape")


HOSTILE_NAMES = (
    "</script><script>window.hacked=1</script>",
    "<!--<script>",
    "'\"`${1}",
    "\u2028\u2029",
    "\u202eevil",
    "\ud800 alone",
    "\x00\x1b[2J",
    "انتباه",
    "🧠" * 400,
    "x" * 1_000_000,
)


def test_no_name_or_token_runs_or_breaks_the_page(open_inspection, synthetic):
    tokens = tuple(map(shorten, HOSTILE_NAMES))  # as every inspection holds them
    main = synthetic.make_inspection(1, 2, tokens, key_tokens=tokens[::-1])
    others = [(name, synthetic.make_inspection(1, 1, ("a", name)), True) for name in HOSTILE_NAMES[:-1]]
    page = open_inspection(synthetic.make_inspected(main, *others, part=HOSTILE_NAMES[0]), width=390)
    assert page.evaluate("window.hacked") is None and page.locator("#part option").count() == len(HOSTILE_NAMES)
    page.locator("#grid .cell").first.click()
    shown = page.locator("#from-tokens .token").all_text_contents()
    assert shown[:5] == list(tokens[:5]) and shown[7:] == list(tokens[7:])
    assert shown[-1].startswith("xxx") and shown[-1].endswith("…")
    assert page.locator("#from-keys .token").count() == len(HOSTILE_NAMES)
    assert page.locator(".token *").count() == 0
    assert page.locator("#head").evaluate("dialog => dialog.scrollWidth <= dialog.clientWidth")
    page.keyboard.press("Escape")
    for index in range(1, len(HOSTILE_NAMES)):
        page.locator("#part").select_option(index=index)
        page.locator("#grid .cell").first.click()
        page.keyboard.press("Escape")
    assert page.evaluate("window.hacked") is None
    assert page.evaluate("document.documentElement.scrollWidth") <= 390


NAMED_ROLES = {
    "button", "combobox", "checkbox", "radio", "slider", "listbox", "option", "dialog", "grid", "table", "region",
    "application", "columnheader", "rowheader",
}  # fmt: skip


def described(tree, node):
    return tree.send("DOM.describeNode", {"backendNodeId": node["backendDOMNodeId"]})["node"]["attributes"]


def test_everything_that_can_be_used_has_a_name_for_a_screen_reader(open_inspection, several):
    page = open_inspection(several, fresh=True)
    tree = page.context.new_cdp_session(page)
    for index in (0, 2):
        page.locator("#part").select_option(index=index)
        for opened in (False, True):
            if opened:
                page.locator("#grid .cell").first.click()
            nodes = [node for node in tree.send("Accessibility.getFullAXTree")["nodes"] if not node["ignored"]]
            roles = [node["role"]["value"] for node in nodes]
            nameless = [
                (node["role"]["value"], described(tree, node))
                for node in nodes
                if node["role"]["value"] in NAMED_ROLES and not node.get("name", {}).get("value", "").strip()
            ]
            assert nameless == []
            assert ("dialog" in roles) == opened
        names = {node["role"]["value"]: node["name"]["value"] for node in nodes if node["role"]["value"] == "dialog"}
        assert names["dialog"].startswith("Layer 0, head 0")
        page.keyboard.press("Escape")


def test_on_paper_there_are_all_heads_and_the_table_and_nothing_to_press(open_inspection, several):
    page = open_inspection(several)
    page.emulate_media(media="print")
    for control in ("#theme", "#shade", "#order", "#only", "#part", "#save-csv", "#text-box"):
        assert not page.locator(control).is_visible(), control
    assert page.locator("#grid .cell:visible").count() == 6
    assert page.locator("#statistics tbody tr:visible").count() == 6
    assert page.locator("#shade-about").is_visible()
    assert page.locator("#grid").evaluate("grid => getComputedStyle(grid).minWidth") == "0px"


def test_a_table_of_every_statistic_fits_on_paper(open_inspection, synthetic):
    inspection = synthetic.make_inspection(1, 2)
    known = {one.name: 123.4 for one in STATISTICS}
    heads = tuple(replace(head, **known) for head in inspection.heads)
    page = open_inspection(replace(inspection, heads=heads), width=A4)
    page.emulate_media(media="print")
    assert page.locator("#statistics thead th").count() == 2 + len(STATISTICS) + len(synthetic.ROLES)
    assert page.locator("#statistics").evaluate("table => table.getBoundingClientRect().right") <= A4
    assert page.evaluate("document.documentElement.scrollWidth") <= A4


def places_of(page, box):
    """Where each token stands: the line it is on, and its middle across."""
    found = page.locator(f"{box} .token").evaluate_all(
        "all => all.map(one => one.getBoundingClientRect()).map(at => [at.bottom, (at.left + at.right) / 2])"
    )
    return [tuple(place) for place in found]


def order_in(page, box, texts):
    """The tokens as they are seen on one line, from left to right."""
    places = places_of(page, box)
    return [text for _, text in sorted((across, text) for (_, across), text in zip(places, texts, strict=True))]


HEBREW = ("[CLS]", "בראש", "ית", "ברא", "20", "23", ".", "GP", "T", ".", "[SEP]")


def test_a_text_from_right_to_left_is_laid_out_so_and_runs_of_the_other_direction_in_their_own(
    open_inspection, synthetic
):
    page = open_inspection(synthetic.make_inspection(1, 1, HEBREW))
    page.locator("#text-box summary").click()
    page.locator("#grid .cell").nth(0).click()
    for box in ("#text", "#from-tokens"):
        first, second = places_of(page, box)[1:3]
        assert first[0] == second[0] and first[1] > second[1]
        seen = ["[SEP]", ".", "GP", "T", ".", "20", "23", "ברא", "ית", "בראש", "[CLS]"]
        assert order_in(page, box, HEBREW) == seen
        assert page.locator(f"{box} .token").all_text_contents() == list(HEBREW)  # as it is read aloud
    page.locator("#from-tokens [role=option]").nth(1).click()
    page.locator("#from-tokens [role=option]").nth(1).focus()
    page.keyboard.press("ArrowLeft")
    assert page.evaluate("document.activeElement.textContent") == HEBREW[2]


def test_words_from_right_to_left_in_another_text_keep_their_own_order(open_inspection, synthetic):
    tokens = ("the", "word", "שלו", "ם", ",", "עולם", "means", "peace", "مرحبا", ".")
    page = open_inspection(synthetic.make_inspection(1, 1, tokens))
    page.locator("#text-box summary").click()
    seen = ["the", "word", "עולם", ",", "ם", "שלו", "means", "peace", "مرحبا", "."]
    assert order_in(page, "#text", tokens) == seen and page.locator("#text").get_attribute("dir") == "ltr"


def test_a_text_of_both_directions_wraps_at_any_token(open_inspection, synthetic):
    tokens = tuple(f"{letter}אב" for letter in "אבגדהוזחט" * 9)
    page = open_inspection(synthetic.make_inspection(1, 1, ("word",) * 200 + tokens), width=390)
    page.locator("#text-box summary").click()
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert len({bottom for bottom, _ in places_of(page, "#text")[200:]}) > 3
    edges = page.locator("#text .run > span").evaluate_all("all => all.map(one => one.getBoundingClientRect().right)")
    assert len(edges) == len(tokens) and max(edges) <= 390


def test_two_pages_share_nothing_global(open_inspection, short):
    page = open_inspection(short)
    names = ("data", "parts", "headView", "lineView", "currentPart", "chooseToken", "reading", "unpack")
    assert page.evaluate("names => names.filter(name => name in window)", list(names)) == []


def test_a_repeated_choice_is_as_quick_at_the_end_as_at_the_start(open_inspection, long):
    """Memory and listeners do not grow: the same tokens are on the page after many choices."""
    page = open_inspection(long)
    page.locator("#grid .cell").nth(0).click()
    page.locator("#lines-queries").focus()
    page.keyboard.press("Home")
    counts = []
    for _ in range(3):
        for key in ("End", "Home"):
            page.keyboard.press(key)
        counts.append(page.locator("*").count())
    assert all(before == after for before, after in pairwise(counts))
