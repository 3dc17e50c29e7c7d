"""What the page's script reads."""

import base64
import json
import math
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from headwise.report.page_data import STATISTICS, heads_json, json_inside_html, statistics_of


@given(
    st.recursive(
        st.text() | st.integers() | st.none(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)
    )
)
def test_data_survives_and_no_character_means_anything_to_html(value):
    text = json_inside_html(value)
    assert json.loads(text) == value
    assert text.isascii()
    assert not set("<>&") & set(text)


def test_every_text_of_the_hostile_row_survives(synthetic):
    data = json.loads(heads_json(synthetic.make_inspection()))
    assert data["tokens"] == list(synthetic.HOSTILE_TOKENS)


def test_maps_and_statistics_arrive_in_the_order_that_is_announced(synthetic):
    inspection = synthetic.make_inspection(num_layers=2, num_heads=3)
    data = json.loads(heads_json(inspection))
    labels = [statistic["label"] for statistic in data["statistics"]]
    measured = statistics_of(inspection)
    assert labels[: len(measured)] == [statistic.label for statistic in measured]
    assert labels[len(measured) :] == list(synthetic.ROLES)
    for given_head, head in zip(data["heads"], inspection.heads, strict=True):
        values = dict(zip(labels, given_head["values"], strict=True))
        assert (given_head["layer"], given_head["head"]) == (head.layer, head.head)
        assert values["Entropy"] == round(head.entropy, 6)
        assert values["First-token mass"] == round(head.sink_mass, 6)
        assert {labels[i] for i in given_head["held"]} == {role.name for role in head.roles if role.holds}
    for given_map, map_ in zip(data["maps"], inspection.maps, strict=True):
        assert base64.b64decode(given_map["weights"]) == map_.weights


def test_a_score_that_no_query_has_becomes_null(synthetic):
    data = json.loads(heads_json(synthetic.make_inspection(1, 1, tokens=("one",))))
    values = dict(zip((s["label"] for s in data["statistics"]), data["heads"][0]["values"], strict=True))
    assert values["previous token"] is None and values["self"] == 1.0


def test_a_role_that_only_other_heads_were_scored_for_is_null(synthetic):
    inspection = synthetic.make_inspection(1, 2)
    without = replace(inspection.heads[1], roles=inspection.heads[1].roles[:-1])
    data = json.loads(heads_json(replace(inspection, heads=(inspection.heads[0], without))))
    assert data["heads"][0]["values"][-1] is not None and data["heads"][1]["values"][-1] is None


def test_a_number_that_is_not_finite_becomes_null(synthetic):
    inspection = synthetic.make_inspection(1, 1)
    broken = replace(inspection.heads[0], entropy=math.nan, distance=math.inf)
    data = json.loads(heads_json(replace(inspection, heads=(broken,))))
    values = dict(zip((s["label"] for s in data["statistics"]), data["heads"][0]["values"], strict=True))
    assert values["Entropy"] is None and values["Mean distance"] is None and values["Sparsity"] is not None


def test_a_statistic_that_was_measured_of_any_head_is_told(synthetic):
    inspection = synthetic.make_inspection()
    assert len(statistics_of(inspection)) == 6
    first, *rest = inspection.heads
    known = {s.name: 0.5 for s in STATISTICS if getattr(first, s.name) is None}
    told = replace(inspection, heads=(replace(first, **known), *rest))
    assert statistics_of(told) == STATISTICS
    data = json.loads(heads_json(told))
    assert data["heads"][0]["values"][6 : len(STATISTICS)] == [0.5] * len(known)
    assert data["heads"][1]["values"][6 : len(STATISTICS)] == [None] * len(known)
