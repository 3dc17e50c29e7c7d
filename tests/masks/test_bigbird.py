import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headwise.errors import ConfigError
from headwise.masks.bigbird import BigBird
from headwise.masks.dense import dense_mask

masks = st.builds(
    BigBird,
    num_blocks=st.integers(1, 7),
    block_size=st.integers(1, 3),
    num_random=st.integers(0, 3),
    window_blocks=st.sampled_from([1, 3, 5]),
    num_global=st.integers(0, 2),
    seed=st.integers(0, 2**31 - 1),
    causal=st.booleans(),
)


def blocks_seen(mask, head, query_block):
    """The key blocks that the last token of a block of queries sees the first token of."""
    query = query_block * mask.block_size + mask.block_size - 1
    return {key for key in range(mask.num_blocks) if mask.allows(0, head, query, key * mask.block_size)}


@given(mask=masks, query_len=st.integers(1, 9), key_len=st.integers(1, 15))
@settings(deadline=None, max_examples=100)
def test_ints_and_tensors_give_the_same_answers(mask, query_len, key_len):
    dense = dense_mask(mask, batch_size=2, num_heads=3, query_len=query_len, key_len=key_len)
    by_ints = [
        [[bool(mask.allows(0, head, key_len - query_len + i, j)) for j in range(key_len)] for i in range(query_len)]
        for head in range(3)
    ]
    assert dense.expand(2, 3, query_len, key_len)[1].tolist() == by_ints


@given(mask=masks)
@settings(deadline=None, max_examples=100)
def test_window_and_global_blocks_are_seen_and_few_others(mask):
    last = {mask.num_blocks - 1} if not mask.causal else set()
    first = set(range(min(mask.num_global, mask.num_blocks)))
    for query_block in range(mask.num_blocks):
        near = {block for block in range(mask.num_blocks) if abs(block - query_block) <= mask.window_blocks // 2}
        expected = set(range(mask.num_blocks)) if query_block in first | last else near | first | last
        seen = blocks_seen(mask, 2, query_block)
        if mask.causal:
            expected = {block for block in expected if block <= query_block}
            assert max(seen) <= query_block
        assert expected <= seen
        assert len(seen - expected) <= mask.num_random


def test_as_many_different_blocks_are_drawn_as_asked_for_and_all_are_drawn_at_times():
    """Of 61 blocks, three a head and block of queries: of 100 heads and 40 blocks each is drawn 12,000 / 61 = 197 times
    in the mean, with a deviation of 14.
    """
    mask = BigBird(num_blocks=61, block_size=1, num_random=3, window_blocks=1, num_global=0)
    seen = dense_mask(mask, batch_size=1, num_heads=100, query_len=61, key_len=61)[0, :, 10:50]
    seen[:, torch.arange(40), torch.arange(10, 50)] = False  # its own block, and the last one, are always seen
    seen[..., 60] = False
    assert seen.sum(-1).max() == 3
    drawn = seen.sum((0, 1))
    assert ((drawn[:60] - 197).abs() < 6 * 14).all()


def test_heads_seeds_and_blocks_draw_otherwise():
    mask = BigBird(num_blocks=97, block_size=1, causal=True)
    again = BigBird(num_blocks=97, block_size=1, causal=True)
    other = BigBird(num_blocks=97, block_size=1, causal=True, seed=1)
    assert [blocks_seen(mask, head, 90) for head in range(5)] == [blocks_seen(again, head, 90) for head in range(5)]
    assert len({frozenset(blocks_seen(mask, head, 90)) for head in range(5)}) == 5
    assert blocks_seen(mask, 0, 90) != blocks_seen(other, 0, 90)


@pytest.mark.parametrize("causal", [True, False])
def test_a_query_sees_the_same_in_a_part_of_the_stream(causal):
    """A chunk of the last queries, and (of the causal form) a shorter stream: what decoding and its full pass ask."""
    mask = BigBird(num_blocks=13, block_size=2, causal=causal)
    whole = dense_mask(mask, batch_size=1, num_heads=2, query_len=26, key_len=26)
    part = dense_mask(mask, batch_size=1, num_heads=2, query_len=5, key_len=26)
    assert torch.equal(part, whole[:, :, -5:])
    if causal:
        one = dense_mask(mask, batch_size=1, num_heads=2, query_len=1, key_len=17)
        assert torch.equal(one[..., 0, :], whole[:, :, 16, :17])
        assert not whole[..., 16, 17:].any()


def test_global_generators_have_no_part_in_it():
    state = torch.random.get_rng_state()
    dense_mask(BigBird(num_blocks=9, block_size=2), batch_size=1, num_heads=2, query_len=18, key_len=18)
    assert torch.equal(torch.random.get_rng_state(), state)


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"num_blocks": 0}, "num_blocks must be a whole number, at least 1; got 0"),
        ({"block_size": 0}, "block_size must be a whole number, at least 1; got 0"),
        ({"window_blocks": 2}, "window_blocks must be odd"),
        ({"num_random": -1}, "num_random must be a whole number, at least 0; got -1"),
        ({"seed": 2**31}, "seed must be at most 2147483647; got 2147483648"),
    ],
)
def test_sizes_that_say_nothing_are_refused(changed, text):
    with pytest.raises(ConfigError, match=text):
        BigBird(**{"num_blocks": 5, "block_size": 2, **changed})
