"""Does a step fit a device? Peak of its tensors, plus bounds of what no ledger of tensors holds."""

from collections.abc import Callable
from typing import Literal

from headwise.config.checks import require_size
from headwise.cost.heap import LARGE_SEGMENT_BYTES, SEGMENT_STEP_BYTES, SMALL_SEGMENT_BYTES, round_up
from headwise.cost.results import Device, FitVerdict, Unmodelled
from headwise.cost.workload import Workload
from headwise.errors import ConfigError
from headwise.results import BYTES_PER_GIB, BYTES_PER_MIB, format_bytes

MAX_BYTES = 2**100

# How much more than the peak a device must hold for a step to run, in percent of the peak. 11 to 12 % were reported
# (pytorch/pytorch#40989). In replays of 4,000 drawn steps, each with the least capacity that suffices, it was at most
# 31 % where a training keeps what every layer makes: holes are filled by what the next layers keep. Where little is
# kept (checkpoints, no training) it was up to 73 %, so that as much as the peak again is allowed; also where layers are
# frozen, of which none were drawn.
# `python -m benchmarks.holes --cases 3000` draws and replays them.
FEW_HOLES_PERCENT = 40
MANY_HOLES_PERCENT = 100
HEAP_HOLES_PERCENT = 15
"""Where another allocator than torch's for CUDA hands out memory: not known, of the size of what was reported."""

# A process that held one tensor of 20 x 16 x 50 x 100 float32, in a segment of 20 MiB, took 287,047,680 bytes.
SMALLEST_CONTEXT_BYTES = 287_047_680 - LARGE_SEGMENT_BYTES
LARGEST_CONTEXT_BYTES = 2 * BYTES_PER_GIB

WORKSPACE_SOURCE = "pytorch, aten/src/ATen/cuda/CublasHandlePool.cpp (parseChosenWorkspaceSize)"

ALLOCATOR_KINDS = ("cuda", "rocm")
"""Kinds of device that torch's CUDA caching allocator serves."""


def holes_percent(device: Device, workload: Workload | None = None) -> int:
    """Return how much the holes between an allocator's blocks take at most, in percent of the peak, without a replay.

    Args:
        device: whose memory is handed out.
        workload: what runs on it. Default: not known, so the most.
    """
    if device.kind not in ALLOCATOR_KINDS:
        return HEAP_HOLES_PERCENT
    keeps_all = (
        workload is not None
        and workload.phase == "train"
        and workload.checkpoint == "none"
        and not workload.frozen_layers
    )
    return FEW_HOLES_PERCENT if keeps_all else MANY_HOLES_PERCENT


def unmodelled(
    peak_bytes: int,
    device: Device,
    *,
    reserved_bytes: int | None = None,
    num_devices: int = 1,
    workload: Workload | None = None,
) -> tuple[Unmodelled, ...]:
    """Return what a step on one device needs beside its tensors, each with bounds.

    CUDA. The context: driver and kernels, more of them the more are used. cuBLAS: one workspace for each of the threads
    of forward and backward, 8.125 MiB each or 32 MiB (Hopper, Blackwell), which torch takes from its own allocator; in
    a replay it may fit into a hole. The allocator: rounding up to blocks and segments, and the holes between blocks.
    Where a replay tells the reserved bytes, they hold both, and what remains is a segment of each kind for the small
    tensors that no ledger names (scalars, random states). Beside other GPUs, NCCL's buffers.

    ROCm. As CUDA, whose figure stands for the context; the workspaces are larger.

    MPS. One memory serves the Mac and its GPU. What Metal recommends, a device's memory here, leaves a quarter to a
    third of it to macOS; other programs may take some of it.

    TPU. Not known: XLA fuses, computes again and pads as it likes.

    CPU. The interpreter with torch alone holds about 0.2 GiB, after a step of a small transformers model about 0.35;
    the upper bound allows 0.5, and a GiB for the system and other programs. The heap has holes too.

    Args:
        peak_bytes: most bytes of tensors alive at once.
        device: where the step runs.
        reserved_bytes: what torch's CUDA allocator reserves for them, from `allocator.replay`. Default: not known.
        num_devices: over how many devices the step is spread.
        workload: what the step is, for the bound of `holes_percent`. Default: not known.
    """
    holes = _holes(peak_bytes, reserved_bytes, holes_percent(device, workload))
    if device.kind == "tpu":
        return _unknown_compiler(peak_bytes), holes
    parts = (*_BESIDE_TENSORS[device.kind](device, reserved_bytes is not None), holes)
    return (*parts, _NCCL) if num_devices > 1 and device.kind in ALLOCATOR_KINDS else parts


