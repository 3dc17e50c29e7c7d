"""Reading torch's out-of-memory message, in every wording since 1.0, out of whatever surrounds it."""

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Literal

from headwise.cost.oom.printed import SIZE, cut_range, nearest_bytes, printed_range, size_text
from headwise.cost.oom.results import OomMessage
from headwise.cost.oom.squeeze import squeeze
from headwise.cost.oom.traceback import read_frames
from headwise.cost.oom.unsized import find_unreadable, find_unsized
from headwise.errors import TextError

Backend = Literal["cuda", "hip", "mps", "xpu", "cpu", "npu"]

BEFORE, AFTER = 200, 4000  # characters around the figure that one message can have, 50 processes on a card included
LARGEST_REQUEST = 2**60  # torch refuses as much at once ("more than 1EB memory")
NUM_ADDRESSES = 2**64

_BACKENDS: dict[str, tuple[Backend, str]] = {
    "cuda": ("cuda", "CUDA"),
    "hip": ("hip", "HIP"),
    "xpu": ("xpu", "XPU"),
    "npu": ("npu", "NPU"),
}

_SIZE = re.compile(SIZE)
_MORE_THAN_1EB = re.compile(r"morethan1ebmemory")
_NAMED = re.compile(r"(cuda|hip|xpu|npu)outofmemory[.:]?$")
_MPS_BEFORE = re.compile(rf"mpsallocated:{SIZE},otherallocations:{SIZE}(?:,maxallowed:{SIZE})?\)\.?$")
_MPS_AFTER = re.compile(r"on(?:shared|private)pool")
_LIST_AFTER = re.compile(r"\((gpu|npu|xpu)(\d{0,4});")
_LISTED = re.compile(SIZE + r"(totalcapacity|alreadyallocated|free|allowed|reservedintotalbypytorch|cached)")
_ASYNC = re.compile(
    rf"wouldexceedallowedmemory\.?(?:\(outofmemory\))?(?:currentlyallocated:{SIZE})?requested:{SIZE}"
    rf"(?:devicelimit:{SIZE})?(?:free\(accordingtocuda\):{SIZE})?(?:pytorchlimit\([a-z-]{{1,60}}\):{SIZE})?"
)
_ASYNC_DEVICE = re.compile(r"ondevice(\d{1,4})$")
_CPU = re.compile(r"youtriedto(?:re)?allocate(?:(\d{1,20})bytes|(\d{1,10})gb|%dgb\.buynewram!(\d{1,10}))")
_NCCL = re.compile(r"failedtocudacalloc(?:async)?(\d{1,20})bytes")
_MMAP = re.compile(r"unabletommap(\d{1,20})bytesfromfile.{0,300}?cannotallocatememory")
_METAL = re.compile(rf"invalidbuffersize:{SIZE}")

_SENTENCES = {
    # torch 2.1 wrote "capacty"; 2.2 and 2.3 wrote the index as the character of that code
    "capacity_bytes": re.compile(rf"hasatotalcapaci?tyof{SIZE}"),
    "free_bytes": re.compile(rf"ofwhich{SIZE}isfree"),
    "allocated_bytes": re.compile(rf"{SIZE}isallocatedbypytorch"),
    "private_pool_bytes": re.compile(rf"with{SIZE}allocatedinprivatepools"),
    "unallocated": re.compile(rf"{SIZE}isreservedbypytorchbutunallocated"),
    "process_bytes": re.compile(rf"thisprocesshas{SIZE}memoryinuse"),
    "allowed_bytes": re.compile(rf"{SIZE}allowed;"),
}
_DEVICE = re.compile(r"^\.?gpu(\d{1,4})has")
_PROCESS = re.compile(rf"process\d{{1,12}}has{SIZE}memoryinuse")


