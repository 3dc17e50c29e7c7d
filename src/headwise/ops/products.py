"""Products of one matrix with few or many rows, without gradients, on a CPU: by oneDNN, and by all threads.

torch's own product of float32 goes to its BLAS. With MKL that is half as fast as oneDNN where MKL does not take a
processor's AVX-512, and a few rows are multiplied on one thread, at a quarter of the rate at which memory is read.
"""

from collections.abc import Callable
from functools import lru_cache

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional
from torch.utils._python_dispatch import _get_current_dispatch_mode

from headwise.ops.obstacles import has_forward_derivatives, is_traced

FEW_ROWS = 8  # up to which a product reads the matrix and does little else
LEAST_NUMBERS = 2**18  # of a matrix, from which on its reading takes longer than to ask oneDNN or to share it out
LEAST_OUTPUTS = 1024  # of one row, from which on oneDNN reads faster than all threads by themselves


Linear = Callable[[Tensor, Tensor, Tensor | None], Tensor]


def linear(
    tokens: Float[Tensor, "*batch in_dim"],
    weight: Float[Tensor, "out_dim in_dim"],
    bias: Float[Tensor, " out_dim"] | None = None,
) -> Float[Tensor, "*batch out_dim"]:
    """Return `tokens weight^T + bias`."""
    return (find_faster_linear(tokens, weight) or functional.linear)(tokens, weight, bias)


def find_faster_linear(tokens: Tensor, weight: Tensor) -> Linear | None:
    """Return the function that computes what `torch.nn.functional.linear` does in less time; None if there is none."""
    if weight.numel() < LEAST_NUMBERS or not _is_as_measured(tokens, weight):
        return None
    num_rows = tokens.numel() // tokens.shape[-1]
    if has_onednn() and (num_rows > 1 or weight.shape[0] >= LEAST_OUTPUTS):
        return onednn_linear
    num_threads = torch.get_num_threads()
    is_shared = num_rows <= FEW_ROWS and num_threads > 1 and weight.shape[0] % num_threads == 0
    return _linear_on_all_threads if is_shared else None


def _is_as_measured(tokens: Tensor, weight: Tensor) -> bool:
    """Tell whether the tensors are plain ones of float32 on a CPU, and nobody follows torch's own operations."""
    if torch.is_grad_enabled() or is_traced() or has_forward_derivatives() or _get_current_dispatch_mode() is not None:
        return False
    is_plain = type(tokens) is Tensor and type(weight) in (Tensor, nn.Parameter) and weight.is_contiguous()
    is_float32 = tokens.dtype == weight.dtype == torch.float32 and not torch.is_autocast_enabled("cpu")
    return is_plain and is_float32 and tokens.is_cpu and weight.is_cpu and tokens.numel() > 0


def has_onednn() -> bool:
    """Tell whether oneDNN is there, allowed, and faster than torch's BLAS: measured on a processor with AVX-512."""
    return _is_built_with_onednn() and bool(torch.backends.mkldnn.enabled)


@lru_cache(1)
def _is_built_with_onednn() -> bool:
    return torch.backends.cpu.get_cpu_capability() == "AVX512" and hasattr(torch.ops.mkldnn, "_linear_pointwise")


def onednn_linear(
    tokens: Float[Tensor, "*batch in_dim"],
    weight: Float[Tensor, "out_dim in_dim"],
    bias: Float[Tensor, " out_dim"] | None = None,
) -> Float[Tensor, "*batch out_dim"]:
    """Return `tokens weight^T + bias` by oneDNN, which keeps a program for each shape that it has met."""
    output: Tensor = torch.ops.mkldnn._linear_pointwise(tokens, weight, bias, "none", [], "")
    return output


def _linear_on_all_threads(
    tokens: Float[Tensor, "*batch in_dim"],
    weight: Float[Tensor, "out_dim in_dim"],
    bias: Float[Tensor, " out_dim"] | None,
) -> Float[Tensor, "*batch out_dim"]:
    """Let each thread read its share of the weight's rows, where they lie."""
    num_threads, (out_dim, in_dim) = torch.get_num_threads(), weight.shape
    rows = tokens.reshape(1, -1, in_dim).expand(num_threads, -1, -1)
    output = torch.bmm(rows, weight.detach().view(num_threads, -1, in_dim).mT)  # (threads, rows, out / threads)
    output = output.transpose(0, 1).reshape(*tokens.shape[:-1], out_dim)
    return output if bias is None else output + bias
