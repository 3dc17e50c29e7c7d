import pytest
import torch

from headwise.masks.patterns import Causal, SlidingWindow
from headwise.ops.attention import attention


@pytest.mark.parametrize("mask", [Causal(), SlidingWindow(1), SlidingWindow(5)])
@pytest.mark.parametrize(("length", "chunk"), [(1, 1), (2, 1), (11, 1), (63, 17)])
def test_a_stream_in_chunks_equals_the_full_pass(mask, length, chunk, impl, dtype, make_inputs, rounding):
    """Cached decoding (chunks of one) and chunked prefill: the queries stand at the end of the keys so far."""
    query, key, value = make_inputs(length, length, dtype)
    whole = attention(query, key, value, mask=mask, impl=impl).output
    for start in range(0, length, chunk):
        end = min(start + chunk, length)
        part = attention(query[:, :, start:end], key[:, :, :end], value[:, :, :end], mask=mask, impl=impl).output
        torch.testing.assert_close(part, whole[:, :, start:end], rtol=0, atol=2 * rounding(dtype, length))


@pytest.mark.parametrize("mask", [None, Causal(), SlidingWindow(3)])
def test_indices_say_where_a_token_stands_in_any_order_and_between_empty_slots(
    mask, impl, dtype, make_inputs, rounding
):
    """A ring buffer: the keys lie in another order, with empty slots, and the indices tell."""
    query, key, value = make_inputs(3, 8, dtype)
    whole = attention(query, key, value, mask=mask, impl=impl).output
    order = torch.tensor([5, 6, 7, 0, 1, 2, 3, 4])
    holes = torch.full((3, 2, 2, 5), torch.nan, dtype=dtype)
    ring_key = torch.cat([key[:, :, order], holes], dim=2)
    ring_value = torch.cat([value[:, :, order], holes], dim=2)
    ring_index = torch.cat([order, torch.tensor([-1, -1])])
    found = attention(
        query,
        ring_key,
        ring_value,
        mask=mask,
        impl=impl,
        query_index=torch.tensor([5, 6, 7]).expand(3, -1),
        key_index=ring_index.expand(3, -1),
    ).output
    torch.testing.assert_close(found, whole, rtol=0, atol=2 * rounding(dtype, 8))
