"""What a mask comes to in a call: nothing, torch's `is_causal`, fewer keys, a bool tensor; and how idle slots hide."""

from functools import lru_cache
from typing import NamedTuple

import torch
from jaxtyping import Bool
from torch import Tensor

from headwise.masks.dense import dense_mask
from headwise.masks.form import MaskForm, simplest_form
from headwise.masks.patterns import Causal, Full, Mask
from headwise.ops.call import Call
from headwise.ops.obstacles import is_traced

CACHED = 256  # masks and lengths, of which what they come to is remembered
PAIRS_AT_ONCE = 2**22  # looked at together, over all batch rows and heads: 4 MiB of bool


def form_of(call: Call) -> MaskForm:
    """Return the simplest form of a call's mask; rows and keys with indices of their own need the tensor."""
    if call.has_indices:
        return MaskForm("bool", has_idle=True)
    mask, query_len, key_len = call.mask, call.query.shape[2], call.key.shape[2]
    if _is_open(query_len, key_len):
        return _form_of_any_length(mask, query_len, key_len)
    find = _form_once if mask is not None and _may_remember(mask, query_len) else simplest_form
    return find(mask, query_len, key_len)


_form_once = lru_cache(CACHED)(simplest_form)


def _is_open(query_len: object, key_len: object) -> bool:
    """Tell whether a graph is exported that is to serve any length: what a mask comes to must not depend on it."""
    return isinstance(query_len, torch.SymInt) or isinstance(key_len, torch.SymInt)


def _form_of_any_length(mask: Mask | None, query_len: int | torch.SymInt, key_len: int | torch.SymInt) -> MaskForm:
    """Return a form that holds whatever the lengths are."""
    from torch.fx.experimental.symbolic_shapes import statically_known_true  # half a second, of exports alone

    if mask is None or isinstance(mask, Full):
        return MaskForm("none", has_idle=False)
    if isinstance(mask, Causal) and statically_known_true(query_len == key_len):
        return MaskForm("causal", has_idle=False)
    return MaskForm("bool", has_idle=True)


def _may_remember(mask: Mask, length: int) -> bool:
    """Tell whether the mask is a value, and lengths are numbers: of a graph that is being made they need be none."""
    return mask.is_structural and type(length) is int and not is_traced()


def skip_unread_keys(call: Call) -> Call:
    """Cut off the first keys if the distances that the mask allows show that no query reads them.

    A window over a stream with a long past, as in decoding, needs the last keys alone. Queries still stand at their
    end, and the mask looks at distances alone, so that the call keeps its meaning.
    """
    if call.mask is None or call.has_indices:
        return call
    query_len, key_len = call.query.shape[2], call.key.shape[2]
    if _is_open(query_len, key_len):
        return call
    find = _first_read_once if _may_remember(call.mask, query_len) else _first_read
    first_read = find(call.mask, query_len, key_len)
    if first_read <= 0:
        return call
    first = int(first_read)
    bias = call.bias
    key_positions = call.key_positions
    if isinstance(bias, Tensor):
        bias = bias[..., first:] if bias.ndim and bias.shape[-1] > 1 else bias
    elif bias is not None:
        # Counted from the first key that is left, the default positions would be others.
        query_positions = call.query_positions
        if query_positions is None:
            query_positions = torch.arange(key_len - query_len, key_len, device=call.query.device)
        if key_positions is None:
            key_positions = torch.arange(key_len, device=call.query.device)
        call = call._replace(query_positions=query_positions)
    return call._replace(
        key=call.key[:, :, first:],
        value=call.value[:, :, first:],
        bias=bias,
        key_positions=None if key_positions is None else key_positions[..., first:],
    )


def _first_read(mask: Mask, query_len: int, key_len: int) -> int | float:
    """Return the first key that distances let the first query read; 0 where they say nothing."""
    distances = mask.distances()
    intervals = () if distances is None else distances.within(query_len, key_len).intervals
    return key_len - query_len - intervals[-1][1] + 1 if intervals else 0


_first_read_once = lru_cache(CACHED)(_first_read)


def allowed_pairs(call: Call) -> Bool[Tensor, "#batch #num_heads #query_len key_len"]:
    """Return the mask as a bool tensor of the smallest shape, its last dimension written out for torch's kernels."""
    batch_size, num_heads, query_len, _ = call.query.shape
    key_len = call.key.shape[2]
    allowed = dense_mask(
        Full() if call.mask is None else call.mask,
        batch_size=batch_size,
        num_heads=num_heads,
        query_len=query_len,
        key_len=key_len,
        query_index=call.query_index,
        key_index=call.key_index,
        device=call.query.device,
    )
    return allowed.expand(-1, -1, -1, key_len)


class Idle(NamedTuple):
    """Which queries read no key, and which slots no query reads, in any query head of their kv head."""

    is_empty: Bool[Tensor, "#batch #num_heads #query_len 1"]
    is_unread: Bool[Tensor, "#batch #num_kv_heads key_len 1"]


def hide_idle(
    call: Call, allowed: Bool[Tensor, "#batch #num_heads #query_len key_len"]
) -> tuple[Call, Bool[Tensor, "#batch #num_heads #query_len 1"]]:
    """Put zeros into key and value slots that no query reads, and into queries that read no key.

    Returns:
        The call with nothing idle to see, and which queries have no key.
    """
    is_unread = ~_over_groups(allowed.any(-2), call.key.shape[1]).unsqueeze(-1)
    idle = Idle(~allowed.any(-1, keepdim=True), is_unread)
    return fill_idle(call, idle), idle.is_empty


def fill_idle(call: Call, idle: Idle) -> Call:
    """Put zeros where nothing is read.

    A masked slot still meets every kernel: its score is computed before the mask hides it, and its value is multiplied
    by a weight of 0, so a NaN or an infinity in it would reach the output and the gradients. Zeros cannot. It costs a
    copy, always: whether it is needed depends on all numbers, the queries' too, and a look at them costs as much.
    """
    return call._replace(
        query=call.query.masked_fill(idle.is_empty, 0.0),
        key=call.key.masked_fill(idle.is_unread, 0.0),
        value=call.value.masked_fill(idle.is_unread, 0.0),
    )


def _over_groups(is_read: Tensor, num_kv_heads: int) -> Tensor:
    """Say of each slot whether any query head of its kv head reads it."""
    mask_batch, mask_heads, key_len = is_read.shape
    if mask_heads == 1:
        return is_read
    return is_read.reshape(mask_batch, num_kv_heads, mask_heads // num_kv_heads, key_len).any(2)
