"""What the fused attention kernels take for themselves in backward, of values on a tape. cuDNN's is not known."""

from headwise.cost.kernel_workspace import efficient_backward_bytes, flash_backward_bytes
from headwise.cost.step.tape import BYTES_OF_DTYPE, Value


def backward_workspace(
    kernel: str,
    query: Value,
    key: Value,
    value: Value,
    *,
    output_layout: str,
    gradient_layout: str | None = None,
    compute_capability: tuple[int, int],
) -> int:
    """Return the bytes that the backward of a fused kernel takes beside its results; 0 on CPU and of cuDNN.

    Args:
        kernel: "flash_cpu", "flash", "efficient" or "cudnn".
        query, key, value: (B, H, T, D), (B, K, S, D), (B, K, S, V).
        output_layout: order of the output in memory; the flash kernel copies what is not in that of tokens.
        gradient_layout: that of its gradient; both kernels copy one in the order of "heads", and one whose images
            alternate, "sequence" (T, B, H, D). Default: the same.
        compute_capability: of the CUDA device.
    """
    batch, num_heads, query_len, head_dim = query.shape
    num_kv_heads, key_len = key.shape[1:3]
    number_bytes = BYTES_OF_DTYPE[query.dtype]
    if kernel == "flash":
        layouts = (output_layout, gradient_layout or output_layout)
        num_copies = sum(layout != "tokens" for layout in layouts)
        return num_copies * number_bytes * batch * num_heads * query_len * head_dim + flash_backward_bytes(
            batch=batch,
            num_heads=num_heads,
            num_kv_heads=num_kv_heads,
            query_len=query_len,
            key_len=key_len,
            head_dim=head_dim,
            number_bytes=number_bytes,
        )
    if kernel == "efficient":
        copied = gradient_layout == "sequence" or (gradient_layout == "heads" and 1 not in (num_heads, query_len))
        return copied * number_bytes * batch * num_heads * query_len * value.shape[3] + efficient_backward_bytes(
            batch=batch,
            num_heads=num_heads,
            query_len=query_len,
            key_len=key_len,
            head_dim=head_dim,
            v_head_dim=value.shape[3],
            is_half=number_bytes == 2,
            compute_capability=compute_capability,
        )
    return 0
