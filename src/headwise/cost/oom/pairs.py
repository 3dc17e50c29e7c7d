"""From the size in a message to batches and lengths: what a tensor may measure, and which pairs give that size."""

from collections.abc import Iterator
from typing import NamedTuple

from headwise.cost.heap import (
    BLOCK_BYTES,
    LARGE_SEGMENT_BYTES,
    LARGEST_SMALL_BYTES,
    OWN_SEGMENT_BYTES,
    SEGMENT_STEP_BYTES,
    SMALL_SEGMENT_BYTES,
    round_up,
)
from headwise.cost.oom.patterns import Pattern, Poly, batches_within, seqs_within
from headwise.cost.oom.priors import (
    MAX_BATCH,
    MAX_SEQ,
    MAX_TOKENS,
    batch_prior,
    likely_batches,
    likely_seqs,
    other_batches,
    roundest,
    seq_prior,
    tokens_prior,
)
from headwise.cost.oom.results import OomMessage
from headwise.cost.workload import MAX_TOKENS as MOST_TOKENS
from headwise.results import BYTES_PER_KIB

MAX_SIZE_BYTES = 2**62
OLD_STEP_BYTES = 128 * BYTES_PER_KIB
METAL_PAGE_BYTES = 16 * BYTES_PER_KIB
MANY = 32  # lengths or batches that are tried where the other one is known
FEW_SEQS = 16  # where so many lengths at most have a size at batch 1, few pairs have it: the batch may be any

Ranges = tuple[tuple[int, int], ...]
"""Sizes from the first to the second number of each, both included."""


class Pair(NamedTuple):
    """A batch and a length that give a size, and how likely they are; None where the size does not depend on it."""

    batch: int | None
    seq: int | None
    prior: float


def tensor_ranges(message: OomMessage) -> Ranges:
    """Return which sizes in bytes the tensor may have that a message is about; none where it gives no size.

    Where the figure is what an allocator asked of the driver, that is a segment: 2 MiB for a tensor up to 1 MiB,
    20 MiB below 10 MiB, else the size rounded up to 2 MiB. What is no such segment comes from torch 1.0, which rounded
    up to 128 KiB. Metal rounds up to pages of 16 KiB. Derived from torch's sources, not measured.

    Source: pytorch, c10/cuda/CUDACachingAllocator.cpp (get_allocation_size); pytorch/pytorch#17120 for torch 1.0.
    """
    if message.requested_low_bytes is None or message.requested_high_bytes is None:
        return ()
    low, high = sorted((message.requested_low_bytes, message.requested_high_bytes))
    low, high = max(1, low), min(high, MAX_SIZE_BYTES)
    if low > high or not message.is_rounded_up:
        return ((low, high),) if low <= high else ()
    least, most = round_up(low, SEGMENT_STEP_BYTES), high // SEGMENT_STEP_BYTES * SEGMENT_STEP_BYTES
    if message.backend == "mps" or least > most:
        step = METAL_PAGE_BYTES if message.backend == "mps" else OLD_STEP_BYTES
        return ((max(1, low - step + 1), high),)
    ranges = []
    if least <= SMALL_SEGMENT_BYTES <= most:
        ranges.append((1, LARGEST_SMALL_BYTES))
    if least <= LARGE_SEGMENT_BYTES <= most:
        ranges.append((LARGEST_SMALL_BYTES + 1, OWN_SEGMENT_BYTES - BLOCK_BYTES))
    least_own = max(least - SEGMENT_STEP_BYTES, OWN_SEGMENT_BYTES - BLOCK_BYTES) + 1
    return (*ranges, (least_own, most)) if least_own <= most else tuple(ranges)


def find_pairs(
    pattern: Pattern,
    ranges: Ranges,
    *,
    batch: int | None = None,
    seq: int | None = None,
    longest: int | None = None,
    limit: int = 400,
) -> list[Pair]:
    """Return the likeliest batches and lengths at which a pattern has one of the sizes, the likeliest first.

    Args:
        pattern: the tensor's shape and dtype.
        ranges: the sizes.
        batch, seq: where these are known.
        longest: the model's longest length.
        limit: how many.
    """
    poly = pattern.poly
    if poly is None or not any(poly):
        return []
    found: dict[tuple[int | None, int | None], float] = {}
    if pattern.has_batch and pattern.has_seq and ranges and pattern.bytes_at(1, MAX_TOKENS) < ranges[0][0]:
        return []
    for low, high in ranges:
        for one_batch, one_seq in _propose(pattern, poly, low, high, batch=batch, seq=seq, longest=longest):
            num_tokens = (one_batch or batch or 1) * (one_seq or seq or 1)
            if (one_batch or 1) > MAX_BATCH or (one_seq or 1) > MAX_SEQ or num_tokens > MOST_TOKENS:
                continue
            if low <= pattern.bytes_at(one_batch or 1, one_seq or 1) <= high:
                of_batch = 1.0 if one_batch is None or batch is not None else batch_prior(one_batch)
                of_seq = 1.0 if one_seq is None or seq is not None else seq_prior(one_seq, longest)
                found[one_batch, one_seq] = of_batch * of_seq * tokens_prior((one_batch or 1) * (one_seq or 1))
    pairs = [Pair(*key, prior) for key, prior in found.items()]
    return sorted(pairs, key=lambda pair: (-pair.prior, pair.batch or 0, pair.seq or 0))[:limit]


def _propose(
    pattern: Pattern, poly: Poly, low: int, high: int, *, batch: int | None, seq: int | None, longest: int | None
) -> Iterator[tuple[int | None, int | None]]:
    """Give pairs whose size lies about between two sizes."""
    if not pattern.has_seq:
        batches: list[int | None] = [batch if pattern.has_batch else None]
        if pattern.has_batch and batch is None:
            batches = [*roundest(*batches_within(poly, low, high))]
        yield from ((one, None) for one in batches)
    elif not pattern.has_batch:
        seqs = [seq] if seq is not None else roundest(*seqs_within(poly, 1, low, high), longest)
        yield from ((None, one) for one in seqs)
    elif seq is not None:
        batches = [batch] if batch is not None else [*roundest(*batches_within(poly, low, high, seq=seq), limit=MANY)]
        yield from ((one, seq) for one in batches)
    elif batch is not None:
        first, last = seqs_within(poly, batch, low, high)
        yield from ((batch, one) for one in roundest(first, min(last, MAX_SEQ), longest, limit=MANY))
    else:
        yield from _propose_both(poly, low, high, longest)


def _propose_both(poly: Poly, low: int, high: int, longest: int | None) -> Iterator[tuple[int, int]]:
    """Give pairs of which one is likely and the other any; where few have the size, all up to a batch of 512."""
    first, last = seqs_within(poly, 1, low, high)
    others = other_batches() if last - first < FEW_SEQS else ()
    for batch in (*likely_batches(), *others):
        first, last = seqs_within(poly, batch, low, high)
        yield from ((batch, seq) for seq in roundest(first, min(last, MAX_SEQ), longest))
    for seq in likely_seqs(longest):
        first, last = batches_within(poly, low, high, seq=seq)
        yield from ((batch, seq) for batch in roundest(first, min(last, MAX_BATCH)))
