"""One table: which kernel of torch's scaled_dot_product_attention serves a case, and why not a faster one.

The rules are those of torch 2.13. On CPU a test compares every answer with the operation that torch really dispatches.
On CUDA they are read, not measured: from torch's `sdp_utils`, for NVIDIA devices with the CUDA 13 wheels.

The choice is silent, and its last resort is quadratic. What leads there on CUDA: grouped heads together with a mask
tensor, with heads above 256, with float32, or with unequal head sizes; heads that are no multiple of 8 (half precision)
or 4 (float32) together with a mask; bfloat16 before compute capability 8.0; float64. On CPU: dropout, unequal head
sizes, a mask that needs a gradient. Nested tensors are not described; they follow rules of their own.

Source: pytorch, aten/src/ATen/native/transformers/sdp_utils_cpp.{h,cpp} and cuda/sdp_utils.cpp.
"""

from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Literal, NamedTuple

from headwise.results import Result

Device = Literal["cpu", "cuda"]
MaskForm = Literal["none", "causal", "bool"]
_Demand = tuple[bool, str]

HALF_DTYPES = ("float16", "bfloat16")
NEWEST = (12, 1)  # the compute capability up to which the fused kernels are built
KERNELS = ("cudnn", "flash", "efficient", "math")
"""What `torch.nn.attention.sdpa_kernel` can allow; on CPU its "flash" is the kernel "flash_cpu"."""


traced_device: ContextVar[Device | None] = ContextVar("traced_device", default=None)
"""The kind of device that a trace of a step on fake tensors stands for; None outside of such a trace."""


@dataclass(frozen=True, kw_only=True)
class KernelChoice(Result):
    """The kernel that torch takes, and a sentence for each faster one that it does not take.

    `name`: "cudnn", "flash", "efficient" or "math" on CUDA; "flash_cpu" or "math" on CPU. "math" builds the score
    matrix and copies grouped keys and values for every query head; all others need memory linear in the lengths.
    "error": none of the kernels that are allowed can serve the case, and torch raises RuntimeError. "blocked" and
    "reference": none of torch's, but our own attention by blocks, or by plain tensor operations, as our own layers take
    them.
    """

    name: str
    reasons: tuple[str, ...] = ()

    @property
    def is_fused(self) -> bool:
        """Whether there is a kernel, and it never builds the score matrix."""
        return self.name not in ("math", "error", "reference")

    @property
    def is_quadratic(self) -> bool:
        """Whether the kernel's memory grows with the product of the lengths."""
        return self.name in ("math", "reference")

    @property
    def memory(self) -> str:
        """What the kernel takes beside its inputs and its output, in words."""
        if self.name == "error":
            return "none: no allowed kernel can serve the call"
        if self.is_fused:
            return "linear in the lengths"
        scores = "quadratic: builds the (batch, heads, queries, keys) score matrix, in float32 even for half precision"
        return f"{scores}, and copies grouped keys and values for every query head" if self.name == "math" else scores

    def to_text(self) -> str:
        """Return the kernel, what its memory does, and why no faster one is taken."""
        return "\n".join((f"{self.name}, memory {self.memory}", *self.reasons))


class SdpaCase(NamedTuple):
    """A call of `F.scaled_dot_product_attention`, as far as the choice of a kernel reads it.

    Query, key and value have one dtype, and no dimension but the lengths is 0.

    Attributes:
        device: "cpu" or "cuda".
        dtype: of query, key and value: "float32", "bfloat16", "float16" or "float64".
        head_dim: size of a query and key head.
        v_head_dim: size of a value head.
        mask: how the mask is handed over: not at all, as `is_causal`, or as a tensor ("bool" stands for a float tensor
            too).
        grouped: whether there are fewer key/value heads than query heads (`enable_gqa`).
        dropout_p: probability with which a weight is dropped.
        requires_grad: whether query, key or value needs a gradient.
        query_len: number of queries; None: unknown, positive and equal to `key_len`.
        key_len: number of keys; None: unknown, positive and equal to `query_len`.
        contiguous: whether the numbers of one head lie side by side (the last stride is 1).
        compute_capability: of the CUDA device: (8, 0) A100, (8, 9) RTX 4090 and L4, (9, 0) H100, (7, 0) V100.
        num_dims: number of dimensions of query, key and value.
        broadcast: whether query, key and value differ in their batch sizes, or in their heads without `enable_gqa`.
        mask_dims: number of dimensions of a mask tensor.
        mask_requires_grad: whether a mask tensor was made to need a gradient, `no_grad` or not: a learned bias.
        deterministic: whether `torch.use_deterministic_algorithms` is on, without `warn_only`.
        allowed: the kernels that `torch.nn.attention.sdpa_kernel` allows.
    """

    device: Device
    dtype: str
    head_dim: int
    v_head_dim: int
    mask: MaskForm = "none"
    grouped: bool = False
    dropout_p: int | float = 0.0
    requires_grad: bool = False
    query_len: int | None = None
    key_len: int | None = None
    contiguous: bool = True
    compute_capability: tuple[int, int] = (8, 0)
    num_dims: int = 4
    broadcast: bool = False
    mask_dims: int = 2
    mask_requires_grad: bool = False
    deterministic: bool = False
    allowed: tuple[str, ...] = KERNELS


