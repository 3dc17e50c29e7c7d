"""What a ring remembers of tokens taken back, which blocks are copied, and what a compiled step makes of them."""

import subprocess
import sys

import pytest
import torch

from headwise.caches.paged import PagedCache
from headwise.caches.rolling import RollingCache
from headwise.errors import ConfigError

HEADS, DIM = 2, 4
TOKEN_BYTES = 2 * HEADS * DIM * 4


def heads(num_tokens, batch=2, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(batch, HEADS, num_tokens, DIM, generator=generator) for _ in range(2)]


def shown(view, row=0):
    """Return the index of each token that a view shows of a row, in order."""
    if view.key_index is None:
        return list(range(view.first_index, view.first_index + view.keys.shape[2]))
    return sorted(at for at in view.key_index.expand(len(view.keys), -1)[row].tolist() if at >= 0)


@pytest.mark.parametrize("how", ["crop", "reset", "one row"])
def test_a_full_ring_that_was_emptied_is_as_new(how):
    cache = RollingCache(3, spare=1)
    cache.update(*heads(9))
    if how == "reset":
        cache.reset()
    else:
        cache.crop(0 if how == "crop" else [0, 8])
    for at in range(6):
        view = cache.update(*heads(1, seed=at))
        assert shown(view) == list(range(max(0, at - 3), at + 1))
    cache.crop([4, 99])  # of 6 tokens: as far as a ring that has had 6 can


@pytest.mark.parametrize(("window_size", "spare"), [(1, 0), (4, 0), (4, 3)])
def test_one_token_more_than_the_spare_ones_can_be_taken_back(window_size, spare):
    cache = RollingCache(window_size, spare=spare)
    cache.update(*heads(20))
    with pytest.raises(ConfigError, match=f"lengths must be at least {19 - spare}, or 0"):
        cache.crop(18 - spare)
    cache.crop(19 - spare)
    assert shown(cache.update(*heads(1)))[-window_size:] == list(range(20 - spare - window_size, 20 - spare))


def test_before_a_ring_is_full_any_tokens_can_be_taken_back():
    for length in range(5):
        cache = RollingCache(3, spare=2)
        cache.update(*heads(5))
        cache.crop(length)
        assert shown(cache.view()) == list(range(length))


def test_tokens_that_were_written_over_are_not_counted():
    cache = RollingCache(4, spare=4)
    cache.update(*heads(20))
    assert cache.num_bytes == 2 * 8 * TOKEN_BYTES
    cache.crop(16)
    assert shown(cache.view()) == [12, 13, 14, 15] and cache.num_bytes == 2 * 4 * TOKEN_BYTES
    cache.crop([15, 16])
    assert cache.num_bytes == (3 + 4) * TOKEN_BYTES
    cache.reset()
    assert cache.num_bytes == 0


def test_rows_of_one_length_whose_rings_were_written_otherwise_are_told_apart():
    cache = RollingCache(3, spare=2)
    cache.update(*heads(9), real_tokens=torch.tensor([[True] * 9, [True] * 8 + [False]]))
    cache.crop(7)
    view = cache.view()
    assert view.key_index.shape == (2, 5)
    assert [shown(view, row) for row in (0, 1)] == [[4, 5, 6], [3, 4, 5, 6]]
    assert view.reach is None


def test_a_reach_is_promised_of_a_full_ring_alone():
    cache = RollingCache(3, spare=2)
    assert cache.update(*heads(5)).reach is None
    assert [cache.update(*heads(1)).reach for _ in range(2)] == [5, 5]
    cache.crop(6)
    assert cache.view().reach is None and shown(cache.view()) == [2, 3, 4, 5]
    assert cache.update(*heads(1)).reach == 5


@pytest.mark.parametrize("num_blocks", [None, 4])
def test_the_last_row_that_shares_a_block_keeps_it(num_blocks):
    cache = PagedCache(4, num_blocks=num_blocks)
    keys, values = heads(6, batch=1)
    cache.update(keys, values)
    cache.reorder([0, 0, 0])
    more = heads(1, batch=3, seed=1)
    view = cache.update(*more)  # two copies: with the first block and the shared one these are all 4
    assert cache.num_used_blocks == 4
    assert torch.equal(view.keys, torch.cat([keys.expand(3, -1, -1, -1), more[0]], dim=2))


def test_rows_that_take_nothing_in_share_on():
    cache = PagedCache(4, num_blocks=2)
    cache.update(*heads(6, batch=1))
    cache.reorder([0, 0])
    none = [one[:, :, :0] for one in heads(1)]
    assert cache.update(*none).keys.shape == (2, HEADS, 6, DIM) and cache.num_used_blocks == 2
    cache.update(*heads(1), real_tokens=torch.zeros(2, 1, dtype=torch.bool))
    assert cache.num_used_blocks == 2 and cache.lengths == (6, 6)


def test_a_shared_block_is_right_for_rows_that_have_other_numbers_of_its_tokens():
    cache = PagedCache(4)
    keys, values = heads(7, batch=1)
    cache.update(keys, values)
    cache.reorder([0, 0, 0])
    cache.crop([7, 5, 6])
    more = heads(2, batch=3, seed=1)
    view = cache.update(*more)
    for row, length in enumerate((7, 5, 6)):
        expected = torch.cat([keys[0, :, :length], more[0][row]], dim=1)
        assert torch.equal(view.keys[row, :, : length + 2], expected)


STEPS = """
import torch
from torch._dynamo.testing import CompileCounterWithBackend
import headwise

torch.set_num_threads(1)
layer = headwise.MultiHeadAttention(12, 6, num_kv_heads=2, mask=headwise.Causal(), position=headwise.Rotary()).eval()
text = torch.randn(2, 14, 12)
counter = CompileCounterWithBackend("eager")
compiled, counts = torch.compile(layer, backend=counter), []
cache, plain = headwise.PagedCache(1), headwise.PagedCache(1)
with torch.no_grad():
    for at in range(14):
        step = text[:, at : at + 1]
        # float32, whose sums are taken in another order
        torch.testing.assert_close(compiled(step, cache=cache), layer(step, cache=plain), rtol=1e-4, atol=1e-5)
        counts.append(counter.frame_count)
    assert counts[-1] == counts[2], counts
    torch._dynamo.reset()
    try:
        torch.compile(layer, backend="eager", fullgraph=True)(step, cache=cache)
    except torch._dynamo.exc.Unsupported as error:
        assert "a PagedCache cannot be part of a graph; compile without fullgraph=True" in str(error)
    else:
        raise AssertionError("a graph of Python's lists")
assert cache.lengths == (14, 14)
"""


def test_a_compiled_step_goes_around_blocks_and_is_not_compiled_again_for_each():
    """In an interpreter of its own: the type checks that the other tests run with cannot be compiled."""
    result = subprocess.run([sys.executable, "-W", "error", "-c", STEPS], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
