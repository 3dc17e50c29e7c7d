"""What torch's CUDA allocator reserves for a sequence of allocations: rounding, segments, splitting, and the holes.

A tensor asks for bytes; the allocator hands out a block, cut from a segment that it reserved from the driver, and keeps
the segment when the tensor is freed. Three numbers follow: requested (what tensors ask for), allocated (their blocks;
`torch.cuda.max_memory_allocated`) and reserved (the segments; `torch.cuda.max_memory_reserved`). Derived from torch's
sources, not measured.
"""

from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass

from headwise.config.checks import require_size, shown
from headwise.cost.heap import ENDLESS, Block, GrowingHeap, Heap, segment_bytes
from headwise.cost.results import Ledger
from headwise.errors import HeadwiseError
from headwise.results import Result, format_bytes

MAX_BYTES = 2**62
STAYING_KINDS = ("parameter", "optimizer")  # tensors that live from step to step


@dataclass(frozen=True, kw_only=True)
class Segment(Result):
    """Memory that the allocator holds from the driver in one piece, and what is in use of it.

    `largest_free_bytes`: the largest block that could be handed out of it.
    """

    bytes: int
    allocated_bytes: int
    largest_free_bytes: int
    is_small: bool


@dataclass(frozen=True, kw_only=True)
class OutOfMemory(Result):
    """The allocation that failed, and what was held then.

    `requested_bytes`: what the allocator asked the driver for, the figure in torch's message ("Tried to allocate").
    `event`: index of the event.
    """

    key: Hashable
    event: int
    requested_bytes: int
    allocated_bytes: int
    reserved_bytes: int


@dataclass(frozen=True, kw_only=True)
class Reserved(Result):
    """What a sequence of allocations needs: the peaks, and the state after the last event.

    Attributes:
        requested_peak_bytes: most bytes of tensors at once.
        allocated_peak_bytes: most bytes of blocks in use at once, rounding included.
        reserved_peak_bytes: most bytes of segments at once.
        unused_at_peak_bytes: bytes reserved and not in use when the reserved bytes first reached their peak.
        num_retries: how often the cache was given back to the driver to make an allocation fit.
        requested_bytes: at the end.
        allocated_bytes: at the end.
        reserved_bytes: at the end.
        segments: at the end.
        out_of_memory: the allocation that did not fit, at which the replay ended; None: all fitted.
    """

    requested_peak_bytes: int
    allocated_peak_bytes: int
    reserved_peak_bytes: int
    unused_at_peak_bytes: int
    num_retries: int
    requested_bytes: int
    allocated_bytes: int
    reserved_bytes: int
    segments: tuple[Segment, ...]
    out_of_memory: OutOfMemory | None = None

    @property
    def fragmentation(self) -> float:
        """Share of the reserved bytes that was not in use when they first reached their peak."""
        return self.unused_at_peak_bytes / self.reserved_peak_bytes if self.reserved_peak_bytes else 0.0

    def to_text(self) -> str:
        """Return the peaks as lines of text, and the allocation that did not fit."""
        lines = [
            f"requested {format_bytes(self.requested_peak_bytes)} at the peak: what the tensors hold",
            f"allocated {format_bytes(self.allocated_peak_bytes)} at the peak: their blocks",
            f"reserved {format_bytes(self.reserved_peak_bytes)} at the peak: the segments; "
            f"{format_bytes(self.unused_at_peak_bytes)} of it ({self.fragmentation:.1%}) not in use then",
            f"at the end {format_bytes(self.reserved_bytes)} in {len(self.segments)} segments",
        ]
        if self.out_of_memory:
            failed = self.out_of_memory
            lines.append(
                f"out of memory at event {failed.event} ({failed.key}): tried to allocate "
                f"{format_bytes(failed.requested_bytes)} beside {format_bytes(failed.reserved_bytes)} reserved, "
                f"{format_bytes(failed.allocated_bytes)} of it allocated"
            )
        return "\n".join(lines)


