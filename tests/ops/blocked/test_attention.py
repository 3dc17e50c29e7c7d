"""Attention by blocks where its parts, tiles and sums meet an edge: against the reference, gradients included."""

import threading

import pytest
import torch

from headwise.errors import HeadwiseError
from headwise.masks import rows, visits
from headwise.masks.bigbird import BigBird
from headwise.masks.data import KeyPadding
from headwise.masks.patterns import Causal, SlidingWindow
from headwise.masks.sparse import LocalWindow
from headwise.masks.tables import BlockSparse, Explicit
from headwise.ops.attention import attention
from headwise.ops.blocked import idle


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    """Blocks of four tokens, put together only where they read the same."""
    monkeypatch.setattr(rows, "BLOCK", 4)
    monkeypatch.setattr(rows, "OVERHEAD_PAIRS", 0)
    visits._plan_parts_once.cache_clear()
    idle._KNOWN.clear()
    yield
    visits._plan_parts_once.cache_clear()
    idle._KNOWN.clear()


def inputs(query_len=41, key_len=41, *, batch=2, num_heads=4, num_kv_heads=2, head_dim=5, dtype=torch.float64, seed=0):
    generator = torch.Generator().manual_seed(seed)
    shapes = ((batch, num_heads, query_len, head_dim), *2 * [(batch, num_kv_heads, key_len, head_dim)])
    return [torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype).requires_grad_() for shape in shapes]


def results_of(impl, tensors, learned=(), **keywords):
    """The output, the logsumexp if it is asked for, and all gradients, of sums with random factors."""
    found = attention(*tensors, impl=impl, **keywords)
    generator = torch.Generator().manual_seed(1)
    given = [one for one in (found.output, found.logsumexp) if one is not None]
    factors = [torch.randn(one.shape, generator=generator, dtype=torch.float64) for one in given]
    loss = sum((factor * one.masked_fill(one.isneginf(), 0)).sum() for factor, one in zip(factors, given, strict=True))
    return [*given, *torch.autograd.grad(loss, [*tensors, *learned])]


def assert_like_the_reference(tensors, learned=(), atol=1e-12, **keywords):
    """Some dozens of terms of size 1 in float64: 1e-12 is thousands of their roundings."""
    pairs = zip(*(results_of(impl, tensors, learned, **keywords) for impl in ("blocked", "reference")), strict=True)
    for found, expected in pairs:
        torch.testing.assert_close(found, expected, rtol=0, atol=atol)


def per_head_table():
    table = torch.eye(11, dtype=torch.bool).expand(1, 4, 11, 11).clone()
    table[:, 1:, :, 0] = True
    return table


@pytest.mark.parametrize(
    "mask",
    [
        BigBird(num_blocks=11, block_size=4, num_random=2, window_blocks=1),
        BlockSparse(per_head_table(), 4),
        Explicit(torch.rand(1, 4, 41, 41, generator=torch.Generator().manual_seed(5)) < 0.3),
    ],
    ids=["bigbird", "block table", "table"],
)
@pytest.mark.parametrize("num_kv_heads", [2, 4])
@pytest.mark.parametrize("keywords", [{}, {"softcap": 2.0}, {"dropout_p": 0.3, "dropout_seed": 4}], ids=str)
def test_bundles_of_heads_that_differ_share_keys_and_add_up(mask, num_kv_heads, keywords):
    assert_like_the_reference(inputs(num_kv_heads=num_kv_heads), mask=mask, **keywords)


@pytest.mark.parametrize("mask", [LocalWindow(4, 4), LocalWindow(3, 9), SlidingWindow(5)])
@pytest.mark.parametrize(("query_len", "key_len"), [(40, 40), (29, 43)])
def test_parts_of_one_size_at_another_distance_have_tiles_of_their_own(mask, query_len, key_len):
    assert_like_the_reference(inputs(query_len, key_len), mask=mask)


def test_a_bias_learns_what_scores_do_after_their_cap():
    bias = torch.randn(4, 41, 1, dtype=torch.float64, requires_grad=True)
    assert_like_the_reference(inputs(), [bias], mask=Causal(), bias=bias, softcap=0.7)


@pytest.mark.parametrize("size", [0.5, 200.0, -200.0])
def test_a_sink_and_the_logsumexp_without_it_learn_together(size):
    sink = torch.tensor([size, 1.0, -size, 0.0], dtype=torch.float64, requires_grad=True)
    assert_like_the_reference(inputs(), [sink], mask=Causal(), sink=sink, return_logsumexp=True)


