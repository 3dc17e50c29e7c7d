"""Attention of few queries, as in decoding: each key and each value is read once, and nothing is copied."""

from functools import lru_cache

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional

from headwise.ops.call import Call
from headwise.ops.lowering import allowed_pairs, form_of, hide_idle, skip_unread_keys
from headwise.ops.results import AttentionOutput
from headwise.ops.scores import bias_values, cap_scores

BAG = 256  # values that are mixed at a time for all queries of a group: as many as stay in a core's cache
LEAST_KEYS = 2048  # from which on mixing by bags pays
MOST_ROWS = 8  # queries of a group, above which a matrix product is as fast


def decode_attention(call: Call) -> AttentionOutput:
    """Compute attention for each head, in float32 or better, without gradients; `attention` has the equation.

    Keys stand on the left of the product with their queries, and values are mixed a few hundred at a time for all
    queries of a kv head by `embedding_bag`: a product with few rows reads a matrix at less than half the rate. Memory:
    the scores, `num_heads * query_len * key_len` numbers a batch row, a few times.
    """
    call = skip_unread_keys(call)
    allowed = bias = None
    if call.bias is not None or form_of(call).kind != "none":
        allowed, bias = allowed_pairs(call), bias_values(call)
    if allowed is None:
        return _attend(call, None, bias)
    found = _attend(call, allowed, bias)
    # Weights of 0 hide what no query reads unless it is inf or NaN, which is seen in the output.
    return found if bool(found.output.isfinite().all()) else _attend(hide_idle(call, allowed)[0], allowed, bias)


def _attend(call: Call, allowed: Tensor | None, bias: Tensor | None) -> AttentionOutput:
    query, key, value = call[:3]
    batch_size, num_heads, query_len, head_dim = query.shape
    num_kv_heads, key_len = key.shape[1:3]
    dtype = torch.promote_types(query.dtype, torch.float32)
    rows = (batch_size, num_kv_heads, num_heads // num_kv_heads * query_len)
    grouped_query = call.score_scale * query.to(dtype).reshape(*rows, head_dim)
    scores = (key.to(dtype) @ grouped_query.mT).mT  # (B, K, H/K * T, S)
    scores = cap_scores(scores.reshape(batch_size, num_heads, query_len, key_len), call.softcap)
    if bias is not None:
        scores = scores + bias
    if allowed is not None:
        scores = scores.masked_fill(~allowed, -torch.inf)
    logsumexp = None
    if call.return_logsumexp or call.sink is not None or allowed is not None:
        logsumexp = scores.logsumexp(-1, keepdim=True)
    if logsumexp is None:
        weights = scores.softmax(-1)
    else:
        # Of a row without a key the sum is that of nothing, and its weights are 0.
        weights = (scores - logsumexp.clamp(min=torch.finfo(dtype).min)).exp()
        if call.sink is not None:
            weights = weights * (logsumexp - call.sink.view(-1, 1, 1)).sigmoid()
    output = _mix(weights.reshape(*rows, key_len), value.to(dtype))
    output = output.reshape(batch_size, num_heads, query_len, value.shape[-1]).to(query.dtype)
    return AttentionOutput(
        output,
        weights if call.return_weights else None,
        logsumexp.squeeze(-1) if call.return_logsumexp and logsumexp is not None else None,
    )


def _mix(
    weights: Float[Tensor, "batch num_kv_heads rows key_len"],
    value: Float[Tensor, "batch num_kv_heads key_len v_head_dim"],
) -> Float[Tensor, "batch num_kv_heads rows v_head_dim"]:
    """Return `weights @ value`."""
    num_rows, key_len = weights.shape[2:]
    is_table = value.dtype == torch.float32 and value.device.type == "cpu" and value[0, 0].is_contiguous()
    if not is_table or num_rows > MOST_ROWS or key_len < LEAST_KEYS:
        return weights @ value
    num_bags = key_len // BAG
    end = num_bags * BAG
    output = weights[..., end:] @ value[:, :, end:]
    bags = weights[..., :end].reshape(*weights.shape[:3], num_bags, BAG)
    bags = bags.transpose(2, 3).flatten(2, 3)  # (B, K, bags * rows, BAG)
    places = _places(num_bags, num_rows)
    for row in range(value.shape[0]):
        for head in range(value.shape[1]):
            mixed = functional.embedding_bag(places, value[row, head], mode="sum", per_sample_weights=bags[row, head])
            output[row, head] += mixed.view(num_bags, num_rows, -1).sum(0)
    return output


@lru_cache(8)
def _places(num_bags: int, num_rows: int) -> Int[Tensor, "bags_and_rows bag"]:
    """Return which values each bag mixes: those of one stretch of keys, once for each row."""
    places = torch.arange(num_bags * BAG, dtype=torch.int32).view(num_bags, 1, BAG)
    return places.expand(-1, num_rows, -1).flatten(0, 1)
