"""The readable truth: attention written as its equation, with weights and logsumexp."""

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional

from headwise.masks.patterns import Mask
from headwise.ops.lowering import allowed_pairs, hide_idle, simplest_form
from headwise.ops.results import AttentionOutput


def reference_attention(
    query: Float[Tensor, "batch num_heads query_len head_dim"],
    key: Float[Tensor, "batch num_kv_heads key_len head_dim"],
    value: Float[Tensor, "batch num_kv_heads key_len v_head_dim"],
    *,
    mask: Mask | None,
    query_index: Int[Tensor, "... query_len"] | None,
    key_index: Int[Tensor, "... key_len"] | None,
    scale: int | float,
    dropout_p: int | float,
    return_weights: bool,
    return_logsumexp: bool,
) -> AttentionOutput:
    """Compute `softmax(scale * query key^T + mask) value` for each head, in float32 or better.

    Arguments as of `headwise.ops.attention.attention`, which checks them. Memory grows with `query_len * key_len`.

    Source: Vaswani et al. 2017, "Attention Is All You Need", equation 1; grouped heads: Ainslie et al. 2023, "GQA".
    """
    output_dtype = query.dtype
    batch_size, num_heads, query_len, head_dim = query.shape
    num_kv_heads, key_len = key.shape[1:3]

    allowed = is_empty = None
    form = simplest_form(mask, query_len, key_len, has_indices=query_index is not None or key_index is not None)
    if form.kind != "none":
        allowed = allowed_pairs(mask, query, key, query_index, key_index)
        query, key, value, allowed, is_empty = hide_idle(query, key, value, allowed)

    dtype = torch.promote_types(query.dtype, torch.float32)
    # The query heads of one kv head stand next to each other: as rows of one matrix they share its keys without a copy.
    rows = (batch_size, num_kv_heads, num_heads // num_kv_heads * query_len)
    grouped_query = query.to(dtype).reshape(*rows, head_dim)
    scores = scale * grouped_query @ key.to(dtype).mT  # (B, K, H/K * T, S)
    scores = scores.reshape(batch_size, num_heads, query_len, key_len)
    if allowed is not None:
        scores = scores.masked_fill(~allowed, -torch.inf)
    weights = scores.softmax(-1)
    logsumexp = scores.logsumexp(-1) if return_logsumexp else None
    if is_empty is not None:
        weights = weights.masked_fill(is_empty, 0.0)
        if logsumexp is not None:
            logsumexp = logsumexp.masked_fill(is_empty.squeeze(-1), -torch.inf)

    dropped = functional.dropout(weights, dropout_p) if dropout_p > 0 else weights
    output = dropped.reshape(*rows, key_len) @ value.to(dtype)  # (B, K, H/K * T, V)
    output = output.reshape(batch_size, num_heads, query_len, value.shape[-1]).to(output_dtype)
    return AttentionOutput(output, weights if return_weights else None, logsumexp)