def read_message(text: str) -> OomMessage:
    """Read the out-of-memory message in a text, and the traceback around it.

    Of several messages the first is taken: later ones are mostly its repetition by other ranks, a retry, or what came
    of it. One that gives a size comes before any that does not, and one of torch's or of a library before a word of the
    shell or the kernel about a process that was killed.

    Args:
        text: an error, a traceback or a whole log, up to 64 Mi characters.

    Raises:
        TextError: nothing in the text is known as an out-of-memory message, or its size cannot be read.

    Source: pytorch, aten/src/THC/THCCachingAllocator.cpp (1.0), c10/cuda/CUDACachingAllocator.cpp (since 1.2),
    c10/xpu/XPUCachingAllocator.cpp, aten/src/ATen/mps/MPSAllocator.mm, c10/core/CPUAllocator.cpp and
    c10/core/impl/alloc_cpu.cpp; Ascend/pytorch, NPUCachingAllocator.cpp.
    """
    squeezed = squeeze(text)
    found = [read(squeezed) for read in READERS]
    first = min((pair for pair in found if pair), key=lambda pair: pair[0], default=None)
    unreadable = None if first else find_unreadable(squeezed)
    if unreadable is not None:
        raise TextError(
            'the size in an out-of-memory message must be one that torch prints, as "2.00 GiB" or "512 bytes"; a size '
            f"is given that cannot be read, {unreadable!r}: give the line as it was printed"
        )
    message = first[1] if first else find_unsized(text, squeezed)
    if message is None:
        raise TextError(
            "the text must hold an out-of-memory message of torch (CUDA, HIP, XPU, NPU, MPS or CPU), cuBLAS, cuDNN or "
            f"NCCL, or say that a process was killed; none was found in {_shown(text)}: give the whole error, "
            'from "out of memory" or "Tried to allocate" to the end of its line'
        )
    count = squeezed.count("triedtoallocate") + squeezed.count("triedtoreallocate")
    return replace(message, num_messages=max(1, count), traceback=read_frames(text))


Found = tuple[int, OomMessage] | None


def _of_caching_allocator(squeezed: str) -> Found:
    """Read what the allocators of CUDA, HIP, XPU, NPU and MPS write: "Tried to allocate 20.00 MiB"."""
    for position in _positions(squeezed, "triedtoallocate"):
        begin = position + len("triedtoallocate")
        size = _SIZE.match(squeezed, begin) or _MORE_THAN_1EB.match(squeezed, begin)
        if size is None:
            continue
        before = squeezed[max(0, position - BEFORE) : position]
        after = squeezed[size.end() : size.end() + AFTER].partition("triedtoallocate")[0]
        message = _of_mps(before, after, size) or _of_device(before, after, size)
        if message is not None:
            return position, message
    return None


def _of_mps(before: str, after: str, size: re.Match[str]) -> OomMessage | None:
    held = _MPS_BEFORE.search(before)
    if size.re is not _SIZE or not (held or _MPS_AFTER.match(after)):
        return None
    number, unit = size.groups()
    low, high = printed_range(number, unit, is_float32=True)
    figures: dict[str, Any] = {}
    if held is not None:
        allocator, other = (nearest_bytes(held[1], held[2]), nearest_bytes(held[3], held[4]))
        # `other` is what Metal holds for this process beside torch's allocator
        figures = {"reserved_bytes": allocator, "process_bytes": allocator + other}
        if held[5] is not None:
            figures["allowed_bytes"] = nearest_bytes(held[5], held[6])
    return OomMessage(
        backend="mps",
        wording="MPS allocator, torch 1.12 and later",
        requested_text=size_text(number, unit),
        requested_low_bytes=low,
        requested_high_bytes=high,
        is_rounded_up=True,
        **figures,
    )


