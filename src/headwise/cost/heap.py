"""A model of torch's caching allocator: blocks, the segments they are cut from, and the free ones kept for later.

Source: pytorch, c10/cuda/CUDACachingAllocator.cpp (round_size, get_free_block, should_split, get_allocation_size,
alloc_block, try_merge_blocks, release_cached_blocks, try_allocate_expandable_block) and, at version 2.13, the constants
in c10/core/AllocatorConfig.h, which docs/source/notes/cuda.md ("Memory management") explains.
"""

from bisect import bisect_left, insort
from collections.abc import Iterator

from headwise.results import BYTES_PER_MIB

BLOCK_BYTES = 512  # sizes are rounded up to it (kMinBlockSize)
LARGEST_SMALL_BYTES = BYTES_PER_MIB  # up to here a block belongs to the pool of small ones (kSmallSize)
SMALL_SEGMENT_BYTES = 2 * BYTES_PER_MIB  # what small blocks are cut from (kSmallBuffer)
LARGE_SEGMENT_BYTES = 20 * BYTES_PER_MIB  # what large blocks below the next line are cut from (large_segment_size)
OWN_SEGMENT_BYTES = 10 * BYTES_PER_MIB  # from here on, a segment is made to measure (kMinLargeAlloc),
SEGMENT_STEP_BYTES = 2 * BYTES_PER_MIB  # in whole multiples of this (kRoundLarge)

ENDLESS = LARGE_SEGMENT_BYTES * 2**80  # address space that no replay fills, in whole pages


