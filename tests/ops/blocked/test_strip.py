"""Visits of a window, taken as overlapping views: the same as the reference, gradients included."""

import pytest
import torch

from headwise.masks import rows, visits
from headwise.masks.patterns import Causal, SlidingWindow
from headwise.masks.sparse import Dilated, LocalWindow
from headwise.ops.attention import attention
from headwise.ops.blocked import idle, strip
from headwise.ops.blocked.fused import can_fuse
from headwise.ops.blocked.strip import Strip
from headwise.ops.blocked.work import Work
from headwise.ops.call import Call


@pytest.fixture(autouse=True)
def small_strips(monkeypatch):
    """Blocks of four tokens, and strips of a few visits."""
    monkeypatch.setattr(rows, "BLOCK", 4)
    monkeypatch.setattr(rows, "OVERHEAD_PAIRS", 0)
    monkeypatch.setattr(visits, "MAX_STRIP_NUMBERS", 5 * 24 * 4)
    visits._plan_parts_once.cache_clear()
    idle._KNOWN.clear()
    yield
    visits._plan_parts_once.cache_clear()
    idle._KNOWN.clear()


def make_call(mask, *, batch=2, num_heads=6, num_kv_heads=2, query_len=61, key_len=61, lay=None):
    generator = torch.Generator().manual_seed(0)
    shapes = ((batch, num_heads, query_len, 5), *2 * [(batch, num_kv_heads, key_len, 5)])
    tensors = [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]
    if lay == "tokens":
        tensors = [tensor.transpose(1, 2).contiguous().transpose(1, 2) for tensor in tensors]
    return Call(*(tensor.requires_grad_() for tensor in tensors), mask=mask)


@pytest.mark.parametrize("mask", [SlidingWindow(7), LocalWindow(5, 9), Dilated(3, 2), SlidingWindow(8) | Causal()])
@pytest.mark.parametrize("num_kv_heads", [1, 2, 6])
@pytest.mark.parametrize(("batch", "query_len", "key_len", "lay"), [(2, 125, 125, None), (1, 101, 131, "tokens")])
def test_strips_equal_the_reference(mask, num_kv_heads, batch, query_len, key_len, lay):
    call = make_call(mask, batch=batch, num_kv_heads=num_kv_heads, query_len=query_len, key_len=key_len, lay=lay)
    parts = Work(call, can_fuse(call)).parts()
    assert any(isinstance(part, Strip) for part in parts) == (mask != SlidingWindow(8) | Causal())
    grad = torch.randn(call.query.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    results = []
    for impl in ("blocked", "reference"):
        output = attention(*call[:3], mask=mask, impl=impl).output
        results.append((output, *torch.autograd.grad(output, call[:3], grad)))
    for found, expected in zip(*results, strict=True):
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)  # some hundred terms of size 1, of 53 bits


def test_keys_whose_heads_lie_at_no_one_distance_are_visited_one_by_one():
    call = make_call(SlidingWindow(7), batch=2, lay="tokens")
    assert not strip.can_show(call.key)
    assert not any(isinstance(part, Strip) for part in Work(call, is_fused=True).parts())


def test_a_strip_shows_no_more_keys_than_it_may():
    call = make_call(SlidingWindow(7))
    for part in Work(call, is_fused=True).parts():
        if isinstance(part, Strip):
            assert part.take_keys(call.key)[0].numel() <= visits.MAX_STRIP_NUMBERS


def test_a_hook_that_lays_saved_tensors_out_anew_changes_no_gradient():
    call = make_call(SlidingWindow(7))

    def lay_anew(tensor):
        return tensor.transpose(1, 2).contiguous().transpose(1, 2) if tensor.dim() == 4 else tensor

    gradients = []
    for pack in (lambda tensor: tensor, lay_anew):
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            output = attention(*call[:3], mask=call.mask, impl="blocked").output
        gradients.append(torch.autograd.grad(output.square().sum(), call[:3]))
    for found, expected in zip(*gradients, strict=True):
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)  # the same sums, of terms of size 1
