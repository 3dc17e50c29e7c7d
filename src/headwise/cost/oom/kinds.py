"""What kind an out-of-memory error is: read off the figures of its message."""

from dataclasses import dataclass

from headwise.cost.heap import LARGE_SEGMENT_BYTES, SMALL_SEGMENT_BYTES
from headwise.cost.oom.printed import rounded_by_hand
from headwise.cost.oom.results import OomKind, OomMessage
from headwise.cost.oom.unsized import KERNEL, KILLED
from headwise.results import BYTES_PER_GIB, BYTES_PER_MIB, format_bytes

# From a tenth of the card on, something matters by itself: a step holds tens of tensors at once, so one of that size is
# not one of many, and memory given back in that amount makes the largest batch larger by about a tenth.
SHARE = 10

# What a process holds beside torch's allocator: context, kernels, libraries; the upper bound of `planner.unmodelled`.
CONTEXT_BYTES = 2 * BYTES_PER_GIB

# Linux refuses an allocation that by itself exceeds memory and swap, and no machine that runs torch has less than this.
LEAST_MEMORY_BYTES = BYTES_PER_GIB

# How each kind of device is looked at; torch's modules of CUDA serve ROCm too.
_MODULES = {"cuda": "torch.cuda", "hip": "torch.cuda", "xpu": "torch.xpu", "npu": "torch_npu.npu"}
_MONITORS = {
    "cuda": "`nvidia-smi`",
    "hip": "`rocm-smi`",
    "xpu": "`xpu-smi ps`",
    "npu": "`npu-smi info`",
    "mps": "the Activity Monitor",
}
_SUMMARIES = {
    "cuda": "`torch.cuda.memory_summary()`",
    "hip": "`torch.cuda.memory_summary()`",
    "xpu": "`torch.xpu.memory_stats()`",
    "npu": "`torch_npu.npu.memory_summary()`",
    "mps": "`torch.mps.driver_allocated_memory()`",
}

_SEGMENTS = (
    (SMALL_SEGMENT_BYTES, "any tensor of at most 1 MiB"),
    (LARGE_SEGMENT_BYTES, "any tensor of more than 1 MiB and less than 10 MiB"),
)

Diagnosis = tuple[OomKind, tuple[str, ...], tuple[str, ...]]


@dataclass(frozen=True)
class Figures:
    """The figures of a message that the kinds are told by; None = it does not say.

    `limit`: what this process may use, the capacity or less. `holes`: reserved by the allocator and not in use.
    `others`: what others use, or what nobody accounts for.
    """

    requested: int | None
    limit: int | None
    capacity: int | None
    free: int | None
    allocated: int | None
    reserved: int | None
    holes: int | None
    others: int | None
    others_are_named: bool


def diagnose(message: OomMessage) -> Diagnosis:
    """Return the kind of an out-of-memory error, the evidence for it, and what to do.

    The kinds are tried in the order in which they are cheapest to cure; all that hold are in the evidence.

    1. one huge tensor, where the request exceeds what the process may use: it fits nowhere, whatever else is freed.
    2. fragmentation: the request fits into what is reserved and not in use, and that is a tenth of the limit or more.
       torch had given back all whole segments before it failed, so what is left are holes.
    3. another process: without the others the request would fit, and they hold a tenth of the card or more.
    4. one huge tensor: the request is a tenth of the limit or more.
    5. slow fill: what is reserved, with the request, exceeds the limit less what is not torch's.
    6. unknown: the figures do not explain the failure, or there are none.

    Source: pytorch, c10/cuda/CUDACachingAllocator.cpp (malloc: release_cached_blocks before the error).
    """
    if message.requested_high_bytes is None:
        return "unknown", _without_size(message), _advice_without_size(message)
    if message.backend == "cpu":
        return _of_cpu(message)
    figures = _figures(message)
    evidence = _evidence(message, figures)
    kind = _kind(figures)
    if kind == "unknown" or (kind == "one huge tensor" and not _is_full(figures)):
        evidence = (*evidence, _unexplained(figures))
    return kind, evidence, _advice(kind, message, figures)


def _figures(message: OomMessage) -> Figures:
    # A driver that says 0 of the memory of a device, as of a part of one, says nothing.
    reserved, free, capacity = message.reserved_bytes, message.free_bytes, message.capacity_bytes or None
    limit = min((size for size in (capacity, message.allowed_bytes) if size), default=None)
    if reserved is None:
        reserved = message.allocated_bytes
    if free is None and message.backend == "mps" and limit is not None and message.process_bytes is not None:
        free = max(0, limit - message.process_bytes)  # Metal's limit is one for this process
    holes = None
    if message.reserved_bytes is not None and message.allocated_bytes is not None:
        holes = max(0, message.reserved_bytes - message.allocated_bytes)
    others = message.other_bytes
    named = others is not None
    if others is None and capacity is not None and message.free_bytes is not None and reserved is not None:
        own = message.process_bytes if message.process_bytes is not None else reserved + CONTEXT_BYTES
        others = (
            max(0, capacity - message.free_bytes - own) // BYTES_PER_MIB * BYTES_PER_MIB
        )  # as far as sizes are told
    return Figures(
        requested=message.requested_low_bytes,
        limit=limit,
        capacity=capacity,
        free=free,
        allocated=message.allocated_bytes,
        reserved=reserved,
        holes=holes,
        others=others,
        others_are_named=named,
    )


