"""The figures of a report, in words."""

from dataclasses import replace

import pytest

from headwise.api.results import FlopsSection, MemorySection, ParametersSection
from headwise.cost.results import FlopCount, ParameterCount, StepMemory
from headwise.report.figures import (
    counted,
    flop_rows,
    format_difference,
    format_gap,
    format_share,
    held_roles,
    memory_rows,
    model_facts,
    parameter_rows,
    workload_facts,
)
from headwise.report.headlines import headlines, parameters_verdict

COUNT = ParameterCount(attention=30, feed_forward=50, embedding=15, norm=3, other=2, output_head=5)
NO_MEMORY = {
    "predicted_for": None,
    "predicted": None,
    "measured": None,
    "saved_gap_percent": None,
    "peak_gap_percent": None,
    "kv_cache_bytes": None,
    "kv_cache_bytes_per_token": None,
    "kv_cache_dtype": None,
    "score_matrix_bytes": None,
    "fit": None,
}


@pytest.mark.parametrize(
    ("percent", "words"),
    [
        (0.0, "equal"),
        (0.001, "within 0.01 %"),
        (-0.001, "within 0.01 %"),
        (0.04, "+0.04 %"),
        (-1.26, "−1.3 %"),
        (9.96, "+10 %"),
        (-250.4, "−250 %"),
    ],
)
def test_a_gap_has_a_sign_and_only_zero_is_equal(percent, words):
    assert format_gap(percent) == words


def test_a_share_is_all_of_it_only_where_it_is():
    assert [format_share(share) for share in (0.0, 0.994, 0.996, 1.0)] == ["0.00", "0.99", "0.996", "1.00"]


def test_a_score_that_no_query_has_is_drawn_as_a_dash():
    assert format_share(None) == "–"


def test_a_difference_says_how_many_more_were_predicted():
    assert [format_difference(5, 5), format_difference(4000, 1), format_difference(1, 4000)] == [
        "equal",
        "+3,999",
        "−3,999",
    ]


def test_parts_of_parameters_stand_with_share_and_total_last():
    rows = parameter_rows(ParametersSection(predicted=COUNT, counted=replace(COUNT, norm=4)))
    assert [row.label for row in rows] == [
        "Attention",
        "Feed-forward",
        "Embedding",
        "of it: output head",
        "Norms",
        "Other",
        "Total",
    ]
    assert [row.gap for row in rows] == ["equal"] * 4 + ["−1", "equal", "−1"]
    assert [row.predicted.exact for row in rows] == ["30", "50", "15", "5", "3", "2", "100"]
    assert rows[1].share == pytest.approx(50 / 101)


def test_what_is_not_known_has_neither_figure_nor_gap():
    rows = parameter_rows(ParametersSection(predicted=COUNT, counted=None))
    assert all(row.measured.value is None and row.gap is None for row in rows)
    assert parameter_rows(ParametersSection(predicted=None, counted=None)) == []
    assert flop_rows(FlopsSection(forward=None, train=None, counted_forward=None)) == []
    assert memory_rows(MemorySection(**NO_MEMORY)) == []


def test_flops_that_were_counted_stand_beside_those_predicted():
    section = FlopsSection(
        forward=FlopCount(dense=2_000, attended=1_500),
        train=FlopCount(dense=6_000, attended=None),
        counted_forward=FlopCount(dense=2_004, attended=None),
    )
    assert [(row.label, row.predicted.exact, row.measured.exact, row.gap) for row in flop_rows(section)] == [
        ("Forward pass, dense", "2,000", "2,004", "−4"),
        ("Forward pass, attended", "1,500", None, None),
        ("Training step, dense", "6,000", None, None),
    ]


def test_memory_shows_the_gaps_that_it_was_given_and_the_moment_of_the_peak():
    step = StepMemory(parameter_bytes=1024, saved_bytes=2048, peak_bytes=4096, peak_moment="optimizer step")
    section = MemorySection(
        **{
            **NO_MEMORY,
            "predicted": step,
            "measured": replace(step, saved_bytes=2000, peak_moment="backward"),
            "saved_gap_percent": 2.4,
            "peak_gap_percent": 0.0,
            "kv_cache_bytes": 3 * 2**20,
            "kv_cache_bytes_per_token": 1536,
            "kv_cache_dtype": "float16",
        },
    )
    rows = {row.label: row for row in memory_rows(section)}
    assert [rows[label].gap for label in ("Parameter memory", "Saved for backward", "Peak of the step")] == [
        "equal",
        "+2.4 %",
        "equal",
    ]
    assert rows["Peak of the step"].about == "predicted: optimizer step; measured: backward"
    assert rows["Key/value cache, float16"].predicted.value == "3.0 MiB"
    assert rows["Key/value cache, float16"].about == "1,536 bytes a token"


def test_the_verdict_on_parameters_tells_equal_totals_from_equal_parts():
    moved = replace(COUNT, attention=29, norm=4)
    assert "equal to the last weight, 100" in parameters_verdict(ParametersSection(predicted=COUNT, counted=COUNT))
    assert "the parts differ" in parameters_verdict(ParametersSection(predicted=COUNT, counted=moved))
    more = ParametersSection(predicted=COUNT, counted=replace(COUNT, norm=4))
    assert parameters_verdict(more) == "Predicted 100 from the config, counted 101 in the module: −1."
    assert parameters_verdict(ParametersSection(predicted=COUNT, counted=None)) == ""


def test_the_headlines_are_four_and_say_what_is_not_known(synthetic):
    full = headlines(synthetic.make_report())
    assert [line.label for line in full] == ["Parameters", "Forward pass", "Training peak", "Fits A100-40GB?"]
    assert [line.value for line in full] == ["22.71 M", "5.74 GFLOP", "354.7 MiB", "Yes"]
    assert [line.tone for line in full] == ["plain", "plain", "plain", "good"]
    empty = headlines(
        synthetic.make_report(
            parameters=ParametersSection(predicted=None, counted=None),
            flops=FlopsSection(forward=None, train=None, counted_forward=None),
            memory=MemorySection(**NO_MEMORY),
        )
    )
    assert [line.value for line in empty] == ["unknown", "unknown", "unknown", "cannot tell"]
    assert empty[3].detail == "nothing is predicted without a config"


def test_facts_leave_out_what_a_module_does_not_say(synthetic):
    report = synthetic.make_report()
    assert model_facts(report.model) == ["bert", "6 layers", "12 heads", "384 wide", "32 per head", "512 positions"]
    grouped = replace(report.model, model_type=None, num_kv_heads=4, max_positions=None, head_dim=None)
    assert model_facts(grouped) == ["6 layers", "12 heads on 4 key/value heads", "384 wide"]
    assert workload_facts(report)[:2] == ["2 texts × 128 tokens", "one training step with AdamW"]


def test_held_roles_come_clearest_first(synthetic):
    inspection = synthetic.make_inspection(num_layers=2, num_heads=3)
    held = held_roles(inspection)
    assert all(role.holds for _, role in held)
    scores = [role.score for _, role in held]
    assert scores == sorted(scores, reverse=True)
    assert len(held) == sum(role.holds for head in inspection.heads for role in head.roles)
    assert (held[0][0].layer, held[0][0].head, held[0][1].name) == (0, 2, "previous token")


def test_one_of_a_thing_has_no_s():
    assert [counted(number, "head") for number in (0, 1, 1024)] == ["0 heads", "1 head", "1,024 heads"]
    assert [counted(number, "query", "queries") for number in (1, 2)] == ["1 query", "2 queries"]
