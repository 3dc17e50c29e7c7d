"""Attention of few queries, as in decoding, by plain products: keys and values are read once, at a high rate."""

from collections.abc import Iterator
from functools import lru_cache
from itertools import product

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from headwise.ops.call import Call
from headwise.ops.lowering import allowed_pairs, form_of, hide_idle, skip_unread_keys
from headwise.ops.obstacles import is_watched
from headwise.ops.products import FEW_ROWS, has_onednn, onednn_linear
from headwise.ops.results import AttentionOutput
from headwise.ops.scores import bias_values, cap_scores

BAG = 64  # values that are mixed at a time for all queries of a group: as many as stay nearest to a core
LEAST_KEYS = 256  # from which on mixing by bags pays
LEAST_ONEDNN_KEYS = 1024  # from which on asking oneDNN pays
STEPS = 16  # lengths between a power of two and the next that oneDNN is asked for: it keeps a program for each
PIECE = 2**20  # scores at a time


def decode_attention(call: Call) -> AttentionOutput:
    """Compute attention for each head, in float32 or better, without gradients; `attention` has the equation.

    Keys stand on the left of the product with the queries of a kv head if these are few, and values are mixed some at a
    time for all of them by `embedding_bag`: a product with few rows reads a matrix at less than half the rate. Many
    queries of a kv head are multiplied by oneDNN, where it is. Memory: the scores of some kv heads, a few times, and
    the whole of a bias that is a function; keys and values of less than float32 are copied, some heads at a time, and
    all of them where inf or NaN stands in a slot that no query reads.
    """
    call = skip_unread_keys(call)
    if call.bias is None and form_of(call).kind == "none":
        return _attend(call, None, None)
    allowed, bias = allowed_pairs(call), bias_values(call)
    found = _attend(call, allowed, bias)
    # Weights of 0 hide what no query reads unless it is inf or NaN, which is seen in the output.
    return found if bool(found.output.isfinite().all()) else _attend(hide_idle(call, allowed)[0], allowed, bias)


def _attend(call: Call, allowed: Tensor | None, bias: Tensor | None) -> AttentionOutput:
    query, key, value = call[:3]
    batch_size, num_heads, query_len, head_dim = query.shape
    num_kv_heads, key_len, v_head_dim = value.shape[1:]
    group = num_heads // num_kv_heads
    dtype = torch.promote_types(query.dtype, torch.float32)
    grouped_query = call.score_scale * query.to(dtype).reshape(batch_size, num_kv_heads, group * query_len, head_dim)
    output = query.new_empty(batch_size, num_heads, query_len, v_head_dim)
    weights = query.new_empty(batch_size, num_heads, query_len, key_len, dtype=dtype) if call.return_weights else None
    logsumexp = query.new_empty(batch_size, num_heads, query_len, dtype=dtype) if call.return_logsumexp else None
    for rows, kv_heads in _pieces(call):
        heads = slice(group * kv_heads.start, group * kv_heads.stop)
        queries = grouped_query[rows, kv_heads]
        scores = _score(queries, key[rows, kv_heads].to(dtype))
        scores = scores.reshape(len(queries), heads.stop - heads.start, query_len, key_len)
        scores = cap_scores(scores, call.softcap)
        if bias is not None:
            scores = scores + _part(bias, rows, heads)
        if allowed is not None:
            scores = scores.masked_fill(~_part(allowed, rows, heads), -torch.inf)
        mixed_by, total = _weigh(scores, None if call.sink is None else call.sink[heads], call)
        mixed = _mix(mixed_by.reshape(*queries.shape[:3], key_len), value[rows, kv_heads].to(dtype))
        output[rows, heads] = mixed.view(*scores.shape[:3], v_head_dim).to(query.dtype)
        if weights is not None:
            weights[rows, heads] = mixed_by
        if logsumexp is not None and total is not None:
            logsumexp[rows, heads] = total
    return AttentionOutput(output, weights, logsumexp)


