import pickle

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwise.errors import ConfigError
from headwise.masks.dense import dense_mask
from headwise.masks.patterns import Causal, Full, SlidingWindow
from headwise.masks.sparse import Dilated, GlobalTokens, LocalWindow, PrefixLM, Strided

sizes = st.integers(0, 9)
masks = st.one_of(
    st.builds(LocalWindow, sizes, sizes),
    st.builds(Dilated, st.integers(1, 9), st.integers(1, 5)),
    st.builds(Strided, st.integers(1, 9)),
    st.builds(GlobalTokens, sizes),
    st.builds(PrefixLM, sizes),
    st.builds(lambda left, right, tokens: LocalWindow(left, right) | GlobalTokens(tokens), sizes, sizes, sizes),
    st.builds(
        lambda window, some, more: GlobalTokens(some) | SlidingWindow(window + 1) | GlobalTokens(more), *3 * [sizes]
    ),
    st.builds(lambda tokens, window: (Causal() & LocalWindow(window, 3)) | GlobalTokens(tokens), sizes, sizes),
)


def table(mask, query_len, key_len):
    """One bool a pair, from plain ints, the queries standing at the end of the keys."""
    return [[bool(mask.allows(0, 0, key_len - query_len + i, j)) for j in range(key_len)] for i in range(query_len)]


@pytest.mark.parametrize(
    ("mask", "query_len", "key_len", "rows"),
    [
        (LocalWindow(1, 1), 4, 4, ["1100", "1110", "0111", "0011"]),
        (LocalWindow(0, 2), 4, 4, ["1110", "0111", "0011", "0001"]),
        (LocalWindow(2, 0), 2, 4, ["1110", "0111"]),
        (Dilated(2, 2), 5, 5, ["10000", "01000", "10100", "01010", "00101"]),
        (Dilated(3, 1), 3, 4, ["1100", "1110", "0111"]),
        (Strided(2), 5, 5, ["10000", "11000", "11100", "01110", "10111"]),
        (Strided(3), 2, 6, ["011110", "001111"]),
        (GlobalTokens(1), 3, 4, ["1000", "1000", "1000"]),
        (GlobalTokens(2), 4, 4, ["1111", "1111", "1100", "1100"]),
        (GlobalTokens(1) | LocalWindow(1, 0), 4, 4, ["1111", "1100", "1110", "1011"]),
        (PrefixLM(2), 4, 4, ["1100", "1100", "1110", "1111"]),
        (PrefixLM(2), 5, 3, ["110", "110", "110", "110", "111"]),
    ],
)
def test_each_mask_is_the_table_drawn_by_hand(mask, query_len, key_len, rows):
    assert table(mask, query_len, key_len) == [[sign == "1" for sign in row] for row in rows]


@given(mask=masks, query_len=st.integers(0, 11), key_len=st.integers(0, 11))
@settings(deadline=None, max_examples=300)
def test_the_closed_form_counts_the_pairs_that_allows_lists(mask, query_len, key_len):
    listed = sum(map(sum, table(mask, query_len, key_len)))
    assert mask.count_pairs(query_len, key_len) == listed
    assert mask.count_pairs(query_len, key_len, batch_size=3, num_heads=5) == 15 * listed


@given(mask=masks, query_len=st.integers(1, 7), key_len=st.integers(1, 7))
@settings(deadline=None, max_examples=60)
def test_ints_and_tensors_give_the_same_answers(mask, query_len, key_len):
    dense = dense_mask(mask, batch_size=1, num_heads=1, query_len=query_len, key_len=key_len)
    assert dense.expand(1, 1, query_len, key_len)[0, 0].tolist() == table(mask, query_len, key_len)


def test_counting_needs_no_table():
    """Hand-made sums: each pair once, in the order of the query."""
    million = 1_000_000
    longformer = LocalWindow(256, 256) | GlobalTokens(16)
    rest = million - 16
    assert longformer.count_pairs(million, million) == 2 * 16 * million - 16**2 + rest + 2 * (
        256 * rest - 256 * 257 // 2
    )
    root = 1000
    near = root * million - root * (root - 1) // 2
    far = sum(million - root * multiple for multiple in range(1, root))
    assert Strided(root).count_pairs(million, million) == near + far
    assert Dilated(4, root).count_pairs(million, million) == 4 * million - 6 * root
    assert PrefixLM(1000).count_pairs(million, million) == million * (million + 1) // 2 + 999 * 1000 // 2


@pytest.mark.parametrize(
    ("mask", "same"),
    [
        (LocalWindow(3, 0), SlidingWindow(4)),
        (Dilated(4, 1), SlidingWindow(4)),
        (Strided(1), Causal()),
        (PrefixLM(0), Causal()),
        (PrefixLM(13), Full()),
        (GlobalTokens(13), Full()),
        (LocalWindow(13, 13), Full()),
        (GlobalTokens(0) | Causal(), Causal()),
    ],
    ids=repr,
)
def test_masks_at_their_ends_are_others(mask, same):
    assert table(mask, 7, 11) == table(same, 7, 11)
    assert table(mask, 13, 13) == table(same, 13, 13)


@pytest.mark.parametrize("mask", [LocalWindow(2, 3), Dilated(2, 3), Strided(3), GlobalTokens(2), PrefixLM(2)], ids=repr)
def test_they_are_structural_and_print_and_pickle_as_what_makes_them(mask):
    assert mask.is_structural
    assert eval(repr(mask)) == mask == pickle.loads(pickle.dumps(mask))
    assert len({mask, pickle.loads(pickle.dumps(mask))}) == 1


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda: LocalWindow(-1, 0), "left"),
        (lambda: LocalWindow(0, -1), "right"),
        (lambda: Dilated(0, 1), "window_size"),
        (lambda: Dilated(1, 0), "dilation"),
        (lambda: Strided(0), "stride"),
        (lambda: GlobalTokens(-1), "num_tokens"),
        (lambda: PrefixLM(True), "prefix_len"),
    ],
)
def test_sizes_that_say_nothing_are_refused(make, name):
    with pytest.raises(ConfigError, match=rf"{name}.* must be a whole number, at least [01]; got "):
        make()
