"""What must hold of the arguments of `attention`: checked once, at the door, without a look at the numbers."""

import math

import torch
from torch import Tensor

from headwise.errors import ConfigError, HeadwiseError
from headwise.masks.patterns import Mask, require_batch_size, require_mask, require_num_heads
from headwise.ops.bias import Bias
from headwise.ops.call import Call
from headwise.ops.dropout import SEED_BITS


def check_call(call: Call) -> None:
    """Raise HeadwiseError if arguments do not fit together, or make no sense."""
    query, key, value = call[:3]
    _check_tensors(query, key, value)
    for name, tokens in (("query", query), ("key", key)):
        for kind in ("index", "positions"):
            _check_places(f"{name}_{kind}", getattr(call, f"{name}_{kind}"), tokens)
    if call.mask is not None:
        _check_mask(call.mask, query)
    _check_bias(call)
    _check_sink(call)
    if call.scale is not None and not abs(call.scale) < math.inf:
        raise HeadwiseError(f"scale must be a finite number; got {call.scale}")
    if call.softcap is not None and not 0 < call.softcap < math.inf:
        raise HeadwiseError(f"softcap must be a finite number above 0, or None for no cap; got {call.softcap}")
    _check_dropout(call)


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
            f"got {tuple(key.shape)} and {tuple(value.shape)}"
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


def _check_mask(mask: Mask, query: Tensor) -> None:
    require_mask(mask)
    if mask.is_structural:
        _require_value(mask)
        return
    require_batch_size(mask, query.shape[0])
    require_num_heads(mask, query.shape[1])
    if mask.device is not None and mask.device != query.device:
        raise HeadwiseError(f"a mask must be on the device of the call, {query.device}; got {mask!r} on {mask.device}")


def _require_value(mask: Mask) -> None:
    try:
        hash(mask)
    except TypeError:
        raise ConfigError(
            "a structural mask must be a value that can be hashed, such as a frozen dataclass, since what follows from "
            f"it is remembered; got {mask!r}"
        ) from None


def _check_places(name: str, places: Tensor | None, tokens: Tensor) -> None:
    """Check indices or positions."""
    if places is None:
        return
    batch_size, seq_len = tokens.shape[0], tokens.shape[2]
    is_other_kind = places.is_floating_point() or places.is_complex() or places.dtype == torch.bool
    if places.shape not in ((seq_len,), (batch_size, seq_len)) or is_other_kind:
        raise HeadwiseError(
            f"{name} must hold one whole number a token, shape ({seq_len},) or ({batch_size}, {seq_len}); "
            f"got {places.dtype} of shape {tuple(places.shape)}"
        )
    if places.device != tokens.device:
        raise HeadwiseError(f"{name} must be on the device of the call, {tokens.device}; got {places.device}")


def _check_bias(call: Call) -> None:
    bias = call.bias
    if bias is None:
        return
    full = (*call.query.shape[:3], call.key.shape[2])
    if isinstance(bias, Tensor):
        if not bias.is_floating_point():
            raise HeadwiseError(
                f"bias must be a floating-point tensor, which is added to the scores; got {bias.dtype} "
                "(a tensor that says which pairs to keep is a mask: headwise's Explicit)"
            )
        sizes = zip(reversed(bias.shape), reversed(full), strict=False)
        if bias.ndim > len(full) or any(size not in (1, full_size) for size, full_size in sizes):
            raise HeadwiseError(
                f"bias must broadcast to (batch, num_heads, query_len, key_len) = {full}; got {tuple(bias.shape)}"
            )
        tensors: tuple[Tensor, ...] = (bias,)
    elif isinstance(bias, Bias):
        tensors = bias.tensors
    else:
        raise HeadwiseError(
            "bias must be a tensor, or a function of head and positions with an attribute `tensors`, such as ALiBi; "
            f"got a {type(bias).__name__}"
        )
    for tensor in tensors:
        if tensor.device != call.query.device:
            raise HeadwiseError(f"bias must be on the device of the call, {call.query.device}; got {tensor.device}")


def _check_sink(call: Call) -> None:
    sink, num_heads = call.sink, call.query.shape[1]
    if sink is None:
        return
    if not isinstance(sink, Tensor) or sink.shape != (num_heads,) or not sink.is_floating_point():
        kind = f"{sink.dtype} of shape {tuple(sink.shape)}" if isinstance(sink, Tensor) else type(sink).__name__
        raise HeadwiseError(
            f"sink must be one floating-point number a query head, a tensor of shape ({num_heads},); got {kind}"
        )
    if sink.device != call.query.device:
        raise HeadwiseError(f"sink must be on the device of the call, {call.query.device}; got {sink.device}")


def _check_dropout(call: Call) -> None:
    if not 0 <= call.dropout_p < 1:
        raise HeadwiseError(f"dropout_p must be at least 0 and below 1; got {call.dropout_p}")
    seed = call.dropout_seed
    if seed is not None and (isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 2**SEED_BITS):
        raise HeadwiseError(f"dropout_seed must be a whole number from 0 to 2^{SEED_BITS} - 1, or None; got {seed!r}")
