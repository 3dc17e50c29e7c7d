from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headwise.errors import ConfigError
from headwise.masks.counting import count_allowed
from headwise.masks.dense import dense_mask
from headwise.masks.patterns import Causal
from headwise.masks.tables import BlockSparse, Documents, Explicit


def table(mask, query_len, key_len, batch=0, head=0):
    """One bool a pair, from plain ints, the queries standing at the end of the keys."""
    return [
        [bool(mask.allows(batch, head, key_len - query_len + i, j)) for j in range(key_len)] for i in range(query_len)
    ]


def documents_by_hand(lengths, index):
    """Which document a token is of, by counting through them; None behind the last and before the first."""
    first = 0
    for number, length in enumerate(lengths):
        if first <= index < first + length:
            return number
        first += length
    return None


@given(
    lengths=st.lists(st.lists(st.integers(0, 4), min_size=3, max_size=3), min_size=2, max_size=2),
    query_len=st.integers(0, 9),
    key_len=st.integers(0, 9),
)
@settings(deadline=None, max_examples=80)
def test_tokens_of_one_document_see_one_another(lengths, query_len, key_len):
    mask = Documents(torch.tensor(lengths))
    for batch in range(2):
        of = [documents_by_hand(lengths[batch], index) for index in range(-9, 9)]
        by_hand = [
            [
                of[9 + key_len - query_len + i] is not None and of[9 + key_len - query_len + i] == of[9 + j]
                for j in range(key_len)
            ]
            for i in range(query_len)
        ]
        assert table(mask, query_len, key_len, batch) == by_hand
        dense = dense_mask(mask, batch_size=2, num_heads=3, query_len=query_len, key_len=key_len)
        assert dense.expand(2, 3, query_len, key_len)[batch, 2].tolist() == by_hand
    assert mask.count_pairs(query_len, key_len, batch_size=2, num_heads=3) == 3 * sum(
        sum(map(sum, table(mask, query_len, key_len, batch))) for batch in range(2)
    )


def test_documents_of_one_row_serve_every_batch_row():
    mask = Documents(torch.tensor([2, 3]))
    assert mask.batch_size is None
    assert mask.count_pairs(6, 6, batch_size=5) == 5 * (4 + 9)
    assert (mask & Causal()).count_pairs(6, 6) == 3 + 6
    assert Documents(torch.tensor([[2, 3], [5, 0]])).batch_size == 2


def test_segment_ids_say_the_same_as_lengths():
    ids = torch.tensor([[4, 4, 9, 9, 9], [1, 2, 2, 2, 2]])
    assert Documents.from_segment_ids(ids).lengths.tolist() == [[2, 3], [1, 4]]
    assert Documents.from_segment_ids(ids[0]).lengths.tolist() == [2, 3]
    assert Documents.from_segment_ids(torch.zeros(2, 0, dtype=torch.long)).count_pairs(3, 3, batch_size=2) == 0
    assert Documents.from_segment_ids(torch.zeros(0, 5, dtype=torch.long)).batch_size == 0
    with pytest.raises(ConfigError, match="equal numbers in one piece; got "):
        Documents.from_segment_ids(torch.tensor([1, 2, 1]))


@pytest.mark.parametrize("shape", [(2, 3, 5, 7), (1, 3, 5, 7), (2, 1, 5, 7), (5, 7), (7,), (2, 1, 1, 7), (1, 1)])
@pytest.mark.parametrize(("query_len", "key_len"), [(5, 7)])
def test_an_explicit_table_says_what_it_holds(shape, query_len, key_len):
    given_table = torch.rand(shape, generator=torch.Generator().manual_seed(3)) < 0.5
    mask = Explicit(given_table)
    whole = given_table.expand(2, 3, query_len, key_len)
    for batch, head in product(range(2), range(3)):
        assert table(mask, query_len, key_len, batch, head) == whole[batch, head].tolist()
    dense = dense_mask(mask, batch_size=2, num_heads=3, query_len=query_len, key_len=key_len)
    assert torch.equal(dense.expand(2, 3, query_len, key_len), whole)
    assert mask.count_pairs(query_len, key_len, batch_size=2, num_heads=3) == int(whole.sum())


