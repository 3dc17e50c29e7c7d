from itertools import product
from unittest.mock import patch

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headwise.cost.tracing.track import track
from headwise.errors import ConfigError
from headwise.masks import tiles
from headwise.masks.bigbird import BigBird
from headwise.masks.data import KeyPadding
from headwise.masks.dense import dense_mask
from headwise.masks.patterns import Causal, Full, Mask, SlidingWindow
from headwise.masks.sparse import Dilated, GlobalTokens, LocalWindow, PrefixLM, Strided
from headwise.masks.tables import BlockSparse, Documents, Explicit

BATCH, HEADS = 2, 3
small = st.integers(0, 7)
sizes = st.integers(1, 5)


class Stripes(Mask):
    """A mask of a user's, of which nothing is known but what it says of a pair."""

    def __init__(self, step: int) -> None:
        self.step = step

    def __repr__(self):
        return f"Stripes({self.step})"

    def allows(self, batch, head, query_index, key_index):
        return (query_index + 2 * key_index + head) % self.step == 0


def bools(*shape):
    """Tables of bools, one in three of them all True."""
    numel = torch.Size(shape).numel()
    some = st.lists(st.booleans(), min_size=numel, max_size=numel).map(lambda row: torch.tensor(row).reshape(shape))
    return st.one_of(some, some, st.just(torch.ones(shape, dtype=torch.bool)))


structural = st.one_of(
    st.just(Full()),
    st.just(Causal()),
    st.builds(SlidingWindow, sizes),
    st.builds(LocalWindow, small, small),
    st.builds(Dilated, sizes, sizes),
    st.builds(Strided, sizes),
    st.builds(GlobalTokens, small),
    st.builds(PrefixLM, small),
    st.builds(
        BigBird,
        num_blocks=st.integers(1, 6),
        block_size=st.integers(1, 4),
        num_random=st.integers(0, 2),
        window_blocks=st.sampled_from([1, 3]),
        num_global=st.integers(0, 2),
        seed=small,
        causal=st.booleans(),
    ),
)
lengths = st.lists(st.lists(st.integers(0, 4), min_size=3, max_size=3), min_size=BATCH, max_size=BATCH)
data = st.one_of(
    st.builds(lambda rows: KeyPadding(torch.tensor(rows)), st.tuples(small, small)),
    st.builds(lambda rows, more: KeyPadding(torch.tensor(rows), "left", 7 + more), st.tuples(small, small), small),
    st.builds(lambda rows: Documents(torch.tensor(rows)), lengths),
    st.builds(lambda rows: Documents(torch.tensor(rows[0])), lengths),
    st.just(Documents(torch.zeros(BATCH, 0, dtype=torch.long))),
    st.sampled_from([(5, 7), (1, 1, 1, 5), (BATCH, 1, 1, 6), (1, HEADS, 4, 9), (BATCH, HEADS, 3, 3), (1, 1), (3, 1)])
    .flatmap(lambda shape: bools(*shape))
    .map(Explicit),
    st.builds(
        BlockSparse,
        st.sampled_from([(2, 3), (HEADS, 3, 2), (BATCH, 1, 1, 2)]).flatmap(lambda shape: bools(*shape)),
        st.integers(1, 4),
    ),
    st.builds(Stripes, sizes),
)
masks = st.recursive(
    st.one_of(structural, data),
    lambda inner: st.one_of(
        st.builds(lambda a, b: a & b, inner, inner),
        st.builds(lambda a, b: a | b, inner, inner),
        st.builds(lambda a: ~a, inner),
    ),
    max_leaves=4,
)
lens = st.integers(0, 8)


def table(mask, query_len, key_len):
    """One bool a pair, from plain ints, the queries standing at the end of the keys: (batch, heads, T, S)."""
    return torch.tensor(
        [
            bool(mask.allows(batch, head, key_len - query_len + i, j))
            for batch, head, i, j in product(range(BATCH), range(HEADS), range(query_len), range(key_len))
        ],
        dtype=torch.bool,
    ).reshape(BATCH, HEADS, query_len, key_len)