def _of_device(before: str, after: str, size: re.Match[str]) -> OomMessage | None:
    listed = _LIST_AFTER.match(after)
    named = _NAMED.search(before)
    if named is not None:
        backend, name = _BACKENDS[named[1]]
    elif listed is not None and listed[1] == "npu":
        backend, name = _BACKENDS["npu"]
    elif before.endswith("largerthan4gb!"):  # Intel's extension, before torch 2.4
        backend, name = _BACKENDS["xpu"]
    elif listed is not None or after.startswith(".gpu") or "outofmemory" in before[-60:]:
        backend, name = _BACKENDS["cuda"]
    else:
        return None
    figures: dict[str, Any]
    if listed is not None:
        figures, versions = _listed_figures(after)
        figures["device_index"] = int(listed[2]) if listed[2] else None
    else:
        figures, versions = _sentence_figures(after)
        device = _DEVICE.match(after)
        figures["device_index"] = int(device[1]) if device else None
    if size.re is _SIZE:
        number, unit = size.groups()
        requested, (low, high) = size_text(number, unit), printed_range(number, unit)
    else:
        requested, low, high, versions = (
            "more than 1EB",
            LARGEST_REQUEST,
            NUM_ADDRESSES - 1,
            "a size that no device has",
        )
    return OomMessage(
        backend=backend,
        wording=f"{name} caching allocator, {versions}",
        requested_text=requested,
        requested_low_bytes=low,
        requested_high_bytes=high,
        is_rounded_up=size.re is _SIZE,
        **figures,
    )


def _listed_figures(after: str) -> tuple[dict[str, Any], str]:
    """Read "(GPU 0; 7.93 GiB total capacity; 6.46 GiB already allocated; 14.06 MiB free; 6.51 GiB reserved...)"."""
    inside = after[:400].partition(")")[0]
    values = {name: nearest_bytes(number, unit) for number, unit, name in _LISTED.findall(inside)}
    capacity, allocated = values.get("totalcapacity"), values.get("alreadyallocated")
    reserved, versions = values.get("reservedintotalbypytorch"), "torch 1.4 to 2.0"
    cached = values.get("cached")
    if cached is not None:
        versions = "torch 1.0 to 1.3"
        reserved = cached
        # The cached bytes were those not in use; an edited message that gives the total would exceed the card.
        if allocated is not None and (capacity is None or allocated + cached <= capacity or cached < allocated):
            reserved = allocated + cached
    elif reserved is None:
        versions = "torch 1.0 to 2.0, cut short"
    return {
        "capacity_bytes": capacity,
        "free_bytes": values.get("free"),
        "allocated_bytes": allocated,
        "reserved_bytes": reserved,
        "allowed_bytes": values.get("allowed"),
    }, versions


def _sentence_figures(after: str) -> tuple[dict[str, Any], str]:
    """Read "GPU 0 has a total capacity of 79.15 GiB of which 1.31 GiB is free. Process 12345 has ..."."""
    figures: dict[str, Any] = {}
    for name, pattern in _SENTENCES.items():
        match = pattern.search(after)
        figures[name] = nearest_bytes(*match.groups()) if match else None
    unallocated = figures.pop("unallocated")
    allocated = figures["allocated_bytes"]
    figures["reserved_bytes"] = None if None in (allocated, unallocated) else allocated + unallocated
    others = sorted(nearest_bytes(number, unit) for number, unit in _PROCESS.findall(after))
    if others and figures["process_bytes"] is None:
        figures["process_bytes"], others = _tell_apart(others, figures["reserved_bytes"])
    figures["other_bytes"] = sum(others) if others else None
    versions = "cut short" if figures["capacity_bytes"] is None else "torch 2.1 and later"
    return figures, versions


