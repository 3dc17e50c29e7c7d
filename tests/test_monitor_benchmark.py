from argparse import Namespace

import pytest
from benchmarks.monitor import TARGET, bert, measure, median_interval, print_row, time_pairs


@pytest.fixture(scope="module")
def row():
    return measure(("bert-base", bert, 1, 13), 1, Namespace(device="cpu", pairs=2, seconds=0.0))


def test_a_case_is_counted_and_timed(row):
    # 13 drawn queries x 13 keys x 768 numbers, one multiply-add being 2
    assert row["added_flops"] == 2 * 13 * 13 * 768
    assert 0 < row["added_bytes"] < row["written_bytes"]
    assert row["pairs"] == 2
    assert 0 < row["inside_seconds"] < row["seconds"]["sampled"]
    assert 0 < row["idle_seconds"] < row["inside_seconds"]


def test_the_share_is_of_one_sampled_step_and_all_others(row):
    one, idle = row["seconds"]["plain"], row["idle_seconds"]
    assert row["share"] == pytest.approx((row["added_seconds"] + 49 * idle) / (50 * one))
    assert row["share_low"] <= row["share"] <= row["share_high"]
    assert row["holds"] is (None if row["share_low"] <= TARGET <= row["share_high"] else row["share"] < TARGET)


def test_a_case_is_printed_within_80_columns(row, capsys):
    print_row(row)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 9
    assert max(map(len, lines)) <= 80


@pytest.mark.parametrize(
    ("count", "kept"),
    # by hand: twice the chance of no head in 8 throws is 2 / 256, of at most one 18 / 256 > 0.05;
    # in 11 throws of at most one 24 / 2048, of at most two 134 / 2048 > 0.05
    [(1, (0, 0)), (5, (0, 4)), (8, (0, 7)), (9, (1, 7)), (11, (1, 9)), (12, (2, 9))],
)
def test_the_interval_of_a_median_leaves_out_the_ranks_that_chance_allows(count, kept):
    assert median_interval([float(number) for number in reversed(range(count))]) == kept


def test_pairs_turn_their_order_and_end_in_time():
    calls = []
    plain, sampled = time_pairs(
        lambda: calls.append("plain"), lambda: calls.append("sampled"), pairs=3, max_seconds=60.0, wait=lambda: None
    )
    assert calls == ["plain", "sampled", "sampled", "plain", "plain", "sampled"]
    assert len(plain) == len(sampled) == 3
    calls.clear()
    time_pairs(
        lambda: calls.append("plain"), lambda: calls.append("sampled"), pairs=50, max_seconds=-1.0, wait=lambda: None
    )
    assert len(calls) == 2 * 8  # no interval could be had of fewer
