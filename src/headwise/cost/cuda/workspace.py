"""What CUDA kernels allocate while they run and give back before they return.

No rule for shapes shows these bytes, since nobody but the kernel sees the tensors. They count at one instant only:
while the operation runs, beside its inputs and its results.

Sources, pytorch 2.13: for fused attention those of `kernel_workspace`; native/transformers/attention.cpp
(`_safe_softmax`), native/cuda/Embedding{,BackwardKernel}.cu. Derived, not measured.

Not covered: cuDNN's own workspace; cuBLAS's, which is kept and not given back; the partial sums of the flash kernel's
forward for a few long rows (split keys) and of the norms' weight gradients; temporary storage of sorts.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload

from headwise.cost.kernel_workspace import efficient_backward_bytes, flash_backward_bytes

aten = torch.ops.aten

_Arguments = dict[str, Any]


def workspace_bytes(
    operation: OpOverload,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    *,
    compute_capability: tuple[int, int] = (8, 0),
) -> int | None:
    """Return the bytes that an operation takes on a CUDA device beside its results, while it runs.

    Args:
        operation, args, kwargs: the call, as `__torch_dispatch__` gets it; fake tensors are enough.
        compute_capability: of the CUDA device.

    Returns:
        The bytes, which may be 0 at a size; None for an operation that takes none, or of which they are not known (see
        above).
    """
    count = _COUNTS.get(operation)
    if count is None:
        return None
    names = [argument.name for argument in operation._schema.arguments]
    return count({**dict(zip(names, args, strict=False)), **kwargs}, compute_capability)


def _flash_backward(call: _Arguments, capability: tuple[int, int]) -> int:
    query: Tensor = call["query"]
    batch, num_heads, query_len, head_dim = query.shape
    num_kv_heads, key_len = call["key"].shape[1:3]
    own = flash_backward_bytes(
        batch=batch,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        query_len=query_len,
        key_len=key_len,
        head_dim=head_dim,
        number_bytes=query.element_size(),
    )
    return own + _copy_bytes(call["grad_out"]) + _copy_bytes(call["out"])


def _efficient_backward(call: _Arguments, capability: tuple[int, int]) -> int:
    query: Tensor = call["query"]
    batch, num_heads, query_len, head_dim = query.shape
    own = efficient_backward_bytes(
        batch=batch,
        num_heads=num_heads,
        query_len=query_len,
        key_len=call["key"].shape[2],
        head_dim=head_dim,
        v_head_dim=call["value"].shape[3],
        is_half=query.element_size() == 2,
        compute_capability=capability,
    )
    return own + _copy_bytes(call["grad_out_"])


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


_COUNTS: dict[OpOverload, Callable[[_Arguments, tuple[int, int]], int]] = {
    aten._scaled_dot_product_flash_attention_backward.default: _flash_backward,
    aten._scaled_dot_product_efficient_attention_backward.default: _efficient_backward,
    aten._safe_softmax.default: _safe_softmax,
    aten.embedding_dense_backward.default: _embedding_backward,
}
