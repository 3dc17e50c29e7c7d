"""Workspace of kernels against numbers counted by hand from torch's sources."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

from headwise.cost.cuda.rules import device_rules
from headwise.cost.cuda.workspace import workspace_bytes

BFLOAT16, FLOAT32 = torch.bfloat16, torch.float32


class RecordWorkspace(TorchDispatchMode):
    def __init__(self, compute_capability):
        super().__init__()
        self.capability, self.found = compute_capability, {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        num_bytes = workspace_bytes(func, args, kwargs or {}, compute_capability=self.capability)
        if num_bytes:
            self.found[func.overloadpacket.__name__] = num_bytes
        return func(*args, **(kwargs or {}))


def attention_workspace(
    *, b=2, a=4, k=4, s=100, d=64, dtype=BFLOAT16, mask=False, dropout_p=0.0, capability=(8, 0), tokens_first=True
):
    """Run attention and its backward; return the workspace of each operation that takes some."""
    with FakeTensorMode(), device_rules("cuda", compute_capability=capability):

        def heads(number):
            if tokens_first:
                return torch.empty(b, s, number, d, dtype=dtype, requires_grad=True).transpose(1, 2)
            return torch.empty(b, number, s, d, dtype=dtype, requires_grad=True)

        q, k_, v = heads(a), heads(k), heads(k)
        attn_mask = torch.empty(s, s, dtype=dtype) if mask else None
        with RecordWorkspace(capability) as record:
            output = functional.scaled_dot_product_attention(q, k_, v, attn_mask, dropout_p, enable_gqa=k != a)
            output.backward(torch.empty_like(output))
    return record.found


def test_the_flash_kernels_backward_takes_query_gradients_in_float32_and_row_sums():
    # 100 queries are rounded up to 128.
    expected = 4 * 2 * 128 * 4 * 64 + 4 * 2 * 4 * 128
    assert attention_workspace() == {"_scaled_dot_product_flash_attention_backward": expected}


@pytest.mark.parametrize(("d", "width"), [(64, 64), (72, 96), (128, 128), (136, 192), (256, 256)])
def test_the_flash_kernels_head_size_is_rounded_to_32_and_beyond_128_to_64(d, width):
    expected = 4 * 2 * 128 * 4 * width + 4 * 2 * 4 * 128
    assert attention_workspace(d=d) == {"_scaled_dot_product_flash_attention_backward": expected}


def test_grouped_heads_give_key_and_value_gradients_for_every_query_head_first():
    alone = attention_workspace()["_scaled_dot_product_flash_attention_backward"]
    grouped = attention_workspace(k=2)["_scaled_dot_product_flash_attention_backward"]
    assert grouped == alone + 2 * 2 * (2 * 100 * 4 * 64)


def test_heads_first_in_memory_are_copied_for_the_backward():
    alone = attention_workspace()["_scaled_dot_product_flash_attention_backward"]
    copied = attention_workspace(tokens_first=False)["_scaled_dot_product_flash_attention_backward"]
    assert copied == alone + 2 * 2 * (2 * 4 * 100 * 64)  # the output and its gradient


EFFICIENT = "_scaled_dot_product_efficient_attention_backward"
ROW_SUMS = 4 * 2 * 4 * 100


@pytest.mark.parametrize(
    ("d", "capability", "tiles"),
    [
        # Tiles of query gradients: rows x columns + 4 numbers each, per text and head.
        (64, (8, 0), 2 * 1 * (64 * 64 + 4)),
        (128, (8, 0), 1 * 1 * (128 * 128 + 4)),
        (96, (8, 6), 1 * 2 * (128 * 64 + 4)),
        # On small shared memory 128 wide heads wait in memory: two splits of 64 keys x (128 + 128) numbers more.
        (128, (8, 9), 2 * 2 * (64 * 64 + 4) + 2 * 64 * (128 + 128)),
        # Beyond 128 everywhere.
        (192, (8, 0), 1 * 3 * (128 * 64 + 4) + 2 * 64 * (256 + 256)),
    ],
)
def test_the_efficient_kernels_backward_takes_row_sums_and_tiles_of_gradients(d, capability, tiles):
    expected = ROW_SUMS + 4 * 2 * 4 * tiles
    assert attention_workspace(mask=True, d=d, capability=capability) == {EFFICIENT: expected}


def test_the_efficient_kernels_backward_in_float32_multiplies_outputs_by_gradients_first():
    product = 4 * 2 * 4 * 100 * 64
    tiles = 4 * 2 * 4 * (2 * (64 * 64 + 4))
    assert attention_workspace(dtype=FLOAT32) == {EFFICIENT: max(product + 2 * ROW_SUMS, ROW_SUMS + tiles)}
    assert product + 2 * ROW_SUMS < ROW_SUMS + tiles
    # Wider values than keys turn it round.
    with FakeTensorMode(), device_rules("cuda"), RecordWorkspace((8, 0)) as record:
        q = torch.empty(2, 128, 4, 64, requires_grad=True).transpose(1, 2)
        v = torch.empty(2, 128, 4, 512, requires_grad=True).transpose(1, 2)
        output = functional.scaled_dot_product_attention(q, q, v)
        output.backward(torch.empty_like(output))
    assert record.found == {EFFICIENT: 4 * 2 * 4 * 128 * 512 + 2 * (4 * 2 * 4 * 128)}


def test_many_heads_split_no_keys():
    found = attention_workspace(mask=True, b=64, d=192)[EFFICIENT]  # 256 matrices, 100 keys: one split
    assert found == 4 * 64 * 4 * 100 + 4 * 64 * 4 * (1 * 3 * (128 * 64 + 4) + 1 * 64 * (256 + 256))


def test_the_quadratic_kernel_marks_every_score_that_is_minus_infinity():
    found = attention_workspace(k=2, mask=True)
    assert found == {"_safe_softmax": 2 * 4 * 100 * 100 + 2 * 4 * 100 + 4}


@pytest.mark.parametrize("dtype", [FLOAT32, BFLOAT16])
def test_a_tables_gradient_takes_a_float32_row_for_every_ten_tokens_and_for_every_row_in_use(dtype):
    def workspace(num_tokens, num_rows, width):
        with FakeTensorMode(), RecordWorkspace((8, 0)) as record:
            table = torch.empty(num_rows, width, dtype=dtype, requires_grad=True)
            output = functional.embedding(torch.empty(num_tokens, dtype=torch.int64), table)
            output.backward(torch.empty_like(output))
        return record.found.get("embedding_dense_backward", 0)

    assert workspace(3072, 50_000, 64) == 0  # few tokens are added in the table itself
    partial_rows = 400 + 4000
    indices = 8 * (3 * 4000 + 2 * 4000 + partial_rows)
    assert workspace(4000, 50_000, 64) == indices + 16 + 4 * partial_rows * 64
    partial_rows = 400 + 300
    indices = 8 * (3 * 4000 + 2 * 300 + partial_rows)
    assert workspace(4000, 300, 64) == indices + 16 + 4 * partial_rows * 64


def test_other_operations_and_cudnn_take_nothing_that_is_known():
    assert attention_workspace(capability=(9, 0)) == {}
    assert workspace_bytes(torch.ops.aten.mm.default, (), {}) is None