def sdpa_kernel(case: SdpaCase) -> KernelChoice:
    """Say which kernel torch takes for a case: its name, and a sentence for each that it would rather have taken."""
    reasons: list[str] = []
    for name in _order(case):
        is_allowed = name.removesuffix("_cpu") in case.allowed
        demands = ((is_allowed, "is not allowed by torch.nn.attention.sdpa_kernel"), *_LISTS_OF_DEMANDS[name](case))
        obstacles = [demand for is_met, demand in demands if not is_met]
        if not obstacles:
            return KernelChoice(name=name, reasons=tuple(reasons))
        reasons.append(f"{name} is not taken: it {obstacles[0]}")
    return KernelChoice(name="error", reasons=tuple(reasons))


def choose_packing(case: SdpaCase, queries_per_kv: int) -> tuple[bool, KernelChoice]:
    """Decide whether our own calls pack the queries of a group, and say which kernel then runs.

    Packed, the query heads of one kv head become more queries of one head. Then torch never copies keys and values for
    each query head, as its math kernel does, kernels that know no groups can run, and a single query reads its keys
    once for the whole group.

    Args:
        case: the call with its groups as they are.
        queries_per_kv: number of query heads that read one key/value head.
    """
    kernel = sdpa_kernel(case)
    if queries_per_kv == 1 or (case.query_len != 1 and kernel.is_fused):
        return False, kernel
    mask: MaskForm = "none" if case.mask == "none" else "bool"
    query_len = None if case.query_len is None else queries_per_kv * case.query_len
    return True, sdpa_kernel(case._replace(grouped=False, mask=mask, query_len=query_len))


