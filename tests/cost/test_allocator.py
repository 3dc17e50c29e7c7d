"""The replay of torch's caching allocator: by hand, against published figures, against a slow reference, and laws."""

import itertools
import random
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwise.cost.allocator import replay, replay_ledger
from headwise.cost.heap import ENDLESS, GrowingHeap, Heap, segment_bytes
from headwise.cost.results import Ledger, LedgerEntry
from headwise.errors import HeadwiseError

KIB, MIB = 2**10, 2**20
SIZES = st.one_of(
    st.sampled_from([0, 1, 511, 512, 513, MIB - 512, MIB, MIB + 1, 5 * MIB, 10 * MIB - 512, 10 * MIB, 19 * MIB]),
    st.integers(1, 3 * MIB),
    st.integers(1, 40 * MIB),
)


@st.composite
def sequences(draw, sizes=SIZES, most=40):
    """Draw events: every allocation has a key of its own, every free frees one that is alive."""
    events, alive = [], []
    for key in range(draw(st.integers(0, most))):
        if alive and draw(st.booleans()):
            events.append((alive.pop(draw(st.integers(0, len(alive) - 1))), None))
        else:
            events.append((key, draw(sizes)))
            alive.append(key)
    return events


def alive_after(events):
    alive = {}
    for key, num_bytes in events:
        if num_bytes is None:
            del alive[key]
        else:
            alive[key] = num_bytes
    return alive


# By hand


@pytest.mark.parametrize(
    ("asked", "allocated", "reserved"),
    [
        (1, 512, 2 * MIB),
        (512, 512, 2 * MIB),
        (513, 1024, 2 * MIB),
        (MIB, MIB, 2 * MIB),
        (MIB + 1, MIB + 512, 20 * MIB),
        (10 * MIB - 512, 10 * MIB - 512, 20 * MIB),
        (10 * MIB - 511, 10 * MIB, 10 * MIB),
        (10 * MIB + 1, 10 * MIB + 512, 12 * MIB),  # 2 MiB less 512 bytes remain, over 1 MiB: cut
        (19 * MIB - 512, 19 * MIB - 512, 20 * MIB),  # 1 MiB and 512 bytes remain: cut
        (19 * MIB, 20 * MIB, 20 * MIB),  # 1 MiB remains, too little to keep
        (20 * MIB, 20 * MIB, 20 * MIB),
    ],
)
def test_one_allocation_is_rounded_and_cut_from_the_segment_for_its_size(asked, allocated, reserved):
    result = replay([("x", asked)])
    assert (result.requested_peak_bytes, result.allocated_peak_bytes, result.reserved_peak_bytes) == (
        asked,
        allocated,
        reserved,
    )
    assert result.unused_at_peak_bytes == reserved - allocated
    assert segment_bytes(asked) == reserved
    assert len(result.segments) == 1
    assert result.segments[0].is_small == (asked <= MIB)


def test_an_empty_tensor_takes_no_block():
    result = replay([("nothing", 0), ("x", 1), ("nothing", None)])
    assert (result.requested_peak_bytes, result.allocated_peak_bytes) == (1, 512)
    assert replay([("nothing", 0)]).reserved_peak_bytes == 0
    assert replay([]).fragmentation == 0


def test_small_blocks_fill_a_segment_to_its_last_512_bytes():
    events = [("a", MIB - 512), ("b", MIB), ("c", 512)]
    assert replay(events).reserved_peak_bytes == 2 * MIB
    assert replay([*events, ("d", 1)]).reserved_peak_bytes == 4 * MIB


def test_small_and_large_sizes_never_share_a_segment():
    result = replay([("large", 5 * MIB), ("large", None), ("small", 1), ("small", None), ("large", 2 * MIB)])
    assert result.reserved_bytes == 22 * MIB
    assert [segment.is_small for segment in result.segments] == [False, True]


