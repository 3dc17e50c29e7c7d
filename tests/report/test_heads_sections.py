"""Sections of the page of heads: probed roles, relations, how alike heads are, what differs; and the pictures."""

import base64
import json
import math
import re
import zlib
from dataclasses import fields, replace
from xml.etree import ElementTree as ET

import pytest

from headwise.api.inspect_results import InspectedModel, InspectedPart
from headwise.inspection.results import (
    AttentionMap,
    HeadDivergence,
    HeadRelation,
    HeadStatistics,
    Inspection,
    RelationScores,
    Role,
)
from headwise.inspection.roles.results import HeadRole, HeadRoles, RoleExample, RoleProbe
from headwise.png import read_png
from headwise.report.heads_picture import MAX_PARTS, TILE, heads_svg
from headwise.report.heads_png import heads_png
from headwise.report.inspect_page import notebook_html, render_inspection
from headwise.report.page_data import heads_json
from headwise.report.probe_table import MAX_HEADS, held_roles, missed_roles, why_missed
from headwise.report.relations_table import is_ahead, parts_with_relations, rank_relation, say_offset
from headwise.report.similarity_layout import HEIGHT, MARGIN, WIDTH, lay_out_heads
from headwise.report.similarity_table import nearest_across, parts_with_similarity
from headwise.report.svg_text import cut_text, drawn_text, text_width, wrap_text

HOSTILE = "<script>window.hacked=1</script>\"'&{{ 1 }}"
SVG = "{http://www.w3.org/2000/svg}"


def role_of(name="previous token", *, score=0.75, untrained=0.1, shuffled=0.2, holds=True, **changes):
    known = {
        "name": name,
        "offset": None,
        "score": score,
        "untrained_null": untrained,
        "shuffled_null": shuffled,
        "threshold": 0.5,
        "holds": holds,
        "num_queries": 1013,
        "largest_share": 0.83,
        "example": RoleExample(text=0, query_index=3, key_index=2, query=HOSTILE, key="קשב", weight=0.97),
    }
    return HeadRole(**{**known, **changes})


def probe_of(*heads):
    """A probe of heads of one layer, each given as its roles."""
    return RoleProbe(
        heads=tuple(HeadRoles(layer=2, head=number, roles=tuple(roles)) for number, roles in enumerate(heads)),
        num_windows=3, num_tokens=1543, window=128, num_repeats=4, num_random=50, seed=0, notes=(HOSTILE,),
    )  # fmt: skip


def relation_of(*shares, name="subject and verb", offset=-2, offset_share=0.5, null=None):
    heads = [
        HeadRelation(layer=0, head=number, share=share, weight=share / 2, null_share=null)
        for number, share in enumerate(shares)
    ]
    return RelationScores(name=name, num_pairs=17, best_offset=offset, offset_share=offset_share, heads=tuple(heads))


def divergence_of(heads, points):
    """Divergences that are the squared distances of points."""
    distances = tuple(
        tuple(math.fsum((a - b) ** 2 for a, b in zip(one, other, strict=True)) for other in points) for one in points
    )
    return HeadDivergence(heads=tuple(heads), divergence=distances)


def model_of(inspection, **changes):
    known = {field.name: getattr(inspection, field.name) for field in fields(Inspection)}
    return InspectedModel(**{**known, "model": "m", "source": "s", **changes})


def data_of(result):
    return json.loads(heads_json(result))


# probed roles


def test_roles_that_heads_hold_come_with_their_heads_the_highest_score_first():
    rows = [[role_of(score=0.6 + number / 100)] for number in range(MAX_HEADS + 3)]
    (group,) = held_roles(probe_of(*rows))
    assert (group.name, group.num_heads, len(group.heads)) == ("previous token", MAX_HEADS + 3, MAX_HEADS)
    assert [head.head for head, _ in group.heads] == list(range(MAX_HEADS + 2, 2, -1))


def test_a_role_that_no_head_holds_names_the_nearest_head_and_what_it_lacks():
    none = role_of("rare word", score=None, holds=False)
    low, high = (role_of("induction", score=score, holds=False) for score in (0.2, 0.4))
    missed = missed_roles(probe_of([role_of(), low, none], [role_of(holds=False), high, none]))
    assert [(one.name, one.head and one.head.head) for one in missed] == [("induction", 1), ("rare word", None)]
    assert why_missed(high) == "below 0.5"
    assert why_missed(role_of(score=0.7, shuffled=0.6)) == "not clear of 0.60 shuffled"
    assert why_missed(role_of(score=0.7, untrained=0.65)) == "not clear of 0.65 untrained"
    assert why_missed(role_of(score=0.7, untrained=None, shuffled=None)) == "with no null to hold it against"


