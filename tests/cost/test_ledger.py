"""The ledger's arithmetic against a count by hand."""

import pytest

from headwise.cost.results import Ledger, LedgerEntry, bytes_at_moments


def entry(name, num_bytes, born, freed, kind="temporary"):
    return LedgerEntry(
        name=name, kind=kind, bytes=num_bytes, shape=(num_bytes,), dtype="bool", owner="", born=born, freed=freed
    )


@pytest.fixture
def ledger():
    """Alive: 2, 2 + 3 + 5, 2 + 5 + 7, 2 + 7 bytes."""
    entries = (
        entry("weight", 2, 0, None, "parameter"),
        entry("short", 3, 1, 2),
        entry("kept", 5, 1, 3, "saved"),
        entry("late", 7, 2, 4, "saved"),
    )
    return Ledger(moments=("begin", "up", "top", "end"), entries=entries)


def test_a_moment_holds_what_was_born_and_is_not_freed(ledger):
    assert ledger.bytes_by_moment == (2, 10, 14, 9)
    assert [ledger.bytes_at(moment) for moment in range(4)] == [2, 10, 14, 9]
    assert [one.name for one in ledger.alive(1)] == ["kept", "short", "weight"]


def test_the_peak_is_the_most_at_one_moment_and_no_sum_of_kinds(ledger):
    assert ledger.moments[ledger.peak] == "top"
    assert ledger.bytes_at(ledger.peak) < sum(map(ledger.kind_bytes, ("parameter", "saved", "temporary")))


def test_kinds_count_all_their_tensors_whenever_alive(ledger):
    assert ledger.kind_bytes("saved") == 12
    assert ledger.kind_bytes("gradient") == 0


def test_the_first_of_equal_moments_is_the_peak():
    assert Ledger(moments=("a", "b", "c"), entries=(entry("x", 3, 1, 2), entry("y", 3, 2, None))).peak == 1


def test_without_spans_nothing_is_alive():
    assert bytes_at_moments(3, ()) == [0, 0, 0]
