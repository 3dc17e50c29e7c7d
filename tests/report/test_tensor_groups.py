"""Tensors of many layers told as one."""

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwise.cost.results import Ledger, LedgerEntry
from headwise.report.tensor_groups import group_tensors, largest_groups


def make_entry(owner, name="weight", num_bytes=8, born=0, freed=None, kind="saved"):
    return LedgerEntry(
        name=name, kind=kind, bytes=num_bytes, shape=(num_bytes,), dtype="uint8", owner=owner, born=born, freed=freed
    )


def owners_of(*owners):
    return [group.owner for group in group_tensors([make_entry(owner) for owner in owners], limit=10)]


@pytest.mark.parametrize(
    ("owners", "together"),
    [
        (["layer 3 attention"], "layer 3 attention"),
        ([f"layer {layer} attention" for layer in range(12)], "layers 0-11 attention"),
        ([f"layer {layer} norm" for layer in (0, 1, 5, 7, 8)], "layers 0-1, 5, 7-8 norm"),
        ([f"layer {layer} norm" for layer in (0, 2, 4, 6)], "layers 0...6 norm"),
        (["encoder.layer.0.output", "encoder.layer.1.output"], "encoder.layer.0-1.output"),
        (["layer 0 expert 2", "layer 1 expert 3"], "layers 0-1 expert 2-3"),
        (["layer 10", "layer 9"], "layers 9-10"),
        (["fc1 of block 2", "fc1 of block 3"], "fc1 of block 2-3"),
        (["embeddings"], "embeddings"),
        (["7"], "7"),
        ([""], ""),
        (["\0 and 5"], "\ufffd and 5"),
        (["9" * 5000], "9" * 5000),
    ],
)
def test_owners_that_differ_in_numbers_are_named_once(owners, together):
    assert owners_of(*owners) == [together]


def test_what_differs_in_more_than_numbers_stays_apart():
    one = make_entry("layer 0")
    others = [
        replace(one, owner="row 1"),
        replace(one, owner="layer1"),
        replace(one, owner="layer 1", name="bias"),
        replace(one, owner="layer 1", kind="gradient"),
        replace(one, owner="layer 1", dtype="int8"),
        replace(one, owner="layer 1", shape=(2, 4)),
    ]
    assert [group.count for group in group_tensors([one, *others], limit=10)] == [1] * 7


def test_the_groups_that_take_the_most_together_come_first():
    entries = [make_entry("head", num_bytes=30), *(make_entry(f"layer {layer}", num_bytes=11) for layer in range(3))]
    groups = group_tensors(entries, limit=2)
    assert [(group.owner, group.count, group.total_bytes) for group in groups] == [
        ("layers 0-2", 3, 33),
        ("head", 1, 30),
    ]
    assert group_tensors(entries, limit=1) == groups[:1]


@given(
    st.lists(
        st.tuples(st.integers(0, 3), st.sampled_from("ab"), st.integers(1, 5), st.integers(0, 6), st.integers(1, 7)),
        max_size=30,
    )
)
def test_at_every_moment_the_groups_are_the_tensors_alive_then(tensors):
    entries = tuple(
        make_entry(
            f"layer {layer}", name=name, num_bytes=size, born=born, freed=None if born + life > 6 else born + life
        )
        for layer, name, size, born, life in tensors
    )
    ledger = Ledger(moments=tuple("0123456"), entries=entries)
    groups = largest_groups(ledger, range(7), limit=100)
    for moment in range(7):
        alive = Counter((entry.name, entry.bytes) for entry in ledger.alive(moment))
        assert {(group.name, group.bytes): group.count for group in groups[moment]} == alive
        assert sum(group.total_bytes for group in groups[moment]) == ledger.bytes_at(moment)
        assert groups[moment] == tuple(sorted(groups[moment], key=lambda group: (-group.total_bytes, -group.bytes)))
        layers = {int(entry.owner.split()[1]) for entry in ledger.alive(moment)}
        assert bool(layers) == bool(groups[moment])
    assert largest_groups(ledger, [], limit=3) == {}
