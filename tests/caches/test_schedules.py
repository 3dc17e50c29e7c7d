"""Whatever is asked of a cache, its queries see the keys that a list of all tokens of a row would show them."""

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings

from headwise.caches.paged import PagedCache
from headwise.caches.quantized import QuantizedCache, decode, encode
from headwise.caches.rolling import RollingCache
from headwise.caches.slots import GrowingCache, StaticCache
from headwise.errors import ConfigError

HEADS, DIM, V_DIM = 2, 4, 6
WINDOW = 7  # of the rolling cache, and what is checked of all

MAKERS = {
    "growing": GrowingCache,
    "static": lambda: StaticCache(200),
    "rolling": lambda: RollingCache(WINDOW),
    "rolling with spare slots": lambda: RollingCache(WINDOW, spare=4),
    "paged": lambda: PagedCache(4),
    "paged, one token a block": lambda: PagedCache(1),
    "quantised": lambda: QuantizedCache(GrowingCache()),
    "quantised, 4 bits, rolling": lambda: QuantizedCache(RollingCache(WINDOW), bits=4),
}

chunks = st.tuples(
    st.just("chunk"),
    st.sampled_from([1, 1, 1, 2, 3, WINDOW - 1, WINDOW, WINDOW + 1, 2 * WINDOW + 3]),
    st.integers(0, 99),
)
crops = st.tuples(st.just("crop"), st.integers(0, 6), st.booleans())
reorders = st.tuples(st.just("reorder"), st.integers(0, 99), st.integers(1, 4))
schedules = st.lists(st.one_of(chunks, chunks, chunks, crops, reorders), min_size=1, max_size=12)


def token(row_key: int, index: int, width: int):
    """A vector that no other token has."""
    generator = torch.Generator().manual_seed(1000 * row_key + index)
    return torch.randn(HEADS, width, generator=generator)


class Lists:
    """The oracle: each row is a list of (key, value)."""

    def __init__(self, batch: int, bits: int | None):
        self.bits = bits
        self.rows = [[] for _ in range(batch)]
        self.num_made = 0

    def make(self, num_tokens: int, real_tokens):
        """Return the tensors of a chunk, NaN where padding is, and append its real tokens."""
        batch = len(self.rows)
        keys = torch.full((batch, HEADS, num_tokens, DIM), torch.nan)
        values = torch.full((batch, HEADS, num_tokens, V_DIM), torch.nan)
        for row, place in real_tokens.nonzero().tolist():
            self.num_made += 1
            key, value = token(7, self.num_made, DIM), token(8, self.num_made, V_DIM)
            keys[row, :, place], values[row, :, place] = key, value
            if self.bits is not None:
                key, value = (decode(encode(one, self.bits), self.bits, one.dtype) for one in (key, value))
            self.rows[row].append((key, value))
        return keys, values


def padding(batch: int, num_tokens: int, seed: int):
    """Draw real tokens: all, left-padded, right-padded or anywhere."""
    kind, generator = seed % 4, torch.Generator().manual_seed(seed)
    if kind == 0:
        return torch.ones(batch, num_tokens, dtype=torch.bool)
    if kind == 3:
        return torch.rand(batch, num_tokens, generator=generator) < 0.6
    counts = torch.randint(0, num_tokens + 1, (batch, 1), generator=generator)
    places = torch.arange(num_tokens)
    return places >= num_tokens - counts if kind == 1 else places < counts


def check_view(view, index, rows, window):
    """Compare the keys shown with those of the row's list; all within the window of a query are among them."""
    batch, _, key_len, _ = view.keys.shape
    if view.key_index is None:
        assert {len(row) for row in rows} == {view.first_index + key_len}
        key_index = torch.arange(view.first_index, view.first_index + key_len).expand(batch, -1)
    else:
        key_index = view.key_index.expand(batch, -1)
    query_index = index.expand(batch, -1)
    for row in range(batch):
        places = {int(at): slot for slot, at in enumerate(key_index[row].tolist()) if at >= 0}
        assert len(places) == int((key_index[row] >= 0).sum()), "an index stands twice"
        if view.reach is not None:
            assert sorted(places) == list(range(len(rows[row]) - view.reach, len(rows[row])))
        needed = {at for query in query_index[row].tolist() for at in range(max(0, query - window + 1), query + 1)}
        assert needed <= set(places)
        for at, slot in places.items():
            key, value = rows[row][at]
            assert torch.equal(view.keys[row, :, slot], key) and torch.equal(view.values[row, :, slot], value)


@pytest.mark.parametrize("name", MAKERS)
@settings(max_examples=120, deadline=None)
@given(batch=st.integers(1, 3), schedule=schedules)
def test_every_query_sees_the_tokens_of_its_row_and_no_others(name, batch, schedule):
    cache = MAKERS[name]()
    lists = Lists(batch, getattr(cache, "bits", None))
    for word, number, choice in schedule:
        if word == "chunk":
            real_tokens = padding(len(lists.rows), number, choice)
            index = cache.next_index(len(lists.rows), number, real_tokens=None if real_tokens.all() else real_tokens)
            keys, values = lists.make(number, real_tokens)
            view = cache.update(keys, values, real_tokens=None if real_tokens.all() else real_tokens)
            check_view(view, index, lists.rows, WINDOW)
        elif not cache.lengths:
            continue
        elif word == "crop":
            lengths = [max(0, len(row) - number - (place if choice else 0)) for place, row in enumerate(lists.rows)]
            try:
                cache.crop(lengths)
            except ConfigError as error:
                assert "rolling" in name and "taken back" not in str(error) and "ring" in str(error)
                continue
            lists.rows = [row[:length] for row, length in zip(lists.rows, lengths, strict=True)]
        else:
            generator = torch.Generator().manual_seed(number)
            rows = torch.randint(len(lists.rows), (choice,), generator=generator)
            cache.reorder(rows)
            lists.rows = [list(lists.rows[row]) for row in rows.tolist()]
        assert cache.lengths == tuple(map(len, lists.rows))


def test_a_full_buffer_grows_for_as_many_rows_as_there_are_now():
    cache = GrowingCache()
    tokens = torch.randn(2, HEADS, 70, DIM)
    cache.update(tokens[:, :, :64], tokens[:, :, :64])
    cache.reorder([1, 0, 1])
    view = cache.update(tokens[[1, 0, 1], :, 64:], tokens[[1, 0, 1], :, 64:])
    assert torch.equal(view.keys, tokens[[1, 0, 1]])
