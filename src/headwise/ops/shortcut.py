"""The short way: calls that come down to one call of torch's, and nothing beside it, are remembered by their sizes.

Everything between the door and the kernel takes some microseconds, and several times as many where the caches hold
other things. For a short text that is more than a hundredth of the whole.
"""

from typing import Any, NamedTuple

from torch import Tensor
from torch.nn import functional

from headwise.masks.patterns import Causal, Full, Mask
from headwise.ops.call import Call
from headwise.ops.choose import reads_much
from headwise.ops.lowering import form_of
from headwise.ops.obstacles import has_forward_derivatives, is_traced
from headwise.ops.prepare import autocast_dtype
from headwise.ops.sdpa import plan_kernel

MAX_KNOWN = 256
_SHOWS_THE_LAST_ALL = (Full(), Causal())  # masks

_Signature = tuple[Any, ...]


class Known(NamedTuple):
    """How torch is called: with `is_causal`, with grouped heads, or with a group's heads as queries of one head."""

    is_causal: bool
    is_grouped: bool
    is_packed: bool


_known: dict[_Signature | None, Known] = {}


def take_shortcut(query: Tensor, key: Tensor, value: Tensor, mask: Mask | None, impl: str) -> Tensor | None:
    """Return the output of a call with defaults for all that is not given here; None if its like is not remembered."""
    if is_traced() or has_forward_derivatives():  # a graph must not depend on what has been called before
        return None
    try:
        known = _known.get(_signature(query, key, value, mask, impl))
    except TypeError:  # a mask that has no hash, which is refused at the door
        return None
    if known is None or autocast_dtype(query.device.type) is not None:
        return None
    is_causal, is_grouped, is_packed = known
    if is_packed:
        packed = query.reshape(query.shape[0], key.shape[1], -1, query.shape[3])
        output = functional.scaled_dot_product_attention(packed, key, value)
        return output.reshape(*query.shape[:3], value.shape[3])
    return functional.scaled_dot_product_attention(query, key, value, is_causal=is_causal, enable_gqa=is_grouped)


def remember(call: Call, impl: str) -> None:
    """Remember a call with defaults for all but its mask, if it was checked and torch's own call is all that runs."""
    signature = None if is_traced() else _signature(*call[:4], impl)
    if signature is None:
        return
    form = form_of(call)
    is_grouped = call.query.shape[1] != call.key.shape[1]
    is_packed = is_grouped and plan_kernel(call)[0]
    if form.kind == "none" or (form.kind == "causal" and not is_packed):
        if len(_known) >= MAX_KNOWN:
            _known.clear()
        _known[signature] = Known(form.kind == "causal", is_grouped, is_packed)


def _signature(query: Tensor, key: Tensor, value: Tensor, mask: Mask | None, impl: str) -> _Signature | None:
    """Return all that decides what a call comes to; None of one that is not remembered."""
    if not (type(query) is type(key) is type(value) is Tensor):
        return None
    if mask is not None and not (isinstance(mask, Mask) and mask.is_structural):
        return None
    if not isinstance(impl, str):
        return None
    key_shape: tuple[int | str, ...] = tuple(key.shape)
    value_shape: tuple[int | str, ...] = tuple(value.shape)
    if not len(query.shape) == len(key_shape) == len(value_shape) == 4:
        return None
    if query.shape[2] == 1 and key_shape[2:3] == value_shape[2:3] != (0,):
        if reads_much(query, key, value):
            return None  # which way is faster depends on more than stands here
        if mask is None or mask in _SHOWS_THE_LAST_ALL:
            # As tokens are decoded there is one key more each time, and the same to do, as long as these are few.
            key_shape, value_shape = ((*shape[:2], "few", *shape[3:]) for shape in (key_shape, value_shape))
    return (
        *(query.shape, query.dtype, query.device, query.stride()[-1:]),
        *(key_shape, key.dtype, key.device, key.stride()[-1:]),
        *(value_shape, value.dtype, value.device, value.stride()[-1:]),
        *(mask, impl),
    )
