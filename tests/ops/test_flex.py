import subprocess
import sys

import pytest
import torch

from headwise.errors import UnsupportedError
from headwise.masks.data import KeyPadding
from headwise.masks.patterns import Causal, SlidingWindow
from headwise.masks.sparse import GlobalTokens
from headwise.ops import flex
from headwise.ops.attention import attention, choose_impl
from headwise.ops.call import Call

MASKS = {
    "causal": lambda key_len: Causal(),
    "window": lambda key_len: SlidingWindow(150),
    "not causal": lambda key_len: ~Causal(),
    "global": lambda key_len: SlidingWindow(3) | GlobalTokens(2),
    "padding": lambda key_len: Causal() & KeyPadding(torch.tensor([key_len, 140])),
}


def call_of(query_len, key_len, mask):
    return Call(torch.zeros(2, 2, query_len, 1), torch.zeros(2, 1, key_len, 1), torch.zeros(2, 1, key_len, 1), mask)


@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize(("query_len", "key_len"), [(127, 127), (129, 300), (256, 256), (300, 129), (1, 257)])
def test_blocks_are_skipped_where_nothing_is_allowed_and_taken_whole_where_all_is(name, query_len, key_len):
    mask = MASKS[name](key_len)
    block_mask = flex._lower(call_of(query_len, key_len, mask))
    query, key = torch.arange(key_len - query_len, key_len).view(-1, 1), torch.arange(key_len).view(1, -1)
    for b in range(block_mask.kv_num_blocks.shape[0]):
        pairs = torch.ones(query_len, key_len, dtype=torch.bool) & mask.allows(torch.tensor(b), 0, query, key)
        for row in range(-(-query_len // 128)):
            partial, whole = (
                indices[b, 0, row, : counts[b, 0, row]].tolist()
                for counts, indices in (
                    (block_mask.kv_num_blocks, block_mask.kv_indices),
                    (block_mask.full_kv_num_blocks, block_mask.full_kv_indices),
                )
            )
            for column in range(-(-key_len // 128)):
                block = pairs[128 * row : 128 * (row + 1), 128 * column : 128 * (column + 1)]
                is_whole = bool(block.all()) and block.shape == (128, 128)
                assert (column in whole) == is_whole
                assert (column in partial) == (bool(block.any()) and not is_whole)


def test_a_structural_mask_is_lowered_once_for_its_lengths_and_few_are_kept():
    flex._lower_kept.cache_clear()
    for length in (5, 5, 7, 5):
        for mask in (Causal(), SlidingWindow(3), SlidingWindow(3)):
            flex._lower(call_of(length, length, mask))
    assert (flex._lower_kept.cache_info().misses, flex._lower_kept.cache_info().hits) == (4, 8)
    for window_size in range(1, 40):
        flex._lower(call_of(3, 3, SlidingWindow(window_size)))
    assert flex._lower_kept.cache_info().currsize == flex.NUM_KEPT_MASKS
    before = flex._lower_kept.cache_info().misses
    flex._lower(call_of(5, 5, KeyPadding(torch.tensor([1, 2]))))  # its tensor may change: never kept
    assert flex._lower_kept.cache_info().misses == before


@pytest.mark.parametrize(
    ("keywords", "fact"),
    [
        ({"return_weights": True}, 'FlexAttention does not return weights; use impl="reference"'),
        ({"dropout_p": 0.1}, r'FlexAttention has no dropout \(dropout_p = 0.1\); use impl="reference" or impl="sdpa"'),
        ({"dropout_p": 0.1, "dropout_seed": 1}, 'FlexAttention has no dropout.*use impl="reference"'),
    ],
)
def test_what_it_cannot_do_is_refused_and_who_can_is_named(keywords, fact):
    query = torch.zeros(1, 2, 3, 5)
    for function in (attention, choose_impl):
        with pytest.raises(UnsupportedError, match=fact):
            function(query, query, query, impl="flex", **keywords)


def test_training_on_cpu_is_refused_but_tensors_that_could_learn_may_come_where_nothing_does():
    query = torch.randn(1, 2, 3, 5, requires_grad=True)
    with pytest.raises(UnsupportedError, match=r"no gradients on CPU \(run it under torch.no_grad.*reference.*sdpa"):
        attention(query, query, query, impl="flex")
    sink = torch.zeros(2, requires_grad=True)
    with pytest.raises(UnsupportedError, match="no gradients on CPU"):
        attention(query.detach(), query.detach(), query.detach(), sink=sink, impl="flex")
    with torch.no_grad():
        found = attention(query, query, query, sink=sink, impl="flex").output
        expected = attention(query, query, query, sink=sink, impl="reference").output
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)


def test_the_switch_for_uncompiled_calls_is_put_back():
    query = torch.randn(1, 2, 3, 5)
    before = flex.torch_flex._FLEX_ATTENTION_DISABLE_COMPILE_DEBUG
    attention(query, query, query, impl="flex")
    assert flex.torch_flex._FLEX_ATTENTION_DISABLE_COMPILE_DEBUG is before is False


def test_small_calls_and_those_that_no_kernel_serves_are_not_compiled_on_cpu():
    small, large = torch.zeros(1, 1, 1023, 1), torch.zeros(1, 1, 1024, 1)
    assert not flex._pays_to_compile(Call(small, large, large))
    assert flex._pays_to_compile(Call(large, large, large))
    assert not flex._pays_to_compile(Call(*[large.double()] * 3))
    assert not flex._pays_to_compile(Call(large, large, large, sink=torch.zeros(1)))
    assert not flex._pays_to_compile(Call(large, large, large, return_logsumexp=True))


RECOMPILES = """
import torch
from torch._dynamo.utils import counters
from headwise.masks.data import KeyPadding
from headwise.masks.patterns import Causal, SlidingWindow
from headwise.ops import flex
from headwise.ops.attention import attention
from headwise.positions.bias import ALiBiBias

torch.set_num_threads(1)
# the graphs that are handed to the compiler are counted, and run as they are
compiled = torch.compile(flex.torch_flex.flex_attention, backend="eager")
flex._compiled = lambda: compiled
flex._pays_to_compile = lambda call: True
alibi = ALiBiBias(2)
for make, keywords in (
    (lambda key_len: SlidingWindow(5), {}),
    (lambda key_len: Causal() & KeyPadding(torch.tensor([key_len, key_len // 2])), {"bias": alibi, "softcap": 3.0}),
):
    torch._dynamo.reset()
    counters.clear()
    graphs = []
    for length in (130, 140, 257, 17, 300, 400, 90, 150):
        query, key = torch.randn(2, 2, length, 4), torch.randn(2, 1, length + 3, 4)
        found = attention(query, key, key, mask=make(length + 3), impl="flex", **keywords).output
        expected = attention(query, key, key, mask=make(length + 3), impl="reference", **keywords).output
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)
        graphs.append(counters["stats"]["unique_graphs"])
    # the first length alone, all others of two blocks, of more, of one
    assert graphs == [1, 2, 3, 4, 4, 4, 4, 4], (make, keywords, graphs)
"""


def test_other_lengths_and_other_tensors_are_not_compiled_again():
    """In an interpreter of its own: the type checks that the other tests run with cannot be compiled."""
    finished = subprocess.run([sys.executable, "-c", RECOMPILES], capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stderr[-3000:]