@pytest.mark.parametrize("bias", [None, -torch.inf])
def test_a_row_without_a_key_in_a_part_has_no_logsumexp(bias):
    query, key, value = (one.detach() for one in inputs(40, 20))
    keywords = {"mask": Causal(), "return_logsumexp": True}
    if bias is not None:
        keywords["bias"] = torch.zeros(40, 1, dtype=torch.float64).index_fill(0, torch.tensor([33]), bias)
    found, expected = (attention(query, key, value, impl=impl, **keywords) for impl in ("blocked", "reference"))
    torch.testing.assert_close(found.logsumexp, expected.logsumexp, rtol=0, atol=1e-12)
    torch.testing.assert_close(found.output, expected.output, rtol=0, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("softcap", [None, 3.0])
def test_half_precision_has_gradients_in_bundles_too(dtype, softcap):
    tensors = inputs(9, 9, num_kv_heads=4, dtype=dtype)
    output = attention(*tensors, mask=BlockSparse(per_head_table()[..., :3, :3], 4), softcap=softcap, impl="blocked")
    output.output.float().sum().backward()
    assert all(tensor.grad.dtype == dtype and tensor.grad.isfinite().all() for tensor in tensors)


def test_an_empty_slot_among_as_many_keys_as_queries_can_hold_anything():
    query, key, value = (one.detach() for one in inputs(9, 9))
    key_index = torch.tensor([0, 1, -1, 3, 4, -1, 6, 7, 8])
    keywords = {"mask": Causal(), "query_index": torch.arange(9), "key_index": key_index}
    clean = results_of("blocked", [one.clone().requires_grad_() for one in (query, key, value)], **keywords)
    key[:, :, key_index < 0] = value[:, :, key_index < 0] = torch.nan
    poisoned = results_of("blocked", [one.clone().requires_grad_() for one in (query, key, value)], **keywords)
    assert all(torch.equal(before, after) for before, after in zip(clean, poisoned, strict=True))


def test_what_inference_has_planned_serves_a_training():
    tensors = inputs(9, 40)
    with torch.inference_mode():
        attention(*tensors, mask=SlidingWindow(3), impl="blocked")
    assert_like_the_reference(tensors, mask=SlidingWindow(3))


def test_a_mask_that_was_changed_before_the_backward_pass_is_refused():
    lengths = torch.tensor([33, 7])
    tensors = inputs()
    output = attention(*tensors, mask=Causal() & KeyPadding(lengths), impl="blocked").output
    lengths.fill_(20)
    with pytest.raises(HeadwiseError, match="changed in place"):
        output.sum().backward()


class Shrinking:
    """A bias that looks at nothing."""

    tensors = ()

    def __call__(self, batch, head, query_position, key_position):
        return torch.tensor(0.25)


class Frozen:
    """A bias whose tensor asks for a gradient that it does not give."""

    def __init__(self):
        self.tensors = (torch.ones(1, requires_grad=True),)

    def __call__(self, batch, head, query_position, key_position, slope):
        return slope.detach() * (query_position - key_position)


@pytest.mark.parametrize("bias", [Shrinking(), Frozen()])
def test_functions_may_look_at_little_and_learn_nothing(bias):
    assert_like_the_reference(inputs(), mask=Causal(), bias=bias)


@pytest.mark.parametrize("mask", [Causal(), SlidingWindow(100)])
def test_a_negative_scale_is_no_infinity_behind_the_diagonal(mask):
    query, key, value = (one.detach() for one in inputs())
    for impl in ("sdpa", "blocked"):
        found = attention(query, key, value, mask=mask, scale=-0.3, impl=impl).output
        expected = attention(query, key, value, mask=mask, scale=-0.3, impl="reference").output
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


def test_threads_may_call_at_once():
    tensors = [one.detach() for one in inputs(9, 40)]
    expected = attention(*tensors, mask=SlidingWindow(3), impl="reference").output
    found = []

    def work():
        for size in range(3, 40):
            attention(*tensors, mask=SlidingWindow(size), impl="blocked")
        found.append(attention(*tensors, mask=SlidingWindow(3), impl="blocked").output)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 3
    for one in found:
        torch.testing.assert_close(one, expected, rtol=0, atol=1e-12)