def test_the_page_shows_score_nulls_and_evidence_and_escapes_all(synthetic, elements_of):
    none = role_of("rare word", score=None, holds=False)
    offset = role_of("fixed offset", score=0.912, offset=-3)
    result = model_of(synthetic.make_inspection(3, 3), probe=probe_of([role_of(), offset, none]))
    page = render_inspection(result)
    words = elements_of(page).words
    assert "read on 1,543 tokens in 3 windows, and on 4 texts of 50 random tokens" in words
    assert "Previous token, 1 head" in words and "Fixed offset, 1 head" in words and "−3" in words
    assert f"1,013 queries, largest weight there in 83 %; “ {HOSTILE} ” reads “ קשב ” with 0.97" in words
    assert "0.91 0.10 0.20" in words
    assert "Held by no head: rare word (no query has such a key)." in words
    assert "<script>window.hacked" not in page
    bar = re.search(r'<svg class="bar marked-bar".*?</svg>', page).group()
    for kind, place, share in (("fill", "width", 75), ("mark untrained", "x1", 10), ("mark shuffled", "cx", 20)):
        assert re.search(rf'class="{kind}"[^>]* {place}="([0-9.]+)%"', bar).group(1) == f"{share:.2f}"


def test_of_one_thing_the_page_never_writes_an_s(synthetic, elements_of):
    inspection = synthetic.make_inspection(1, 1, ("a",), causal=True)
    relation = replace(relation_of(0.9), num_pairs=1, best_offset=-1)
    one = replace(inspection, num_texts=1, num_windows=1, num_tokens=1, window=1, relations=(relation,))
    probe = replace(probe_of([role_of(num_queries=1)]), num_windows=1, num_tokens=1, num_repeats=1, num_random=1)
    words = elements_of(render_inspection(model_of(one, probe=probe))).words
    assert "1 head, averaged over 1 token of 1 text of at most 1 token;" in words
    assert not re.findall(r"(?<![\d.,])1 (?:heads|tokens|texts|windows|queries|pairs|random tokens)\b", words)


def test_roles_that_were_not_looked_for_are_not_called_missing(synthetic, elements_of):
    keys = ("x", "y", "z")
    cross = synthetic.make_inspection(1, 1, ("a", "b"), key_tokens=keys, stack="cross")
    without = replace(cross, heads=tuple(replace(head, roles=()) for head in cross.heads))
    words = elements_of(render_inspection(model_of(without))).words
    assert "None: no head" not in words
    assert "Not looked for: the keys are of another text" in words
    scored = replace(
        cross,
        key_tokens=None,
        heads=tuple(
            replace(head, roles=tuple(replace(role, score=0.1, holds=False) for role in head.roles))
            for head in cross.heads
        ),
    )
    assert "None: no head puts most of its weight" in elements_of(render_inspection(model_of(scored))).words


def test_without_a_probe_nothing_is_said_of_it(synthetic, elements_of):
    assert "Probed roles" not in elements_of(render_inspection(model_of(synthetic.make_inspection(1, 1)))).words


# relations


def test_heads_of_a_relation_are_ranked_and_called_ahead_by_a_tenth():
    scores = relation_of(0.3, 0.6, 0.59, 0.9, null=0.2)
    ranked = rank_relation(scores)
    assert [head.head for head in ranked.heads] == [3, 1, 2, 0] and ranked.num_ahead == 2 and ranked.num_more == 0
    assert [is_ahead(head, scores) for head in scores.heads] == [False, True, False, True]
    own_null = replace(scores.heads[3], null_share=0.85)
    assert not is_ahead(own_null, scores)
    assert rank_relation(relation_of(*[0.1] * 13)).num_more == 3


@pytest.mark.parametrize(
    ("offset", "words"), [(0, "at the token itself"), (1, "1 token after"), (-2, "2 tokens before")]
)
def test_an_offset_is_said_in_words(offset, words):
    assert say_offset(offset) == words


