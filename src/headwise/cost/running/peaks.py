"""The most bytes alive in each moment of a step, as the allocator of the step's device says."""

import os
from bisect import bisect_right
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, record_function

_RANGE = "headwise: "


class Peaks:
    """The moments of a step, marked by `with peaks.moment(name):` around each; this one records nothing.

    Attributes:
        bytes_by_moment: the most bytes alive in each moment, above what was alive when the record began.
        reserved_bytes: the most that the allocator held from the driver, None where it is not known.
    """

    def __init__(self) -> None:
        self.bytes_by_moment: dict[str, int] = {}
        self.reserved_bytes: int | None = None

    def moment(self, name: str) -> AbstractContextManager[object]:
        """Open around what belongs to a moment; moments follow one another and may return."""
        return record_function(_RANGE + name)


@contextmanager
def record_peaks(device: torch.device) -> Iterator[Peaks]:
    """Record allocations on a CPU or CUDA device."""
    if device.type == "cuda":
        yield CudaPeaks(device)
        return
    with _quiet_profiler():
        peaks = CpuPeaks()
        with peaks.profiler:
            yield peaks
    peaks.read()


@contextmanager
def _quiet_profiler() -> Iterator[None]:
    """Keep the profiler's engine from writing lines of its own to stderr, where the user has set no level."""
    if "KINETO_LOG_LEVEL" in os.environ:
        yield
        return
    os.environ["KINETO_LOG_LEVEL"] = "99"
    try:
        yield
    finally:
        del os.environ["KINETO_LOG_LEVEL"]


class CpuPeaks(Peaks):
    """Read from torch's profiler, which sees every allocation, what kernels take for themselves too."""

    def __init__(self) -> None:
        super().__init__()
        self.profiler = profile(activities=[ProfilerActivity.CPU], profile_memory=True)

    def read(self) -> None:
        """Replay the record: add up what was allocated and released, and keep the most of each moment."""
        events: list[Any] = self.profiler.profiler.kineto_results.events()  # type: ignore[union-attr]
        changes = sorted((event.start_ns(), index) for index, event in enumerate(events) if event.name() == "[memory]")
        ranges = sorted((event.start_ns(), event.name()) for event in events if event.name().startswith(_RANGE))
        beginnings = [beginning for beginning, _ in ranges]
        names = [name.removeprefix(_RANGE) for _, name in ranges]
        self.bytes_by_moment = dict.fromkeys(names, 0)
        current_bytes = 0
        for time, index in changes:
            current_bytes += events[index].nbytes()
            place = bisect_right(beginnings, time) - 1
            if place >= 0:
                self.bytes_by_moment[names[place]] = max(self.bytes_by_moment[names[place]], current_bytes)


class CudaPeaks(Peaks):
    """Read from the statistics of torch's caching allocator, which are reset at the beginning of each moment.

    A block counts with its rounding. Written from torch's documentation and tried with its functions replaced; not
    run on a GPU.
    """

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self._device = device
        self._bytes_before = torch.cuda.memory_allocated(device)

    @contextmanager
    def moment(self, name: str) -> Iterator[None]:
        """Reset the allocator's peaks, and read them when the moment is over."""
        torch.cuda.reset_peak_memory_stats(self._device)
        yield
        allocated_bytes = torch.cuda.max_memory_allocated(self._device) - self._bytes_before
        self.bytes_by_moment[name] = max(self.bytes_by_moment.get(name, 0), allocated_bytes)
        self.reserved_bytes = max(self.reserved_bytes or 0, torch.cuda.max_memory_reserved(self._device))
