"""What CUDA kernels allocate while they run and give back before they return.

No rule for shapes shows these bytes, since nobody but the kernel sees the tensors. They count at one instant only:
while the operation runs, beside its inputs and its results.

Sources, pytorch 2.13: aten/src/ATen/native/transformers/cuda/flash_attn/flash_api.cpp (`mha_bwd`),
cuda/attention_backward.cu, cuda/mem_eff_attention/kernel_backward.h and kernels/cutlassB.h,
native/transformers/attention.cpp (`_safe_softmax`), native/cuda/Embedding{,BackwardKernel}.cu. Derived, not measured.

Not covered: cuDNN's own workspace; cuBLAS's, which is kept and not given back; the partial sums of the flash kernel's
forward for a few long rows (split keys) and of the norms' weight gradients; temporary storage of sorts.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload

aten = torch.ops.aten

_Arguments = dict[str, Any]


def workspace_bytes(
    operation: OpOverload,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    *,
    compute_capability: tuple[int, int] = (8, 0),
) -> int:
    """Return the bytes that an operation takes on a CUDA device beside its results, while it runs.

    Args:
        operation, args, kwargs: the call, as `__torch_dispatch__` gets it; fake tensors are enough.
        compute_capability: of the CUDA device.

    Returns:
        The bytes; 0 for an operation that takes none, or of which they are not known (see above).
    """
    count = _COUNTS.get(operation)
    if count is None:
        return 0
    names = [argument.name for argument in operation._schema.arguments]
    return count({**dict(zip(names, args, strict=False)), **kwargs}, compute_capability)


def _flash_backward(call: _Arguments, capability: tuple[int, int]) -> int:
    """Count the flash kernel's backward: query gradients in float32, row sums, copies; grouped heads one by one."""
    query: Tensor = call["query"]
    key: Tensor = call["key"]
    batch, num_heads, query_len, head_dim = query.shape
    num_kv_heads, key_len = key.shape[1:3]
    rows = _round_up(query_len, 128)
    width = _round_up(head_dim, 32 if head_dim <= 128 else 64)
    total = 4 * batch * rows * num_heads * width  # dq_accum
    total += 4 * batch * num_heads * rows  # softmax_d
    if num_kv_heads != num_heads:
        total += 2 * query.element_size() * batch * key_len * num_heads * head_dim  # dk_expanded and dv_expanded
    return total + _copy_bytes(call["grad_out"]) + _copy_bytes(call["out"])


def _efficient_backward(call: _Arguments, capability: tuple[int, int]) -> int:
    """Count the memory-efficient kernel's backward: row sums, and gradients that wait in float32 tiles."""
    query: Tensor = call["query"]
    gradient: Tensor = call["grad_out_"]
    batch, num_heads, query_len, head_dim = query.shape
    row_sums = 4 * batch * num_heads * query_len
    key_len: int = call["key"].shape[2]
    v_head_dim: int = call["value"].shape[3]
    is_half = query.element_size() == 2
    tile_rows, tile_columns, is_in_registers = _choose_tile(is_half, max(head_dim, v_head_dim), capability)
    blocks = -(-query_len // tile_rows) * -(-head_dim // tile_columns)
    numbers = blocks * (tile_rows * tile_columns + 4)  # 4: a lock and a counter, padded to 16 bytes
    if is_half and not is_in_registers:
        splits = max(1, min(-(-key_len // tile_columns), 200 // (batch * num_heads)))  # torch's choice, to save memory
        columns = _round_up(head_dim, tile_rows) + _round_up(v_head_dim, tile_rows)
        numbers += splits * tile_columns * columns
    tiles = 4 * batch * num_heads * _round_up(numbers, 4)
    if is_half:
        return _copy_bytes(gradient) + row_sums + tiles
    # In float32 gradient and output are multiplied, summed and turned before the kernel starts, in one expression.
    product = 4 * gradient.numel()
    return _copy_bytes(gradient) + max(product + 2 * row_sums, row_sums + tiles)


def _choose_tile(is_half: bool, head_dim: int, capability: tuple[int, int]) -> tuple[int, int, bool]:
    """Return the rows and columns of the backward kernel's tiles, and whether key gradients stay in registers.

    The first kernel of torch's list that is wide enough and fits in shared memory runs. Where its size is not known
    to fit, the one with the larger tiles is taken.
    """
    has_large_memory = capability in ((8, 0), (9, 0), (10, 0), (10, 3))
    if head_dim <= 64:
        return 64, 64, is_half
    if is_half and head_dim <= 96 and capability in ((8, 6), (8, 9)):
        return 128, 64, True
    if is_half and head_dim <= 128 and capability >= (8, 0):
        return (128, 128, True) if has_large_memory else (64, 64, False)
    return 128, 64, is_half and head_dim <= 128


def _safe_softmax(call: _Arguments, capability: tuple[int, int]) -> int:
    """Count which scores are -inf, which rows are nothing else, and a zero to put there."""
    scores, dim = call["self"], call["dim"]
    rows = scores.numel() // scores.shape[dim] if scores.numel() else 0
    result_size = (call.get("dtype") or scores.dtype).itemsize
    return int(scores.numel() + rows + result_size)


def _embedding_backward(call: _Arguments, capability: tuple[int, int]) -> int:
    """Count a table's gradient for more than 3072 tokens: sorted tokens, and a float32 row for every ten or fewer.

    An upper bound: for far more tokens than rows (30 times) newer kernels sum in the table itself.
    """
    gradient, indices = call["grad_output"], call["indices"]
    num_tokens, width = indices.numel(), gradient.shape[-1]
    copy = 0 if gradient.is_contiguous() else gradient.numel() * gradient.element_size()
    if num_tokens <= 3072 and not call["scale_grad_by_freq"]:
        return int(copy)
    rows = min(num_tokens, int(call["num_weights"]))
    partial_rows = num_tokens // 10 + rows
    index_numbers = (4 if call["scale_grad_by_freq"] else 3) * num_tokens + 2 * rows + partial_rows
    number_bytes = max(4, gradient.element_size())
    return int(copy + indices.element_size() * index_numbers + 16 + number_bytes * partial_rows * width)


def _copy_bytes(x: Tensor) -> int:
    """Return the bytes of the copy that a kernel makes of (batch, heads, tokens, size) unless tokens come first."""
    return 0 if x.transpose(1, 2).is_contiguous() else x.numel() * x.element_size()


def _round_up(number: int, step: int) -> int:
    return -(-number // step) * step


_COUNTS: dict[OpOverload, Callable[[_Arguments, tuple[int, int]], int]] = {
    aten._scaled_dot_product_flash_attention_backward.default: _flash_backward,
    aten._scaled_dot_product_efficient_attention_backward.default: _efficient_backward,
    aten._safe_softmax.default: _safe_softmax,
    aten.embedding_dense_backward.default: _embedding_backward,
}
