"""between_sizes: the ledger of a step at another size, from those at a few."""

from dataclasses import replace

import pytest

from headwise.cost.results import Ledger, LedgerEntry
from headwise.cost.tracing.sizes import between_sizes

HEADS, WIDTH = 3, 11


def entry(name, shape, born, freed):
    num_bytes = 4
    for dim in shape:
        num_bytes *= dim
    return LedgerEntry(
        name=name, kind="saved", bytes=num_bytes, shape=shape, dtype="float32", owner="layer", born=born, freed=freed
    )


def ledger(batch=2, seq=5, *, window=None):
    """A step of three tensors: a weight, activations and scores, whose keys a window may bound."""
    keys = seq if window is None else min(seq, window)
    tensors = [("weight", (WIDTH, WIDTH)), ("hidden", (batch, seq, WIDTH)), ("scores", (batch, HEADS, seq, keys))]
    entries = (entry(name, shape, born, None if born == 0 else 4) for born, (name, shape) in enumerate(tensors))
    return Ledger(moments=("before", "forward", "forward", "loss", "backward"), entries=tuple(entries))


@pytest.mark.parametrize("batch", [1, 3, 7, 1009])
def test_two_batches_tell_every_other(batch):
    assert between_sizes({2: ledger(batch=2), 4: ledger(batch=4)}, batch) == ledger(batch=batch)


@pytest.mark.parametrize("seq", [1, 7, 13, 10_007])
def test_three_lengths_tell_every_other_though_scores_have_them_twice(seq):
    known = {size: ledger(seq=size) for size in (5, 10, 20)}
    assert between_sizes(known, seq) == ledger(seq=seq)


def test_a_window_that_is_outgrown_between_the_lengths_is_refused():
    assert between_sizes({size: ledger(seq=size, window=12) for size in (5, 10, 20)}, 40) is None
    within = {size: ledger(seq=size, window=4) for size in (5, 10, 20)}
    assert between_sizes(within, 40) == ledger(seq=40, window=4)


@pytest.mark.parametrize(
    "changes", [{"name": "other"}, {"freed": 3}, {"born": 0}, {"dtype": "float16"}, {"shape": (9,)}]
)
def test_ledgers_of_other_tensors_or_lives_are_refused(changes):
    first, second = ledger(batch=2), ledger(batch=4)
    *rest, last = second.entries
    changed = replace(second, entries=(*rest, replace(last, **changes)))
    assert between_sizes({2: first, 4: changed}, 3) is None


def test_ledgers_of_other_lengths_are_refused():
    first, second = ledger(batch=2), ledger(batch=4)
    assert between_sizes({2: first, 4: replace(second, moments=(*second.moments, "end"))}, 3) is None
    assert between_sizes({2: first, 4: replace(second, entries=second.entries[:2])}, 3) is None
