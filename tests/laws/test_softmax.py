import math

import pytest
import torch

from headwise.ops.attention import attention


@pytest.mark.parametrize("key_len", [1, 2, 63, 127])
def test_weights_sum_to_1_on_rows_with_a_key_and_to_0_elsewhere(key_len, dtype, make_mask, make_inputs):
    query, key, value = make_inputs(5, key_len, dtype)
    found = attention(query, key, value, mask=make_mask(key_len), return_weights=True, return_logsumexp=True)
    has_key = (~found.logsumexp.isneginf()).to(dtype)
    # a sum of key_len rounded quotients
    torch.testing.assert_close(found.weights.sum(-1), has_key, rtol=0, atol=(key_len + 2) * torch.finfo(dtype).eps)


def test_adding_one_vector_to_all_keys_changes_nothing_but_the_logsumexp(impl, dtype, make_mask, make_inputs, rounding):
    """It adds one number to all scores of a query."""
    query, key, value = make_inputs(5, 7, dtype)
    shift = torch.linspace(-1, 1, 5, dtype=dtype)
    mask = make_mask(7)
    before = attention(query, key, value, mask=mask, impl=impl).output
    after = attention(query, key + shift, value, mask=mask, impl=impl).output
    torch.testing.assert_close(after, before, rtol=0, atol=4 * rounding(dtype, 7))
    if impl == "reference":
        lse = [attention(query, k, value, mask=mask, return_logsumexp=True).logsumexp for k in (key, key + shift)]
        is_full = ~lse[0].isneginf()
        moved = (query @ shift / math.sqrt(5))[is_full]
        torch.testing.assert_close(
            (lse[1] - lse[0].nan_to_num(neginf=0))[is_full], moved, rtol=0, atol=rounding(dtype, 7)
        )


def test_splitting_keys_and_merging_by_logsumexp_equals_the_whole(dtype, make_inputs, rounding):
    query, key, value = make_inputs(5, 7, dtype)
    whole = attention(query, key, value, return_logsumexp=True)
    parts = [
        attention(query, key[:, :, part], value[:, :, part], return_logsumexp=True)
        for part in (slice(0, 3), slice(3, 3), slice(3, 7))
    ]
    merged = torch.stack([part.logsumexp for part in parts]).logsumexp(0)
    output = sum((part.logsumexp - merged).exp().unsqueeze(-1) * part.output for part in parts)
    torch.testing.assert_close(merged, whole.logsumexp, rtol=0, atol=rounding(dtype, 7))
    torch.testing.assert_close(output, whole.output, rtol=0, atol=2 * rounding(dtype, 7))


def test_asking_for_weights_changes_no_output(dtype, make_mask, make_inputs, rounding):
    query, key, value = make_inputs(5, 7, dtype)
    mask = make_mask(7)
    plain = attention(query, key, value, mask=mask).output
    asked = attention(query, key, value, mask=mask, return_weights=True).output
    torch.testing.assert_close(asked, plain, rtol=0, atol=2 * rounding(dtype, 7))


def test_large_scores_do_not_overflow(impl, dtype, make_inputs):
    query, key, value = make_inputs(5, 7, dtype)
    output = attention(query * 1e4, key * 1e4, value, impl=impl).output
    key, value = key.repeat_interleave(3, 1), value.repeat_interleave(3, 1)
    best = (query @ key.mT).argmax(-1, keepdim=True)  # all others have a weight of 0
    expected = value.take_along_dim(best, 2)
    torch.testing.assert_close(output, expected, rtol=4 * torch.finfo(dtype).eps, atol=0)
