"""The readable truth: attention written as its equation, with weights and logsumexp."""

import torch
from torch.nn import functional

from headwise.ops.call import Call
from headwise.ops.lowering import allowed_pairs, form_of, hide_idle
from headwise.ops.results import AttentionOutput


def reference_attention(call: Call) -> AttentionOutput:
    """Compute `softmax(scale * query key^T + mask) value` for each head, in float32 or better.

    Memory grows with `query_len * key_len`.

    Source: Vaswani et al. 2017, "Attention Is All You Need", equation 1; grouped heads: Ainslie et al. 2023, "GQA".
    """
    allowed = is_empty = None
    if form_of(call).kind != "none":
        allowed = allowed_pairs(call)
        call, is_empty = hide_idle(call, allowed)
    query, key, value = call[:3]
    batch_size, num_heads, query_len, head_dim = query.shape
    num_kv_heads, key_len = key.shape[1:3]

    dtype = torch.promote_types(query.dtype, torch.float32)
    # The query heads of one kv head stand next to each other: as rows of one matrix they share its keys without a copy.
    rows = (batch_size, num_kv_heads, num_heads // num_kv_heads * query_len)
    grouped_query = query.to(dtype).reshape(*rows, head_dim)
    scores = call.score_scale * grouped_query @ key.to(dtype).mT  # (B, K, H/K * T, S)
    scores = scores.reshape(batch_size, num_heads, query_len, key_len)
    if allowed is not None and is_empty is not None:
        # A query without a key sees all of them, which keeps softmax and gradient finite, until its weights become 0.
        scores = scores.masked_fill(~(allowed | is_empty), -torch.inf)
    weights = scores.softmax(-1)
    logsumexp = scores.logsumexp(-1) if call.return_logsumexp else None
    if is_empty is not None:
        weights = weights.masked_fill(is_empty, 0.0)
        if logsumexp is not None:
            logsumexp = logsumexp.masked_fill(is_empty.squeeze(-1), -torch.inf)

    dropped = functional.dropout(weights, call.dropout_p) if call.dropout_p > 0 else weights
    output = dropped.reshape(*rows, key_len) @ value.to(dtype)  # (B, K, H/K * T, V)
    output = output.reshape(batch_size, num_heads, query_len, value.shape[-1]).to(query.dtype)
    return AttentionOutput(output, weights if call.return_weights else None, logsumexp)