def judge(
    peak_bytes: int,
    device: Device,
    *,
    reserved_bytes: int | None = None,
    num_devices: int = 1,
    workload: Workload | None = None,
) -> FitVerdict:
    """Judge whether a step fits a device.

    "yes": the reserved bytes (not known: the peak in whole segments) and the upper bound of everything unmodelled are
    within the memory that the driver reports. "no": the peak and the lower bound are not; the reserved bytes do not
    count here, as the allocator gives segments that are free back to the driver before it fails. "tight": between.

    Args:
        peak_bytes: most bytes of tensors alive at once.
        device: what it should fit.
        reserved_bytes: what torch's CUDA allocator reserves for them, from `allocator.replay`. Default: not known.
        num_devices: over how many devices the step is spread; the peak is that of one.
        workload: what the step is, for the bound of `holes_percent`. Default: not known.

    Raises:
        ConfigError: a figure out of range; reserved bytes below the peak, or where torch's CUDA allocator does not run.
    """
    require_size("peak_bytes", peak_bytes, minimum=0, maximum=MAX_BYTES)
    if reserved_bytes is not None:
        require_size("reserved_bytes", reserved_bytes, minimum=peak_bytes, maximum=MAX_BYTES)
        if device.kind not in ALLOCATOR_KINDS:
            raise ConfigError(
                f"reserved_bytes must be left out for a {device.kind.upper()}, whose memory is handed out otherwise; "
                f"got {reserved_bytes}"
            )
    parts = unmodelled(peak_bytes, device, reserved_bytes=reserved_bytes, num_devices=num_devices, workload=workload)
    low = sum(part.low for part in parts)
    high = sum(part.high for part in parts)
    listed = ", ".join(f"{part.what} {format_bytes(part.low)} to {format_bytes(part.high)}" for part in parts)
    reserved = "" if reserved_bytes is None else f", for which {format_bytes(reserved_bytes)} are reserved,"
    return FitVerdict(
        fits=_fits(peak_bytes + low, held_bytes(peak_bytes, reserved_bytes) + high, device.memory_bytes),
        device=device,
        peak_bytes=peak_bytes,
        unmodelled_low_bytes=low,
        unmodelled_high_bytes=high,
        reason=(
            f"tensors need {format_bytes(peak_bytes)} at the peak{reserved or ','} and {format_bytes(low)} to "
            f"{format_bytes(high)} more is not modelled ({listed}); {device.description} has "
            f"{format_bytes(device.memory_bytes)}"
        ),
        reserved_bytes=reserved_bytes,
    )


def held_bytes(peak_bytes: int, reserved_bytes: int | None) -> int:
    """Return what an allocator holds for tensors: its reserved bytes, or the peak in whole steps of a segment."""
    return round_up(peak_bytes, SEGMENT_STEP_BYTES) if reserved_bytes is None else reserved_bytes


def _fits(least: int, most: int, capacity: int) -> Literal["yes", "tight", "no"]:
    if most <= capacity:
        return "yes"
    return "no" if least > capacity else "tight"


def _holes(peak_bytes: int, reserved_bytes: int | None, percent: int) -> Unmodelled:
    if reserved_bytes is None:
        high = peak_bytes * percent // 100
        source = _HOLES_SOURCES[percent]
    else:
        high = SMALL_SEGMENT_BYTES + LARGE_SEGMENT_BYTES
        source = "a segment of each kind beside those of the replay"
    return Unmodelled(what="allocator rounding and holes", low=0, high=high, source=source)


