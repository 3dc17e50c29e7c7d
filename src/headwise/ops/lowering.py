"""What a mask comes to in one call: nothing, torch's `is_causal`, or a bool tensor; and how idle slots are hidden."""

from typing import Literal, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from headwise.masks.dense import dense_mask
from headwise.masks.patterns import Full, Mask

# Times a query of the same size, and summed over 2^20 dimensions, it is still a finite float32 (up to 3.4e38).
HARMLESS = 1e16


class MaskForm(NamedTuple):
    """How little a mask needs for given lengths.

    `kind`: "none" (every pair is allowed), "causal" (square, the triangle), or "bool". `first_key`: no query reads a
    key before this one. `has_idle`: whether a key from `first_key` on may be read by no query, or a query may read no
    key.
    """

    kind: Literal["none", "causal", "bool"]
    first_key: int
    has_idle: bool


def simplest_form(mask: Mask | None, query_len: int, key_len: int, *, has_indices: bool) -> MaskForm:
    """Return the simplest form of a mask, from the lengths alone.

    Args:
        mask: the mask; None allows everything.
        query_len: number of queries.
        key_len: number of keys.
        has_indices: whether the call brings its own indices, of which nothing is known here.
    """
    if has_indices or query_len == 0 or key_len == 0:
        return MaskForm("bool", 0, True)
    if mask is None:
        return MaskForm("none", 0, False)
    distances = mask.distances()
    if distances is None:
        return MaskForm("bool", 0, True)
    intervals = distances.within(query_len, key_len).intervals
    if intervals == ((1 - query_len, key_len),):
        return MaskForm("none", 0, False)
    if query_len == key_len and intervals == ((0, key_len),):
        return MaskForm("causal", 0, False)
    # The first query stands at index key_len - query_len and reads back to the largest distance.
    first_key = max(0, key_len - query_len - int(intervals[-1][1] - 1)) if intervals else 0
    remaining = key_len - first_key
    return MaskForm("bool", first_key, distances.longest_gap(query_len, remaining) >= min(query_len, remaining))


def allowed_pairs(
    mask: Mask | None,
    query: Float[Tensor, "batch num_heads query_len head_dim"],
    key: Float[Tensor, "batch num_kv_heads key_len head_dim"],
    query_index: Int[Tensor, "... query_len"] | None = None,
    key_index: Int[Tensor, "... key_len"] | None = None,
) -> Bool[Tensor, "#batch #num_heads #query_len key_len"]:
    """Return the mask as a bool tensor of the smallest shape, its last dimension written out for torch's kernels."""
    key_len = key.shape[-2]
    allowed = dense_mask(
        Full() if mask is None else mask,
        batch_size=query.shape[0],
        num_heads=query.shape[1],
        query_len=query.shape[2],
        key_len=key_len,
        query_index=query_index,
        key_index=key_index,
        device=query.device,
    )
    return allowed.expand(-1, -1, -1, key_len)


class HiddenIdle(NamedTuple):
    """Inputs in which nothing idle can be seen.

    `is_empty` (broadcast to batch, num_heads, query_len, 1) marks the queries without a key, whose output must be 0;
    None: there is none.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    allowed: Tensor
    is_empty: Tensor | None


def hide_idle(
    query: Float[Tensor, "batch num_heads query_len head_dim"],
    key: Float[Tensor, "batch num_kv_heads key_len head_dim"],
    value: Float[Tensor, "batch num_kv_heads key_len v_head_dim"],
    allowed: Bool[Tensor, "#batch #num_heads #query_len key_len"],
) -> HiddenIdle:
    """Put zeros into key and value slots that no query reads, and into queries that read no key.

    A masked slot still meets every kernel: its score is computed before the mask hides it, and its value is multiplied
    by a weight of 0, so a NaN or an infinity in it would reach the output and the gradients. Zeros cannot. A query
    without a key is let see everything instead, which keeps the softmax and its gradient finite in every kernel; the
    caller then sets its output to 0 (and with it its gradient).

    Each of these costs a copy, so on CPU it is done only if there is something to hide. Elsewhere a look at the numbers
    would make the host wait for the device, and it is always done.
    """
    num_kv_heads = key.shape[1]
    is_empty = ~allowed.any(-1, keepdim=True)  # (B or 1, H or 1, T or 1, 1)
    is_read = allowed.any(-2)  # (B or 1, H or 1, S)
    mask_batch, mask_heads, key_len = is_read.shape
    if mask_heads > 1:  # a slot is read if any query head of its kv head reads it
        is_read = is_read.reshape(mask_batch, num_kv_heads, mask_heads // num_kv_heads, key_len).any(2)
    may_look = all(_may_look(tensor) for tensor in (query, key, value, allowed))
    if not (may_look and bool(is_read.all())):
        is_unread = ~is_read.unsqueeze(-1)
        if not (may_look and _is_harmless(key)):
            key = key.masked_fill(is_unread, 0.0)
        if not (may_look and _is_harmless(value)):
            value = value.masked_fill(is_unread, 0.0)
    if may_look and not bool(is_empty.any()):
        return HiddenIdle(query, key, value, allowed, None)
    return HiddenIdle(query.masked_fill(is_empty, 0.0), key, value, allowed | is_empty, is_empty)


def _is_harmless(tensor: Tensor) -> bool:
    """Whether every number is so small that its product with a weight of 0 is 0, and with a query is finite."""
    if tensor.numel() == 0:
        return True
    smallest, largest = torch.aminmax(tensor.detach())  # a NaN anywhere makes both NaN, and the comparisons false
    return bool(smallest > -HARMLESS) and bool(largest < HARMLESS)


def _may_look(tensor: Tensor) -> bool:
    """Whether numbers may steer the call: not on other devices, in compiled graphs, under vmap or on fake tensors."""
    return (
        type(tensor) is Tensor
        and tensor.device.type == "cpu"
        and not torch.compiler.is_compiling()
        # Private, of torch 2.13: no public function tells that torch.vmap has wrapped a tensor.
        and not torch._C._functorch.is_functorch_wrapped_tensor(tensor)
    )


def autocast_dtype(device_type: str) -> torch.dtype | None:
    """Return the dtype that an enclosing `torch.autocast` wants on a device; None outside of one."""
    if torch.amp.is_autocast_available(device_type) and torch.is_autocast_enabled(device_type):
        return torch.get_autocast_dtype(device_type)
    return None


def cast_as_autocast(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """Cast as autocast casts the inputs of a matrix product: float64 stays."""
    return tensor if tensor.dtype == torch.float64 else tensor.to(dtype)
