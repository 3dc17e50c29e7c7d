"""Memory of one call of attention beyond its inputs: the least of it, predicted; and the peak, measured."""

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

from headwise.api.bench_results import BenchCase
from headwise.config.dtypes import DTYPE_BYTES
from headwise.cost.devices import usable_ram_bytes
from headwise.cost.running.peaks import CpuPeaks, record_peaks
from headwise.masks.dense import dense_mask
from headwise.masks.form import simplest_form
from headwise.masks.patterns import Mask

KERNEL_OPERATIONS = {
    "aten::_scaled_dot_product_flash_attention_for_cpu": "flash_cpu",
    "aten::_scaled_dot_product_attention_math": "math",
    "aten::_scaled_dot_product_flash_attention": "flash",
    "aten::_scaled_dot_product_efficient_attention": "efficient",
    "aten::_scaled_dot_product_cudnn_attention": "cudnn",
}
# A mask table while it is made: a difference of two int64 indices a pair, a comparison's bools and their conjunction.
TABLE_PAIR_BYTES = 8 + 1 + 1
_MOMENT = "call"


def tensor_bytes(case: BenchCase, seq: int) -> tuple[int, int]:
    """Return the bytes of query with output, and of key with value, at a length."""
    token_bytes = case.batch * seq * case.head_dim * DTYPE_BYTES[case.dtype]
    return 2 * case.num_heads * token_bytes, 2 * case.num_kv_heads * token_bytes


def input_bytes(case: BenchCase, seq: int) -> int:
    """Return the bytes of query, key and value, and of the output's gradient in training."""
    query_output, key_value = tensor_bytes(case, seq)
    return key_value + (query_output if case.phase == "train" else query_output // 2)


def predict_least_bytes(case: BenchCase, seq: int, mask: Mask, *, impl: str, kernel: str | None) -> int:
    """Predict the least bytes that a call takes beyond its inputs: results, score matrices, a table of the mask.

    The reference and torch's "math" kernel build `batch x heads x seq x seq` scores in float32 or better: two such
    matrices at once, three with a mask or in training. Both, and torch's fused kernels, read a mask that is neither
    none nor causal from a table of all pairs.

    Args:
        case: the shapes.
        seq: number of queries and of keys.
        mask: which pairs are allowed.
        impl: that serves the call.
        kernel: torch's kernel under it.
    """
    query_output, key_value = tensor_bytes(case, seq)
    output = query_output // 2
    form = simplest_form(mask, seq, seq).kind
    if impl == "reference" or kernel == "math":
        number_bytes = max(4, DTYPE_BYTES[case.dtype])
        copies = 3 if case.phase == "train" or form != "none" else 2
        return output + copies * case.batch * case.num_heads * seq * seq * number_bytes
    gradients = query_output // 2 + key_value if case.phase == "train" else 0
    if form != "bool" or impl != "sdpa":
        return output + gradients
    rows, heads = dense_mask(mask, batch_size=case.batch, num_heads=case.num_heads, query_len=1, key_len=1).shape[:2]
    return max(output + gradients, TABLE_PAIR_BYTES * rows * heads * seq * seq)


def free_bytes(device: torch.device) -> int:
    """Return the memory that new tensors can have: free on the GPU, or what the system calls available to a process."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    available = usable_ram_bytes()
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:  # no Linux
        return available
    found = [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")]
    return min([available, *found])


def measure_call(call: Callable[[], object], device: torch.device) -> tuple[int, tuple[str, ...]]:
    """Run a call once; return the most bytes alive beyond what was before, and the kernels of torch's that ran."""
    with ExitStack() as stack:
        peaks = stack.enter_context(record_peaks(device))
        if isinstance(peaks, CpuPeaks):
            profiler = peaks.profiler
        else:
            profiler = stack.enter_context(profile(activities=[ProfilerActivity.CPU]))
        with peaks.moment(_MOMENT):
            call()
            if device.type == "cuda":
                torch.cuda.synchronize(device)
    events = profiler.profiler.kineto_results.events()  # type: ignore[union-attr]
    names = {event.name() for event in events}
    kernels = tuple(kernel for operation, kernel in KERNEL_OPERATIONS.items() if operation in names)
    return peaks.bytes_by_moment[_MOMENT], kernels