def _tell_apart(processes: list[int], reserved: int | None) -> tuple[int | None, list[int]]:
    """Say which of the processes on a card is this one, where the driver does not, and which are the others.

    In a container the driver's numbers of processes are not those inside, and no process is called "this". It then is
    one that has at least what its allocator reserved, and of those the nearest to it.
    """
    if reserved is None:
        return None, []
    index = next((index for index, held in enumerate(processes) if held >= reserved - reserved // 100), None)
    if index is None:
        return None, processes
    return processes[index], processes[:index] + processes[index + 1 :]


def _of_async(squeezed: str) -> Found:
    """Read what the allocator of CUDA's own pools writes (`backend:cudaMallocAsync`), which names the tensor's size."""
    for position in _positions(squeezed, "wouldexceedallowedmemory"):
        match = _ASYNC.match(squeezed, position)
        if match is None:
            continue
        allocated, requested, capacity, free, allowed = zip(match.groups()[::2], match.groups()[1::2], strict=True)
        device = _ASYNC_DEVICE.search(squeezed[max(0, position - 20) : position])
        plain = _plain("cuda", "CUDA's asynchronous allocator, torch 2.0 and later", *_requested(requested))
        limit = _bytes_or_none(allowed)
        return position, replace(
            plain,
            device_index=int(device[1]) if device else None,
            capacity_bytes=_bytes_or_none(capacity),
            free_bytes=_bytes_or_none(free),
            allocated_bytes=_bytes_or_none(allocated),
            allowed_bytes=None if limit == NUM_ADDRESSES else limit,  # no limit prints as all addresses
        )
    return None


def _requested(size: tuple[str, str]) -> tuple[str, int, int]:
    return size_text(*size), *printed_range(*size)


def _bytes_or_none(size: tuple[str | None, str | None]) -> int | None:
    number, unit = size
    return None if number is None or unit is None else nearest_bytes(number, unit)


def _of_cpu(squeezed: str) -> Found:
    """Read what the CPU allocator writes: "you tried to allocate 8589934592 bytes"."""
    for position in _positions(squeezed, "youtriedto"):
        match = _CPU.match(squeezed, position)
        if match is None:
            continue
        whole_bytes, gibibytes, after_text = match.groups()
        if whole_bytes is not None:
            requested, (low, high) = f"{whole_bytes} bytes", (int(whole_bytes), int(whole_bytes))
            linux = "cantallocatememory" in squeezed[max(0, position - BEFORE) : position]
            wording = "Linux and macOS, torch 1.2 and later" if linux else "Windows and Android, torch 1.2 and later"
        else:
            cut = gibibytes or after_text
            requested, (low, high) = f"{cut} GB", cut_range(cut)
            wording = "torch 1.0 and 1.1, and before"
        return position, _plain("cpu", f"CPU allocator, {wording}", requested, low, high)
    return None


def _of_nccl(squeezed: str) -> Found:
    return _of_whole_bytes(squeezed, "failedtocudacalloc", _NCCL, "cuda", "NCCL, buffers for communication")


def _of_mmap(squeezed: str) -> Found:
    return _of_whole_bytes(squeezed, "unabletommap", _MMAP, "cpu", "shared memory or a mapped file")


def _of_whole_bytes(squeezed: str, anchor: str, pattern: re.Pattern[str], backend: Backend, wording: str) -> Found:
    for position in _positions(squeezed, anchor):
        match = pattern.match(squeezed, position)
        if match is not None:
            count = int(match[1])
            return position, _plain(backend, wording, f"{count} bytes", count, count)
    return None


def _of_metal(squeezed: str) -> Found:
    """Read what MPS says of a tensor above the largest buffer of Metal: "Invalid buffer size: 19.45 GB"."""
    for position in _positions(squeezed, "invalidbuffersize:"):
        match = _METAL.match(squeezed, position)
        if match is not None:
            number, unit = match.groups()
            low, high = printed_range(number, unit, is_float32=True)
            wording = "MPS allocator, a tensor above Metal's largest buffer"
            return position, _plain("mps", wording, size_text(number, unit), low, high)
    return None


def _plain(backend: Backend, wording: str, requested: str, low: int, high: int) -> OomMessage:
    return OomMessage(
        backend=backend,
        wording=wording,
        requested_text=requested,
        requested_low_bytes=low,
        requested_high_bytes=high,
    )


def _positions(text: str, anchor: str) -> Iterator[int]:
    position = text.find(anchor)
    while position >= 0:
        yield position
        position = text.find(anchor, position + len(anchor))


def _shown(text: str) -> str:
    shown = " ".join(text[:400].split())
    return repr(shown if len(shown) <= 80 else shown[:77] + "...")


READERS = (_of_caching_allocator, _of_async, _of_cpu, _of_nccl, _of_mmap, _of_metal)
