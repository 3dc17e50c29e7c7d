"""The door of every call: cast as autocast wants, check once, and resolve the implementation."""

import torch
from torch import Tensor

from headwise.errors import HeadwiseError
from headwise.ops.call import Call
from headwise.ops.checks import check_call
from headwise.ops.choose import resolve_impl


def prepare(call: Call, impl: str) -> tuple[Call, str]:
    """Check a call, cast it as an enclosing autocast wants, and resolve the implementation.

    Query, key and value take autocast's dtype; a bias and a sink go into the softmax, and are float32 or better there.

    Raises:
        HeadwiseError: as `attention`; the text names the call and its shapes, then the fact.
    """
    dtype = autocast_dtype(call.query.device.type)
    if dtype is not None:
        query, key, value = (_cast_as_autocast(tensor, dtype) for tensor in call[:3])
        call = call._replace(query=query, key=key, value=value)
    try:
        check_call(call)
        return _widen(call), resolve_impl(call, impl)
    except HeadwiseError as error:
        named = zip(("query", "key", "value"), call[:3], strict=True)
        shapes = ", ".join(f"{name} {tuple(tensor.shape)}" for name, tensor in named)
        raise type(error)(f"attention({shapes}):\n  {error}") from None


def autocast_dtype(device_type: str) -> torch.dtype | None:
    """Return the dtype that an enclosing `torch.autocast` wants on a device; None outside of one."""
    if torch.amp.is_autocast_available(device_type) and torch.is_autocast_enabled(device_type):
        return torch.get_autocast_dtype(device_type)
    return None


def _cast_as_autocast(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """Cast as autocast casts the inputs of a matrix product: float64 stays."""
    return tensor if tensor.dtype == torch.float64 else tensor.to(dtype)


def _widen(call: Call) -> Call:
    """Give a bias tensor and a sink the dtype of the scores, float32 or better.

    A sink of -inf, which is none, becomes the lowest number: nothing then subtracts an infinity from another one.
    """
    if call.sink is None and not isinstance(call.bias, Tensor):
        return call
    dtype = torch.promote_types(call.query.dtype, torch.float32)
    return call._replace(
        bias=call.bias.to(dtype) if isinstance(call.bias, Tensor) else call.bias,
        sink=None if call.sink is None else call.sink.to(dtype).clamp(min=torch.finfo(dtype).min),
    )
