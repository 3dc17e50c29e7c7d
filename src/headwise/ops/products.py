"""Products of one large matrix with rows, in float32, without gradients, on a CPU: by oneDNN, and by all threads.

torch's own product of float32 goes to its BLAS. With MKL that is half as fast as oneDNN where MKL does not take a
processor's AVX-512, and a few rows are multiplied on one thread, at a quarter of the rate at which memory is read.
"""

from collections.abc import Callable
from functools import lru_cache

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from headwise.ops.obstacles import has_forward_derivatives, is_traced, is_watched

MANY_ROWS = 256  # in multiples of which oneDNN is asked for more
FEW_ROWS = 8  # up to which a product reads the matrix and does little else
LEAST_NUMBERS = 2**18  # of a matrix, from which on its reading takes longer than to ask oneDNN or to share it out
LEAST_SHARED = 2**16  # the same for one row on all threads
LEAST_OUTPUTS = 1024  # of one row, from which on oneDNN reads faster than all threads by themselves


Linear = Callable[[Tensor, Tensor, Tensor | None], Tensor]


def linear(
    tokens: Float[Tensor, "*batch in_dim"],
    weight: Float[Tensor, "out_dim in_dim"],
    bias: Float[Tensor, " out_dim"] | None = None,
) -> Float[Tensor, "*batch out_dim"]:
    """Return `tokens weight^T + bias`."""
    return (find_faster_linear(tokens, weight, bias) or functional.linear)(tokens, weight, bias)


def find_faster_linear(tokens: Tensor, weight: Tensor, bias: Tensor | None = None) -> Linear | None:
    """Return the function that computes what `torch.nn.functional.linear` does in less time; None if there is none."""
    num_numbers = weight.numel()
    if num_numbers < LEAST_SHARED or not _is_as_measured(tokens, weight, bias):
        return None
    num_rows, num_threads = tokens.numel() // tokens.shape[-1], torch.get_num_threads()
    if num_numbers < LEAST_NUMBERS and num_rows > 1:
        return None
    if num_numbers >= LEAST_NUMBERS and has_onednn() and (num_rows > 1 or weight.shape[0] >= LEAST_OUTPUTS):
        return _linear_by_onednn
    is_shared = num_rows <= FEW_ROWS and num_threads > 1 and weight.shape[0] % num_threads == 0
    return _linear_on_all_threads if is_shared else None


def _is_as_measured(tokens: Tensor, weight: Tensor, bias: Tensor | None) -> bool:
    """Tell whether all are plain tensors of float32 on a CPU that fit one another, and nobody follows what is done."""
    if torch.is_grad_enabled() or is_traced() or has_forward_derivatives() or is_watched():
        return False
    if tokens.numel() == 0 or weight.dim() != 2 or tokens.shape[-1] != weight.shape[1]:
        return False
    if torch.is_autocast_enabled("cpu") or (bias is not None and bias.shape != weight.shape[:1]):
        return False
    given = (tokens, weight) if bias is None else (tokens, weight, bias)
    return all(_is_plain(one) for one in given) and weight.is_contiguous()


def _is_plain(tensor: Tensor) -> bool:
    is_strided = type(tensor) in (Tensor, nn.Parameter) and tensor.layout is torch.strided
    return is_strided and tensor.is_cpu and tensor.dtype == torch.float32


def has_onednn() -> bool:
    """Tell whether oneDNN is there, allowed, and faster than torch's BLAS: measured on a processor with AVX-512."""
    return _is_built_with_onednn() and bool(torch.backends.mkldnn.enabled)


@lru_cache(1)
def _is_built_with_onednn() -> bool:
    return torch.backends.cpu.get_cpu_capability() == "AVX512" and hasattr(torch.ops.mkldnn, "_linear_pointwise")


def _linear_by_onednn(
    tokens: Float[Tensor, "*batch in_dim"],
    weight: Float[Tensor, "out_dim in_dim"],
    bias: Float[Tensor, " out_dim"] | None,
) -> Float[Tensor, "*batch out_dim"]:
    """Ask oneDNN for few numbers of rows only: it keeps a program of half a MiB for each that it has met."""
    rows = tokens.reshape(-1, tokens.shape[-1])
    if _round_down(len(rows)) == len(rows):
        return onednn_linear(tokens, weight, bias)
    output = tokens.new_empty(len(rows), len(weight))
    start = 0
    while start < len(rows):
        end = start + _round_down(len(rows) - start)
        output[start:end] = onednn_linear(rows[start:end], weight, bias)
        start = end
    return output.view(*tokens.shape[:-1], len(weight))


def _round_down(num_rows: int) -> int:
    """Return the next lower number of rows that oneDNN is asked for: up to 8, a power of two, or a multiple of 256."""
    if num_rows <= FEW_ROWS:
        return num_rows
    return num_rows // MANY_ROWS * MANY_ROWS if num_rows >= MANY_ROWS else 2 ** (num_rows.bit_length() - 1)


def onednn_linear(
    tokens: Float[Tensor, "*batch in_dim"],
    weight: Float[Tensor, "out_dim in_dim"],
    bias: Float[Tensor, " out_dim"] | None = None,
) -> Float[Tensor, "*batch out_dim"]:
    """Return `tokens weight^T + bias` by oneDNN."""
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