def blocks_by_hand(pairs, query_block, key_block):
    """Any and all of each block of a table, block by block."""
    query_len, key_len = pairs.shape[2:]
    rows, columns = range(0, query_len, query_block), range(0, key_len, key_block)
    shape = (BATCH, HEADS, len(rows), len(columns))
    any_allowed, all_allowed = torch.zeros(shape, dtype=torch.bool), torch.zeros(shape, dtype=torch.bool)
    for row, i in enumerate(rows):
        for column, j in enumerate(columns):
            block = pairs[:, :, i : i + query_block, j : j + key_block].flatten(2)
            any_allowed[:, :, row, column] = block.any(-1)
            all_allowed[:, :, row, column] = block.all(-1)
    return any_allowed, all_allowed


@given(
    mask=masks,
    query_len=lens,
    key_len=lens,
    query_block=st.integers(1, 11),
    key_block=st.integers(1, 11),
    chunk_blocks=st.sampled_from([1, 17, 2**18]),
    look_pairs=st.sampled_from([1, 13, 2**19]),
)
@settings(deadline=None, max_examples=250)
def test_layout_count_density_and_empty_rows_are_those_of_the_pairs_one_by_one(
    mask, query_len, key_len, query_block, key_block, chunk_blocks, look_pairs
):
    pairs = table(mask, query_len, key_len)
    sizes = {"batch_size": BATCH, "num_heads": HEADS}
    any_allowed, all_allowed = blocks_by_hand(pairs, query_block, key_block)
    with patch.multiple(tiles, CHUNK_BLOCKS=chunk_blocks, LOOK_PAIRS=look_pairs):
        layout = mask.block_layout((query_block, key_block), query_len, key_len, **sizes)
        count = mask.count_pairs(query_len, key_len, **sizes)
        density = mask.density(query_len, key_len, **sizes)
        empty = mask.empty_rows(query_len, key_len, **sizes)
    assert torch.equal(layout.any_allowed.expand(any_allowed.shape), any_allowed)
    assert torch.equal(layout.all_allowed.expand(all_allowed.shape), all_allowed)
    assert count == int(pairs.sum())
    assert density == (count / pairs.numel() if pairs.numel() else 0.0)
    assert torch.equal(empty.expand(BATCH, HEADS, query_len), ~pairs.any(-1))


def random_bools(*shape):
    return torch.rand(shape, generator=torch.Generator().manual_seed(7)) < 0.5


SINGLE = [
    Full(),
    Causal(),
    SlidingWindow(1),
    SlidingWindow(33),
    LocalWindow(17, 5),
    Dilated(9, 4),
    Strided(11),
    GlobalTokens(3),
    PrefixLM(37),
    BigBird(9, 16),
    BigBird(9, 16, causal=True),
    BigBird(31, 5, num_random=2, window_blocks=1),
    KeyPadding(torch.tensor([100, 3])),
    KeyPadding(torch.tensor([100, 3]), "left", 120),
    Documents(torch.tensor([[40, 0, 23, 1], [61, 2, 2, 60]])),
    Documents(torch.tensor([31, 33, 64])),
    Explicit(random_bools(HEADS, 63, 129)),
    Explicit(random_bools(BATCH, 1, 1, 127)),
    BlockSparse(random_bools(HEADS, 8, 9), 16),
]
JOINED = [
    LocalWindow(17, 5) | GlobalTokens(3),
    Causal() & Documents(torch.tensor([[40, 0, 23, 1], [61, 2, 2, 60]])),
    Causal() & KeyPadding(torch.tensor([100, 3]), "left", 120),
    ~(SlidingWindow(5) | Strided(11)) & PrefixLM(37),
    ~BigBird(9, 16) | KeyPadding(torch.tensor([100, 3])),
    Stripes(2) & SlidingWindow(20),
]


