import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

from headwise.ops.attention import attention


@pytest.mark.parametrize(("query_len", "key_len"), [(3, 3), (2, 4), (4, 2)])
def test_gradients_are_those_of_small_differences(query_len, key_len, impl_with_gradients, make_mask, make_inputs):
    inputs = make_inputs(query_len, key_len, num_heads=2, num_kv_heads=1, head_dim=2, v_head_dim=2)
    mask = make_mask(key_len)
    assert gradcheck(
        lambda *tensors: attention(*tensors, mask=mask, impl=impl_with_gradients).output,
        [tensor.requires_grad_() for tensor in inputs],
        fast_mode=True,
    )


def test_weights_and_logsumexp_have_gradients_too(make_mask, make_inputs):
    inputs = [tensor.requires_grad_() for tensor in make_inputs(4, 3, num_heads=2, head_dim=2, v_head_dim=2)]
    mask = make_mask(3)

    def finite_results(*tensors):
        found = attention(*tensors, mask=mask, return_weights=True, return_logsumexp=True)
        return found.weights, found.logsumexp.masked_fill(found.logsumexp.isneginf(), 0.0)

    assert gradcheck(finite_results, inputs, fast_mode=True)


def test_the_reference_has_second_derivatives(make_mask, make_inputs):
    inputs = [tensor.requires_grad_() for tensor in make_inputs(3, 3, num_heads=2, head_dim=2, v_head_dim=2)]
    mask = make_mask(3)
    assert gradgradcheck(
        lambda *tensors: attention(*tensors, mask=mask, impl="reference").output, inputs, fast_mode=True
    )


@pytest.mark.parametrize(("query_len", "key_len"), [(63, 63), (3, 11), (11, 3)])
def test_both_implementations_send_back_the_same_gradients(query_len, key_len, make_mask, make_inputs):
    mask = make_mask(key_len)
    gradients = []
    for impl in ("reference", "sdpa"):
        inputs = [tensor.requires_grad_() for tensor in make_inputs(query_len, key_len, v_head_dim=5)]
        attention(*inputs, mask=mask, impl=impl).output.square().sum().backward()
        gradients.append([tensor.grad for tensor in inputs])
    # float64 throughout: sums of at most 3 * 63 terms of size about 10
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e4 * torch.finfo(torch.float64).eps)