def _kind(figures: Figures) -> OomKind:
    requested, limit = figures.requested, figures.limit
    if requested is None or limit is None:
        return "unknown"
    if requested > limit:
        return "one huge tensor"
    if _is_fragmented(figures):
        return "fragmentation"
    if _others_are_in_the_way(figures):
        return "another process"
    if requested * SHARE >= limit:
        return "one huge tensor"
    return "slow fill" if _is_full(figures) else "unknown"


def _is_fragmented(figures: Figures) -> bool:
    requested, limit, holes = figures.requested, figures.limit, figures.holes
    if requested is None or limit is None or holes is None:
        return False
    return holes >= requested and holes * SHARE >= limit


def _others_are_in_the_way(figures: Figures) -> bool:
    requested, capacity, free, others = figures.requested, figures.capacity, figures.free, figures.others
    if requested is None or capacity is None or free is None or others is None or free >= requested:
        return False
    return free + others >= requested and others * SHARE >= capacity


def _is_full(figures: Figures) -> bool:
    """Whether free memory, of the card or under the limit of this process, is less than the request."""
    requested, limit, capacity = figures.requested, figures.limit, figures.capacity
    if requested is None or limit is None:
        return False
    if requested > limit or (figures.free is not None and figures.free < requested):
        return True
    is_limited = limit != capacity
    return is_limited and figures.reserved is not None and figures.reserved + requested > limit


def _evidence(message: OomMessage, figures: Figures) -> tuple[str, ...]:
    """Say what the figures say, one sentence each."""
    lines = []
    requested, limit = figures.requested, figures.limit
    text = message.requested_text
    if requested is not None and limit is not None:
        what = "of what this process may use" if limit != figures.capacity else "of the device"
        share = 100 * requested / limit
        lines.append(f"{text} was asked for in one piece: {share:.1f} % {what}, {format_bytes(limit)}")
    if figures.capacity is not None and limit is not None and limit < figures.capacity:
        lines.append(f"a limit of {format_bytes(limit)} is set; the device has {format_bytes(figures.capacity)}")
    if figures.free is not None:
        compared = "less" if requested is not None and figures.free < requested else "not less"
        lines.append(f"{format_bytes(figures.free)} was free: {compared} than {text}")
    if figures.allocated is not None and limit is not None:
        share = 100 * figures.allocated / limit
        lines.append(
            f"tensors of this process held {format_bytes(figures.allocated)}, {share:.0f} % of {format_bytes(limit)}"
        )
    if figures.holes is not None and requested is not None:
        fits = "would fit into that" if figures.holes >= requested else "is more than that"
        lines.append(f"{format_bytes(figures.holes)} was reserved by torch and not in use: {text} {fits}")
    if message.private_pool_bytes:
        lines.append(f"{format_bytes(message.private_pool_bytes)} of the tensors' memory was in pools of CUDA graphs")
    if figures.others:
        who = "other processes used" if figures.others_are_named else "neither free nor this process's:"
        lines.append(f"{who} {format_bytes(figures.others)}")
    if message.backend == "mps" and message.process_bytes is not None and message.reserved_bytes is not None:
        other = message.process_bytes - message.reserved_bytes
        lines.append(
            f"{format_bytes(message.reserved_bytes)} was torch's allocator's, {format_bytes(other)} Metal's beside it "
            "for the same process"
        )
    by_hand = rounded_by_hand(text)
    if by_hand is not None:
        lines.append(
            f"torch prints {by_hand[0]:,} bytes as {by_hand[1]}: {text} is a little more, or was typed by hand"
        )
    if not lines:
        lines.append(f"the message says that {text} was asked for, and of the device nothing")
    lines += _of_segment(message)
    return tuple(lines)


def _of_segment(message: OomMessage) -> list[str]:
    """Say that the size is that of a segment, which torch asks for whatever smaller tensor needs one."""
    low, high = message.requested_low_bytes, message.requested_high_bytes
    if low is None or high is None or not message.is_rounded_up or message.backend == "mps":
        return []
    for segment_bytes, tensors in _SEGMENTS:
        if low <= segment_bytes <= high:
            return [
                f"{message.requested_text} is what torch asks for in one piece for {tensors}: the tensor is smaller"
            ]
    return []


def _unexplained(figures: Figures) -> str:
    if figures.limit is None:
        return "how much the device has, is free and is in use is not said: the kind cannot be told"
    if figures.free is not None and figures.requested is not None and figures.free >= figures.requested:
        return (
            "the driver had more free than was asked for: a limit that the message does not name (of a container, of a "
            "pool of its own, of one allocation on this driver), or memory that was freed just after"
        )
    return "the figures do not explain the failure"