def width_with_sink(head_dim: int) -> int:
    """Return the size of a head that has room for a sink: two more numbers, in a multiple of 8 for the kernels."""
    return -(-(head_dim + 2) // 8) * 8


LEAST_PAIRS = 2**18
"""Queries times keys from which on attention by blocks may pay: below, planning takes longer than it saves."""
LEAST_QUERIES = 64  # of a call with fewer, as in decoding, torch's kernel reads the keys once, as blocks would
MOST_VISITED = 0.7
"""Share of the pairs up to which visiting the allowed ones alone is faster than torch's kernel with the whole mask. On
two cores it is 1.1 to 1.7 times as fast there from 1024 tokens on, about as fast at 512, and slower from 0.9 on."""


def may_pay_by_blocks(device: str, query_len: int, key_len: int) -> bool:
    """Say whether our attention by blocks is considered at all.

    On a CPU, from some size on; on a GPU it has not been measured, and is taken only where it is asked for.
    """
    return device == "cpu" and query_len >= LEAST_QUERIES and query_len * key_len >= LEAST_PAIRS


def _order(case: SdpaCase) -> tuple[str, ...]:
    """Return the kernels in the order in which torch tries them."""
    if case.device == "cpu":
        return ("flash_cpu", "math")
    # cuDNN comes first on Hopper and on the Blackwell of data centres; elsewhere it is the last resort.
    is_preferred = case.compute_capability in ((9, 0), (10, 0), (10, 3))
    return ("cudnn", "flash", "efficient", "math") if is_preferred else ("flash", "efficient", "math", "cudnn")


def _list_fused_demands(case: SdpaCase) -> tuple[_Demand, ...]:
    """List what every fused kernel demands: whether it is met, and a clause that says what was needed and what came."""
    return (
        (case.num_dims == 4, f"needs 4 dimensions (batch, heads, length, head size); got {case.num_dims}"),
        (case.query_len != 0 and case.key_len != 0, f"needs tokens; got {case.query_len} queries, {case.key_len} keys"),
        (
            not case.broadcast,
            "needs query, key and value of one batch size, and of one number of heads without enable_gqa",
        ),
    )


def _demand_contiguous(case: SdpaCase, *, but_single: bool = False) -> _Demand:
    """Demand last strides of 1; `but_single`: of heads of one number it does not matter."""
    return (
        case.contiguous or (but_single and case.head_dim == 1),
        "needs query, key and value whose last dimension has stride 1",
    )


def _demand_plain_mask(case: SdpaCase) -> tuple[_Demand, ...]:
    is_tensor = case.mask == "bool"
    return (
        (not (is_tensor and case.mask_requires_grad), "computes no gradient of a mask"),
        (
            not is_tensor or case.mask_dims in (2, 4),
            f"needs a mask of 2 or 4 dimensions; got {case.mask_dims}",
        ),
    )


def _list_flash_cpu_demands(case: SdpaCase) -> tuple[_Demand, ...]:
    return (
        *_list_fused_demands(case),
        _demand_contiguous(case),
        *_demand_plain_mask(case),
        (case.dropout_p == 0, f"has no dropout; got dropout_p = {case.dropout_p}"),
        (
            case.v_head_dim == case.head_dim,
            f"needs value heads as wide as key heads; got {case.v_head_dim} and {case.head_dim}",
        ),
        _demand_dtype(case, ("float32", "float64", *HALF_DTYPES)),
    )


def _list_cudnn_demands(case: SdpaCase) -> tuple[_Demand, ...]:
    dims = (case.head_dim, case.v_head_dim)
    sixteenths = case.dropout_p * 16
    return (
        *_list_fused_demands(case),
        _demand_contiguous(case, but_single=True),
        *_demand_plain_mask(case),
        (not case.deterministic, "is not deterministic, and torch.use_deterministic_algorithms is on"),
        (
            (8, 0) <= case.compute_capability <= NEWEST,
            f"needs compute capability 8.0 to {NEWEST[0]}.{NEWEST[1]}; got {_format_device(case)}",
        ),
        _demand_dtype(case, HALF_DTYPES),
        (
            max(dims) <= 128 or (dims == (192, 128) and case.compute_capability[0] in (9, 10)),
            f"needs heads of at most 128 numbers (or keys of 192 with values of 128); got {dims[0]} and {dims[1]}",
        ),
        (not any(dim % 8 for dim in dims), f"needs head sizes that are multiples of 8; got {dims[0]} and {dims[1]}"),
        (sixteenths == int(sixteenths), f"drops in steps of 1/16; got dropout_p = {case.dropout_p}"),
        (
            case.key_len != 1 and (case.query_len != 1 or case.dropout_p == 0),
            "cannot serve a single key, nor a single query with dropout",
        ),
    )


def _list_flash_demands(case: SdpaCase) -> tuple[_Demand, ...]:
    capability = case.compute_capability
    has_small_shared_memory = (8, 6) <= capability <= (8, 9) or capability >= (12, 0)
    is_hard_backward = case.head_dim > 192 and (case.head_dim <= 224 or case.dropout_p > 0)
    return (
        *_list_fused_demands(case),
        _demand_contiguous(case, but_single=True),
        (case.mask in ("none", "causal"), "takes no mask but causal"),
        (
            case.head_dim == case.v_head_dim and case.head_dim <= 256,
            f"needs equal head sizes of at most 256; got {case.head_dim} and {case.v_head_dim}",
        ),
        (
            (8, 0) <= capability <= NEWEST,
            f"needs compute capability 8.0 to {NEWEST[0]}.{NEWEST[1]}; got {_format_device(case)}",
        ),
        (
            not (case.requires_grad and has_small_shared_memory and is_hard_backward),
            f"cannot train heads of {case.head_dim} numbers on {_format_device(case)}",
        ),
        (
            case.mask != "causal" or case.query_len == case.key_len,
            f"needs as many queries as keys to be causal; got {case.query_len} and {case.key_len}",
        ),
        _demand_dtype(case, HALF_DTYPES),
    )


def _list_efficient_demands(case: SdpaCase) -> tuple[_Demand, ...]:
    # Heads must be whole loads of 16 bytes where tensor cores are used; elsewhere, whole elements.
    has_ampere = case.compute_capability >= (8, 0)
    is_half = case.dtype in HALF_DTYPES
    alignment = 8 if is_half and case.compute_capability >= (7, 0) else 4 if has_ampere else 1
    return (
        *_list_fused_demands(case),
        _demand_contiguous(case),
        # Versions after 2.13 serve groups (pytorch/pytorch#191085).
        (not case.grouped, "needs as many key/value heads as query heads"),
        (
            (5, 0) <= case.compute_capability <= NEWEST,
            f"needs compute capability 5.0 to {NEWEST[0]}.{NEWEST[1]}; got {_format_device(case)}",
        ),
        (
            case.head_dim % alignment == 0 and case.v_head_dim % alignment == 0,
            f"needs head sizes that are multiples of {alignment} in {case.dtype}; "
            f"got {case.head_dim} and {case.v_head_dim}",
        ),
        _demand_dtype(case, ("float32", *HALF_DTYPES) if has_ampere else ("float32", "float16")),
    )


def _list_math_demands(case: SdpaCase) -> tuple[_Demand, ...]:
    return ()


def _demand_dtype(case: SdpaCase, served: tuple[str, ...]) -> _Demand:
    return case.dtype in served, f"serves {', '.join(served)}; got {case.dtype}"


def _format_device(case: SdpaCase) -> str:
    return "compute capability {}.{}".format(*case.compute_capability)


_LISTS_OF_DEMANDS: dict[str, Callable[[SdpaCase], tuple[_Demand, ...]]] = {
    "flash_cpu": _list_flash_cpu_demands,
    "cudnn": _list_cudnn_demands,
    "flash": _list_flash_demands,
    "efficient": _list_efficient_demands,
    "math": _list_math_demands,
}
