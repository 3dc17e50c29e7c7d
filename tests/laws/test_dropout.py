import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

from headwise.masks.patterns import Causal
from headwise.ops.attention import attention
from headwise.ops.dropout import keep_mask


def kept_pairs(seed, dropout_p, query_index, key_index, *, batch=3, num_heads=6):
    """Ask for the pairs of all heads, (B, H, T, S)."""
    rows = torch.arange(batch).view(-1, 1, 1, 1)
    heads = torch.arange(num_heads).view(1, -1, 1, 1)
    return keep_mask(seed, dropout_p, rows, heads, query_index.view(1, 1, -1, 1), key_index.view(1, 1, 1, -1))


@pytest.mark.parametrize("with_sink", [False, True])
@pytest.mark.parametrize(("query_len", "key_len"), [(5, 5), (3, 7), (7, 3)])
def test_kept_weights_grow_and_the_others_are_left_out(
    with_sink, query_len, key_len, impl_with_seed, dtype, make_typical_mask, make_inputs, oracle, rounding
):
    query, key, value = make_inputs(query_len, key_len, dtype)
    mask = make_typical_mask(key_len)
    kept = kept_pairs(11, 0.4, torch.arange(key_len - query_len, key_len), torch.arange(key_len)).tolist()
    sink = [0.5] * 6 if with_sink else None
    expected, _, _ = oracle(
        query, key, value, mask, sink=sink, dropout_p=0.4, keeps=lambda b, h, i, j: kept[b][h][i][j]
    )
    found = attention(
        query,
        key,
        value,
        mask=mask,
        sink=torch.tensor(sink, dtype=dtype) if with_sink else None,
        dropout_p=0.4,
        dropout_seed=11,
        impl=impl_with_seed,
    ).output
    torch.testing.assert_close(found.double(), expected, rtol=0, atol=2 * rounding(dtype, key_len))


def test_one_seed_drops_the_same_again_and_another_does_not(impl_with_seed, dtype, make_inputs):
    query, key, value = make_inputs(5, 7, dtype)
    first, again, other = (
        attention(query, key, value, dropout_p=0.5, dropout_seed=seed, impl=impl_with_seed).output
        for seed in (3, 3, 2**63 - 1)
    )
    assert torch.equal(first, again) and not torch.equal(first, other)


def test_a_stream_in_chunks_drops_what_the_full_pass_drops(impl_with_seed, dtype, make_inputs, rounding):
    """The kept pairs follow from the tokens' indices, so that it does not matter which of them come in a call."""
    query, key, value = make_inputs(11, 11, dtype)
    keywords = {"mask": Causal(), "dropout_p": 0.4, "dropout_seed": 5, "impl": impl_with_seed}
    whole = attention(query, key, value, **keywords).output
    for start, end in ((0, 3), (3, 4), (4, 11)):
        part = attention(query[:, :, start:end], key[:, :, :end], value[:, :, :end], **keywords).output
        torch.testing.assert_close(part, whole[:, :, start:end], rtol=0, atol=4 * rounding(dtype, 11))


def test_weights_are_returned_before_dropout(dtype, make_typical_mask, make_inputs):
    query, key, value = make_inputs(5, 7, dtype)
    keywords = {"mask": make_typical_mask(7), "return_weights": True, "return_logsumexp": True}
    plain = attention(query, key, value, **keywords)
    dropped = attention(query, key, value, dropout_p=0.5, dropout_seed=1, **keywords)
    assert torch.equal(dropped.weights, plain.weights) and torch.equal(dropped.logsumexp, plain.logsumexp)


def test_a_seed_without_dropout_changes_no_bit(impl, dtype, make_typical_mask, make_inputs):
    query, key, value = make_inputs(5, 7, dtype)
    mask = make_typical_mask(7)
    plain, seeded = (attention(query, key, value, mask=mask, dropout_seed=seed, impl=impl).output for seed in (None, 7))
    assert torch.equal(plain, seeded)


def test_attention_with_dropout_learns(impl_with_seed_and_gradients, make_typical_mask, make_inputs):
    inputs = make_inputs(3, 4, num_heads=2, num_kv_heads=1, head_dim=2, v_head_dim=2)
    mask = make_typical_mask(4)

    def output(*tensors):
        impl = impl_with_seed_and_gradients
        return attention(*tensors, mask=mask, dropout_p=0.3, dropout_seed=2, impl=impl).output

    assert gradcheck(output, [tensor.requires_grad_() for tensor in inputs], fast_mode=True)


def test_attention_with_dropout_learns_twice(impl_with_seed_and_second, make_typical_mask, make_inputs):
    inputs = make_inputs(3, 4, num_heads=2, num_kv_heads=1, head_dim=2, v_head_dim=2)
    mask = make_typical_mask(4)

    def output(*tensors):
        impl = impl_with_seed_and_second
        return attention(*tensors, mask=mask, dropout_p=0.3, dropout_seed=2, impl=impl).output

    assert gradgradcheck(output, [tensor.requires_grad_() for tensor in inputs], fast_mode=True)
