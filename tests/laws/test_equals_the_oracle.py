import pytest
import torch

from headwise.ops.attention import attention

# Numbers of queries and keys, and the size of a value head: 5, as the keys', or not.
SIZES = [(5, 5, 5), (5, 5, 7), (3, 11, 5), (11, 3, 7), (1, 7, 5), (7, 1, 5), (5, 0, 7)]


@pytest.mark.parametrize(("query_len", "key_len", "v_head_dim"), SIZES)
def test_the_output_is_the_sum_written_out(
    query_len, key_len, v_head_dim, impl, dtype, make_mask, make_inputs, oracle, rounding
):
    query, key, value = make_inputs(query_len, key_len, dtype, v_head_dim=v_head_dim)
    mask = make_mask(key_len)
    expected, _, _ = oracle(query, key, value, mask)
    found = attention(query, key, value, mask=mask, impl=impl).output
    assert found.dtype == dtype
    torch.testing.assert_close(found.double(), expected, rtol=0, atol=rounding(dtype, key_len))


@pytest.mark.parametrize(("query_len", "key_len", "v_head_dim"), SIZES)
def test_weights_and_logsumexp_are_those_written_out(
    query_len, key_len, v_head_dim, dtype, make_mask, make_inputs, oracle, rounding
):
    query, key, value = make_inputs(query_len, key_len, dtype, v_head_dim=v_head_dim)
    mask = make_mask(key_len)
    _, weights, logsumexp = oracle(query, key, value, mask)
    found = attention(query, key, value, mask=mask, return_weights=True, return_logsumexp=True)
    torch.testing.assert_close(found.weights.double(), weights, rtol=0, atol=rounding(dtype, key_len))
    torch.testing.assert_close(found.logsumexp.double(), logsumexp, rtol=0, atol=rounding(dtype, key_len))


@pytest.mark.parametrize(("num_kv_heads", "v_head_dim"), [(1, 5), (1, 7), (2, 5), (3, 7), (6, 5)])
def test_every_grouping_uses_kv_head_h_div_group(
    num_kv_heads, v_head_dim, impl, make_mask, make_inputs, oracle, rounding
):
    query, key, value = make_inputs(4, 6, num_kv_heads=num_kv_heads, v_head_dim=v_head_dim)
    mask = make_mask(6)
    expected, _, _ = oracle(query, key, value, mask)
    found = attention(query, key, value, mask=mask, impl=impl).output
    torch.testing.assert_close(found, expected, rtol=0, atol=rounding(torch.float64, 6))


@pytest.mark.parametrize("scale", [0.0, 0.3, -1.0, 2])
@pytest.mark.parametrize(("num_kv_heads", "v_head_dim"), [(2, 5), (2, 7), (6, 5)])
def test_scale_multiplies_the_scores(scale, num_kv_heads, v_head_dim, impl, make_inputs, rounding):
    query, key, value = make_inputs(5, 7, num_kv_heads=num_kv_heads, v_head_dim=v_head_dim)
    found = attention(query, key, value, scale=scale, impl=impl).output
    written_out = attention(query * scale, key, value, scale=1.0, impl="reference").output
    torch.testing.assert_close(found, written_out, rtol=0, atol=2 * rounding(torch.float64, 7))


def test_low_precision_errs_by_rounding_alone(impl, make_mask, make_inputs, oracle):
    """In bfloat16 the inputs are exact for the oracle; what remains is rounding of weights and output."""
    query, key, value = make_inputs(5, 5, torch.bfloat16)
    mask = make_mask(5)
    expected, _, _ = oracle(query.double(), key.double(), value.double(), mask)
    found = attention(query, key, value, mask=mask, impl=impl).output
    unit = torch.finfo(torch.bfloat16).eps / 2
    # the kernel may round each weight once before it multiplies the values, and rounds the output once
    budget = unit * (value.abs().max() + expected.abs()) + 1e-5
    assert ((found.double() - expected).abs() <= budget).all()


def test_zero_batch_rows_give_zero_rows(impl, make_inputs):
    query, key, value = make_inputs(3, 5, batch=0, v_head_dim=7)
    assert attention(query, key, value, impl=impl).output.shape == (0, 6, 3, 7)
