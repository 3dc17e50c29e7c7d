"""Does a step fit a device? Peak of its tensors, plus bounds of what no ledger of tensors holds."""

from dataclasses import dataclass
from typing import Literal

from headwise.config.checks import require_size
from headwise.cost.results import Device, FitVerdict
from headwise.results import BYTES_PER_GIB, BYTES_PER_MIB, format_bytes

SEGMENT_BYTES = 2 * BYTES_PER_MIB  # torch's allocator asks the driver for whole multiples of it


@dataclass(frozen=True, kw_only=True)
class Unmodelled:
    """Memory that is needed beside the tensors of the step, between two bounds."""

    what: str
    low_bytes: int
    high_bytes: int


def unmodelled(peak_bytes: int, device: Device) -> tuple[Unmodelled, ...]:
    """Return what a step needs beside its tensors on a device, each with bounds.

    CUDA. The context (driver and kernels): about 300 MB with kernels loaded lazily (pytorch/pytorch#107667), up to 2
    GiB (Bekman, "Machine Learning Engineering", GPU memory usage). cuBLAS: one workspace of 8.125 MiB, or one of 32 MiB
    (Hopper) for each of the threads of forward and backward. The allocator: rounding up to blocks of 512 bytes and to
    segments, and the holes between blocks of a step; peak reserved exceeded peak allocated by 11 to 12 % in
    pytorch/pytorch#40989.

    CPU. The interpreter with torch alone holds about 0.2 GiB, after a step of a small transformers model about 0.35
    (torch 2.13, measured); the upper bound allows 0.5, and a GiB for the system and other programs. The heap has holes
    too, for which the same share is allowed.
    """
    holes = Unmodelled(what="allocator rounding and holes", low_bytes=0, high_bytes=peak_bytes * 12 // 100)
    if device.kind == "cuda":
        return (
            Unmodelled(what="CUDA context", low_bytes=300_000_000, high_bytes=2 * BYTES_PER_GIB),
            Unmodelled(
                what="cuBLAS workspace", low_bytes=8 * BYTES_PER_MIB + BYTES_PER_MIB // 8, high_bytes=64 * BYTES_PER_MIB
            ),
            holes,
        )
    return (
        Unmodelled(
            what="the interpreter, its libraries and other programs",
            low_bytes=200 * BYTES_PER_MIB,
            high_bytes=512 * BYTES_PER_MIB + BYTES_PER_GIB,
        ),
        holes,
    )


def judge(peak_bytes: int, device: Device) -> FitVerdict:
    """Judge whether a step fits a device.

    "yes": the peak in whole segments and the upper bound of everything unmodelled are within the memory that the driver
    reports. "no": the peak and the lower bound are not. "tight": between the two.

    Args:
        peak_bytes: most bytes of tensors alive at once.
        device: what it should fit.
    """
    require_size("peak_bytes", peak_bytes, minimum=0, maximum=2**100)
    parts = unmodelled(peak_bytes, device)
    low = sum(part.low_bytes for part in parts)
    high = sum(part.high_bytes for part in parts)
    listed = ", ".join(
        f"{part.what} {format_bytes(part.low_bytes)} to {format_bytes(part.high_bytes)}" for part in parts
    )
    return FitVerdict(
        fits=_fits(peak_bytes, low, high, device.memory_bytes),
        device=device,
        peak_bytes=peak_bytes,
        unmodelled_low_bytes=low,
        unmodelled_high_bytes=high,
        reason=(
            f"tensors need {format_bytes(peak_bytes)} at the peak, and {format_bytes(low)} to {format_bytes(high)} "
            f"more is not modelled ({listed}); {device.description} has {format_bytes(device.memory_bytes)}"
        ),
    )


def _fits(peak_bytes: int, low: int, high: int, capacity: int) -> Literal["yes", "tight", "no"]:
    whole_segments = -(-peak_bytes // SEGMENT_BYTES) * SEGMENT_BYTES
    if whole_segments + high <= capacity:
        return "yes"
    return "no" if peak_bytes + low > capacity else "tight"
