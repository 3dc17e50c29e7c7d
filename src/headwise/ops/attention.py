"""The public operation: check the call, choose an implementation, call it."""

import math
from contextlib import nullcontext

import torch
from jaxtyping import Float, Int
from torch import Tensor

from headwise.errors import HeadwiseError, UnsupportedError
from headwise.masks.patterns import Mask, require_batch_size, require_mask
from headwise.ops.lowering import autocast_dtype, cast_as_autocast, simplest_form
from headwise.ops.reference import reference_attention
from headwise.ops.results import AttentionOutput, Choice
from headwise.ops.sdpa import plan_kernel, sdpa_attention

IMPLS = ("reference", "sdpa")


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
    that may read no key gives output 0, weights 0 and logsumexp -inf, with finite gradients. A key/value slot that no
    query may read can hold anything, NaN too. Training or not, weights asked for or not, and any implementation: the
    meaning is the same.

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
    wanted_dtype = autocast_dtype(query.device.type)
    if wanted_dtype is not None:
        query, key, value = (cast_as_autocast(tensor, wanted_dtype) for tensor in (query, key, value))
    chosen = _check_and_resolve(
        query,
        key,
        value,
        mask=mask,
        query_index=query_index,
        key_index=key_index,
        scale=scale,
        dropout_p=dropout_p,
        return_weights=return_weights,
        return_logsumexp=return_logsumexp,
        impl=impl,
    )
    if scale is None:
        scale = 1 / math.sqrt(query.shape[-1])
    # Inside, softmax sums are float32 or better, whatever autocast would make of them.
    with nullcontext() if wanted_dtype is None else torch.autocast(query.device.type, enabled=False):
        if chosen == "reference":
            return reference_attention(
                query,
                key,
                value,
                mask=mask,
                query_index=query_index,
                key_index=key_index,
                scale=scale,
                dropout_p=dropout_p,
                return_weights=return_weights,
                return_logsumexp=return_logsumexp,
            )
        return sdpa_attention(
            query,
            key,
            value,
            mask=mask,
            query_index=query_index,
            key_index=key_index,
            scale=scale,
            dropout_p=dropout_p,
        )


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
    wanted_dtype = autocast_dtype(query.device.type)
    if wanted_dtype is not None:
        query, key, value = (cast_as_autocast(tensor, wanted_dtype) for tensor in (query, key, value))
    chosen = _check_and_resolve(
        query,
        key,
        value,
        mask=mask,
        query_index=query_index,
        key_index=key_index,
        scale=scale,
        dropout_p=dropout_p,
        return_weights=return_weights,
        return_logsumexp=return_logsumexp,
        impl=impl,
    )
    if chosen == "reference":
        obstacle = _find_sdpa_obstacle(return_weights, return_logsumexp) or "reference was asked for"
        return Choice(impl="reference", kernel=None, reasons=(f"sdpa is not taken: {obstacle}",))
    has_indices = query_index is not None or key_index is not None
    form = simplest_form(mask, query.shape[2], key.shape[2], has_indices=has_indices)
    kernel = plan_kernel(query, key[:, :, form.first_key :], value[:, :, form.first_key :], form, dropout_p)[1]
    return Choice(impl="sdpa", kernel=kernel.name, reasons=kernel.reasons)


def _check_and_resolve(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    mask: Mask | None,
    query_index: Tensor | None,
    key_index: Tensor | None,
    scale: int | float | None,
    dropout_p: int | float,
    return_weights: bool,
    return_logsumexp: bool,
    impl: str,
) -> str:
    """Check a call and return its implementation; an error names the call and its shapes, then the fact."""
    try:
        _check_tensors(query, key, value)
        _check_index("query_index", query_index, query, query)
        _check_index("key_index", key_index, query, key)
        if mask is not None:
            require_mask(mask)
            require_batch_size(mask, query.shape[0])
        if scale is not None and not math.isfinite(scale):
            raise HeadwiseError(f"scale must be a finite number; got {scale}")
        if not 0 <= dropout_p < 1:
            raise HeadwiseError(f"dropout_p must be at least 0 and below 1; got {dropout_p}")
        return _resolve(impl, return_weights, return_logsumexp)
    except HeadwiseError as error:
        shapes = (f"{name} {_shape(tensor)}" for name, tensor in (("query", query), ("key", key), ("value", value)))
        raise type(error)(f"attention({', '.join(shapes)}):\n  {error}") from None


def _resolve(impl: str, return_weights: bool, return_logsumexp: bool) -> str:
    obstacle = _find_sdpa_obstacle(return_weights, return_logsumexp)
    if impl == "auto":
        return "sdpa" if obstacle is None else "reference"
    if impl not in IMPLS:
        raise UnsupportedError(f"impl must be one of {', '.join(IMPLS)} and auto; got {impl!r}")
    if impl == "sdpa" and obstacle is not None:
        raise UnsupportedError(f'{obstacle}; use impl="reference", which does, or "auto"')
    return impl


def _find_sdpa_obstacle(return_weights: bool, return_logsumexp: bool) -> str | None:
    asked = [name for name, is_asked in (("weights", return_weights), ("logsumexp", return_logsumexp)) if is_asked]
    return f"torch's fused kernels do not return {' and '.join(asked)}" if asked else None


def _check_tensors(query: Tensor, key: Tensor, value: Tensor) -> None:
    if not query.ndim == key.ndim == value.ndim == 4:
        raise HeadwiseError(
            "query, key and value must have the dimensions (batch, num_heads, seq_len, head_dim); "
            f"got {query.ndim}, {key.ndim} and {value.ndim} dimensions"
        )
    batch_size, num_heads, _, head_dim = query.shape
    key_batch, num_kv_heads, _, key_head_dim = key.shape
    if value.shape[:3] != key.shape[:3]:
        raise HeadwiseError(
            "each key must have one value, so the first three dimensions of key and value must be equal; "
            f"got {_shape(key)} and {_shape(value)}"
        )
    if key_batch != batch_size:
        raise HeadwiseError(f"query and key must have the same batch size; got {batch_size} and {key_batch}")
    if key_head_dim != head_dim or head_dim < 1:
        raise HeadwiseError(
            "query and key must have the same head_dim, at least 1, since they are multiplied; "
            f"got {head_dim} and {key_head_dim}"
        )
    if num_kv_heads < 1 or num_heads < 1 or num_heads % num_kv_heads:
        raise HeadwiseError(
            "num_heads must be a multiple of num_kv_heads, so that each key head serves the same number of queries; "
            f"got {num_heads} and {num_kv_heads}"
        )
    if not query.dtype == key.dtype == value.dtype or not query.is_floating_point():
        raise HeadwiseError(
            "query, key and value must have one floating-point dtype; "
            f"got {query.dtype}, {key.dtype} and {value.dtype} (cast them, or use torch.autocast)"
        )
    if not query.device == key.device == value.device:
        raise HeadwiseError(
            f"query, key and value must be on one device; got {query.device}, {key.device} and {value.device}"
        )


def _check_index(name: str, index: Tensor | None, query: Tensor, tokens: Tensor) -> None:
    if index is None:
        return
    batch_size, seq_len = query.shape[0], tokens.shape[2]
    if index.shape not in ((seq_len,), (batch_size, seq_len)) or index.is_floating_point() or index.dtype == torch.bool:
        raise HeadwiseError(
            f"{name} must hold one whole number a token, shape ({seq_len},) or ({batch_size}, {seq_len}); "
            f"got {index.dtype} of shape {_shape(index)}"
        )


def _shape(tensor: Tensor) -> tuple[int, ...]:
    return tuple(tensor.shape)