def replay(
    events: Iterable[tuple[Hashable, int | None]],
    *,
    capacity_bytes: int | None = None,
    expandable_segments: bool = False,
) -> Reserved:
    """Replay allocations and frees, in order, through a model of torch's CUDA caching allocator.

    A size is rounded up to 512 bytes. The smallest free block of its pool that holds it is taken (of equals the one at
    the lowest address), and cut if what remains is worth keeping: 512 bytes in the small pool, over 1 MiB in the large
    one. A block that is freed merges with the free ones beside it. Where no free block holds a size, a segment is
    reserved: 2 MiB for sizes up to 1 MiB, 20 MiB below 10 MiB, else the size rounded up to 2 MiB. Segments stay until
    an allocation does not fit: then those that are free as a whole go back to the driver, and it is tried again.

    Assumed: one stream, torch's default settings, and that later segments get higher addresses.

    Args:
        events: (key, bytes) allocates, (key, None) frees what has the key. An empty tensor takes no block.
        capacity_bytes: most bytes that can be reserved at once. Default: no limit.
        expandable_segments: as torch does under `PYTORCH_ALLOC_CONF=expandable_segments:True`: one segment a pool that
            grows by pages of 2 MiB (small) or 20 MiB (large), whose free pages can go back one by one.

    Raises:
        HeadwiseError: a key is allocated twice or freed without being allocated, or a size is no number of bytes.

    Source: pytorch, c10/cuda/CUDACachingAllocator.cpp; the functions and constants stand in `heap`.
    """
    if capacity_bytes is not None:
        require_size("capacity_bytes", capacity_bytes, minimum=0, maximum=MAX_BYTES)
    limit = ENDLESS if capacity_bytes is None else capacity_bytes
    heap = GrowingHeap(limit) if expandable_segments else Heap(limit)
    alive: dict[Hashable, tuple[int, Block | None]] = {}
    requested = requested_peak = 0
    failed = None
    for event, (key, num_bytes) in enumerate(events):
        if num_bytes is None:
            if key not in alive:
                raise HeadwiseError(f"event {event} must free what is allocated; got {shown(key)}, which is not")
            freed_bytes, block = alive.pop(key)
            requested -= freed_bytes
            if block is not None:
                heap.free(block)
            continue
        if type(num_bytes) is not int or not 0 <= num_bytes <= MAX_BYTES:  # the check in full costs as much as the rest
            require_size(f"the size at event {event}", num_bytes, minimum=0, maximum=MAX_BYTES)
        if key in alive:
            raise HeadwiseError(f"event {event} must allocate under a new key; got {shown(key)}, which is allocated")
        block = heap.allocate(num_bytes) if num_bytes else None
        if num_bytes and block is None:
            failed = OutOfMemory(
                key=key,
                event=event,
                requested_bytes=segment_bytes(num_bytes),
                allocated_bytes=heap.allocated,
                reserved_bytes=heap.reserved,
            )
            break
        alive[key] = (num_bytes, block)
        requested += num_bytes
        requested_peak = max(requested_peak, requested)
    return Reserved(
        requested_peak_bytes=requested_peak,
        allocated_peak_bytes=heap.allocated_peak,
        reserved_peak_bytes=heap.reserved_peak,
        unused_at_peak_bytes=heap.unused_at_peak,
        num_retries=heap.num_retries,
        requested_bytes=requested,
        allocated_bytes=heap.allocated,
        reserved_bytes=heap.reserved,
        segments=tuple(_segment(blocks) for blocks in heap.list_segments()),
        out_of_memory=failed,
    )


def replay_ledger(
    ledger: Ledger, *, steps: int = 1, capacity_bytes: int | None = None, expandable_segments: bool = False
) -> Reserved:
    """Replay the tensors of a step, in the order of their births and deaths.

    At one moment, what dies is freed before what is born is allocated, and births are in the ledger's order. So a
    ledger whose every allocation is a moment of its own is replayed exactly; one whose moments are stretches of a step
    is replayed as if each stretch held its tensors at once.

    A second step can need more than the first: it finds segments of other sizes. So ask for two or more where the peak
    of a long run counts. Between steps parameters and optimizer states live on; whatever else is left is freed before
    the next step begins, as by `zero_grad`.

    Args:
        ledger: every tensor with its life.
        steps: how many times the step is run.
        capacity_bytes: as of `replay`.
        expandable_segments: as of `replay`.
    """
    require_size("steps", steps)
    return replay(_list_events(ledger, steps), capacity_bytes=capacity_bytes, expandable_segments=expandable_segments)


def _segment(blocks: list[Block]) -> Segment:
    return Segment(
        bytes=sum(block.size for block in blocks),
        allocated_bytes=sum(block.size for block in blocks if not block.is_free),
        largest_free_bytes=max((block.size for block in blocks if block.is_free), default=0),
        is_small=blocks[0].pool.is_small,
    )


def _list_events(ledger: Ledger, steps: int) -> Iterator[tuple[Hashable, int | None]]:
    """List what each moment frees and allocates; a key is the index of the ledger's entry."""
    born: list[list[int]] = [[] for _ in ledger.moments]
    freed: list[list[int]] = [[] for _ in range(len(ledger.moments) + 1)]
    left = []
    for index, entry in enumerate(ledger.entries):
        if entry.freed is not None and entry.freed <= entry.born:
            continue
        born[entry.born].append(index)
        if entry.freed is not None:
            freed[entry.freed].append(index)
        elif entry.kind not in STAYING_KINDS:
            left.append(index)
    for step in range(steps):
        if step:
            yield from ((index, None) for index in left)
        for moment in range(len(ledger.moments)):
            yield from ((index, None) for index in freed[moment])
            for index in born[moment]:
                entry = ledger.entries[index]
                if not (step and entry.freed is None and entry.kind in STAYING_KINDS):
                    yield index, entry.bytes
        yield from ((index, None) for index in freed[-1])
