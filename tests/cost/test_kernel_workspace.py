"""What fused kernels take in backward, against tensors listed by hand from torch's sources."""

from math import prod

import pytest

from headwise.cost.kernel_workspace import efficient_backward_bytes, flash_backward_bytes
from headwise.cost.step.tape import Tape, Value
from headwise.cost.step.workspace import backward_workspace

FLOAT, HALF = 4, 2


def total(tensors):
    return sum(number_bytes * prod(shape) for number_bytes, shape in tensors)


# `mha_bwd`: dq_accum {B, round(T, 128), H, round(D, 32)}, softmax_d {B, H, round(T, 128)}, and with fewer key heads
# dk_expanded and dv_expanded {B, S, H, D}; heads wider than 128 are rounded to 64
FLASH = [
    ((2, 4, 4, 100, 100, 64), [(FLOAT, (2, 128, 4, 64)), (FLOAT, (2, 4, 128))]),
    ((3, 6, 2, 129, 77, 72), [(FLOAT, (3, 256, 6, 96)), (FLOAT, (3, 6, 256)), *2 * [(HALF, (3, 77, 6, 72))]]),
    ((1, 5, 5, 1, 9, 136), [(FLOAT, (1, 128, 5, 192)), (FLOAT, (1, 5, 128))]),
]


@pytest.mark.parametrize(("sizes", "tensors"), FLASH)
def test_the_flash_kernel_takes_the_tensors_of_mha_bwd(sizes, tensors):
    names = ("batch", "num_heads", "num_kv_heads", "query_len", "key_len", "head_dim")
    call = dict(zip(names, sizes, strict=True))
    assert flash_backward_bytes(**call, number_bytes=HALF) == total(tensors)


# `kernel_backward.h`, workspace_elements_gq: for each block of kBlockSizeI queries and kBlockSizeJ columns, I x J
# numbers and 4 (lock and counter); gk and gv the same way where kOutputInRF is false
EFFICIENT = [
    # 64 x 64 tiles, gradients of keys in registers
    ((2, 4, 100, 100, 64, 64, True, (8, 0)), [(FLOAT, (2, 4, 100)), (FLOAT, (8, 2 * 1 * (64 * 64 + 4)))]),
    # A100 has the shared memory for 128 x 128
    ((2, 4, 100, 100, 128, 128, True, (8, 0)), [(FLOAT, (2, 4, 100)), (FLOAT, (8, 128 * 128 + 4))]),
    # an RTX 4090 has not: 64 x 64, and two splits of 64 keys wait in memory
    (
        (2, 4, 100, 100, 128, 128, True, (8, 9)),
        [(FLOAT, (2, 4, 100)), (FLOAT, (8, 2 * 2 * (64 * 64 + 4))), (FLOAT, (8, 2, 64, 128 + 128))],
    ),
]


@pytest.mark.parametrize(("sizes", "tensors"), EFFICIENT)
def test_the_efficient_kernel_takes_row_sums_and_tiles(sizes, tensors):
    names = ("batch", "num_heads", "query_len", "key_len", "head_dim", "v_head_dim", "is_half", "compute_capability")
    assert efficient_backward_bytes(**dict(zip(names, sizes, strict=True))) == total(tensors)


def on_tape(shape, dtype="bfloat16"):
    tape = Tape()
    tape.begin("forward")
    return Value(shape, tape.new("x", shape, dtype))


def test_a_tape_hands_its_sizes_on_and_adds_copies_of_what_lies_head_by_head():
    query, key = on_tape((3, 6, 129, 72)), on_tape((3, 2, 77, 72))
    expected = total(FLASH[1][1])
    for layout, copies in (("tokens", 0), ("heads", 2 * HALF * 3 * 6 * 129 * 72)):
        found = backward_workspace("flash", query, key, key, output_layout=layout, compute_capability=(8, 0))
        assert found == expected + copies
    query = on_tape((2, 4, 100, 128))
    found = backward_workspace("efficient", query, query, query, output_layout="tokens", compute_capability=(8, 9))
    assert found == total(EFFICIENT[2][1])
    assert backward_workspace("cudnn", query, query, query, output_layout="tokens", compute_capability=(9, 0)) == 0
