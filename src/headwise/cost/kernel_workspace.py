"""What the fused attention kernels of CUDA take for themselves in backward, and give back before they return.

Sizes alone, so that the closed form and the rules for traced tensors read the same numbers. What the kernels copy
because of its order in memory is not here.

Sources, pytorch 2.13: aten/src/ATen/native/transformers/cuda/flash_attn/flash_api.cpp (`mha_bwd`),
cuda/attention_backward.cu, cuda/mem_eff_attention/kernel_backward.h and kernels/cutlassB.h. Derived, not measured.
"""

LARGE_SHARED_MEMORY = ((8, 0), (9, 0), (10, 0), (10, 3))
"""Compute capabilities whose shared memory holds the memory-efficient kernel's largest tiles."""


def flash_backward_bytes(
    *, batch: int, num_heads: int, num_kv_heads: int, query_len: int, key_len: int, head_dim: int, number_bytes: int
) -> int:
    """Return the flash kernel's bytes: query gradients in float32, a sum a row, and gradients of grouped keys, values.

    Args:
        batch, num_heads, num_kv_heads, query_len, key_len, head_dim: of the call.
        number_bytes: of a number of query, key and value.
    """
    rows = _round_up(query_len, 128)
    total = 4 * batch * rows * num_heads * _round_up(head_dim, 32 if head_dim <= 128 else 64)  # dq_accum
    total += 4 * batch * num_heads * rows  # softmax_d
    if num_kv_heads != num_heads:
        total += 2 * number_bytes * batch * key_len * num_heads * head_dim  # dk_expanded and dv_expanded
    return total


def efficient_backward_bytes(
    *,
    batch: int,
    num_heads: int,
    query_len: int,
    key_len: int,
    head_dim: int,
    v_head_dim: int,
    is_half: bool,
    compute_capability: tuple[int, int],
) -> int:
    """Return the memory-efficient kernel's bytes: a sum for each row, and gradients that wait in float32 tiles.

    In float32, gradient and output are multiplied, summed and turned before the kernel starts, in one expression.

    Args:
        batch, num_heads, query_len, key_len, head_dim, v_head_dim: of the call.
        is_half: its numbers have 2 bytes.
        compute_capability: of the CUDA device; the tiles depend on it.
    """
    row_sums = 4 * batch * num_heads * query_len
    tile_rows, tile_columns, is_in_registers = _choose_tile(is_half, max(head_dim, v_head_dim), compute_capability)
    blocks = -(-query_len // tile_rows) * -(-head_dim // tile_columns)
    numbers = blocks * (tile_rows * tile_columns + 4)  # 4: a lock and a counter, padded to 16 bytes
    if is_half and not is_in_registers:
        splits = max(1, min(-(-key_len // tile_columns), 200 // (batch * num_heads)))  # torch's choice, to save memory
        numbers += splits * tile_columns * (_round_up(head_dim, tile_rows) + _round_up(v_head_dim, tile_rows))
    tiles = 4 * batch * num_heads * _round_up(numbers, 4)
    if is_half:
        return row_sums + tiles
    product = 4 * batch * num_heads * query_len * v_head_dim
    return max(product + 2 * row_sums, row_sums + tiles)


def _choose_tile(is_half: bool, head_dim: int, compute_capability: tuple[int, int]) -> tuple[int, int, bool]:
    """Return the rows and columns of the backward kernel's tiles, and whether key gradients stay in registers.

    The first kernel of torch's list that is wide enough and fits in shared memory runs. Where its size is not known
    to fit, the one with the larger tiles is taken.
    """
    if head_dim <= 64:
        return 64, 64, is_half
    if is_half and head_dim <= 96 and compute_capability in ((8, 6), (8, 9)):
        return 128, 64, True
    if is_half and head_dim <= 128 and compute_capability >= (8, 0):
        return (128, 128, True) if compute_capability in LARGE_SHARED_MEMORY else (64, 64, False)
    return 128, 64, is_half and head_dim <= 128


def _round_up(number: int, step: int) -> int:
    return -(-number // step) * step