def test_the_smallest_block_that_fits_is_taken():
    # holes of 14, 12 and 16 MiB, each a segment
    holes = [(name, size * MIB) for name, size in (("a", 14), ("b", 12), ("c", 16))]
    result = replay([*holes, *((name, None) for name, _ in holes), ("x", 11 * MIB), ("y", 13 * MIB)])
    assert [(segment.bytes // MIB, segment.allocated_bytes // MIB) for segment in result.segments] == [
        (14, 14),  # y: 1 MiB remains, too little to keep
        (12, 12),  # x
        (16, 0),
    ]


def test_of_equal_blocks_the_one_at_the_lowest_address_is_taken():
    events = [("a", 12 * MIB), ("b", 12 * MIB), ("b", None), ("a", None), ("x", 12 * MIB)]
    assert [segment.allocated_bytes for segment in replay(events).segments] == [12 * MIB, 0]


@pytest.mark.parametrize("order", list(itertools.permutations("abc")))
def test_neighbours_merge_in_whatever_order_they_are_freed(order):
    events = [("a", 3 * MIB), ("b", 4 * MIB), ("c", 5 * MIB), *((name, None) for name in order)]
    (segment,) = replay(events).segments
    assert (segment.bytes, segment.largest_free_bytes) == (20 * MIB, 20 * MIB)


def test_a_block_in_use_keeps_its_neighbours_apart():
    (segment,) = replay([("a", 3 * MIB), ("b", 4 * MIB), ("c", 5 * MIB), ("a", None), ("c", None)]).segments
    assert (segment.allocated_bytes, segment.largest_free_bytes) == (4 * MIB, 13 * MIB)


def test_holes_that_are_too_small_make_the_allocator_reserve_more_than_is_in_use():
    events = [("a", 12 * MIB), ("b", 12 * MIB), ("a", None), ("b", None), ("x", 22 * MIB)]
    result = replay(events)
    assert (result.allocated_peak_bytes, result.reserved_peak_bytes) == (24 * MIB, 46 * MIB)
    assert result.unused_at_peak_bytes == 24 * MIB
    assert result.fragmentation == 24 / 46


def test_segments_that_are_free_go_back_to_the_driver_before_an_allocation_fails():
    events = [("a", 12 * MIB), ("a", None), ("b", 14 * MIB)]
    result = replay(events, capacity_bytes=20 * MIB)
    assert result.out_of_memory is None
    assert (result.num_retries, result.reserved_bytes, result.reserved_peak_bytes) == (1, 14 * MIB, 14 * MIB)
    assert replay(events, capacity_bytes=26 * MIB).num_retries == 0


def test_a_segment_with_one_block_in_use_stays_and_the_allocation_fails():
    events = [("a", 5 * MIB), ("b", 3 * MIB), ("a", None), ("x", 15 * MIB + 1), ("never", 1)]
    result = replay(events, capacity_bytes=35 * MIB)
    failed = result.out_of_memory
    assert (failed.key, failed.event, failed.requested_bytes) == ("x", 3, 16 * MIB)
    assert (failed.allocated_bytes, failed.reserved_bytes) == (3 * MIB, 20 * MIB)
    assert result.num_retries == 1
    assert "out of memory at event 3 (x): tried to allocate 16.0 MiB beside 20.0 MiB reserved" in result.to_text()
    assert replay(events, capacity_bytes=38 * MIB).out_of_memory is None


def test_a_growing_segment_is_mapped_page_by_page():
    assert replay([("x", 1)], expandable_segments=True).reserved_bytes == 2 * MIB
    assert replay([("x", 2 * MIB)], expandable_segments=True).reserved_bytes == 20 * MIB
    result = replay([("a", 2 * MIB), ("b", 30 * MIB)], expandable_segments=True)
    assert (result.reserved_bytes, result.allocated_bytes, len(result.segments)) == (40 * MIB, 32 * MIB, 1)


def test_a_growing_segment_has_no_holes_between_segments():
    events = [("a", 12 * MIB), ("b", 12 * MIB), ("a", None), ("b", None), ("x", 22 * MIB)]
    assert replay(events, expandable_segments=True).reserved_peak_bytes == 40 * MIB < replay(events).reserved_peak_bytes


def test_free_pages_go_back_to_the_driver_between_pages_in_use():
    events = [("a", 20 * MIB), ("b", 40 * MIB), ("c", 20 * MIB), ("b", None), ("x", 60 * MIB)]
    result = replay(events, capacity_bytes=100 * MIB, expandable_segments=True)
    assert result.num_retries == 1
    assert [segment.bytes // MIB for segment in result.segments] == [20, 80]  # c and x side by side
    assert replay(events, capacity_bytes=100 * MIB).out_of_memory is None
    assert replay(events, capacity_bytes=99 * MIB, expandable_segments=True).out_of_memory.reserved_bytes == 40 * MIB


def test_a_gap_of_pages_is_filled_before_the_segment_grows_at_its_end():
    heap = GrowingHeap(1000 * MIB)
    first, second, third = (heap.allocate(size * MIB) for size in (20, 40, 20))
    heap.free(second)
    heap.release_cache()
    assert heap.reserved == 40 * MIB
    fourth = heap.allocate(30 * MIB)  # in the gap, of which all pages are mapped again
    assert heap.reserved == 80 * MIB
    fifth = heap.allocate(30 * MIB)
    offsets = [(block.address - first.address) // MIB for block in (fourth, third, fifth)]
    assert offsets == [20, 60, 80]


# Published figures


def resnet18_bytes():
    """List the bytes of ResNet-18's weights and buffers in float32 (the batch counters are int64), in their order."""

    def conv(out_channels, in_channels, kernel_size):
        return [4 * out_channels * in_channels * kernel_size**2]

    def batch_norm(channels):
        return [4 * channels] * 4 + [8]

    sizes = conv(64, 3, 7) + batch_norm(64)
    for inside, outside in ((64, 64), (64, 64), (64, 128), (128, 128), (128, 256), (256, 256), (256, 512), (512, 512)):
        sizes += conv(outside, inside, 3) + batch_norm(outside) + conv(outside, outside, 3) + batch_norm(outside)
        if inside != outside:
            sizes += conv(outside, inside, 1) + batch_norm(outside)
    return [*sizes, 4 * 512 * 1000, 4 * 1000]


def test_resnet_18_takes_what_was_measured():
    """pytorch/pytorch#107667: memory_allocated() of 44.6904296875 MiB for tensors of 44.6286 MiB."""
    sizes = resnet18_bytes()
    assert round(sum(4 if size == 8 else size for size in sizes) / MIB, 4) == 44.6286
    assert replay(enumerate(sizes)).allocated_bytes / MIB == 44.6904296875


def test_two_epochs_of_a_small_network_reserve_what_was_measured():
    """discuss.pytorch.org/t/138814: reserved 296, 5014, 1644 and 5688 MiB; allocated 294 and 465.

    A convolution of 28 kernels and two poolings with indices, on 512 images of 224 x 224, without gradients.
    """
    heap = Heap(2**60)
    convolved, pooled, pooled_twice = (4 * 512 * 28 * size**2 for size in (222, 111, 56))

    def forward():
        hidden = heap.allocate(convolved)
        output, indices = heap.allocate(pooled), heap.allocate(2 * pooled)
        heap.free(indices)
        heap.free(hidden)
        hidden, output, indices = output, heap.allocate(pooled_twice), heap.allocate(2 * pooled_twice)
        heap.free(indices)
        heap.free(hidden)
        return output

    for size in (4 * 28 * 3 * 3 * 3, 4 * 28):
        heap.allocate(size)
    images = heap.allocate(4 * 512 * 3 * 224**2)
    assert (heap.reserved // MIB, heap.allocated // MIB) == (296, 294)
    forward()
    assert (heap.reserved // MIB, heap.allocated // MIB) == (5014, 465)
    heap.release_cache()
    assert (heap.reserved // MIB, heap.allocated // MIB) == (1644, 465)
    images_of_the_next_epoch = heap.allocate(4 * 512 * 3 * 224**2)
    heap.free(images)
    forward()
    assert heap.reserved // MIB == 5688
    assert images_of_the_next_epoch.size == 294 * MIB


# A slow reference: the free space is what no block in use covers, found anew at every step


class SlowHeap:
    """Segments as (start, size, is_small), blocks in use as (start, size, is_small)."""

    def __init__(self, capacity):
        self.capacity, self.segments, self.used, self.end = capacity, [], [], 0

    @property
    def reserved(self):
        return sum(size for _, size, _ in self.segments)

    def holes(self, is_small):
        """List (size, start) of all free space of a pool."""
        found = []
        for start, size, segment_is_small in self.segments:
            if segment_is_small != is_small:
                continue
            place = start
            for used_start, used_size, _ in [*sorted(self.used), (start + size, 0, is_small)]:
                if start <= used_start <= start + size:
                    if used_start > place:
                        found.append((used_start - place, place))
                    place = used_start + used_size
        return sorted(found)

    def allocate(self, num_bytes):
        size = (num_bytes + 511) // 512 * 512
        is_small = size <= MIB
        for attempt in ("as it is", "with an empty cache"):
            fitting = [hole for hole in self.holes(is_small) if hole[0] >= size]
            if fitting:
                hole_size, start = fitting[0]
                rest = hole_size - size
                is_cut = rest >= 512 if is_small else rest > MIB
                block = (start, size if is_cut else hole_size, is_small)
                self.used.append(block)
                return block
            if is_small:
                new = 2 * MIB
            else:
                new = 20 * MIB if size < 10 * MIB else (size + 2 * MIB - 1) // (2 * MIB) * (2 * MIB)
            if attempt == "with an empty cache":
                busy = {max(s for s in self.segments if s[0] <= start) for start, _, _ in self.used}
                self.segments = [segment for segment in self.segments if segment in busy]
            if self.reserved + new <= self.capacity:
                self.segments.append((self.end, new, is_small))
                self.end += new
                return self.allocate(num_bytes)
        return None


class SlowGrowingHeap:
    """A pool is a line of pages: the set of those that are mapped, and the blocks in use on it."""

    def __init__(self, capacity):
        self.capacity = capacity
        self.pools = {True: ({}, set()), False: ({}, set())}  # is_small: used {start: size}, mapped pages
        self.page = {True: 2 * MIB, False: 20 * MIB}

    @property
    def reserved(self):
        return sum(self.page[is_small] * len(mapped) for is_small, (_, mapped) in self.pools.items())

    def runs(self, is_small):
        """List (start, end, is_mapped) of all free space on the line; the last run is endless."""
        used, mapped = self.pools[is_small]
        page = self.page[is_small]
        last = max([0, *(page * (number + 1) for number in mapped)])
        cuts = {0, last, *(page * number for number in range(last // page + 1))}
        cuts |= set(used) | {start + size for start, size in used.items()}
        pieces = []
        for start, end in itertools.pairwise(sorted(cuts)):
            if any(begin <= start < begin + size for begin, size in used.items()):
                continue
            is_mapped = start // page in mapped
            if pieces and pieces[-1][1] == start and pieces[-1][2] == is_mapped:
                pieces[-1] = (pieces[-1][0], end, is_mapped)
            else:
                pieces.append((start, end, is_mapped))
        return [*pieces, (last, 2**90, False)]

    def allocate(self, num_bytes):
        size = (num_bytes + 511) // 512 * 512
        is_small = size <= MIB
        used = self.pools[is_small][0]
        runs = self.runs(is_small)
        unmapped = {start: end for start, end, is_mapped in runs if not is_mapped}
        free = sorted(
            (end - start, start, unmapped.get(end, end) - start) for start, end, is_mapped in runs if is_mapped
        )
        fitting = [hole for hole in free if hole[0] >= size]
        if fitting:
            best = next((hole for hole, after in itertools.pairwise(fitting) if after[2] >= hole[2]), fitting[-1])
            used[best[1]] = size
            return best[1], size, is_small
        for _ in range(2):
            start = self.grow(is_small, size)
            if start is not None:
                used[start] = size
                return start, size, is_small
            self.empty_cache()
        return None

    def grow(self, is_small, size):
        used, mapped = self.pools[is_small]
        page = self.page[is_small]
        runs = self.runs(is_small)
        for index, (start, _, is_mapped) in enumerate(runs):
            if is_mapped:
                continue
            begins_before = index > 0 and runs[index - 1][2] and runs[index - 1][1] == start
            begin = runs[index - 1][0] if begins_before else start
            if min([2**90, *(place for place in used if place >= begin)]) - begin < size:
                continue
            for number in range(begin // page, (begin + size - 1) // page + 1):
                if number not in mapped:
                    stretch = [number]
                    while stretch[-1] + 1 <= (begin + size - 1) // page and stretch[-1] + 1 not in mapped:
                        stretch.append(stretch[-1] + 1)
                    if self.reserved + page * len(stretch) > self.capacity:
                        return None
                    mapped.update(stretch)
            return begin
        raise AssertionError("the last run is endless")

    def empty_cache(self):
        for is_small, (_, mapped) in self.pools.items():
            page = self.page[is_small]
            for start, end, is_mapped in self.runs(is_small):
                if is_mapped:
                    mapped -= set(range(-(-start // page), end // page))


@pytest.mark.parametrize(("fast_class", "slow_class"), [(Heap, SlowHeap), (GrowingHeap, SlowGrowingHeap)])
@given(
    events=sequences(st.one_of(SIZES, st.sampled_from([20 * MIB, 41 * MIB, 60 * MIB]))),
    capacity=st.sampled_from([2**60, 64 * MIB, 100 * MIB, 200 * MIB]),
)
@settings(max_examples=200, deadline=None)
def test_every_block_lies_where_a_slow_reference_puts_it(fast_class, slow_class, events, capacity):
    fast, slow = fast_class(capacity), slow_class(capacity)
    blocks = {}
    for key, num_bytes in events:
        if num_bytes is None:
            block, expected = blocks.pop(key)
            if block is not None:
                fast.free(block)
                if slow_class is SlowHeap:
                    slow.used.remove(expected)
                else:
                    del slow.pools[expected[2]][0][expected[0]]
        elif num_bytes:
            block, expected = fast.allocate(num_bytes), slow.allocate(num_bytes)
            if block is None or expected is None:
                assert block is expected
            else:
                base = ENDLESS if fast_class is GrowingHeap and not block.pool.is_small else 0
                assert (block.address - base, block.size, block.pool.is_small) == expected
            blocks[key] = block, expected
        else:
            blocks[key] = None, None
        assert fast.reserved == slow.reserved


# Laws

policies = pytest.mark.parametrize("expandable", [False, True], ids=["segments", "growing segment"])


@policies
@given(events=sequences())
@settings(deadline=None)
def test_reserved_holds_allocated_and_allocated_holds_requested(expandable, events):
    result = replay(events, expandable_segments=expandable)
    alive = alive_after(events)
    assert result.requested_bytes == sum(alive.values())
    assert result.reserved_bytes >= result.allocated_bytes >= result.requested_bytes
    assert result.reserved_peak_bytes >= result.allocated_peak_bytes >= result.requested_peak_bytes
    assert result.reserved_peak_bytes == result.reserved_bytes  # nothing goes back without need
    assert sum(segment.bytes for segment in result.segments) == result.reserved_bytes
    assert sum(segment.allocated_bytes for segment in result.segments) == result.allocated_bytes
    assert result.allocated_bytes % 512 == 0
    assert result.reserved_bytes % (2 * MIB) == 0
    assert 0 <= result.unused_at_peak_bytes <= result.reserved_peak_bytes


@pytest.mark.parametrize("heap_class", [Heap, GrowingHeap])
@given(events=sequences(SIZES.filter(bool)), capacity=st.sampled_from([2**60, 64 * MIB]))
@settings(deadline=None)
def test_blocks_never_overlap_and_their_neighbours_touch(heap_class, events, capacity):
    heap, blocks = heap_class(capacity), {}
    for key, num_bytes in events:
        if num_bytes is not None:
            blocks[key] = heap.allocate(num_bytes)
        elif (block := blocks.pop(key)) is not None:
            heap.free(block)
        spans = sorted((block.address, block.address + block.size) for block in blocks.values() if block is not None)
        assert all(end <= start for (_, end), (start, _) in itertools.pairwise(spans))
        listed = [block for segment in heap.list_segments() for block in segment]
        assert sum(block.size for block in listed) == heap.reserved <= capacity
        assert {id(block) for block in listed if not block.is_free} == {id(b) for b in blocks.values() if b is not None}
        for segment in heap.list_segments():
            for block, after in itertools.pairwise(segment):
                assert block.address + block.size == after.address
                assert not (block.is_free and after.is_free)  # free neighbours have merged


@policies
@given(events=sequences())
@settings(deadline=None)
def test_freeing_everything_leaves_all_segments_reserved_and_whole(expandable, events):
    before = replay(events, expandable_segments=expandable)
    after = replay([*events, *((key, None) for key in alive_after(events))], expandable_segments=expandable)
    assert (after.reserved_bytes, after.allocated_bytes, after.requested_bytes) == (before.reserved_bytes, 0, 0)
    assert all(segment.largest_free_bytes == segment.bytes for segment in after.segments)


@policies
@given(events=sequences(), seed=st.integers(0, 99))
@settings(deadline=None)
def test_the_order_of_frees_in_a_row_changes_nothing(expandable, events, seed):
    keys = list(alive_after(events))
    doomed = random.Random(seed).sample(keys, k=len(keys) // 2)
    forward = replay([*events, *((key, None) for key in doomed)], expandable_segments=expandable)
    backward = replay([*events, *((key, None) for key in reversed(doomed))], expandable_segments=expandable)
    assert forward == backward


@policies
@given(size=SIZES, num=st.integers(1, 9), steps=st.integers(2, 4))
@settings(deadline=None)
def test_tensors_of_one_size_need_no_more_in_later_steps(expandable, size, num, steps):
    step = [*((key, size) for key in range(num)), *((key, None) for key in range(num))]
    once, often = replay(step, expandable_segments=expandable), replay(step * steps, expandable_segments=expandable)
    assert often == once


def test_tensors_of_several_sizes_can_need_more_in_the_second_step():
    sizes = [5 * MIB, 16 * MIB, 15 * MIB]
    step = [*enumerate(sizes), *((key, None) for key in range(3))]
    assert replay(step).reserved_peak_bytes == 36 * MIB  # 15 beside 5 in a segment of 20, and 16
    assert replay(step * 2).reserved_peak_bytes == 52 * MIB  # 5 in the segment of 16, 16 in that of 20, 15 anew
    assert replay(step * 9).reserved_peak_bytes == 52 * MIB


@policies
@given(events=sequences(), spare=st.sampled_from([0, 1, 20 * MIB]))
@settings(deadline=None)
def test_a_capacity_that_suffices_changes_nothing(expandable, events, spare):
    free = replay(events, expandable_segments=expandable)
    limited = replay(events, capacity_bytes=free.reserved_peak_bytes + spare, expandable_segments=expandable)
    assert limited == free


@given(events=sequences(), capacity=st.integers(0, 200 * MIB))
@settings(deadline=None)
def test_what_fits_stays_within_the_capacity_and_what_does_not_is_named(events, capacity):
    result = replay(events, capacity_bytes=capacity)
    assert result.reserved_peak_bytes <= capacity
    failed = result.out_of_memory
    if failed is not None:
        key, num_bytes = events[failed.event]
        assert failed.key == key
        assert failed.requested_bytes == segment_bytes(num_bytes)
        assert failed.reserved_bytes + failed.requested_bytes > capacity
        assert (failed.reserved_bytes, failed.allocated_bytes) == (result.reserved_bytes, result.allocated_bytes)


# Ledgers


def make_ledger(*lives, num_moments):
    entries = tuple(
        LedgerEntry(
            name="tensor", kind=kind, bytes=size, shape=(size,), dtype="uint8", owner="", born=born, freed=freed
        )
        for size, kind, born, freed in lives
    )
    return Ledger(moments=tuple(map(str, range(num_moments))), entries=entries)


LIVES = st.tuples(
    SIZES,
    st.sampled_from(["parameter", "gradient", "optimizer", "saved", "temporary", "input"]),
    st.integers(0, 5),
    st.one_of(st.none(), st.integers(0, 6)),
)


@given(lives=st.lists(LIVES, max_size=12), steps=st.integers(1, 3))
@settings(deadline=None)
def test_the_requested_peak_of_a_replay_is_the_ledgers_peak(lives, steps):
    ledger = make_ledger(*(life for life in lives if life[3] is None or life[2] <= life[3]), num_moments=6)
    result = replay_ledger(ledger)
    assert result.requested_peak_bytes == ledger.bytes_at(ledger.peak)
    left = [entry.bytes for entry in ledger.entries if entry.freed is None]
    assert result.requested_bytes == replay_ledger(ledger, steps=steps).requested_bytes == sum(left)


def test_at_one_moment_what_dies_makes_room_for_what_is_born():
    ledger = make_ledger((12 * MIB, "temporary", 0, 1), (12 * MIB, "temporary", 1, None), num_moments=2)
    assert replay_ledger(ledger).reserved_peak_bytes == 12 * MIB


def test_between_steps_weights_and_states_live_on_and_gradients_do_not():
    ledger = make_ledger(
        (12 * MIB, "parameter", 0, None),
        (14 * MIB, "gradient", 1, None),
        (16 * MIB, "optimizer", 2, None),
        num_moments=3,
    )
    result = replay_ledger(ledger, steps=3)
    assert result.requested_peak_bytes == result.requested_bytes == 42 * MIB
    assert result.reserved_peak_bytes == 42 * MIB


def test_capacity_and_policy_reach_the_replay():
    ledger = make_ledger((12 * MIB, "parameter", 0, None), num_moments=1)
    assert replay_ledger(ledger, capacity_bytes=11 * MIB).out_of_memory.key == 0
    assert replay_ledger(ledger, expandable_segments=True).reserved_bytes == 20 * MIB


# Requests that cannot be, and cost


@pytest.mark.parametrize(
    ("events", "message"),
    [
        ([("x", None)], "event 0 must free what is allocated; got 'x'"),
        ([("x", 1), ("x", 2)], "event 1 must allocate under a new key; got 'x'"),
        ([("x", -1)], "the size at event 0 must be between 0"),
        ([("x", True)], "the size at event 0 must be a whole number"),
    ],
)
def test_events_that_cannot_be_are_refused(events, message):
    with pytest.raises(HeadwiseError, match=message):
        replay(events)


def test_a_capacity_is_a_number_of_bytes():
    with pytest.raises(HeadwiseError, match="capacity_bytes must be between 0"):
        replay([], capacity_bytes=-1)


def test_the_largest_sizes_are_no_trouble():
    events = [(key, 2**62) for key in range(9)]
    assert replay(events, expandable_segments=True).requested_bytes == replay(events).reserved_bytes == 9 * 2**62


@policies
def test_the_time_grows_little_faster_than_the_number_of_events(expandable):
    generator = random.Random(0)
    events, alive = [], []
    for key in range(20_000):
        if alive and generator.random() < 0.5:
            events.append((alive.pop(generator.randrange(len(alive))), None))
        else:
            events.append((key, int(2 ** generator.uniform(2, 28))))
            alive.append(key)
    begin = time.perf_counter()
    result = replay(events, expandable_segments=expandable)
    assert time.perf_counter() - begin < 10  # half a second, nearly all of it the checks of types under tests
    assert result.requested_bytes == sum(alive_after(events).values())


def test_the_text_says_all_three_numbers_and_the_dict_is_plain():
    result = replay([("x", 5 * MIB)])
    assert "requested 5.0 MiB at the peak" in result.to_text()
    assert "reserved 20.0 MiB at the peak: the segments; 15.0 MiB of it (75.0%) not in use then" in result.to_text()
    assert result.to_dict()["segments"] == [
        {"bytes": 20 * MIB, "allocated_bytes": 5 * MIB, "largest_free_bytes": 15 * MIB, "is_small": False}
    ]
