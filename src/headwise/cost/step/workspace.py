"""What the fused attention kernels of CUDA take for themselves in backward, and give back before they return.

Source: pytorch 2.13, aten/src/ATen/native/transformers/cuda/flash_attn/flash_api.cpp (`mha_bwd`),
cuda/attention_backward.cu, cuda/mem_eff_attention/kernel_backward.h. Derived, not measured. cuDNN's is not known.
"""

from headwise.cost.step.tape import BYTES_OF_DTYPE, Value

LARGE_SHARED_MEMORY = ((8, 0), (9, 0), (10, 0), (10, 3))
"""Compute capabilities whose shared memory holds the memory-efficient kernel's largest tiles."""


def backward_workspace(
    kernel: str, query: Value, key: Value, value: Value, *, output_layout: str, compute_capability: tuple[int, int]
) -> int:
    """Return the bytes that the backward of a fused kernel takes beside its results; 0 on CPU and of cuDNN.

    Args:
        kernel: "flash_cpu", "flash", "efficient" or "cudnn".
        query, key, value: (B, H, T, D), (B, K, S, D), (B, K, S, V).
        output_layout: order of the output in memory; what is not in that of tokens is copied.
        compute_capability: of the CUDA device.
    """
    if kernel == "flash":
        return _flash(query, key) + (0 if output_layout == "tokens" else 2 * _bytes_of(query))
    if kernel == "efficient":
        return _efficient(query, key, value, compute_capability)
    return 0


def _flash(query: Value, key: Value) -> int:
    """Query gradients in float32, a sum for each row; and gradients of grouped keys and values, head by head."""
    batch, num_heads, query_len, head_dim = query.shape
    num_kv_heads, key_len = key.shape[1:3]
    rows = _round_up(query_len, 128)
    gradients = 4 * batch * rows * num_heads * _round_up(head_dim, 32 if head_dim <= 128 else 64)
    row_sums = 4 * batch * num_heads * rows
    if num_kv_heads == num_heads:
        return gradients + row_sums
    return gradients + row_sums + 2 * BYTES_OF_DTYPE[query.dtype] * batch * key_len * num_heads * head_dim


def _efficient(query: Value, key: Value, value: Value, compute_capability: tuple[int, int]) -> int:
    """A sum for each row, and gradients that wait in float32 tiles; in float32, gradient times output before."""
    batch, num_heads, query_len, head_dim = query.shape
    key_len, v_head_dim = key.shape[2], value.shape[3]
    is_half = query.dtype != "float32"
    tile_rows, tile_columns, is_in_registers = _choose_tile(is_half, max(head_dim, v_head_dim), compute_capability)
    blocks = -(-query_len // tile_rows) * -(-head_dim // tile_columns)
    numbers = blocks * (tile_rows * tile_columns + 4)  # 4: a lock and a counter, padded to 16 bytes
    if is_half and not is_in_registers:
        splits = max(1, min(-(-key_len // tile_columns), 200 // (batch * num_heads)))  # torch's choice, to save memory
        numbers += splits * tile_columns * (_round_up(head_dim, tile_rows) + _round_up(v_head_dim, tile_rows))
    row_sums, tiles = 4 * batch * num_heads * query_len, 4 * batch * num_heads * _round_up(numbers, 4)
    if is_half:
        return row_sums + tiles
    product = 4 * batch * num_heads * query_len * v_head_dim
    return max(product + 2 * row_sums, row_sums + tiles)


def _choose_tile(is_half: bool, head_dim: int, compute_capability: tuple[int, int]) -> tuple[int, int, bool]:
    """Return rows and columns of a tile, and whether key gradients stay in registers: the first kernel that fits."""
    if head_dim <= 64:
        return 64, 64, is_half
    if is_half and head_dim <= 96 and compute_capability in ((8, 6), (8, 9)):
        return 128, 64, True
    if is_half and head_dim <= 128 and compute_capability >= (8, 0):
        return (128, 128, True) if compute_capability in LARGE_SHARED_MEMORY else (64, 64, False)
    return 128, 64, is_half and head_dim <= 128


def _bytes_of(x: Value) -> int:
    batch, num_heads, seq, head_dim = x.shape
    return BYTES_OF_DTYPE[x.dtype] * batch * num_heads * seq * head_dim


def _round_up(number: int, step: int) -> int:
    return -(-number // step) * step
