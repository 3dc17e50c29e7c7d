"""One table: which kernel of torch's scaled_dot_product_attention serves a case, and why not a faster one.

The rules are those of torch 2.13. On CPU a test compares every answer with the operation that torch really dispatches.
On CUDA they are read, not measured: from torch's `sdp_utils`, for NVIDIA devices with the CUDA 13 wheels and no kernel
switched off.

Source: pytorch, aten/src/ATen/native/transformers/sdp_utils_cpp.{h,cpp} and cuda/sdp_utils.cpp.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple

from headwise.results import Result

Device = Literal["cpu", "cuda"]
MaskForm = Literal["none", "causal", "bool"]
_Demand = tuple[bool, str]

HALF_DTYPES = ("float16", "bfloat16")


@dataclass(frozen=True, kw_only=True)
class KernelChoice(Result):
    """The kernel that torch takes, and a sentence for each faster one that it does not take.

    `name`: "cudnn", "flash", "efficient" or "math" on CUDA; "flash_cpu" or "math" on CPU. "math" builds the score
    matrix and copies grouped keys and values for every query head; all others need memory linear in the lengths.
    """

    name: str
    reasons: tuple[str, ...] = ()

    @property
    def is_fused(self) -> bool:
        """Whether the kernel never builds the score matrix."""
        return self.name != "math"


class SdpaCase(NamedTuple):
    """A call of `F.scaled_dot_product_attention` on 4-dimensional inputs, as far as the choice of a kernel reads it.

    Attributes:
        device: "cpu" or "cuda".
        dtype: of query, key and value: "float32", "bfloat16", "float16" or "float64".
        head_dim: size of a query and key head.
        v_head_dim: size of a value head.
        mask: how the mask is handed over: not at all, as `is_causal`, or as a tensor ("bool" stands for a float tensor
            that needs no gradient too).
        grouped: whether there are fewer key/value heads than query heads (`enable_gqa`).
        dropout_p: probability with which a weight is dropped.
        requires_grad: whether query, key or value needs a gradient.
        query_len: number of queries; None: unknown, positive and equal to `key_len`.
        key_len: number of keys; None: unknown, positive and equal to `query_len`.
        contiguous: whether the numbers of one head lie side by side (the last stride is 1).
        compute_capability: of the CUDA device: (8, 0) A100, (8, 9) RTX 4090 and L4, (9, 0) H100, (7, 0) V100.
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


def sdpa_kernel(case: SdpaCase) -> KernelChoice:
    """Say which kernel torch takes for a case: its name, and a sentence for each faster one, fastest first."""
    reasons: list[str] = []
    for name, list_demands in _CANDIDATES[case.device]:
        obstacles = [demand for is_met, demand in (*_list_common_demands(case), *list_demands(case)) if not is_met]
        if not obstacles:
            return KernelChoice(name=name, reasons=tuple(reasons))
        reasons.append(f"{name} is not taken: it {obstacles[0]}")
    return KernelChoice(name="math", reasons=tuple(reasons))


def _list_common_demands(case: SdpaCase) -> tuple[_Demand, ...]:
    """List what every fused kernel demands: whether it is met, and a clause that says what was needed and what came."""
    return (
        (case.query_len != 0 and case.key_len != 0, f"needs tokens; got {case.query_len} queries, {case.key_len} keys"),
        (case.contiguous, "needs query, key and value whose last dimension has stride 1"),
    )


def _list_flash_cpu_demands(case: SdpaCase) -> tuple[_Demand, ...]:
    return (
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
        (
            case.compute_capability in ((9, 0), (10, 0), (10, 3)),
            f"comes first on Hopper and Blackwell data-centre devices only; got {_format_device(case)}",
        ),
        _demand_dtype(case, HALF_DTYPES),
        (
            max(dims) <= 128 or dims == (192, 128),
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
        (case.mask in ("none", "causal"), "takes no mask but causal"),
        (
            case.head_dim == case.v_head_dim and case.head_dim <= 256,
            f"needs equal head sizes of at most 256; got {case.head_dim} and {case.v_head_dim}",
        ),
        (capability >= (8, 0), f"needs compute capability 8.0; got {_format_device(case)}"),
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
        (not case.grouped, "needs as many key/value heads as query heads"),
        (
            case.head_dim % alignment == 0 and case.v_head_dim % alignment == 0,
            f"needs head sizes that are multiples of {alignment} in {case.dtype}; "
            f"got {case.head_dim} and {case.v_head_dim}",
        ),
        _demand_dtype(case, ("float32", *HALF_DTYPES) if has_ampere else ("float32", "float16")),
    )


def _demand_dtype(case: SdpaCase, served: tuple[str, ...]) -> _Demand:
    return case.dtype in served, f"serves {', '.join(served)}; got {case.dtype}"


def _format_device(case: SdpaCase) -> str:
    return "compute capability {}.{}".format(*case.compute_capability)


_CANDIDATES: dict[Device, tuple[tuple[str, Callable[[SdpaCase], tuple[_Demand, ...]]], ...]] = {
    "cpu": (("flash_cpu", _list_flash_cpu_demands),),
    "cuda": (
        ("cudnn", _list_cudnn_demands),
        ("flash", _list_flash_demands),
        ("efficient", _list_efficient_demands),
    ),
}
