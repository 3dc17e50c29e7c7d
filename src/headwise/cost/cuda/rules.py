"""What another device would allocate and keep, while a step runs on fake CPU tensors.

On a machine without a GPU a step can be traced on fake CPU tensors alone. But then torch takes the CPU's kernels, and
the trace shows the CPU's memory. `device_rules("cuda")` puts in their place what CUDA does:

- `scaled_dot_product_attention` runs the kernel that `headwise.kernels` names (sdpa.py);
- dropout, softmax and norms keep what CUDA keeps (operations.py);
- autocast casts what it casts on CUDA (autocast.py).

What kernels need while they run, and return to nobody, is in workspace.py. Optimizers need no rule: torch's own
take `foreach` and `fused`, and allocate alike on every device.

Not covered: recurrent layers and batch norm through cuDNN, `log_sigmoid`, the fused layers that torch takes in
inference mode without gradients (`nn.TransformerEncoderLayer`'s fast path), FlexAttention, grouped products of experts.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import cast

from headwise.config.checks import require_choice
from headwise.cost.cuda.autocast import list_autocast_overrides
from headwise.cost.cuda.operations import OPERATION_OVERRIDES
from headwise.cost.cuda.override import DeviceKind, OverrideSet
from headwise.cost.cuda.sdpa import SDPA_OVERRIDES
from headwise.kernels import Device


@contextmanager
def device_rules(device: str, *, compute_capability: tuple[int, int] = (8, 0)) -> Iterator[None]:
    """Let fake CPU tensors allocate and keep for backward what the tensors of a device would.

    Only fake tensors are concerned, and only in this thread; every other call does what it does without. Uses nest, and
    the innermost counts. For "cuda" everything is derived from torch's sources, not measured.

    Args:
        device: "cuda"; or "cpu", which changes nothing.
        compute_capability: of the CUDA device; it decides which attention kernels there are. Default: A100.

    Raises:
        ConfigError: there is no such device.
    """
    require_choice("device", device, ("cpu", "cuda"))
    with _all_overrides().active(DeviceKind(cast(Device, device), compute_capability)):
        yield


@cache
def _all_overrides() -> OverrideSet:
    return OverrideSet((*SDPA_OVERRIDES, *OPERATION_OVERRIDES, *list_autocast_overrides()))
