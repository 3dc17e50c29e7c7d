"""Attention of few queries, as in decoding: each key and each value is read once, and nothing is copied."""

from functools import lru_cache
from itertools import product

import torch
from jaxtyping import Float, Int
from torch import Tensor

from headwise.ops.call import Call
from headwise.ops.lowering import allowed_pairs, form_of, hide_idle, skip_unread_keys
from headwise.ops.products import FEW_ROWS, has_onednn, onednn_linear
from headwise.ops.results import AttentionOutput
from headwise.ops.scores import bias_values, cap_scores

BAG = 64  # values that are mixed at a time for all queries of a group: as many as stay nearest to a core
CHUNK = 256  # keys, in multiples of which oneDNN is asked: it makes a program for each length
LEAST_KEYS = 256  # from which on mixing by bags pays


def decode_attention(call: Call) -> AttentionOutput:
    """Compute attention for each head, in float32 or better, without gradients; `attention` has the equation.

    Keys stand on the left of the product with the queries of a kv head if these are few, and values are mixed some at a
    time for all of them by `embedding_bag`: a product with few rows reads a matrix at less than half the rate. Many
    queries of a kv head are multiplied by oneDNN, where it is. Memory: the scores, `num_heads * query_len * key_len`
    numbers a batch row, a few times.
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
    scores = _score(grouped_query, key.to(dtype))
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


def _score(
    query: Float[Tensor, "batch num_kv_heads rows head_dim"], key: Float[Tensor, "batch num_kv_heads key_len head_dim"]
) -> Float[Tensor, "batch num_kv_heads rows key_len"]:
    """Return `query @ key^T`."""
    if query.shape[2] <= FEW_ROWS:
        return (key @ query.mT).mT
    end = _end_for_onednn(key)
    if end == 0:
        return query @ key.mT
    scores = query.new_empty(*query.shape[:3], key.shape[2])
    scores[..., end:] = query @ key[:, :, end:].mT
    for row, head in product(*map(range, query.shape[:2])):
        scores[row, head, :, :end] = onednn_linear(query[row, head], key[row, head, :end])
    return scores


def _mix(
    weights: Float[Tensor, "batch num_kv_heads rows key_len"],
    value: Float[Tensor, "batch num_kv_heads key_len v_head_dim"],
) -> Float[Tensor, "batch num_kv_heads rows v_head_dim"]:
    """Return `weights @ value`."""
    if weights.shape[2] > FEW_ROWS:
        end = _end_for_onednn(value)
        if end == 0:
            return weights @ value
        output = weights[..., end:] @ value[:, :, end:]
        for row, head in product(*map(range, weights.shape[:2])):
            output[row, head] += onednn_linear(weights[row, head, :, :end], value[row, head, :end].mT)
        return output
    end = value.shape[2] // BAG * BAG
    if end < LEAST_KEYS or not _is_table(value):
        return weights @ value
    batch_size, num_kv_heads, num_rows = weights.shape[:3]
    v_head_dim = value.shape[-1]
    bags = weights[..., :end].reshape(batch_size, num_kv_heads, num_rows, end // BAG, BAG).transpose(2, 3)
    strides = (value.stride(0) // v_head_dim, value.stride(1) // v_head_dim, value.stride(2) // v_head_dim)
    places, offsets = _places(batch_size, num_kv_heads, num_rows, end, strides)
    last = sum(stride * (size - 1) for stride, size in zip(strides, value.shape[:3], strict=True))
    table = value.as_strided((last + 1, v_head_dim), (v_head_dim, 1))
    mixed = torch.embedding_bag(table, places, offsets, False, 0, False, bags.flatten())[0]  # 0: sums
    output = mixed.view(batch_size, num_kv_heads, end // BAG, num_rows, v_head_dim).sum(2)
    return output if end == value.shape[2] else output + weights[..., end:] @ value[:, :, end:]


def _end_for_onednn(matrices: Float[Tensor, "batch num_kv_heads key_len width"]) -> int:
    """Return how many keys oneDNN multiplies; 0 where it serves nothing."""
    is_served = matrices.dtype == torch.float32 and matrices.device.type == "cpu" and has_onednn()
    return matrices.shape[2] // CHUNK * CHUNK if is_served and matrices.stride(-1) == 1 else 0


def _is_table(value: Float[Tensor, "batch num_kv_heads key_len v_head_dim"]) -> bool:
    """Tell whether the vectors are rows of one table of float32 on a CPU, which may have other rows between them."""
    width = value.shape[-1]
    strides = value.stride()
    is_float32 = value.dtype == torch.float32 and value.device.type == "cpu"
    return is_float32 and strides[3] == 1 and width > 0 and all(stride % width == 0 for stride in strides[:3])


@lru_cache(8)
def _places(
    batch_size: int, num_kv_heads: int, num_rows: int, key_len: int, strides: tuple[int, int, int]
) -> tuple[Int[Tensor, " places"], Int[Tensor, " bags"]]:
    """Return which rows of the table of values the bags mix, those of a stretch once for each query, and their starts.

    Bags are ordered by batch row, kv head, stretch of keys and query.
    """
    row, head, key = (
        stride * torch.arange(size, dtype=torch.int32)
        for stride, size in zip(strides, (batch_size, num_kv_heads, key_len), strict=True)
    )
    places = row.view(-1, 1, 1, 1, 1) + head.view(-1, 1, 1, 1) + key.view(-1, 1, BAG)
    places = places.expand(-1, -1, -1, num_rows, -1).flatten()
    return places, torch.arange(0, len(places), BAG, dtype=torch.int32)
