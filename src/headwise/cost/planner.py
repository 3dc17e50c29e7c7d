"""Does a step fit a device? Peak of its tensors, plus bounds of what no ledger of tensors holds."""

from typing import Literal

from headwise.config.checks import require_size
from headwise.cost.heap import LARGE_SEGMENT_BYTES, SEGMENT_STEP_BYTES, SMALL_SEGMENT_BYTES, round_up
from headwise.cost.results import Device, FitVerdict, Unmodelled
from headwise.errors import ConfigError
from headwise.results import BYTES_PER_GIB, BYTES_PER_MIB, format_bytes

MAX_BYTES = 2**100

# How much more than the peak a device must hold for a step to run: 11 to 12 % were reported (pytorch/pytorch#40989);
# in replays of 96 predicted steps with the least capacity that suffices, 14.4 % at most, 1.6 % in the median.
HOLES_PERCENT = 15

# A process that held one tensor of 20 x 16 x 50 x 100 float32, in a segment of 20 MiB, took 287,047,680 bytes.
SMALLEST_CONTEXT_BYTES = 287_047_680 - LARGE_SEGMENT_BYTES


def unmodelled(peak_bytes: int, device: Device, *, reserved_bytes: int | None = None) -> tuple[Unmodelled, ...]:
    """Return what a step on one device needs beside its tensors, each with bounds. (Several GPUs add NCCL's buffers.)

    CUDA. The context: driver and kernels, more of them the more are used. cuBLAS: one workspace for each of the threads
    of forward and backward, 8.125 MiB each or 32 MiB (Hopper, Blackwell), which torch takes from its own allocator; in
    a replay it may fit into a hole. The allocator: rounding up to blocks and segments, and the holes between blocks.
    Where a replay tells the reserved bytes, they hold both, and what remains is a segment of each kind for the small
    tensors that no ledger names (scalars, random states).

    CPU. The interpreter with torch alone holds about 0.2 GiB, after a step of a small transformers model about 0.35;
    the upper bound allows 0.5, and a GiB for the system and other programs. The heap has holes too, for which the same
    share is allowed as on CUDA without a replay.

    Args:
        peak_bytes: most bytes of tensors alive at once.
        device: where the step runs.
        reserved_bytes: what torch's CUDA allocator reserves for them, from `allocator.replay`. Default: not known.
    """
    if reserved_bytes is None:
        holes = Unmodelled(
            what="allocator rounding and holes",
            low=0,
            high=peak_bytes * HOLES_PERCENT // 100,
            source="pytorch/pytorch#40989 (11 to 12 %), and replays of predicted steps of the presets (up to 14.4 %)",
        )
    else:
        holes = Unmodelled(
            what="allocator rounding and holes",
            low=0,
            high=SMALL_SEGMENT_BYTES + LARGE_SEGMENT_BYTES,
            source="a segment of each kind beside those of the replay",
        )
    if device.kind == "cuda":
        workspace_low, workspace_high = _workspace_bytes(device.compute_capability)
        return (
            Unmodelled(
                what="CUDA context",
                low=SMALLEST_CONTEXT_BYTES,
                high=2 * BYTES_PER_GIB,
                source=(
                    "least: pytorch/pytorch#86509, kernels loaded lazily; most: Bekman, "
                    '"Machine Learning Engineering", GPU memory usage'
                ),
            ),
            Unmodelled(
                what="cuBLAS workspace",
                low=workspace_low if reserved_bytes is None else 0,
                high=workspace_high,
                source="pytorch, aten/src/ATen/cuda/CublasHandlePool.cpp (parseChosenWorkspaceSize)",
            ),
            holes,
        )
    return (
        Unmodelled(
            what="the interpreter, its libraries and other programs",
            low=200 * BYTES_PER_MIB,
            high=512 * BYTES_PER_MIB + BYTES_PER_GIB,
            source="measured with torch 2.13 and transformers 5.24 on Linux",
        ),
        holes,
    )


def judge(peak_bytes: int, device: Device, *, reserved_bytes: int | None = None) -> FitVerdict:
    """Judge whether a step fits a device.

    "yes": the reserved bytes (not known: the peak in whole segments) and the upper bound of everything unmodelled are
    within the memory that the driver reports. "no": the peak and the lower bound are not; the reserved bytes do not
    count here, as the allocator gives segments that are free back to the driver before it fails. "tight": between.

    Args:
        peak_bytes: most bytes of tensors alive at once.
        device: what it should fit.
        reserved_bytes: what torch's CUDA allocator reserves for them, from `allocator.replay`. Default: not known.

    Raises:
        ConfigError: a figure out of range; reserved bytes below the peak, or for a CPU.
    """
    require_size("peak_bytes", peak_bytes, minimum=0, maximum=MAX_BYTES)
    if reserved_bytes is not None:
        require_size("reserved_bytes", reserved_bytes, minimum=peak_bytes, maximum=MAX_BYTES)
        if device.kind != "cuda":
            raise ConfigError(f"reserved_bytes must be left out for a CPU, whose heap is another; got {reserved_bytes}")
    parts = unmodelled(peak_bytes, device, reserved_bytes=reserved_bytes)
    low = sum(part.low for part in parts)
    high = sum(part.high for part in parts)
    listed = ", ".join(f"{part.what} {format_bytes(part.low)} to {format_bytes(part.high)}" for part in parts)
    held_bytes = round_up(peak_bytes, SEGMENT_STEP_BYTES) if reserved_bytes is None else reserved_bytes
    reserved = "" if reserved_bytes is None else f", for which {format_bytes(reserved_bytes)} are reserved,"
    return FitVerdict(
        fits=_fits(peak_bytes + low, held_bytes + high, device.memory_bytes),
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


def _fits(least: int, most: int, capacity: int) -> Literal["yes", "tight", "no"]:
    if most <= capacity:
        return "yes"
    return "no" if least > capacity else "tight"


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