@pytest.mark.parametrize("mask", SINGLE + JOINED, ids=repr)
@pytest.mark.parametrize(("query_len", "key_len"), [(127, 129), (129, 63), (1, 127), (63, 2)])
def test_the_layout_cuts_the_table_of_lengths_that_no_block_divides(mask, query_len, key_len):
    sizes = {"batch_size": BATCH, "num_heads": HEADS}
    pairs = dense_mask(mask, **sizes, query_len=query_len, key_len=key_len)
    smallest = pairs.shape[:2]
    pairs = pairs.expand(BATCH, HEADS, query_len, key_len)
    for blocks in (16, (64, 16), (7, 31), (1, 200)):
        layout = mask.block_layout(blocks, query_len, key_len, **sizes)
        expected = blocks_by_hand(pairs, *(blocks if isinstance(blocks, tuple) else (blocks, blocks)))
        for ours, by_hand in zip(layout, expected, strict=True):
            assert ours.shape == (*smallest, *by_hand.shape[2:])
            assert torch.equal(ours.expand(by_hand.shape), by_hand)
    assert mask.count_pairs(query_len, key_len, **sizes) == int(pairs.sum())
    empty = mask.empty_rows(query_len, key_len, **sizes)
    assert empty.shape == (*smallest, query_len)
    assert torch.equal(empty.expand(BATCH, HEADS, query_len), ~pairs.any(-1))


KNOWING = [mask for mask in SINGLE if mask != BigBird(9, 16, causal=True)]  # which joins its blocks and a triangle


@pytest.mark.parametrize("mask", KNOWING, ids=repr)
@pytest.mark.parametrize(("query_len", "key_len"), [(127, 129), (129, 63)])
def test_a_mask_that_is_no_combination_knows_its_blocks_without_a_look_at_pairs(mask, query_len, key_len):
    looked = []

    def look(mask, blocks, places):
        looked.append(len(places))
        return torch.zeros(len(places), dtype=torch.long)

    with patch.object(tiles, "count_in_blocks", look):
        mask.block_layout(16, query_len, key_len, batch_size=BATCH, num_heads=HEADS)
    assert looked == [0]


@pytest.mark.parametrize(
    "mask", [Causal() & KeyPadding(torch.tensor([100])), Causal() | GlobalTokens(3), ~(Causal() | GlobalTokens(3))]
)
def test_of_a_combination_only_blocks_are_looked_at_that_both_allow_in_part(mask):
    """The triangle's edge meets the end of the text in one block, and the global tokens in one."""
    looked = []

    def look(mask, blocks, places):
        looked.append(len(places))
        return torch.zeros(len(places), dtype=torch.long)

    with patch.object(tiles, "count_in_blocks", look):
        mask.block_layout(16, 128, 128)
    assert looked == [1]


def test_a_layout_by_hand():
    """Four queries behind two keys: the first block of queries is the square's upper half."""
    layout = Causal().block_layout((2, 3), 4, 6)
    assert layout.any_allowed.tolist() == [[[[True, True], [True, True]]]]
    assert layout.all_allowed.tolist() == [[[[True, False], [True, False]]]]
    layout = SlidingWindow(2).block_layout(2, 5, 5)
    assert layout.any_allowed.int().tolist() == [[[[1, 0, 0], [1, 1, 0], [0, 1, 1]]]]
    assert layout.all_allowed.int().tolist() == [[[[0, 0, 0], [0, 0, 0], [0, 0, 1]]]]
    padded = KeyPadding(torch.tensor([3, 0])) & Causal()
    assert padded.block_layout(2, 4, 4, batch_size=2).any_allowed.int().tolist() == [[[[1, 0], [1, 1]]], [[[0, 0]] * 2]]
    assert padded.empty_rows(4, 5, batch_size=2).tolist() == [[[False] * 4], [[True] * 4]]
    assert (~Causal()).empty_rows(3, 3).tolist() == [[[False, False, True]]]


def test_outside_of_an_explicit_table_no_block_is_whole():
    mask = Explicit(torch.ones(3, 5, dtype=torch.bool))  # of the last three of five queries
    assert mask.block_layout((3, 4), 5, 5).any_allowed.all()
    assert mask.block_layout((3, 4), 5, 5).all_allowed.tolist() == [[[[False, False], [True, True]]]]
    assert mask.block_layout((3, 4), 6, 6).all_allowed.int().tolist() == [[[[0, 0], [0, 0]]]]


LONG = 65_536