def _advice(kind: OomKind, message: OomMessage, figures: Figures) -> tuple[str, ...]:
    advice: list[str] = []
    if kind == "fragmentation":
        advice += [_settings(message), "pad batches to a few lengths, so that freed blocks are asked for again"]
    elif kind == "another process":
        advice += [
            f"see who holds it ({_MONITORS[message.backend]}), an earlier run of your own among them, and end it",
            "or take another device",
        ]
    elif kind == "one huge tensor":
        advice += [
            "make that tensor smaller: the batch, the length, or the operation that makes it at once",
        ]
        if figures.limit is not None and figures.requested is not None and figures.requested > figures.limit:
            advice.append("no other change helps: it does not fit an empty device")
    elif kind == "slow fill":
        advice += [
            "many tensors fill the device and this one was only the last: what frees most in all is the question",
            "if memory grows from step to step, something keeps old graphs: add `loss.item()`, not `loss`, to a sum",
        ]
    else:
        advice.append(f"print {_SUMMARIES[message.backend]} at the failure, or give the whole message")
    if kind != "fragmentation" and figures.holes and figures.requested and figures.holes >= figures.requested:
        advice.append(f"{_settings(message)}: it may gain up to {format_bytes(figures.holes)}")
    if kind != "another process" and _others_are_in_the_way(figures):
        advice.append("other processes on the device are worth a look too")
    if message.allowed_bytes is not None and message.backend != "mps":
        advice.append(f"raise `{_MODULES[message.backend]}.set_per_process_memory_fraction`, if the limit is yours")
    if message.backend == "mps":
        advice.append("PYTORCH_MPS_HIGH_WATERMARK_RATIO raises the limit, at the risk of the system's coming to a halt")
    return tuple(advice)


def _settings(message: OomMessage) -> str:
    """Name the setting against holes: growing segments since torch 2.1, a largest block to be cut before."""
    if message.backend == "npu":
        return "set PYTORCH_NPU_ALLOC_CONF=expandable_segments:True"
    if message.backend == "xpu":
        return "call `torch.xpu.empty_cache()` between phases of different sizes"
    name = "PYTORCH_HIP_ALLOC_CONF" if message.backend == "hip" else "PYTORCH_CUDA_ALLOC_CONF"
    if "torch 1." in message.wording:  # of 1.0 to 2.0: a message cut short, which names no version, is a later one's
        return f"set {name}=max_split_size_mb:128, or take torch 2.1 and expandable_segments:True (not on Windows)"
    return f"set {name}=expandable_segments:True (not on Windows)"


def _of_cpu(message: OomMessage) -> Diagnosis:
    text, low = message.requested_text, message.requested_low_bytes or 0
    if "shared memory" in message.wording:
        return (
            "unknown",
            (f"{text} could not be mapped: the limit is that of mappings or of shared memory, not of the model",),
            ("use fewer workers in the DataLoader, raise `vm.max_map_count`, or give the container more /dev/shm",),
        )
    if "Linux" in message.wording and low >= LEAST_MEMORY_BYTES:
        return (
            "one huge tensor",
            (
                f"{text} was refused at once: Linux gives out memory that is not there yet, and refuses only what by "
                "itself exceeds all memory and swap, or a limit (`ulimit -v`, `vm.overcommit_memory=2`)",
            ),
            ("make that tensor smaller: the batch, the length, or the operation that makes it at once",),
        )
    return (
        "unknown",
        (f"the message says that {text} was asked for, and of the machine nothing",),
        ("look at the memory in use when it fails; Windows: a larger page file helps; Linux: `ulimit -v` may limit",),
    )


def _without_size(message: OomMessage) -> tuple[str, ...]:
    if message.wording == KERNEL:
        held = f"; it held {format_bytes(message.process_bytes)} of memory" if message.process_bytes is not None else ""
        return (f"the kernel ended the process{held}: no error of torch's came, so no tensor and no line can be named",)
    if message.wording == KILLED:
        return (
            "the process was ended from outside, mostly because the host's memory ran out (not the GPU's): "
            "`dmesg` or the container's events say whether it was",
        )
    return (f"{message.wording}: no size is given, so no tensor can be named",)


def _advice_without_size(message: OomMessage) -> tuple[str, ...]:
    if message.wording in (KERNEL, KILLED):
        return (
            "watch the host's memory: weights loaded twice, many workers of a DataLoader, and data kept in lists",
            "torch raises an error only where one allocation exceeds all; memory that fills up ends the process",
        )
    if message.backend == "cpu":
        return ("look at the memory in use when it fails",)
    return (
        "libraries and the driver allocate outside torch: leave them room, by a smaller batch or another process's end",
        "run once with CUDA_LAUNCH_BLOCKING=1, so that the line named is the one that failed",
    )
