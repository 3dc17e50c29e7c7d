"""What the page's script reads."""

import base64
import json
import math
import struct
import zlib
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwise.report.packing import NO_KEY, crop_map, pack, pack_top_keys
from headwise.report.page_data import STATISTICS, heads_json, json_inside_html, statistics_of
from headwise.report.page_parts import (
    LARGEST_PAGE_BYTES,
    SMALL_PAGE_BYTES,
    most_bytes,
    parts_of,
)


def unpack(text):
    return zlib.decompress(base64.b64decode(text))


def part_of(inspection, **options):
    """The only part that a page shows."""
    (part,) = json.loads(heads_json(inspection, **options))["parts"]
    return part


def values_of(data, number=0):
    """A head's values by label."""
    labels = (statistic["label"] for statistic in data["statistics"])
    return dict(zip(labels, data["parts"][0]["heads"][number]["values"], strict=True))


@given(
    st.recursive(
        st.text() | st.integers() | st.none(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
        max_leaves=7,
    )
)
def test_data_survives_and_no_character_means_anything_to_html(value):
    text = json_inside_html(value)
    assert json.loads(text) == value
    assert text.isascii()
    assert not set("<>&") & set(text)


def test_every_text_of_the_hostile_row_survives(synthetic):
    assert part_of(synthetic.make_inspection())["tokens"] == list(synthetic.HOSTILE_TOKENS)


def test_maps_and_statistics_arrive_in_the_order_that_is_announced(synthetic):
    inspection = synthetic.make_inspection(num_layers=2, num_heads=3)
    data = json.loads(heads_json(inspection))
    labels = [statistic["label"] for statistic in data["statistics"]]
    measured = statistics_of(inspection)
    assert labels[: len(measured)] == [statistic.label for statistic in measured]
    assert labels[len(measured) :] == list(synthetic.ROLES)
    for given_head, head in zip(data["parts"][0]["heads"], inspection.heads, strict=True):
        values = dict(zip(labels, given_head["values"], strict=True))
        assert (given_head["layer"], given_head["head"]) == (head.layer, head.head)
        assert values["Entropy"] == round(head.entropy, 6)
        assert values["First-token mass"] == round(head.sink_mass, 6)
        assert {labels[i] for i in given_head["held"]} == {role.name for role in head.roles if role.holds}
    for given_map, map_ in zip(data["parts"][0]["maps"], inspection.maps, strict=True):
        assert unpack(given_map["weights"]) == map_.weights


def test_a_score_that_no_query_has_becomes_null(synthetic):
    data = json.loads(heads_json(synthetic.make_inspection(1, 1, tokens=("one",))))
    values = values_of(data)
    assert values["previous token"] is None and values["self"] == 1.0


def test_a_role_that_only_other_heads_were_scored_for_is_null(synthetic):
    inspection = synthetic.make_inspection(1, 2)
    without = replace(inspection.heads[1], roles=inspection.heads[1].roles[:-1])
    data = json.loads(heads_json(replace(inspection, heads=(inspection.heads[0], without))))
    assert values_of(data)["separator"] is not None and data["parts"][0]["heads"][1]["values"][-1] is None


def test_a_number_that_is_not_finite_becomes_null(synthetic):
    inspection = synthetic.make_inspection(1, 1)
    broken = replace(inspection.heads[0], entropy=math.nan, distance=math.inf)
    data = json.loads(heads_json(replace(inspection, heads=(broken,))))
    values = values_of(data)
    assert values["Entropy"] is None and values["Mean distance"] is None and values["Sparsity"] is not None


def test_a_statistic_that_was_measured_of_any_head_is_told(synthetic):
    inspection = synthetic.make_inspection()
    assert len(statistics_of(inspection)) == 6
    first, *rest = inspection.heads
    known = {s.name: 0.5 for s in STATISTICS if getattr(first, s.name) is None}
    told = replace(inspection, heads=(replace(first, **known), *rest))
    assert statistics_of(told) == STATISTICS
    data = json.loads(heads_json(told))
    added = [number for number, statistic in enumerate(STATISTICS) if statistic.name in known]
    for head, value in ((0, 0.5), (1, None)):
        values = data["parts"][0]["heads"][head]["values"]
        assert [values[number] for number in added] == [value] * (len(STATISTICS) - 6)


@given(st.binary(max_size=200))
def test_packed_bytes_are_a_zlib_stream_in_base64(content):
    assert unpack(pack(content)) == content


def test_parts_stand_in_order_with_their_names_and_share_the_statistics(synthetic):
    first = synthetic.make_inspection(1, 2)
    cross = synthetic.make_inspection(1, 1, ("a", "b"), key_tokens=("x", "y", "z"), stack="cross-attention")
    without = replace(cross, heads=tuple(replace(head, roles=(), entropy=math.nan) for head in cross.heads))
    data = json.loads(heads_json(synthetic.make_inspected(first, ("other", without, False), part="main text")))
    main, other = data["parts"]
    assert (main["name"], main["comparable"], main["stack"]) == ("main text", True, None)
    assert (other["name"], other["comparable"], other["stack"]) == ("other", False, "cross-attention")
    assert other["key_tokens"] == ["x", "y", "z"] and main["key_tokens"] is None
    assert len(data["statistics"]) == len(main["heads"][0]["values"]) == len(other["heads"][0]["values"])
    labels = [statistic["label"] for statistic in data["statistics"]]
    known = [label for label, value in zip(labels, other["heads"][0]["values"], strict=True) if value is not None]
    assert "Sparsity" in known and not {"Entropy", *synthetic.ROLES} & set(known)


def test_a_part_is_called_by_its_name_or_its_stack_or_main(synthetic):
    alone, stack = synthetic.make_inspection(1, 1), synthetic.make_inspection(1, 1, stack="decoder")
    assert parts_of(alone)[0].name is None
    assert parts_of(stack)[0].name == "decoder"
    beside = ("other", alone, True)
    assert parts_of(synthetic.make_inspected(alone, beside))[0].name == "main"
    assert parts_of(synthetic.make_inspected(stack, beside, part="given"))[0].name == "given"


def test_top_keys_stand_rank_by_rank_with_the_rest(synthetic):
    inspection = synthetic.make_inspection(1, 1, [str(number) for number in range(13)], causal=True, top_keys=5)
    (top,) = inspection.top_keys
    (packed,) = part_of(inspection)["top_keys"]
    assert (packed["num_queries"], packed["num_keys"]) == (13, 5)
    keys = struct.unpack(f"<{5 * 13}H", unpack(packed["keys"]))
    roots, rests = unpack(packed["weights"]), unpack(packed["rests"])
    for query in range(13):
        own = [(keys[at], roots[at]) for at in range(query, 5 * 13, 13) if keys[at] != NO_KEY]
        assert [key for key, _ in own] == [key for key, _ in top.of_query(query)]
        assert len(own) == min(5, query + 1)  # a causal query has no more
        for (_, root), (_, weight) in zip(own, top.of_query(query), strict=True):
            assert abs(root / 255 - math.sqrt(weight)) <= 0.5 / 255 + 1e-9
        assert abs(rests[query] / 255 - math.sqrt(top.remainder(query))) <= 0.5 / 255 + 1e-9


def test_with_fewer_ranks_the_rest_is_larger(synthetic):
    inspection = synthetic.make_inspection(1, 1, [str(number) for number in range(13)], top_keys=5)
    (top,) = inspection.top_keys
    packed = pack_top_keys(top, 2)
    assert packed["num_keys"] == 2 and len(unpack(packed["weights"])) == 2 * 13
    for query, rest in enumerate(unpack(packed["rests"])):
        left_out = sum(weight for _, weight in top.of_query(query)[2:])
        assert abs(rest / 255 - math.sqrt(top.remainder(query) + left_out)) <= 0.5 / 255 + 1e-6


def test_a_weight_that_is_not_a_number_is_drawn_as_nothing(synthetic):
    (top,) = synthetic.make_inspection(1, 1, ("a", "b", "c"), top_keys=2).top_keys
    broken = replace(top, weights=struct.pack("<6f", *[math.nan] * 6))
    assert unpack(pack_top_keys(broken, 2)["weights"]) == bytes(6)


def test_the_first_rows_and_columns_of_a_map_are_cut_out(synthetic):
    inspection = synthetic.make_inspection(1, 1, ("a", "b", "c"), key_tokens=tuple("vwxyz"))
    map_ = inspection.maps[0]
    cut = crop_map(map_, 2)
    assert (cut.num_queries, cut.num_keys) == (2, 2)
    assert cut.weights == map_.weights[:2] + map_.weights[5:7]
    assert crop_map(map_, 5) is map_


def packed_bytes(part):
    one_by_one = (one for kind in ("maps", "overviews", "top_keys") for one in part[kind])
    return sum(len(value) for one in one_by_one for value in one.values() if isinstance(value, str))


def test_maps_and_keys_take_no_more_bytes_than_allowed_and_use_most_of_them(synthetic):
    tokens = [str(number) for number in range(53)]
    inspection = synthetic.make_inspection(2, 3, tokens, tile=7, top_keys=11)
    sizes = []
    for allowed in (9_000, 12_000, 20_000, 100_000):
        part = part_of(inspection, allowed_bytes=allowed)
        (side,) = {one["num_queries"] for one in part["maps"]}
        (ranks,) = {one["num_keys"] for one in part["top_keys"]}
        sizes.append((side, ranks))
        assert packed_bytes(part) <= allowed
        assert [unpack(one["weights"]) for one in part["overviews"]] == [one.weights for one in inspection.overviews]
        for one, whole in zip(part["maps"], inspection.maps, strict=True):
            assert unpack(one["weights"]) == crop_map(whole, side).weights
        if allowed == 20_000:
            assert packed_bytes(part) > 0.7 * allowed
    assert all(before <= after for before, after in pairwise(sizes)) and sizes[0] < sizes[1] < sizes[2]
    assert sizes[-1] == (53, 11)


def test_maps_without_an_overview_stay_whole(synthetic):
    inspection = synthetic.make_inspection(1, 2, [str(number) for number in range(53)])
    assert {one["num_queries"] for one in part_of(inspection, allowed_bytes=1)["maps"]} == {53}


@pytest.mark.parametrize(
    ("num_tokens", "allowed"),
    [(1, SMALL_PAGE_BYTES), (512, SMALL_PAGE_BYTES), (1512, SMALL_PAGE_BYTES + 2_600_000), (9000, LARGEST_PAGE_BYTES)],
)
def test_a_page_may_grow_with_the_text_up_to_a_limit_that_its_parts_share(synthetic, num_tokens, allowed):
    inspection = replace(synthetic.make_inspection(1, 1, ("a",)), tokens=("a",) * num_tokens)
    assert most_bytes(parts_of(inspection)) == allowed
    beside = synthetic.make_inspected(inspection, ("other", synthetic.make_inspection(1, 1, ("a",)), True))
    assert most_bytes(parts_of(beside)) == allowed // 2
    # what stands beside maps and keys (style, script, statistics of 144 heads) has room below 5 and 15 MB
    assert SMALL_PAGE_BYTES + 500_000 == 5_000_000 and LARGEST_PAGE_BYTES + 1_200_000 == 15_000_000
