from itertools import product
from unittest.mock import patch

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from headwise.masks import counting, tiles
from headwise.masks.counting import count_allowed
from headwise.masks.data import KeyPadding
from headwise.masks.patterns import Causal, Mask, SlidingWindow
from headwise.masks.sparse import Dilated, LocalWindow, Strided


class EachHeadAndRow(Mask):
    """Nothing is known of its blocks."""

    def allows(self, batch, head, query_index, key_index):
        return (key_index + head + batch + query_index) % 2 == 0


class Sizes(TorchDispatchMode):
    """Numbers of elements of all tensors that are made inside."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor):
            self.seen.append(result.numel())
        return result


def test_a_count_by_hand():
    """Five queries at the places 2 to 6 see 3, 4, 5, 6, 7 keys; of a text of 3, always 3."""
    assert count_allowed(Causal() & KeyPadding(torch.tensor([3, 7])), 2, 3, 5, 7) == 3 * (5 * 3 + 25)


def test_only_blocks_that_are_allowed_in_part_are_counted_pair_by_pair():
    """Of four blocks of 64 by 64 one is whole, one is empty, and two lie on the diagonal."""
    with patch.object(counting, "count_in_blocks", wraps=tiles.count_in_blocks) as looks:
        assert (Causal() & KeyPadding(torch.tensor([100]))).count_pairs(128, 128) == 100 * 101 // 2 + 28 * 100
    assert [len(call.args[2]) for call in looks.call_args_list] == [2]


@pytest.mark.parametrize("mask", [SlidingWindow(2), ~SlidingWindow(2) & Causal() | KeyPadding(torch.tensor([1]))])
def test_no_block_is_looked_at_for_queries_that_read_themselves_or_the_first_key(mask):
    with patch.object(counting, "find_states", side_effect=AssertionError):
        assert not mask.empty_rows(5, 7).any()


class Row(Mask):
    """A table of its own that has no place but those of the call."""

    def __init__(self, pairs):
        self.pairs = pairs

    def allows(self, batch, head, query_index, key_index):
        return self.pairs[query_index, key_index]


def test_a_mask_is_asked_for_no_pair_beyond_the_last_ones():
    pairs = torch.ones(7, 7, dtype=torch.bool).tril(1).triu(-3)
    layout = Row(pairs).block_layout(3, 7, 7)
    assert layout.any_allowed.int().tolist() == [[[[1, 1, 0], [1, 1, 1], [0, 1, 1]]]]
    assert layout.all_allowed.int().tolist() == [[[[0, 0, 0], [0, 0, 0], [0, 1, 1]]]]
    assert Row(pairs).count_pairs(7, 7) == int(pairs.sum())
    assert not Row(pairs).empty_rows(7, 7).any()


@pytest.mark.parametrize("look_pairs", [1, 20, 5 * 7, 1000])
def test_no_more_pairs_are_looked_at_together_than_the_limit_or_one_row_of_a_block(monkeypatch, look_pairs):
    monkeypatch.setattr(tiles, "LOOK_PAIRS", look_pairs)
    with Sizes() as sizes:
        counted = count_allowed(EachHeadAndRow(), 2, 3, 5, 7)
    places = 4 * 2 * 3  # one block for each batch row and head, four numbers each
    assert max(sizes.seen) <= max(look_pairs, 7, places)
    assert counted == sum(
        (j + h + b + 2 + i) % 2 == 0 for b, h, i, j in product(range(2), range(3), range(5), range(7))
    )


@pytest.mark.parametrize(("query_len", "key_len"), [(1, 1), (31, 37), (37, 31), (1, 41), (41, 1)])
def test_masks_of_distances_with_holes_count_each_distance_once(query_len, key_len):
    mask = ~(Strided(5) & ~Dilated(3, 4)) & LocalWindow(30, 2)
    with Sizes() as sizes:
        counted = mask.count_pairs(query_len, key_len)
    assert max(sizes.seen) <= query_len + key_len - 1
    assert counted == sum(
        mask.allows(0, 0, query, key) for query in range(key_len - query_len, key_len) for key in range(key_len)
    )
