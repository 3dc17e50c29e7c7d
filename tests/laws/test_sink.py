import math

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

from headwise.masks.data import KeyPadding
from headwise.masks.patterns import Causal
from headwise.ops.attention import attention

SINK = [-3.0, 0.5, 2.0, -0.25, 1.5, 4.0]


@pytest.mark.parametrize(("query_len", "key_len", "v_head_dim"), [(5, 5, 5), (3, 7, 7), (7, 3, 5), (5, 0, 5)])
def test_a_sink_takes_its_share_of_the_weights_and_gives_nothing(
    query_len, key_len, v_head_dim, impl, dtype, make_typical_mask, make_inputs, oracle, rounding
):
    query, key, value = make_inputs(query_len, key_len, dtype, v_head_dim=v_head_dim)
    mask = make_typical_mask(key_len)
    expected, _, _ = oracle(query, key, value, mask, sink=SINK)
    found = attention(query, key, value, mask=mask, sink=torch.tensor(SINK, dtype=dtype), impl=impl).output
    torch.testing.assert_close(found.double(), expected, rtol=0, atol=rounding(dtype, key_len + 1))


@pytest.mark.parametrize(("num_kv_heads", "scale"), [(1, 0.3), (2, 0.0), (6, -1.0)])
def test_each_query_head_has_its_own_sink_whatever_the_scale(
    num_kv_heads, scale, impl, make_typical_mask, make_inputs, oracle, rounding
):
    query, key, value = make_inputs(3, 5, num_kv_heads=num_kv_heads)
    mask, bias = make_typical_mask(5), torch.linspace(-1, 1, 5, dtype=torch.float64)
    expected, _, _ = oracle(query, key, value, mask, scale=scale, sink=SINK, bias=lambda b, h, i, j: bias[j])
    sink = torch.tensor(SINK, dtype=torch.float64)
    found = attention(query, key, value, mask=mask, scale=scale, bias=bias, sink=sink, impl=impl).output
    torch.testing.assert_close(found, expected, rtol=0, atol=2 * rounding(torch.float64, 6))


def test_logsumexp_is_over_the_keys_alone_and_weights_leave_the_sink_its_mass(
    dtype, make_typical_mask, make_inputs, oracle, rounding
):
    query, key, value = make_inputs(5, 7, dtype)
    mask, sink = make_typical_mask(7), torch.tensor(SINK, dtype=dtype)
    _, weights, logsumexp = oracle(query, key, value, mask, sink=SINK)
    found = attention(query, key, value, mask=mask, sink=sink, return_weights=True, return_logsumexp=True)
    torch.testing.assert_close(found.weights.double(), weights, rtol=0, atol=rounding(dtype, 8))
    torch.testing.assert_close(found.logsumexp.double(), logsumexp, rtol=0, atol=rounding(dtype, 8))
    mass = (sink.view(-1, 1) - torch.logaddexp(found.logsumexp, sink.view(-1, 1))).exp()
    has_key = ~found.logsumexp.isneginf()
    left = (1 - found.weights.sum(-1))[has_key]
    torch.testing.assert_close(left, mass[has_key], rtol=0, atol=rounding(dtype, 8))


def test_the_logsumexp_does_not_see_the_sink(impl_with_logsumexp, dtype, make_typical_mask, make_inputs):
    query, key, value = make_inputs(5, 7, dtype)
    keywords = {"mask": make_typical_mask(7), "return_logsumexp": True, "impl": impl_with_logsumexp}
    plain = attention(query, key, value, **keywords).logsumexp
    assert torch.equal(attention(query, key, value, sink=torch.tensor(SINK, dtype=dtype), **keywords).logsumexp, plain)


@pytest.mark.parametrize("off", [-1e4, -torch.inf])
def test_a_sink_far_below_the_scores_is_none(off, impl, dtype, make_typical_mask, make_inputs, rounding):
    query, key, value = make_inputs(5, 7, dtype)
    mask = make_typical_mask(7)
    plain = attention(query, key, value, mask=mask, impl=impl).output
    found = attention(query, key, value, mask=mask, sink=torch.full((6,), off, dtype=dtype), impl=impl).output
    torch.testing.assert_close(found, plain, rtol=0, atol=2 * rounding(dtype, 8))


def test_a_query_without_a_key_gives_zero_with_a_sink_too(impl, dtype, make_inputs, can):
    query, key, value = make_inputs(5, 3, dtype)
    mask = Causal() & KeyPadding(torch.tensor([3, 0, 2]))
    query[1] = query[:, :, :2] = torch.nan
    key[1] = value[1] = torch.nan
    inputs = [query, key, value, torch.tensor(SINK, dtype=dtype)]
    inputs = [tensor.requires_grad_(can(impl, "gradients")) for tensor in inputs]
    output = attention(*inputs[:3], mask=mask, sink=inputs[3], impl=impl).output
    assert not output[1].any() and not output[:, :, :2].any()
    assert output[[0, 2], :, 2:].all()
    if can(impl, "gradients"):
        output.square().sum().backward()
        assert all(tensor.grad.isfinite().all() for tensor in inputs)
        assert inputs[3].grad.all() and not query.grad[1].any() and not query.grad[:, :, :2].any()


@pytest.mark.parametrize(("query_len", "key_len", "v_head_dim"), [(3, 3, 2), (2, 4, 2), (4, 2, 3)])
def test_a_sink_learns(query_len, key_len, v_head_dim, impl_with_gradients, make_typical_mask, make_inputs):
    inputs = make_inputs(query_len, key_len, num_heads=2, num_kv_heads=1, head_dim=2, v_head_dim=v_head_dim)
    inputs = [tensor.requires_grad_() for tensor in (*inputs, torch.tensor([0.3, -1.0], dtype=torch.float64))]
    mask = make_typical_mask(key_len)

    def output(query, key, value, sink):
        return attention(query, key, value, mask=mask, sink=sink, impl=impl_with_gradients).output

    assert gradcheck(output, inputs, fast_mode=True)


def test_a_sink_learns_twice(impl_with_second, make_typical_mask, make_inputs):
    inputs = make_inputs(3, 4, num_heads=2, num_kv_heads=1, head_dim=2, v_head_dim=2)
    inputs = [tensor.requires_grad_() for tensor in (*inputs, torch.tensor([0.3, -1.0], dtype=torch.float64))]
    mask = make_typical_mask(4)

    def output(query, key, value, sink):
        return attention(query, key, value, mask=mask, sink=sink, impl=impl_with_second).output

    assert gradgradcheck(output, inputs, fast_mode=True)


def test_a_sink_of_float32_keeps_its_bits_in_half_precision(impl, make_inputs):
    """In bfloat16 a sink of 8.03 would be 8 or 8.0625."""
    query, key, value = make_inputs(3, 5, torch.bfloat16, head_dim=4)
    sink = torch.full((6,), 8.03)
    share = 5 / (5 + math.exp(8.03))
    found = attention(query * 0, key, torch.ones_like(value), sink=sink, impl=impl).output.float()
    # a rounded weight, times 1, rounded: errors of one step of 8 bits; a rounded sink would err by three
    torch.testing.assert_close(found, torch.full_like(found, share), rtol=2**-8 * 1.5, atol=0)