def _pieces(call: Call) -> Iterator[tuple[slice, slice]]:
    """Yield which batch rows and which kv heads are taken at a time."""
    batch_size, num_heads, num_kv_heads, query_len, key_len = call.sizes
    scores_of_head = num_heads // num_kv_heads * query_len * key_len
    num_at_once = max(1, PIECE // max(1, scores_of_head))
    heads_at_once = min(num_kv_heads, num_at_once)
    rows_at_once = 1
    if heads_at_once == num_kv_heads and _is_one_list(call.key) and _is_one_list(call.value):
        rows_at_once = max(1, num_at_once // num_kv_heads)
    for row in range(0, batch_size, rows_at_once):
        for head in range(0, num_kv_heads, heads_at_once):
            yield (
                slice(row, min(row + rows_at_once, batch_size)),
                slice(head, min(head + heads_at_once, num_kv_heads)),
            )


def _is_one_list(heads: Float[Tensor, "batch num_kv_heads key_len width"]) -> bool:
    """Tell whether the heads of all rows are evenly spaced, so that a product takes them without a copy."""
    return heads.stride(0) == heads.shape[1] * heads.stride(1)


def _part(tensor: Shaped[Tensor, "#batch #num_heads #query_len #key_len"], rows: slice, heads: slice) -> Tensor:
    """Return what a piece has of a tensor that may be broadcast over batch rows and heads."""
    return tensor[rows if tensor.shape[0] > 1 else slice(None), heads if tensor.shape[1] > 1 else slice(None)]


def _weigh(
    scores: Float[Tensor, "rows heads query_len key_len"], sink: Float[Tensor, " heads"] | None, call: Call
) -> tuple[Float[Tensor, "rows heads query_len key_len"], Float[Tensor, "rows heads query_len"] | None]:
    """Return the weights of keys, 0 in a row without one, and the logsumexp of their scores where it is needed."""
    weights = scores.softmax(-1)
    if call.mask is not None or call.bias is not None:
        weights = weights.masked_fill(scores.isneginf().all(-1, keepdim=True), 0.0)
    if sink is None and not call.return_logsumexp:
        return weights, None
    logsumexp = scores.logsumexp(-1, keepdim=True)
    if sink is not None:
        weights = weights * (logsumexp - sink.view(-1, 1, 1)).sigmoid()
    return weights, logsumexp.squeeze(-1)


def _score(
    query: Float[Tensor, "rows kv_heads queries head_dim"], key: Float[Tensor, "rows kv_heads key_len head_dim"]
) -> Float[Tensor, "rows kv_heads queries key_len"]:
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
    weights: Float[Tensor, "rows kv_heads queries key_len"], value: Float[Tensor, "rows kv_heads key_len v_head_dim"]
) -> Float[Tensor, "rows kv_heads queries v_head_dim"]:
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
    num_rows, num_kv_heads, num_queries = weights.shape[:3]
    v_head_dim = value.shape[-1]
    bags = weights[..., :end].reshape(num_rows, num_kv_heads, num_queries, end // BAG, BAG).transpose(2, 3)
    strides = (value.stride(0) // v_head_dim, value.stride(1) // v_head_dim, value.stride(2) // v_head_dim)
    find_places = _places.__wrapped__ if is_watched() else _places  # a mode may want tensors of its own kind
    places, offsets = find_places(num_rows, num_kv_heads, num_queries, end // BAG, strides)
    last = sum(stride * (size - 1) for stride, size in zip(strides, value.shape[:3], strict=True))
    table = value.as_strided((last + 1, v_head_dim), (v_head_dim, 1))
    mixed = torch.embedding_bag(table, places, offsets, False, 0, False, bags.flatten())[0]  # 0: sums
    output = mixed.view(num_rows, num_kv_heads, end // BAG, num_queries, v_head_dim).sum(2)
    return output if end == value.shape[2] else output + weights[..., end:] @ value[:, :, end:]


def _end_for_onednn(matrices: Float[Tensor, "rows kv_heads key_len width"]) -> int:
    """Return how many keys oneDNN multiplies, nearly all of them; 0 where it serves nothing."""
    key_len = matrices.shape[2]
    is_served = matrices.dtype == torch.float32 and matrices.device.type == "cpu" and matrices.stride(-1) == 1
    if not is_served or key_len < LEAST_ONEDNN_KEYS or not has_onednn():
        return 0
    step = (1 << key_len.bit_length() - 1) // STEPS
    return key_len // step * step


def _is_table(value: Float[Tensor, "batch num_kv_heads key_len v_head_dim"]) -> bool:
    """Tell whether the vectors are rows of one table of float32 on a CPU, which may have other rows between them."""
    width = value.shape[-1]
    strides = value.stride()
    is_float32 = value.dtype == torch.float32 and value.device.type == "cpu"
    return is_float32 and strides[3] == 1 and width > 0 and all(stride % width == 0 for stride in strides[:3])


@lru_cache(8)
def _places(
    num_rows: int, num_kv_heads: int, num_queries: int, num_bags: int, strides: tuple[int, int, int]
) -> tuple[Int[Tensor, " places"], Int[Tensor, " bags"]]:
    """Return which rows of the table of values the bags mix, those of a stretch once for each query, and their starts.

    Bags are ordered by batch row, kv head, stretch of keys and query.
    """
    row, head, key = (
        stride * torch.arange(size, dtype=torch.int32, device="cpu")
        for stride, size in zip(strides, (num_rows, num_kv_heads, num_bags * BAG), strict=True)
    )
    places = row.view(-1, 1, 1, 1, 1) + head.view(-1, 1, 1, 1) + key.view(-1, 1, BAG)
    places = places.expand(-1, -1, -1, num_queries, -1).flatten()
    return places, torch.arange(0, len(places), BAG, dtype=torch.int32, device="cpu")
