"""One call of attention: its arguments, made ready and checked once, for every implementation."""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from headwise.errors import HeadwiseError, UnsupportedError
from headwise.masks.patterns import Mask, require_batch_size, require_mask

IMPLS = ("reference", "sdpa")


class Call(NamedTuple):
    """The arguments of `attention`, which says what they are."""

    query: Tensor
    key: Tensor
    value: Tensor
    mask: Mask | None
    query_index: Tensor | None
    key_index: Tensor | None
    scale: int | float | None
    dropout_p: int | float
    return_weights: bool
    return_logsumexp: bool

    @property
    def score_scale(self) -> int | float:
        """The factor on the scores."""
        return 1 / math.sqrt(self.query.shape[-1]) if self.scale is None else self.scale

    @property
    def has_indices(self) -> bool:
        """Whether the call brings indices of its own, of which nothing is known before they are read."""
        return self.query_index is not None or self.key_index is not None


def prepare(call: Call, impl: str) -> tuple[Call, str]:
    """Check a call, cast it as an enclosing autocast wants, and resolve the implementation.

    Raises:
        HeadwiseError: as `attention`; the text names the call and its shapes, then the fact.
    """
    dtype = autocast_dtype(call.query.device.type)
    if dtype is not None:
        query, key, value = (_cast_as_autocast(tensor, dtype) for tensor in call[:3])
        call = call._replace(query=query, key=key, value=value)
    query, key, value = call[:3]
    try:
        _check_tensors(query, key, value)
        _check_index("query_index", call.query_index, query, query)
        _check_index("key_index", call.key_index, query, key)
        if call.mask is not None:
            require_mask(call.mask)
            require_batch_size(call.mask, query.shape[0])
        if call.scale is not None and not math.isfinite(call.scale):
            raise HeadwiseError(f"scale must be a finite number; got {call.scale}")
        if not 0 <= call.dropout_p < 1:
            raise HeadwiseError(f"dropout_p must be at least 0 and below 1; got {call.dropout_p}")
        return call, _resolve(call, impl)
    except HeadwiseError as error:
        shapes = (f"{name} {_shape(tensor)}" for name, tensor in (("query", query), ("key", key), ("value", value)))
        raise type(error)(f"attention({', '.join(shapes)}):\n  {error}") from None


def require_impl(impl: str) -> None:
    """Raise UnsupportedError unless `impl` names an implementation, or "auto"."""
    if impl != "auto" and impl not in IMPLS:
        raise UnsupportedError(f"impl must be one of {', '.join(IMPLS)} and auto; got {impl!r}")


def find_sdpa_obstacle(call: Call) -> str | None:
    """Return why torch's fused kernels cannot serve a call, or None."""
    wishes = (("weights", call.return_weights), ("logsumexp", call.return_logsumexp))
    asked = [name for name, is_asked in wishes if is_asked]
    return f"torch's fused kernels do not return {' and '.join(asked)}" if asked else None


def autocast_dtype(device_type: str) -> torch.dtype | None:
    """Return the dtype that an enclosing `torch.autocast` wants on a device; None outside of one."""
    if torch.amp.is_autocast_available(device_type) and torch.is_autocast_enabled(device_type):
        return torch.get_autocast_dtype(device_type)
    return None


def _cast_as_autocast(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """Cast as autocast casts the inputs of a matrix product: float64 stays."""
    return tensor if tensor.dtype == torch.float64 else tensor.to(dtype)


def _resolve(call: Call, impl: str) -> str:
    require_impl(impl)
    obstacle = find_sdpa_obstacle(call)
    if impl == "auto":
        return "sdpa" if obstacle is None else "reference"
    if impl == "sdpa" and obstacle is not None:
        raise UnsupportedError(f'{obstacle}; use impl="reference", which does, or "auto"')
    return impl


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