@pytest.mark.parametrize(
    "mask",
    [
        SlidingWindow(256),
        LocalWindow(256, 256) | GlobalTokens(16),
        (LocalWindow(256, 256) | GlobalTokens(16)) & Causal(),
        BigBird(1024, 64),
        BigBird(1024, 64, causal=True),
        Causal() & Documents(torch.full((256,), 256)),
        Causal() & KeyPadding(torch.tensor([60_000])),
        BlockSparse(random_bools(1024, 1024), 64) & Causal(),
        PrefixLM(1000) & ~Strided(256),
    ],
    ids=repr,
)
def test_a_long_layout_takes_a_hundredth_of_the_table_of_all_pairs(mask):
    with track() as ledger:
        layout = mask.block_layout(64, LONG, LONG)
    assert layout.any_allowed.shape == (1, 1, 1024, 1024)
    assert ledger.bytes_at(ledger.peak) < LONG * LONG // 100


@pytest.mark.parametrize(
    "mask", [LocalWindow(256, 256) | GlobalTokens(16), Causal() & Documents(torch.full((256,), 256)), BigBird(1024, 64)]
)
def test_long_rows_and_counts_take_a_hundredth_of_the_table_of_all_pairs(mask):
    with track() as ledger:
        mask.empty_rows(LONG, LONG)
        mask.density(LONG, LONG)
    assert ledger.bytes_at(ledger.peak) < LONG * LONG // 100


def test_the_count_of_packed_documents_is_that_of_each_alone():
    assert (Causal() & Documents(torch.full((256,), 256))).count_pairs(LONG, LONG) == 256 * (256 * 257 // 2)
    assert Documents(torch.tensor([60_000, 5_536])).count_pairs(LONG, LONG) == 60_000**2 + 5_536**2


@pytest.mark.parametrize("empty", ["query_len", "key_len", "batch_size", "num_heads"])
def test_without_pairs_nothing_is_allowed_and_every_row_is_empty(empty):
    sizes = {"query_len": 3, "key_len": 5, "batch_size": 2, "num_heads": 3, empty: 0}
    mask = Full() if empty != "batch_size" else KeyPadding(torch.zeros(0, dtype=torch.long))
    layout = mask.block_layout(2, **sizes)
    expected = (1, 1, -(-sizes["query_len"] // 2), -(-sizes["key_len"] // 2))
    for blocks in layout:
        assert blocks.shape == expected
        assert not blocks.any()
    assert mask.empty_rows(**sizes).shape == (1, 1, sizes["query_len"])
    assert mask.empty_rows(**sizes).all()
    assert mask.density(**sizes) == 0


@pytest.mark.parametrize("shape", [(BATCH, 1, 5, 0), (1, 1, 0, 5), (1, 5, 0), (BATCH, 1, 1, 0)])
def test_a_table_without_entries_allows_nothing(shape):
    mask = Explicit(torch.zeros(shape, dtype=torch.bool))
    assert not mask.block_layout(2, 5, 5, batch_size=BATCH).any_allowed.any()
    assert (mask | Causal()).count_pairs(5, 5, batch_size=BATCH) == BATCH * 15


@pytest.mark.parametrize(
    ("ask", "text"),
    [
        (lambda: Causal().block_layout(0, 3, 3), "block_size must be a whole number, at least 1; got 0"),
        (lambda: Causal().block_layout((2, -1), 3, 3), "block_size must be a whole number, at least 1; got -1"),
        (lambda: Causal().block_layout(2, -3, 3), "query_len must be a whole number, at least 0; got -3"),
        (lambda: Causal().empty_rows(3, 3, num_heads=-1), "num_heads must be a whole number, at least 0; got -1"),
        (lambda: KeyPadding(torch.tensor([1, 2])).block_layout(2, 3, 3), "as many rows as the batch"),
        (lambda: KeyPadding(torch.tensor([1, 2])).empty_rows(3, 3), "as many rows as the batch"),
        (
            lambda: Explicit(random_bools(3, 5, 5)).block_layout(2, 5, 5, num_heads=2),
            r"as many as there are query heads; got Explicit\(.*\) with 3 heads for 2",
        ),
        (
            lambda: (Explicit(random_bools(3, 5, 5)) | BlockSparse(random_bools(2, 1, 1), 5)).density(
                5, 5, num_heads=3
            ),
            r"must describe the same heads; got .*num_heads 3.*num_heads 2",
        ),
        (lambda: Documents(torch.zeros(2, device="meta").long()).block_layout(2, 3, 3), "on the meta device"),
    ],
)
def test_sizes_that_cannot_be_are_refused_by_name(ask, text):
    with pytest.raises(ConfigError, match=text):
        ask()
