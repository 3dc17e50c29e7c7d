"""Dropout, softmax and norms as a CUDA device does them, for tensors that are traced on a CPU.

They compute the same on both; what differs is how they are written, and so what is allocated and kept for backward:

| operation | CUDA | CPU |
|---|---|---|
| dropout | keeps a mask of bytes | keeps a mask of the input's dtype |
| softmax, log_softmax of float16 to float32 | one kernel | a float32 copy first |
| rms_norm | one kernel: keeps input and inverse root | five operations |
| layer_norm of float16 or bfloat16 | mean and inverse deviation in float32 | in the input's dtype |

Source: pytorch 2.13, aten/src/ATen/native/{Dropout,SoftMax,layer_norm}.cpp, cuda/layer_norm_kernel.cu. Derived, not
measured.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from headwise.cost.cuda.override import DeviceKind, Override

aten = torch.ops.aten

HALF_DTYPES = (torch.float16, torch.bfloat16)


def drop_on_cuda(kind: DeviceKind, original: Callable[..., Tensor], x: Tensor, p: float, train: bool) -> Tensor:
    """Drop with one kernel that returns its mask as bytes, unless nothing or everything is dropped."""
    if train and 0 < p < 1 and x.numel():
        result: Tensor = aten.native_dropout(x, p, train)[0]
        return result
    return original(x, p, train)


def _write_softmax(kernel: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def softmax_on_cuda(
        kind: DeviceKind, original: Callable[..., Tensor], x: Tensor, dim: int, dtype: torch.dtype | None = None
    ) -> Tensor:
        """Read float16 and write float32 in one kernel; all else goes as on a CPU (bfloat16 is copied first)."""
        if x.dtype == torch.float16 and dtype == torch.float32:
            return kernel(x, dim, True)
        return original(x, dim, dtype)

    return softmax_on_cuda


def rms_norm_on_cuda(
    kind: DeviceKind,
    original: Callable[..., Tensor],
    x: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    eps: float | None = None,
) -> Tensor:
    """Normalise with one kernel, where input and weight have one dtype."""
    if weight is not None and weight.dtype != x.dtype:
        return original(x, normalized_shape, weight, eps)
    result: Tensor = _RmsNorm.apply(x, normalized_shape, weight, eps)  # type: ignore[no-untyped-call]
    return result


def layer_norm_on_cuda(
    kind: DeviceKind,
    original: Callable[..., tuple[Tensor, Tensor, Tensor]],
    x: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Normalise with statistics in float32."""
    if x.dtype not in HALF_DTYPES:
        return original(x, normalized_shape, weight, bias, eps)
    output, mean, deviation = _HalfLayerNorm.apply(x, normalized_shape, weight, bias, eps)  # type: ignore[no-untyped-call]
    return output, mean, deviation


class _RmsNorm(torch.autograd.Function):
    """CUDA's root-mean-square norm: autograd's formula for it, which torch has for a CPU's tensors not at all."""

    @staticmethod
    def forward(ctx: Any, x: Any, shape: Any, weight: Any, eps: Any) -> Any:
        with torch._C._AutoDispatchBelowAutograd():
            output, inverse_root = aten._fused_rms_norm(x, shape, weight, eps)
        ctx.save_for_backward(x, weight, inverse_root)
        ctx.normalized_shape = shape
        return output

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        x, weight, inverse_root = ctx.saved_tensors
        wanted = [ctx.needs_input_grad[0], ctx.needs_input_grad[2]]
        gradients = aten._fused_rms_norm_backward(gradient, x, ctx.normalized_shape, inverse_root, weight, wanted)
        return gradients[0], None, gradients[1], None


class _HalfLayerNorm(torch.autograd.Function):
    """CUDA's layer norm of a narrow dtype: autograd's formula for it, with statistics in float32."""

    @staticmethod
    def forward(ctx: Any, x: Any, shape: Any, weight: Any, bias: Any, eps: Any) -> Any:
        with torch._C._AutoDispatchBelowAutograd():
            output, mean, deviation = aten.native_layer_norm(x, shape, weight, bias, eps)
            mean, deviation = (torch.empty_like(s, dtype=torch.float32) for s in (mean, deviation))
        ctx.save_for_backward(x, mean, deviation, weight, bias)
        ctx.normalized_shape = shape
        ctx.mark_non_differentiable(mean, deviation)
        ctx.set_materialize_grads(False)
        return output, mean, deviation

    @staticmethod
    def backward(ctx: Any, gradient: Any, *_: Any) -> Any:
        x, mean, deviation, weight, bias = ctx.saved_tensors
        if gradient is None:
            return None, None, None, None, None
        wanted = [ctx.needs_input_grad[i] for i in (0, 2, 3)]
        gradients = aten.native_layer_norm_backward(
            gradient, x, ctx.normalized_shape, mean, deviation, weight, bias, wanted
        )
        return gradients[0], None, gradients[1], gradients[2], None


COMPOSITE = "CompositeImplicitAutograd"

OPERATION_OVERRIDES: tuple[Override, ...] = (
    Override(aten.dropout.default, COMPOSITE, drop_on_cuda),
    Override(aten.softmax.int, COMPOSITE, _write_softmax(aten._softmax)),
    Override(aten.log_softmax.int, COMPOSITE, _write_softmax(aten._log_softmax)),
    Override(aten.rms_norm.default, COMPOSITE, rms_norm_on_cuda),
    Override(aten.native_layer_norm.default, "AutogradCPU", layer_norm_on_cuda),
)
