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
    assert between_sizes({2: ledger(batch=2), 4: ledger(batch=4)}).at(batch) == ledger(batch=batch)


@pytest.mark.parametrize("seq", [1, 7, 13, 10_007])
def test_three_lengths_tell_every_other_though_scores_have_them_twice(seq):
    known = {size: ledger(seq=size) for size in (5, 10, 20)}
    assert between_sizes(known).at(seq) == ledger(seq=seq)


def test_a_window_that_is_outgrown_between_the_lengths_is_refused():
    assert between_sizes({size: ledger(seq=size, window=12) for size in (5, 10, 20)}) is None
    within = {size: ledger(seq=size, window=4) for size in (5, 10, 20)}
    assert between_sizes(within).at(40) == ledger(seq=40, window=4)


@pytest.mark.parametrize(
    "changes", [{"name": "other"}, {"freed": 3}, {"born": 0}, {"dtype": "float16"}, {"shape": (9,)}]
)
def test_ledgers_of_other_tensors_or_lives_are_refused(changes):
    first, second = ledger(batch=2), ledger(batch=4)
    *rest, last = second.entries
    changed = replace(second, entries=(*rest, replace(last, **changes)))
    assert between_sizes({2: first, 4: changed}) is None


def test_ledgers_of_other_lengths_are_refused():
    first, second = ledger(batch=2), ledger(batch=4)
    assert between_sizes({2: first, 4: replace(second, moments=(*second.moments, "end"))}) is None
    assert between_sizes({2: first, 4: replace(second, entries=second.entries[:2])}) is None


def with_workspace(ledger, num_bytes):
    """A ledger in which a kernel takes so many bytes for itself."""
    last = ledger.entries[-1]
    workspace = replace(last, name="workspace of a kernel", bytes=num_bytes, shape=(num_bytes,), dtype="uint8")
    return replace(ledger, entries=(*ledger.entries, workspace))


@pytest.mark.parametrize(
    ("taken", "seq", "least"),
    [
        ((0, 0, 400), 40, 800),  # 20 times the length, above 15
        ((0, 0, 400), 16, 320),
        ((0, 0, 400), 10, 200),
        ((50, 100, 150), 40, 150),  # 10 times the length, and never more than 150
        ((25, 100, 400), 40, 1600),  # the square of the length
    ],
)
def test_what_a_kernel_takes_for_itself_may_bend_and_is_hardly_told_as_less(taken, seq, least):
    sizes = (5, 10, 20)
    known = {size: with_workspace(ledger(seq=size), one) for size, one in zip(sizes, taken, strict=True)}
    told = between_sizes(known).at(seq)
    assert told.entries[:-1] == ledger(seq=seq).entries
    assert told.entries[-1].shape == (told.entries[-1].bytes,)
    assert 0.9 * least <= told.entries[-1].bytes <= 4 * least
    assert between_sizes(dict(reversed(known.items()))).at(seq) == told