def test_the_page_shows_relations_of_each_part_and_escapes_all(synthetic, elements_of):
    inspection = replace(synthetic.make_inspection(1, 3), relations=(relation_of(0.3, 0.9, 0.6, name=HOSTILE),))
    causal = replace(inspection, is_causal=True, relations=(relation_of(0.1, 0.2, 0.3, offset=1),))
    other = InspectedPart(name=HOSTILE, inspection=causal, comparable=True)
    result = model_of(inspection, part="main", others=(other,))
    assert [(part.index, part.reads_backward) for part in parts_with_relations(result)] == [(0, False), (1, True)]
    page = render_inspection(result)
    words = elements_of(page).words
    assert f"{HOSTILE} 17 pairs; always looking 2 tokens before follows 0.50 of them; 2 heads are ahead" in words
    assert "no heads are ahead" in words and "a pair counts where its first word is the later one" in words
    assert "which was not given" in words and "<script>window.hacked" not in page
    with_null = model_of(replace(inspection, relations=(relation_of(0.3, null=0.25),)))
    words = elements_of(render_inspection(with_null)).words
    assert "its own share in the null" in words and "0.30 0.25 0.15" in words
    assert "null: the same head of an untrained model, or of the one that was given as the null" in words


# how alike heads are


def test_the_most_and_the_least_alike_heads_of_a_layer_are_named(synthetic, elements_of):
    layer = divergence_of([(0, 0), (0, 1), (0, 2)], [(0.0,), (0.1,), (0.5,)])
    single = HeadDivergence(heads=((1, 0),), divergence=((0.0,),))
    inspection = replace(synthetic.make_inspection(1, 3), divergences=(layer, single))
    (part,) = parts_with_similarity(model_of(inspection))
    first, alone = part.layers
    assert (first.nearest.first, first.nearest.second) == ((0, 0), (0, 1))
    assert (first.farthest.first, first.farthest.second) == ((0, 0), (0, 2))
    assert first.mean == pytest.approx((0.01 + 0.16 + 0.25) / 3)
    assert alone.nearest is None and alone.mean is None
    words = elements_of(render_inspection(model_of(inspection))).words
    assert "0 0 and 1 0.010 0 and 2 0.250 0.140 1 – – –" in words


def test_divergences_are_bytes_of_which_255_stands_for_no_key_in_common(synthetic):
    far = math.log(2)
    layer = HeadDivergence(heads=((4, 0), (4, 2)), divergence=((0.0, far), (math.nan, far / 5)))
    result = model_of(replace(synthetic.make_inspection(1, 1), divergences=(layer,)))
    (given,) = data_of(result)["parts"][0]["divergences"]
    assert (given["layer"], given["heads"]) == (4, [0, 2])
    assert zlib.decompress(base64.b64decode(given["bytes"])) == bytes((0, 255, 0, 51))


def test_of_different_layers_the_most_alike_pairs_come_first():
    heads = [(0, 0), (0, 1), (1, 0), (1, 1)]
    found = nearest_across(divergence_of(heads, [(0.0,), (0.01,), (0.3,), (0.7,)]), num_pairs=2)
    assert [(pair.first, pair.second) for pair in found] == [((0, 1), (1, 0)), ((0, 0), (1, 0))]


def test_points_of_a_plane_are_laid_out_with_their_distances():
    points = [(0.0, 0.0), (0.3, 0.1), (0.2, -0.2), (-0.4, 0.05), (0.1, 0.35)]
    layout = lay_out_heads(divergence_of([(0, 0), (0, 1), (1, 0), (1, 1), (2, 0)], points))
    places = [(head.x, head.y) for head in layout.heads]
    scales = [math.dist(places[a], places[b]) / math.dist(points[a], points[b]) for a in range(5) for b in range(a)]
    # places are rounded to 0.1, so that a distance of d is off by at most 0.15 / d
    assert max(scales) / min(scales) < 1 + 2 * 0.15 / (min(scales) * 0.2)
    assert layout.share == pytest.approx(1.0)
    assert all(MARGIN - 1 <= x <= WIDTH - MARGIN + 1 and MARGIN - 1 <= y <= HEIGHT - MARGIN + 1 for x, y in places)
    assert [head.depth for head in layout.heads] == [0, 0, 0.5, 0.5, 1]


def test_what_two_axes_cannot_show_is_said_as_a_share():
    heads = [(0, number) for number in range(4)]
    corners = [(0.3, 0, 0), (0, 0.3, 0), (0, 0, 0.3), (0, 0, 0)]
    layout = lay_out_heads(divergence_of(heads, corners))
    # the Gram matrix of the centred points has trace 0.09 * 3 - 0.09 * 3 / 4 and eigenvalues 0.09, 0.09 and 0.0225
    assert layout.share == pytest.approx(0.18 / 0.2025)


