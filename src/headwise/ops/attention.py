"""The public operation: check the call, choose an implementation, call it."""

from contextlib import nullcontext

import torch
from jaxtyping import Float, Int
from torch import Tensor

from headwise.masks.patterns import Mask
from headwise.ops.call import Call, autocast_dtype, find_sdpa_obstacle, prepare
from headwise.ops.lowering import form_of
from headwise.ops.reference import reference_attention
from headwise.ops.results import AttentionOutput, Choice
from headwise.ops.sdpa import plan_kernel, sdpa_attention


def attention(
    query: Float[Tensor, "batch num_heads query_len head_dim"],
    key: Float[Tensor, "batch num_kv_heads key_len head_dim"],
    value: Float[Tensor, "batch num_kv_heads key_len v_head_dim"],
    *,
    mask: Mask | None = None,
    query_index: Int[Tensor, "... query_len"] | None = None,
    key_index: Int[Tensor, "... key_len"] | None = None,
    scale: int | float | None = None,
    dropout_p: int | float = 0.0,
    return_weights: bool = False,
    return_logsumexp: bool = False,
    impl: str = "auto",
) -> AttentionOutput:
    """Compute, for each head, the mean of the values that a query may read, weighted by how well their keys match it.

    `output = softmax(scale * query key^T where the mask allows) value`

    Query head `h` uses key/value head `h // (num_heads // num_kv_heads)`; keys and values are never expanded. A query
    that may read no key gives output 0, weights 0 and logsumexp -inf, with finite gradients. Training or not, weights
    asked for or not, and any implementation: the meaning is the same.

    A key/value slot that no query may read can hold anything, NaN too. One that is masked for some queries alone must
    be finite and have a finite float32 score with those too, as the kernels add -inf to a masked score and multiply a
    masked value by 0; the same goes for its value's product with the output's gradient.

    Args:
        query: (batch, num_heads, query_len, head_dim).
        key: (batch, num_kv_heads, key_len, head_dim).
        value: (batch, num_kv_heads, key_len, v_head_dim).
        mask: which keys a query may read. Default: all.
        query_index: (query_len,) or (batch, query_len), the queries' places in their stream, which masks read.
            Default: the queries stand at the end of the keys: query `i` of `T` has index `S - T + i`.
        key_index: (key_len,) or (batch, key_len), the keys' places; -1 = an empty slot, never read. Default: 0, 1, 2...
        scale: factor on the scores. Default: `1 / sqrt(head_dim)`.
        dropout_p: probability with which a weight is dropped (the others grow by `1 / (1 - dropout_p)`). It acts
            whenever it is above 0: a module gives 0 outside of training.
        return_weights: whether to return the weights, before dropout, at least float32. Needs memory for every pair.
        return_logsumexp: whether to return the logarithm of the softmax's sum, at least float32.
        impl: "reference" (plain tensor operations), "sdpa" (torch's fused kernels), or "auto": "sdpa" unless something
            is asked for that only "reference" gives.

    Returns:
        output (batch, num_heads, query_len, v_head_dim) in the query's dtype (under autocast: in autocast's), weights
        (batch, num_heads, query_len, key_len) and logsumexp (batch, num_heads, query_len), None if not asked for.

    Raises:
        HeadwiseError: shapes, dtypes or devices that do not fit together, or a number out of range.
        ConfigError: `mask` is no Mask, or was made for another batch size.
        UnsupportedError: an unknown `impl`, or one that cannot give what is asked for.

    Source: Vaswani et al. 2017, "Attention Is All You Need", section 3.2.1.
    """
    call = Call(query, key, value, mask, query_index, key_index, scale, dropout_p, return_weights, return_logsumexp)
    call, resolved = prepare(call, impl)
    # Inside, softmax sums are float32 or better, whatever autocast would make of them.
    device_type = query.device.type
    with nullcontext() if autocast_dtype(device_type) is None else torch.autocast(device_type, enabled=False):
        return reference_attention(call) if resolved == "reference" else sdpa_attention(call)


def choose_impl(
    query: Float[Tensor, "batch num_heads query_len head_dim"],
    key: Float[Tensor, "batch num_kv_heads key_len head_dim"],
    value: Float[Tensor, "batch num_kv_heads key_len v_head_dim"],
    *,
    mask: Mask | None = None,
    query_index: Int[Tensor, "... query_len"] | None = None,
    key_index: Int[Tensor, "... key_len"] | None = None,
    scale: int | float | None = None,
    dropout_p: int | float = 0.0,
    return_weights: bool = False,
    return_logsumexp: bool = False,
    impl: str = "auto",
) -> Choice:
    """Say which implementation and kernel `attention` uses for the same arguments, without running it, and why.

    Arguments as of `attention`.

    Returns:
        The implementation, its kernel, and a sentence for each faster one that is not taken.

    Raises:
        HeadwiseError: as `attention`.
    """
    call = Call(query, key, value, mask, query_index, key_index, scale, dropout_p, return_weights, return_logsumexp)
    call, resolved = prepare(call, impl)
    if resolved == "reference":
        obstacle = find_sdpa_obstacle(call) or "reference was asked for"
        return Choice(impl="reference", kernel=None, reasons=(f"sdpa is not taken: {obstacle}",))
    kernel = plan_kernel(call, form_of(call))[1]
    return Choice(impl="sdpa", kernel=kernel.name, reasons=kernel.reasons)