def test_a_table_allows_nothing_outside_of_it():
    mask = Explicit(torch.ones(2, 3, dtype=torch.bool))
    inside, outside = [True] * 3 + [False] * 2, [False] * 5
    assert table(mask, 4, 5) == [inside, inside, outside, outside]  # queries 1 to 4, the table has 1 and 2


def test_ones_and_zeros_come_in_by_a_door_of_their_own():
    keep = torch.tensor([[1, 1, 0], [1, 0, 0]])
    mask = Explicit.from_keep_mask(keep)
    assert dense_mask(mask, batch_size=2, num_heads=3, query_len=2, key_len=3)[:, 0, 0].tolist() == [
        [True, True, False],
        [True, False, False],
    ]
    assert torch.equal(Explicit.from_keep_mask(keep.bool()).table, mask.table)
    with pytest.raises(ConfigError, match=r"1 = keep: Explicit\.from_keep_mask"):
        Explicit(keep)
    with pytest.raises(ConfigError, match="1 \\(keep\\) and 0 \\(drop\\) alone; got -10000"):
        Explicit.from_keep_mask(torch.tensor([[0, -10000]]))
    with pytest.raises(ConfigError, match=r"must be whole numbers of shape .* got torch\.float32"):
        Explicit.from_keep_mask(keep.float())
    with pytest.raises(ConfigError, match="must be whole numbers of shape"):
        Explicit.from_keep_mask(keep[0])


@given(
    blocks=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    block_size=st.integers(1, 4),
    query_len=st.integers(0, 9),
    key_len=st.integers(0, 9),
    seed=st.integers(0, 9),
)
@settings(deadline=None, max_examples=80)
def test_a_table_of_blocks_says_the_same_of_every_pair_of_a_block(blocks, block_size, query_len, key_len, seed):
    allowed = torch.rand(2, *blocks, generator=torch.Generator().manual_seed(seed)) < 0.5
    mask = BlockSparse(allowed, block_size)
    for head in range(2):
        by_hand = [
            [
                0 <= query < blocks[0] * block_size
                and key < blocks[1] * block_size
                and bool(allowed[head, query // block_size, key // block_size])
                for key in range(key_len)
            ]
            for query in range(key_len - query_len, key_len)
        ]
        assert table(mask, query_len, key_len, head=head) == by_hand
    assert count_allowed(mask, 3, 2, query_len, key_len) == 3 * sum(
        sum(map(sum, table(mask, query_len, key_len, head=head))) for head in range(2)
    )


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: Documents(torch.tensor([1.0])), "lengths must be whole numbers of shape"),
        (lambda: Documents(torch.tensor(3)), "lengths must be whole numbers of shape"),
        (lambda: Documents(torch.tensor([2, -1])), "lengths must not be negative"),
        (lambda: BlockSparse(torch.ones(2, 2), 2), "table must be a bool tensor"),
        (lambda: BlockSparse(torch.ones(2).bool(), 2), "table must be a bool tensor"),
        (lambda: BlockSparse(torch.ones(2, 2).bool(), 0), "block_size must be a whole number, at least 1; got 0"),
        (lambda: Explicit(torch.ones(1, 1, 1, 1, 1).bool()), "table must be a bool tensor"),
    ],
)
def test_what_is_no_table_is_refused_with_what_it_must_be(make, text):
    with pytest.raises(ConfigError, match=text):
        make()


def test_data_masks_say_what_they_hold_and_stay_out_of_configs():
    masks = (
        Documents(torch.tensor([[1], [2]])),
        Explicit(torch.ones(2, 3).bool()),
        BlockSparse(torch.ones(1, 2).bool(), 4),
    )
    assert [repr(mask) for mask in masks] == [
        "Documents(<2 x 1 lengths>)",
        "Explicit(<1 x 1 x 2 x 3 bools>)",
        "BlockSparse(<1 x 1 x 1 x 2 bools>, block_size=4)",
    ]
    assert not any(mask.is_structural for mask in masks)
    assert all(mask.device == torch.device("cpu") for mask in masks)
