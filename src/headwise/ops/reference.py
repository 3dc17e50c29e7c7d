"""The readable truth: attention written as its equation, with weights and logsumexp."""

import torch
from torch.nn import functional

from headwise.ops.call import Call
from headwise.ops.dropout import drop, keep_mask
from headwise.ops.lowering import allowed_pairs, form_of, hide_idle
from headwise.ops.results import AttentionOutput
from headwise.ops.scores import bias_values, cap_scores, places_of


def reference_attention(call: Call) -> AttentionOutput:
    """Compute attention for each head, in float32 or better; `attention` has the equation.

    Memory grows with `query_len * key_len`.

    Source: Vaswani et al. 2017, "Attention Is All You Need", equation 1; grouped heads: Ainslie et al. 2023, "GQA";
    the sink: Xiao et al. 2023, "Efficient Streaming Language Models with Attention Sinks", section 3.3, equation 2
    with a logit that each head learns, as in OpenAI 2025, "gpt-oss model card", section 2.2.
    """
    allowed = is_empty = None
    bias = bias_values(call)
    if bias is not None or form_of(call).kind != "none":
        allowed = allowed_pairs(call)
        if bias is not None:
            allowed = allowed & ~bias.isneginf()
            bias = bias.masked_fill(~allowed, 0.0)
        call, is_empty = hide_idle(call, allowed)
    query, key, value = call[:3]
    batch_size, num_heads, query_len, head_dim = query.shape
    num_kv_heads, key_len = key.shape[1:3]

    dtype = torch.promote_types(query.dtype, torch.float32)
    # The query heads of one kv head stand next to each other: as rows of one matrix they share its keys without a copy.
    rows = (batch_size, num_kv_heads, num_heads // num_kv_heads * query_len)
    grouped_query = query.to(dtype).reshape(*rows, head_dim)
    scores = call.score_scale * grouped_query @ key.to(dtype).mT  # (B, K, H/K * T, S)
    scores = cap_scores(scores.reshape(batch_size, num_heads, query_len, key_len), call.softcap)
    if bias is not None:
        scores = scores + bias
    if allowed is not None and is_empty is not None:
        # A query without a key sees all of them, which keeps softmax and gradient finite, until its weights become 0.
        scores = scores.masked_fill(~(allowed | is_empty), -torch.inf)
    weights = scores.softmax(-1)
    needs_logsumexp = call.return_logsumexp or call.sink is not None
    logsumexp = scores.logsumexp(-1) if needs_logsumexp else None
    if call.sink is not None and logsumexp is not None:
        # exp(s) / (exp(m) + exp(sink)) = softmax(s) * sigmoid(m - sink), with the logarithm m of the sum over the keys.
        weights = weights * (logsumexp - call.sink.view(-1, 1)).sigmoid().unsqueeze(-1)
    if is_empty is not None:
        weights = weights.masked_fill(is_empty, 0.0)
        if logsumexp is not None:
            logsumexp = logsumexp.masked_fill(is_empty.squeeze(-1), -torch.inf)

    dropped = weights
    seed = call.dropout_seed
    if call.dropout_p > 0 and seed is None:
        dropped = functional.dropout(weights, call.dropout_p)
    elif call.dropout_p > 0 and seed is not None:
        places = places_of(call)
        kept = keep_mask(seed, call.dropout_p, places.batch, places.head, places.query_index, places.key_index)
        dropped = drop(weights, kept, call.dropout_p)
    output = dropped.reshape(*rows, key_len) @ value.to(dtype)  # (B, K, H/K * T, V)
    output = output.reshape(batch_size, num_heads, query_len, value.shape[-1]).to(query.dtype)
    return AttentionOutput(
        output, weights if call.return_weights else None, logsumexp if call.return_logsumexp else None
    )
