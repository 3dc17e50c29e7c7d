"""What each implementation cannot do, in words."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import _disable_current_modes, _get_current_dispatch_mode

from headwise.errors import UnsupportedError
from headwise.kernels import traced_device
from headwise.ops.call import Call


def require_impl(impl: str) -> None:
    """Raise UnsupportedError unless `impl` names an implementation, or "auto"."""
    if impl not in ("auto", *IMPLS):
        raise UnsupportedError(f"impl must be one of {', '.join(IMPLS)} and auto; got {impl!r}")


def find_sdpa_obstacle(call: Call) -> str | None:
    """Return why torch's fused kernels cannot serve a call, or None."""
    wishes = (("weights", call.return_weights), ("logsumexp", call.return_logsumexp))
    asked = [name for name, is_asked in wishes if is_asked]
    if asked:
        return f"torch's fused kernels do not return {' and '.join(asked)}"
    if call.softcap is not None:
        return "torch's fused kernels do not cap scores (softcap)"
    if has_forward_derivatives():
        return "torch's fused kernels have no forward-mode derivatives"
    if call.dropout_p > 0 and call.dropout_seed is not None:
        return "torch's fused kernels draw dropout from a generator of their own and take no dropout_seed"
    return None


def is_traced() -> bool:
    """Tell whether a graph is being made of what runs, by `torch.compile`, `torch.export` or `torch.jit.trace`."""
    return torch.compiler.is_compiling() or torch._C._is_tracing()


def has_forward_derivatives() -> bool:
    """Tell whether forward-mode derivatives are computed of what runs."""
    return not torch.compiler.is_compiling() and torch.autograd.forward_ad._current_level >= 0


def find_blocked_obstacle(call: Call) -> str | None:
    """Return why attention by blocks cannot serve a call, or None."""
    if torch.compiler.is_compiling():
        return (
            "attention by blocks plans what it visits in Python, which cannot stand in a graph that is being compiled"
        )
    if call.return_weights:
        return "attention by blocks holds no weights to return"
    if has_forward_derivatives():
        return "attention by blocks has no forward-mode derivatives"
    if is_fake(call.query) and _is_traced_by_sizes(call):
        return None
    if call.query.device.type == "meta" or any(_has_no_numbers(tensor) for tensor in call.tensors):
        return "attention by blocks needs tensors with numbers, not fake ones, and none inside torch.func's transforms"
    return None


def is_fake(tensor: torch.Tensor) -> bool:
    """Tell whether a tensor is one of `FakeTensorMode`: with a size, but without numbers."""
    return isinstance(tensor, FakeTensor)


def with_numbers(call: Call) -> AbstractContextManager[object]:
    """Let tensors have numbers inside where those of the call have none."""
    return _disable_current_modes() if is_fake(call.query) else nullcontext()


def _is_traced_by_sizes(call: Call) -> bool:
    """Tell whether a trace of a step on a CPU asks, and the sizes alone say what is visited."""
    is_known = call.mask is None or call.mask.is_structural
    return traced_device.get() == "cpu" and is_known and not call.has_indices


def _has_no_numbers(tensor: torch.Tensor) -> bool:
    is_plain = type(tensor) in (torch.Tensor, torch.nn.Parameter)
    return not is_plain or torch._C._functorch.is_functorch_wrapped_tensor(tensor)


def is_watched() -> bool:
    """Tell whether a mode of `torch.overrides` or of dispatch follows, counts or replaces torch's operations."""
    return _get_current_dispatch_mode() is not None or torch._C._len_torch_function_stack() > 0


def find_decode_obstacle(call: Call) -> str | None:
    """Return why attention of few queries cannot serve a call, or None."""
    if call.needs_gradient or has_forward_derivatives():
        return "attention of few queries has no derivatives (run it under torch.no_grad, or detach its inputs)"
    if call.dropout_p > 0:
        return f"attention of few queries has no dropout (dropout_p = {call.dropout_p})"
    if is_traced() or call.query.device.type == "meta" or any(_has_no_numbers(tensor) for tensor in call.tensors):
        return (
            "attention of few queries looks at its output, so tensors must have numbers, outside of graphs and of "
            "torch.func's transforms"
        )
    return None


def find_flex_obstacle(call: Call) -> str | None:
    """Return why FlexAttention cannot serve a call, or None."""
    device = call.query.device.type
    if device not in ("cpu", "cuda"):
        return f"FlexAttention runs on cpu and cuda, not on {device}"
    if torch.compiler.is_compiling():
        return "FlexAttention is compiled on its own, and cannot stand in a graph that is being compiled"
    if call.return_weights:
        return "FlexAttention does not return weights"
    if call.dropout_p > 0:
        return f"FlexAttention has no dropout (dropout_p = {call.dropout_p})"
    if device == "cpu" and call.needs_gradient:
        return "FlexAttention has no gradients on CPU (run it under torch.no_grad, or detach its inputs)"
    return None


def _find_nothing(call: Call) -> None:
    """The reference can do all."""


OBSTACLES: dict[str, Callable[[Call], str | None]] = {
    "reference": _find_nothing,
    "sdpa": find_sdpa_obstacle,
    "blocked": find_blocked_obstacle,
    "decode": find_decode_obstacle,
    "flex": find_flex_obstacle,
}
IMPLS = tuple(OBSTACLES)