def _beside_cuda(device: Device, is_replayed: bool) -> tuple[Unmodelled, ...]:
    workspace_low, workspace_high = _workspace_bytes(device.compute_capability)
    context = Unmodelled(
        what="CUDA context",
        low=SMALLEST_CONTEXT_BYTES,
        high=LARGEST_CONTEXT_BYTES,
        source=(
            "least: pytorch/pytorch#86509, kernels loaded lazily; most: Bekman, "
            '"Machine Learning Engineering", GPU memory usage'
        ),
    )
    workspace = Unmodelled(
        what="cuBLAS workspace",
        low=0 if is_replayed else workspace_low,
        high=workspace_high,
        source=WORKSPACE_SOURCE,
    )
    return context, workspace


def _beside_rocm(device: Device, is_replayed: bool) -> tuple[Unmodelled, ...]:
    context = Unmodelled(
        what="HIP context",
        low=SMALLEST_CONTEXT_BYTES,
        high=LARGEST_CONTEXT_BYTES,
        source="the figures of a CUDA context, in place of any of HIP's own",
    )
    # 32 MiB, or 128 MiB on gfx94x and gfx95x: which of them a device is, its name alone does not say.
    least, most = 32 * BYTES_PER_MIB, 128 * BYTES_PER_MIB
    workspace = Unmodelled(
        what="hipBLAS workspace", low=0 if is_replayed else least, high=2 * most, source=WORKSPACE_SOURCE
    )
    return context, workspace


def _beside_mps(device: Device, is_replayed: bool) -> tuple[Unmodelled, ...]:
    return (
        Unmodelled(
            what="the interpreter, Metal and other programs in the same memory",
            low=0,
            high=2 * BYTES_PER_GIB,
            source="the margin that antirez/ds4#909 keeps below what Metal recommends; the rest is macOS's",
        ),
    )


def _beside_cpu(device: Device, is_replayed: bool) -> tuple[Unmodelled, ...]:
    return (
        Unmodelled(
            what="the interpreter, its libraries and other programs",
            low=200 * BYTES_PER_MIB,
            high=512 * BYTES_PER_MIB + BYTES_PER_GIB,
            source="measured with torch 2.13 and transformers 5.24 on Linux",
        ),
    )


def _unknown_compiler(peak_bytes: int) -> Unmodelled:
    return Unmodelled(
        what="what XLA makes of the step",
        low=0,
        high=peak_bytes,
        source="none: its kernels, its padding and its plan of buffers are not known here, so as much again is allowed",
    )


_HOLES_SOURCES = {
    FEW_HOLES_PERCENT: "pytorch/pytorch#40989 (11 to 12 %), and replays of steps that keep every layer's (up to 31 %)",
    MANY_HOLES_PERCENT: "replays of steps that keep little of their layers (up to 73 %)",
    HEAP_HOLES_PERCENT: "pytorch/pytorch#40989 (11 to 12 %, on CUDA), in place of any of this allocator's own",
}

_BESIDE_TENSORS: dict[str, Callable[[Device, bool], tuple[Unmodelled, ...]]] = {
    "cuda": _beside_cuda,
    "rocm": _beside_rocm,
    "mps": _beside_mps,
    "cpu": _beside_cpu,
}

_NCCL = Unmodelled(
    what="NCCL buffers",
    low=0,
    high=2 * BYTES_PER_GIB,
    source="NVIDIA/nccl#964 (544 to 688 MB for a group of 2 to 4 GPUs) and #864 (1.6 GB)",
)


def _workspace_bytes(compute_capability: tuple[int, int] | None) -> tuple[int, int]:
    """Return the least and the most that cuBLAS's workspaces take: one, or two in segments of their own."""
    small = 2 * 4096 * 1024 + 8 * 16 * 1024
    large = 32 * BYTES_PER_MIB
    if compute_capability is None:
        return small, 2 * large
    if compute_capability >= (9, 0):
        # Blackwell got the larger one after Hopper, so the smaller one is its least.
        return (large if compute_capability == (9, 0) else small), 2 * large
    return small, 2 * LARGE_SEGMENT_BYTES