def round_up(num_bytes: int, step: int) -> int:
    """Return the smallest multiple of `step` that is not below a size."""
    return -(-num_bytes // step) * step


def segment_bytes(num_bytes: int) -> int:
    """Return what is asked of the driver for a size that no free block holds."""
    size = round_up(num_bytes, BLOCK_BYTES)
    if size <= LARGEST_SMALL_BYTES:
        return SMALL_SEGMENT_BYTES
    return LARGE_SEGMENT_BYTES if size < OWN_SEGMENT_BYTES else round_up(size, SEGMENT_STEP_BYTES)


class Block:
    """A stretch of a segment, in use or free; `previous` and `next` are its neighbours in the segment.

    `is_mapped`: whether there is memory behind its addresses; always, but for growing segments.
    """

    __slots__ = ("address", "is_free", "is_mapped", "next", "pool", "previous", "size")

    def __init__(self, address: int, size: int, pool: "Pool", *, is_mapped: bool = True):
        self.address = address
        self.size = size
        self.pool = pool
        self.is_free = True
        self.is_mapped = is_mapped
        self.previous: Block | None = None
        self.next: Block | None = None


class Pool:
    """The free blocks for small or for large sizes, in the order in which they are tried: by size, then by address."""

    def __init__(self, *, is_small: bool):
        self.is_small = is_small
        self.free: list[tuple[int, int, Block]] = []

    def add(self, block: Block) -> None:
        """Put a block among the free ones."""
        block.is_free = True
        insort(self.free, (block.size, block.address, block))

    def remove(self, block: Block) -> None:
        """Take a block from among the free ones."""
        del self.free[bisect_left(self.free, (block.size, block.address))]


class Heap:
    """Segments, each reserved in one piece: the allocator under torch's default settings, on one stream.

    `allocated` counts blocks in use and `reserved` segments, both in bytes, with their peaks. `unused_at_peak`: bytes
    that were reserved and not in use when `reserved` first reached its peak.

    Args:
        capacity: most bytes that the driver can give.
    """

    smallest_large_rest = LARGEST_SMALL_BYTES + 1  # what must remain of a large block for it to be cut

    def __init__(self, capacity: int):
        self.capacity = capacity
        self.allocated = self.allocated_peak = 0
        self.reserved = self.reserved_peak = self.unused_at_peak = 0
        self.num_retries = 0
        self.small, self.large = Pool(is_small=True), Pool(is_small=False)
        self.heads: dict[int, Block] = {}  # the first block of each segment, by address
        self._next_address = 0

    def allocate(self, num_bytes: int) -> Block | None:
        """Return a block of at least so many bytes (more than 0); None: out of memory."""
        size = -(-num_bytes // BLOCK_BYTES) * BLOCK_BYTES
        pool = self.small if size <= LARGEST_SMALL_BYTES else self.large
        block = self._take_free(pool, size) or self._reserve(pool, size)
        if block is None:
            self.num_retries += 1
            self.release_cache()
            block = self._reserve(pool, size)
            if block is None:
                return None
        if block.size - size >= (BLOCK_BYTES if pool.is_small else self.smallest_large_rest):
            pool.add(self._cut(block, size))
        block.is_free = False
        self.allocated += block.size
        self.allocated_peak = max(self.allocated_peak, self.allocated)
        if self.reserved > self.reserved_peak:
            self.reserved_peak = self.reserved
            self.unused_at_peak = self.reserved - self.allocated
        return block

    def free(self, block: Block) -> None:
        """Take a block back, and join it with the free blocks beside it."""
        self.allocated -= block.size
        before, after = block.previous, block.next
        if (before is not None and before.is_free) or (after is not None and after.is_free):
            self._join(block)
        block.pool.add(block)

    def release_cache(self) -> None:
        """Give the driver back every segment that is free as a whole."""
        for pool in (self.small, self.large):
            for _, _, block in tuple(pool.free):
                if block.previous is None and block.next is None:
                    pool.remove(block)
                    del self.heads[block.address]
                    self.reserved -= block.size

    def list_segments(self) -> Iterator[list[Block]]:
        """List the blocks of each segment, by address."""
        for head in self.heads.values():
            blocks = []
            block: Block | None = head
            while block is not None:
                blocks.append(block)
                block = block.next
            yield blocks

    def _take_free(self, pool: Pool, size: int) -> Block | None:
        free = pool.free
        index = bisect_left(free, (size,))
        return free.pop(index)[2] if index < len(free) else None

    def _reserve(self, pool: Pool, size: int) -> Block | None:
        num_bytes = segment_bytes(size)
        if self.reserved + num_bytes > self.capacity:
            return None
        block = Block(self._next_address, num_bytes, pool)
        self._next_address += num_bytes
        self.heads[block.address] = block
        self.reserved += num_bytes
        return block

    def _cut(self, block: Block, size: int) -> Block:
        """Shorten a block to a size, and return what remains."""
        rest = Block(block.address + size, block.size - size, block.pool, is_mapped=block.is_mapped)
        rest.previous, rest.next = block, block.next
        if rest.next is not None:
            rest.next.previous = rest
        block.next = rest
        block.size = size
        return rest

    def _join(self, block: Block) -> None:
        """Extend a block, which is in no list, over its neighbours that are free as it is."""
        before, after = block.previous, block.next
        if before is not None and before.is_free and before.is_mapped == block.is_mapped:
            self._unlist(before)
            block.address = before.address
            block.size += before.size
            block.previous = before.previous
            if block.previous is not None:
                block.previous.next = block
            if before.address in self.heads:
                self.heads[before.address] = block
        if after is not None and after.is_free and after.is_mapped == block.is_mapped:
            self._unlist(after)
            block.size += after.size
            block.next = after.next
            if block.next is not None:
                block.next.previous = block

    def _unlist(self, block: Block) -> None:
        block.pool.remove(block)


class GrowingHeap(Heap):
    """One segment a pool, mapped page by page as it grows: the allocator under `expandable_segments:True`."""

    smallest_large_rest = BLOCK_BYTES

    def __init__(self, capacity: int):
        super().__init__(capacity)
        self._unmapped: dict[Pool, list[tuple[int, Block]]] = {}  # by address; the last one is the endless rest
        for pool, address in ((self.small, 0), (self.large, ENDLESS)):
            rest = Block(address, ENDLESS, pool, is_mapped=False)
            self.heads[address] = rest
            self._unmapped[pool] = [(address, rest)]

    def release_cache(self) -> None:
        """Give the driver back every page that is free as a whole."""
        for pool in (self.small, self.large):
            page = _page_bytes(pool)
            for _, _, block in tuple(pool.free):
                begin, end = round_up(block.address, page), (block.address + block.size) // page * page
                if begin < end:
                    self._unmap(block, begin, end)

    def list_segments(self) -> Iterator[list[Block]]:
        """List the blocks of each stretch of mapped pages, by address."""
        for blocks in super().list_segments():
            stretch = []
            for block in blocks:
                if block.is_mapped:
                    stretch.append(block)
                elif stretch:
                    yield stretch
                    stretch = []

    def _take_free(self, pool: Pool, size: int) -> Block | None:
        """Take the best fit, where a block that can grow counts as large as it can become."""
        index = bisect_left(pool.free, (size,))
        while index + 1 < len(pool.free) and _reach(pool.free[index + 1][2]) < _reach(pool.free[index][2]):
            index += 1
        return pool.free.pop(index)[2] if index < len(pool.free) else None

    def _reserve(self, pool: Pool, size: int) -> Block | None:
        """Map pages at the lowest address that has room for a size, and return the block there."""
        starts = (_start(gap) for _, gap in self._unmapped[pool])
        block = next(start for start in starts if _has_room(start, size))
        if not block.is_mapped and not self._map(block, min(block.size, size)):
            return None
        while block.size < size:
            gap = block.next
            assert gap is not None  # room was found
            if not self._map(gap, min(size - block.size, gap.size)):
                return None
            block = gap
        pool.remove(block)
        return block

    def _map(self, gap: Block, size: int) -> bool:
        """Put pages behind the start of a gap, and join it with the free blocks beside it."""
        size = round_up(size, _page_bytes(gap.pool))
        if self.reserved + size > self.capacity:
            return False
        self._unlist(gap)
        if size < gap.size:
            rest = self._cut(gap, size)
            insort(self._unmapped[gap.pool], (rest.address, rest))
        gap.is_mapped = True
        self._join(gap)
        gap.pool.add(gap)
        self.reserved += size
        return True

    def _unmap(self, block: Block, begin: int, end: int) -> None:
        """Take the pages from a free block between two addresses."""
        pool = block.pool
        pool.remove(block)
        if begin > block.address:
            before, block = block, self._cut(block, begin - block.address)
            pool.add(before)
        if end < block.address + block.size:
            pool.add(self._cut(block, end - block.address))
        block.is_mapped = False
        self._join(block)
        insort(self._unmapped[pool], (block.address, block))
        self.reserved -= end - begin

    def _unlist(self, block: Block) -> None:
        if block.is_mapped:
            super()._unlist(block)
        else:
            unmapped = self._unmapped[block.pool]
            del unmapped[bisect_left(unmapped, (block.address,))]


def _page_bytes(pool: Pool) -> int:
    return SMALL_SEGMENT_BYTES if pool.is_small else LARGE_SEGMENT_BYTES


def _reach(block: Block) -> int:
    """Return the size that a free block has together with the gap behind it."""
    gap = block.next
    return block.size + (gap.size if gap is not None and not gap.is_mapped else 0)


def _start(gap: Block) -> Block:
    """Return the free block before a gap, or the gap: where a block that reaches into it would begin."""
    before = gap.previous
    return before if before is not None and before.is_free else gap


def _has_room(start: Block, size: int) -> bool:
    room = 0
    block: Block | None = start
    while room < size and block is not None and block.is_free:
        room += block.size
        block = block.next
    return room >= size