@pytest.mark.parametrize("rows", [((0.0,),), ((0.0, 0.0), (0.0, 0.0)), ((0.0, math.nan), (math.nan, 0.0))])
def test_no_plane_is_drawn_where_there_is_none(synthetic, elements_of, rows):
    across = HeadDivergence(heads=tuple((0, number) for number in range(len(rows))), divergence=rows)
    assert lay_out_heads(across) is None
    result = model_of(replace(synthetic.make_inspection(1, 2), divergence_across_layers=across))
    assert "No plane is drawn" in elements_of(render_inspection(result)).words


def test_a_plane_names_its_heads_axes_and_roles(synthetic, elements_of):
    inspection = synthetic.make_inspection(2, 3)
    places = [(head.layer, head.head) for head in inspection.heads]
    across = divergence_of(places, [(0.1 * number, 0.05 * number**2) for number in range(6)])
    elements = elements_of(render_inspection(model_of(replace(inspection, divergence_across_layers=across))))
    assert "6 heads in a plane, those that read alike near one another" in {
        a.get("aria-label") for _, a in elements.tags
    }
    for words in ("first axis, no unit", "second axis, no unit", "layer 0 head 2: previous token", "Most alike of"):
        assert words in elements.words
    assert sum(attributes.get("class", "").startswith("disc") for _, attributes in elements.tags) == 6


# what differs


def test_what_differs_is_shown_for_comparable_parts_alone(synthetic, elements_of):
    inspection = synthetic.make_inspection(1, 2)
    same = InspectedPart(name=HOSTILE, inspection=inspection, comparable=True)
    stack = InspectedPart(name="cross", inspection=inspection, comparable=False)
    page = render_inspection(model_of(inspection, part="before", others=(same, stack)))
    words = elements_of(page).words
    assert f"Each head of before , A, beside the same head of {HOSTILE} , B." in words
    assert "Both read 2,881 tokens of 24 texts." in words and "<script>window.hacked" not in page
    longer = replace(same, inspection=replace(inspection, num_tokens=2887))
    words = elements_of(render_inspection(model_of(inspection, part="before", others=(longer,)))).words
    assert "A read 2,881 tokens of 24 texts; B read 2,887" in words and "Other texts alone make a difference" in words
    for others in ((), (stack,)):
        page = render_inspection(model_of(inspection, part="encoder", others=others))
        assert 'id="difference"' not in page


# pictures


def map_of(head, num_queries, num_keys, tile=1):
    weights = bytes((37 * place * (head.head + 2)) % 251 for place in range(num_queries * num_keys))
    return AttentionMap(
        layer=head.layer, head=head.head, num_queries=num_queries, num_keys=num_keys, weights=weights, tile=tile
    )


def test_a_drawing_is_xml_whatever_its_title_is(synthetic):
    title = "".join(map(chr, range(32))) + "\x7f\ud800\ufffe]]>&<script>\u202eback"
    inspection = synthetic.make_inspection(1, 1)
    named = replace(inspection.heads[0], roles=(Role(name=f"role\x00{HOSTILE}", score=1.0, holds=True),))
    drawing = heads_svg(replace(inspection, heads=(named,)), title)
    root = ET.fromstring(drawing.encode("utf-8"))
    assert not list(root.iter(f"{SVG}script")) and "\u202e" not in drawing
    assert root.get("aria-label").endswith("]]>&<script>�back")
    assert [one.text for one in root.iter(f"{SVG}title")] == [f"layer 0 head 0: role�{HOSTILE}"]


@pytest.mark.parametrize("title", ["a/" * 200, "word " * 100, "注意" * 120, "W" * 300, "short"])
def test_no_line_of_a_drawing_is_wider_than_it(synthetic, title):
    root = ET.fromstring(heads_svg(synthetic.make_inspection(1, 1), title))
    lines = [one for one in root.iter(f"{SVG}text") if one.get("text-anchor") is None]
    assert all(float(one.get("x")) + text_width(one.text, size=12) <= float(root.get("width")) for one in lines)
    assert lines[0].text.startswith(title[:4])


