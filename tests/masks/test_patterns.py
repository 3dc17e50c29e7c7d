import pickle

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headwise.config.attention import AttentionConfig
from headwise.errors import ConfigError
from headwise.masks.combined import And, Not, Or
from headwise.masks.data import KeyPadding
from headwise.masks.dense import dense_mask
from headwise.masks.patterns import Causal, Full, Mask, SlidingWindow

leaves = st.one_of(st.just(Full()), st.just(Causal()), st.builds(SlidingWindow, st.integers(1, 9)))
masks = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.builds(lambda a, b: a & b, inner, inner),
        st.builds(lambda a, b: a | b, inner, inner),
        st.builds(lambda a: ~a, inner),
    ),
    max_leaves=4,
)


def table(mask, query_len, key_len, batch=0, head=0):
    """One bool a pair, from plain ints, the queries standing at the end of the keys."""
    return [
        [bool(mask.allows(batch, head, key_len - query_len + i, j)) for j in range(key_len)] for i in range(query_len)
    ]


@pytest.mark.parametrize(
    ("mask", "query_len", "key_len", "rows"),
    [
        (Causal(), 3, 3, ["100", "110", "111"]),
        (Causal(), 2, 5, ["11110", "11111"]),
        (Causal(), 5, 2, ["00", "00", "00", "10", "11"]),
        (SlidingWindow(1), 3, 3, ["100", "010", "001"]),
        (SlidingWindow(2), 4, 4, ["1000", "1100", "0110", "0011"]),
        (SlidingWindow(2), 1, 4, ["0011"]),
        (Full(), 2, 3, ["111", "111"]),
        (~Causal(), 3, 3, ["011", "001", "000"]),
        (Causal() & ~SlidingWindow(2), 4, 4, ["0000", "0000", "1000", "1100"]),
        (SlidingWindow(1) | ~Causal(), 3, 3, ["111", "011", "001"]),
    ],
)
def test_each_mask_is_the_table_drawn_by_hand(mask, query_len, key_len, rows):
    assert table(mask, query_len, key_len) == [[sign == "1" for sign in row] for row in rows]


@given(mask=masks, query_len=st.integers(0, 8), key_len=st.integers(0, 9))
@settings(deadline=None, max_examples=150)
def test_the_closed_form_counts_the_pairs_that_allows_lists(mask, query_len, key_len):
    listed = sum(map(sum, table(mask, query_len, key_len)))
    assert mask.count_pairs(query_len, key_len) == listed
    assert mask.count_pairs(query_len, key_len, batch_size=3, num_heads=5) == 15 * listed


@given(mask=masks, query_len=st.integers(1, 8), key_len=st.integers(1, 9))
@settings(deadline=None, max_examples=150)
def test_the_longest_gap_tells_whether_a_key_or_a_query_is_idle(mask, query_len, key_len):
    rows = table(mask, query_len, key_len)
    gap = mask.distances().longest_gap(query_len, key_len)
    assert (gap < query_len) == all(any(row[j] for row in rows) for j in range(key_len))
    assert (gap < key_len) == all(any(row) for row in rows)


@given(mask=masks, query_len=st.integers(1, 7), key_len=st.integers(1, 7))
@settings(deadline=None, max_examples=60)
def test_ints_and_tensors_give_the_same_answers(mask, query_len, key_len):
    dense = dense_mask(mask, batch_size=1, num_heads=1, query_len=query_len, key_len=key_len)
    assert dense.expand(1, 1, query_len, key_len)[0, 0].tolist() == table(mask, query_len, key_len)


def test_pairs_agree_with_the_published_formulas():
    def causal(query_len, key_len):
        return query_len * key_len - query_len * (query_len - 1) // 2

    for query_len, key_len in ((1, 1), (3, 7), (127, 131), (4096, 8192)):
        assert Causal().count_pairs(query_len, key_len) == causal(query_len, key_len)
    for window_size in (1, 2, 63, 127, 200):
        ramp = sum(min(i + 1, window_size) for i in range(127))
        assert SlidingWindow(window_size).count_pairs(127, 127) == ramp
    assert Full().count_pairs(5, 7, batch_size=2, num_heads=3) == 210


def test_counting_needs_no_table():
    million = 1_000_000
    mask = (Causal() & ~SlidingWindow(3)) | SlidingWindow(1)
    assert mask.count_pairs(million, million) == million * (million + 1) // 2 - (million - 1) - (million - 2)


def test_a_window_as_long_as_the_keys_is_causal():
    for length in (1, 2, 63, 127):
        assert SlidingWindow(length).count_pairs(length, length) == Causal().count_pairs(length, length)


def test_structural_masks_compare_hash_and_pickle_by_what_they_hold():
    assert Causal() & SlidingWindow(3) == Causal() & SlidingWindow(3)
    assert Causal() & SlidingWindow(3) != Causal() & SlidingWindow(4)
    assert len({SlidingWindow(3), SlidingWindow(3), Causal(), Full()}) == 3
    mask = ~(Causal() | SlidingWindow(3))
    assert pickle.loads(pickle.dumps(mask)) == mask
    assert mask.is_structural


def test_masks_compare_by_how_they_are_written():
    assert Causal() & SlidingWindow(3) != SlidingWindow(3) & Causal()
    assert Causal() & SlidingWindow(3) != Causal() | SlidingWindow(3)


def test_a_mask_is_structural_only_if_it_says_so():
    class Stripes(Mask):
        def __init__(self, stripes):
            self.stripes = stripes

    mine = Stripes(torch.tensor([True, False]))
    for mask in (mine, ~mine, mine & Causal(), Causal() | mine):
        assert not mask.is_structural
        with pytest.raises(ConfigError, match="mask of a layer must be a structural mask"):
            AttentionConfig(embed_dim=8, num_heads=2, mask=mask)
    for mask in (Full(), Causal(), SlidingWindow(2), ~Causal(), Causal() & SlidingWindow(2), Causal() | Full()):
        assert mask.is_structural


def test_full_and_a_double_negation_vanish():
    assert Full() & Causal() == Causal() & Full() == Causal()
    assert ~~Causal() == Causal()


def test_a_mask_prints_as_the_expression_that_makes_it():
    mask = ~(Causal() & SlidingWindow(3)) | Full()
    assert repr(mask) == "(~(Causal() & SlidingWindow(window_size=3)) | Full())"
    namespace = {kind.__name__: kind for kind in (Causal, SlidingWindow, Full, And, Or, Not)}
    assert eval(repr(mask), namespace) == mask


@pytest.mark.parametrize("window_size", [0, -1, True])
def test_a_window_that_does_not_see_itself_is_refused(window_size):
    with pytest.raises(ConfigError, match=r"window_size counts the query itself, so it must be .* at least 1; got"):
        SlidingWindow(window_size)


def test_negative_lengths_are_refused_by_name():
    with pytest.raises(ConfigError, match="query_len must be a whole number, at least 0; got -1"):
        Causal().count_pairs(-1, 3)


def test_a_mask_has_no_truth_value_so_that_and_cannot_drop_one():
    with pytest.raises(ConfigError, match="combine masks with"):
        Causal() and SlidingWindow(3)


def test_a_mask_knows_no_pairs_by_itself():
    with pytest.raises(NotImplementedError):
        Mask().allows(0, 0, 0, 0)


def test_combined_data_masks_must_describe_one_batch():
    with pytest.raises(ConfigError, match="must describe the same batch"):
        (KeyPadding(torch.tensor([1, 2])) & KeyPadding(torch.tensor([1, 2, 3]))).count_pairs(3, 3, batch_size=2)
