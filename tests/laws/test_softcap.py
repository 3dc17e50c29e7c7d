import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

from headwise.ops.attention import attention


@pytest.mark.parametrize("softcap", [0.5, 3])
@pytest.mark.parametrize(("query_len", "key_len"), [(5, 5), (3, 7), (7, 3)])
def test_scores_are_capped_before_the_bias(
    softcap, query_len, key_len, impl_with_softcap, dtype, make_typical_mask, make_inputs, oracle, rounding
):
    query, key, value = make_inputs(query_len, key_len, dtype)
    mask, bias = make_typical_mask(key_len), torch.linspace(-2, 2, 6, dtype=dtype).view(6, 1, 1) * torch.arange(key_len)
    numbers = bias.expand(6, 1, key_len).tolist()
    expected, _, _ = oracle(query, key, value, mask, softcap=softcap, bias=lambda b, h, i, j: numbers[h][0][j])
    found = attention(query, key, value, mask=mask, bias=bias, softcap=softcap, impl=impl_with_softcap).output
    # a bias of up to 12 makes scores as large as the bound's products do
    torch.testing.assert_close(found.double(), expected, rtol=0, atol=2 * rounding(dtype, key_len))


def test_a_cap_far_above_the_scores_changes_nothing_and_one_far_below_makes_all_keys_equal(
    impl_with_softcap, make_inputs, rounding
):
    query, key, value = make_inputs(5, 7)
    plain = attention(query, key, value, impl="reference").output
    # c tanh(s / c) = s - s^3 / 3 c^2 + ..., with scores below 16
    far = attention(query, key, value, softcap=1e7, impl=impl_with_softcap).output
    torch.testing.assert_close(far, plain, rtol=0, atol=rounding(torch.float64, 7) + 4 * 16**3 / 3e14)
    near = attention(query, key, value, softcap=1e-12, impl=impl_with_softcap).output
    mean = value.mean(2, keepdim=True).repeat_interleave(3, 1).expand(-1, -1, 5, -1)
    torch.testing.assert_close(near, mean, rtol=0, atol=rounding(torch.float64, 7) + 1e-11)


def test_capped_attention_learns(impl_with_softcap_and_gradients, make_typical_mask, make_inputs):
    inputs = make_inputs(3, 4, num_heads=2, num_kv_heads=1, head_dim=2, v_head_dim=2)
    mask = make_typical_mask(4)

    def output(*tensors):
        return attention(*tensors, mask=mask, softcap=0.7, impl=impl_with_softcap_and_gradients).output

    assert gradcheck(output, [tensor.requires_grad_() for tensor in inputs], fast_mode=True)


def test_capped_attention_learns_twice(impl_with_softcap_and_second, make_typical_mask, make_inputs):
    inputs = make_inputs(3, 4, num_heads=2, num_kv_heads=1, head_dim=2, v_head_dim=2)
    mask = make_typical_mask(4)

    def output(*tensors):
        return attention(*tensors, mask=mask, softcap=0.7, impl=impl_with_softcap_and_second).output

    assert gradgradcheck(output, [tensor.requires_grad_() for tensor in inputs], fast_mode=True)