def test_lines_break_at_blanks_and_end_in_an_ellipsis():
    width = text_width("abcdefgh", size=10)
    assert wrap_text("abc defgh ij", width, size=10, max_lines=3) == ["abc", "defgh ij"]
    assert wrap_text("abcdefghijkl mn", width, size=10, max_lines=3) == ["abcdefgh", "ijkl mn"]
    assert wrap_text("abcdefghijklmnopqrstuvwxyz", width, size=10, max_lines=2) == ["abcdefgh", "ijklm…"]
    assert wrap_text("", width, size=10, max_lines=2) == [] and cut_text("abc", 1, size=10) == ""
    assert drawn_text(" a\x00b\n c\u2066") == "a�b c�"


def test_a_long_text_is_drawn_from_its_overview(synthetic):
    heads = synthetic.make_inspection(1, 2).heads
    exact, whole = (tuple(map_of(head, size, size, tile) for head in heads) for size, tile in ((23, 1), (TILE, 83)))
    tokens = tuple(map(str, range(3947)))
    long = replace(synthetic.make_inspection(1, 1), heads=heads, maps=exact, overviews=whole, tokens=tokens)
    pixels = heads_png(long, "t")
    only_whole = heads_png(replace(long, maps=()), "t")
    assert pixels == only_whole != heads_png(replace(long, overviews=()), "t")
    assert "all 3,947 tokens, queries down" in heads_svg(long, "t")
    assert "the first 23 tokens, queries down" in heads_svg(replace(long, overviews=()), "t")
    fits = replace(long, tokens=tokens[:23])
    assert "23 queries down, 23 keys across" in heads_svg(fits, "t")
    assert heads_png(fits, "t") == heads_png(replace(fits, overviews=()), "t")


def test_cross_attention_fills_its_squares_and_says_its_sizes(synthetic):
    heads = synthetic.make_inspection(1, 2).heads
    cross = replace(
        synthetic.make_inspection(1, 1), heads=heads, maps=tuple(map_of(head, 5, 31) for head in heads),
        tokens=tuple("abcde"), key_tokens=tuple(map(str, range(31))),
    )  # fmt: skip
    assert "5 queries down, 31 keys across" in heads_svg(cross, "t")


def test_a_head_without_a_map_is_as_dark_as_its_entropy(synthetic):
    inspection = synthetic.make_inspection(1, 2)
    assert heads_png(replace(inspection, maps=inspection.maps[:1]), "t") != heads_png(inspection, "t")
    assert "squares as dark as normalised entropy" in heads_svg(replace(inspection, maps=()), "t")


def test_parts_stand_side_by_side_below_their_names(synthetic):
    small, large = synthetic.make_inspection(1, 2), synthetic.make_inspection(3, 1)
    others = tuple(InspectedPart(name=f"{number}{HOSTILE}", inspection=large, comparable=False) for number in range(5))
    two = model_of(small, part="main", others=others[:1])
    root = ET.fromstring(heads_svg(two, "t"))
    lines = [one.text for one in root.iter(f"{SVG}text")]
    assert "main" in lines and any(line.startswith("0<script>") for line in lines)
    places = [float(one.get("x")) for one in root.iter(f"{SVG}image")]
    assert (
        len(places) == 5 and max(places[:2]) + TILE < min(places[2:]) and max(places) + TILE < float(root.get("width"))
    )
    many = " ".join(
        one.text for one in ET.fromstring(heads_svg(model_of(small, others=others), "t")).iter(f"{SVG}text")
    )
    assert MAX_PARTS == 4 and len(re.findall("layer 0", many)) == 4


def test_a_drawing_in_a_notebook_styles_nothing_but_itself(synthetic):
    shown = notebook_html(model_of(synthetic.make_inspection(1, 1)))
    rules = re.search("<style>(.*?)</style>", shown).group(1)
    selectors = re.findall(r"([^{}]+)\{[^{}]*\}", rules.replace("@media(prefers-color-scheme:dark){", ""))
    assert selectors and all(selector.strip("}").startswith(".headwise-heads") for selector in selectors)


def test_what_is_no_number_is_drawn_as_nothing(synthetic):
    head = synthetic.make_inspection(1, 1).heads[0]
    assert isinstance(head, HeadStatistics)
    broken = replace(
        synthetic.make_inspection(1, 1, with_maps=False), heads=(replace(head, normalized_entropy=math.nan),)
    )
    (picture,) = re.findall('data:image/png;base64,([^"]+)', heads_svg(broken, "t"))
    assert set(read_png(base64.b64decode(picture)).values) == {249, 250, 254}
