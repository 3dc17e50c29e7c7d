import pytest
import torch

from headwise.masks.data import KeyPadding
from headwise.masks.patterns import Causal
from headwise.ops.attention import attention


@pytest.mark.parametrize("num_kv_heads", [1, 3, 6])
def test_repeating_keys_and_values_equals_groups(num_kv_heads, impl, dtype, make_mask, make_inputs, rounding):
    query, key, value = make_inputs(5, 7, dtype, num_kv_heads=num_kv_heads)
    repeats = 6 // num_kv_heads
    mask = make_mask(7)
    grouped = attention(query, key, value, mask=mask, impl=impl).output
    repeated = attention(
        query, key.repeat_interleave(repeats, 1), value.repeat_interleave(repeats, 1), mask=mask, impl=impl
    ).output
    torch.testing.assert_close(grouped, repeated, rtol=0, atol=2 * rounding(dtype, 7))


def test_permuting_heads_permutes_outputs_and_weights(impl, dtype, make_mask_alike, make_inputs, rounding):
    query, key, value = make_inputs(5, 7, dtype, num_kv_heads=6)
    order = torch.tensor([3, 0, 5, 1, 4, 2])
    mask = make_mask_alike(7)
    whole = attention(query, key, value, mask=mask, impl=impl).output
    permuted = attention(query[:, order], key[:, order], value[:, order], mask=mask, impl=impl).output
    torch.testing.assert_close(permuted, whole[:, order], rtol=0, atol=2 * rounding(dtype, 7))
    if impl == "reference":
        weights = attention(query, key, value, mask=mask, return_weights=True).weights
        moved = attention(query[:, order], key[:, order], value[:, order], mask=mask, return_weights=True).weights
        torch.testing.assert_close(moved, weights[:, order], rtol=0, atol=2 * rounding(dtype, 7))


@pytest.mark.parametrize("side", ["right", "left"])
def test_a_padded_row_alone_without_its_padding_equals_it_in_the_batch(side, impl, dtype, make_inputs, rounding):
    lengths = [7, 1, 4]
    query, key, value = make_inputs(7, 7, dtype)
    mask = Causal() & KeyPadding(torch.tensor(lengths), side=side, padded_len=7)
    batch = attention(query, key, value, mask=mask, impl=impl).output
    for row, length in enumerate(lengths):
        real = slice(0, length) if side == "right" else slice(7 - length, 7)
        alone = attention(
            *(tensor[row : row + 1, :, real] for tensor in (query, key, value)), mask=Causal(), impl=impl
        ).output
        torch.testing.assert_close(batch[row, :, real], alone[0], rtol=0, atol=2 * rounding(dtype, 7))


def test_permuting_keys_with_their_values_changes_nothing_without_a_mask(impl, dtype, make_inputs, rounding):
    query, key, value = make_inputs(5, 7, dtype)
    order = torch.tensor([3, 0, 5, 1, 6, 4, 2])
    whole = attention(query, key, value, impl=impl).output
    permuted = attention(query, key[:, :, order], value[:, :, order], impl=impl).output
    torch.testing.assert_close(permuted, whole, rtol=0, atol=2 * rounding(dtype, 7))


def test_how_numbers_lie_in_memory_changes_nothing(impl, dtype, make_mask, make_inputs, rounding):
    inputs = dict(zip(("query", "key", "value"), make_inputs(5, 7, dtype), strict=True))
    mask = make_mask(7)
    whole = attention(**inputs, mask=mask, impl=impl).output
    for name, tensor in list(inputs.items()):  # one after another, until none is contiguous
        inputs[name] = tensor.transpose(1, 3).contiguous().transpose(1, 3)
        assert not inputs[name].is_contiguous()
        found = attention(**inputs, mask=mask, impl=impl).output
        torch.testing.assert_close(found, whole, rtol=0, atol=2 * rounding(dtype, 7))


def test_the_inputs_are_left_as_they_came(impl, make_mask, make_inputs):
    inputs = make_inputs(5, 7)
    copies = [tensor.clone() for tensor in inputs]
    attention(*inputs, mask=make_mask(7), impl=impl)
    assert all(torch.equal(tensor, copy) for tensor, copy in zip(inputs, copies, strict=True))
