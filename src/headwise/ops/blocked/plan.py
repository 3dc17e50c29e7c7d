"""plan_visits: which queries visit which keys, cut from the block layout of a mask.

Rows of blocks that read nearly the same keys are visited together. A visit may hold pairs that are not allowed: a tile
of the mask then hides them. Visits of the same size in different heads are bundled, to be computed as one batch.
"""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import groupby
from typing import NamedTuple

import torch
from torch import Tensor

from headwise.masks.layout import BlockLayout
from headwise.masks.patterns import Full, Mask

BLOCK = 32
"""Tokens of a block up to `MANY_TOKENS`; above, twice as many, so that the layout stays small."""
MANY_TOKENS = 16_384
MAX_ROWS = 512  # queries of one visit
OVERHEAD_PAIRS = 2048
"""Pairs, of one head, that take as long as one more visit."""
WASTE_PERCENT = 5
"""What of a visit may be pairs that no row of its blocks asked for."""
MAX_BUNDLED = 2**20  # numbers of gathered keys in one bundle, for each batch row
CACHED_PLANS = 64

Range = tuple[int, int]


class Visit(NamedTuple):
    """Queries in a row with the ranges of keys that they read.

    `batch`, `kv_head`: of which batch row and kv head; None = of all. `is_whole`: every pair is allowed.
    """

    batch: int | None
    kv_head: int | None
    queries: Range
    keys: tuple[Range, ...]
    is_whole: bool

    @property
    def num_queries(self) -> int:
        """Number of queries."""
        return self.queries[1] - self.queries[0]

    @property
    def num_keys(self) -> int:
        """Number of keys."""
        return sum(end - begin for begin, end in self.keys)


class Sizes(NamedTuple):
    """Of a call: B, H, K, T and S."""

    batch: int
    num_heads: int
    num_kv_heads: int
    query_len: int
    key_len: int


Bundles = tuple[tuple[Visit, ...], ...]


def plan_visits(mask: Mask | None, sizes: Sizes, max_pairs: int, *, merges: bool = True) -> Bundles:
    """Return the bundles of visits that hold every allowed pair once; queries without a key are in none.

    Args:
        mask: the mask, queries standing at the end of the keys. None: all pairs.
        sizes: of the call.
        max_pairs: queries times keys of one visit at most, where it has more than one row of blocks.
        merges: whether rows of blocks that read nearly the same are visited together.
    """
    if mask is None or mask.is_structural:
        return _plan_structural(Full() if mask is None else mask, sizes, max_pairs, merges)
    return _plan(mask, sizes, max_pairs, merges)


def _plan(mask: Mask, sizes: Sizes, max_pairs: int, merges: bool) -> Bundles:
    layout = mask.block_layout(
        block_of(sizes), sizes.query_len, sizes.key_len, batch_size=sizes.batch, num_heads=sizes.num_heads
    )
    return visits_of(layout, sizes, max_pairs, merges=merges)


_plan_structural = lru_cache(CACHED_PLANS)(_plan)


def block_of(sizes: Sizes) -> int:
    """Return how many tokens a block of the layout has."""
    return BLOCK if max(sizes.query_len, sizes.key_len) <= MANY_TOKENS else 2 * BLOCK


def visits_of(layout: BlockLayout, sizes: Sizes, max_pairs: int, *, merges: bool = True) -> Bundles:
    """Return the bundles of visits of a layout whose blocks have `block_of` tokens."""
    any_allowed = _join_groups(layout.any_allowed.cpu(), sizes, any_of=True)
    all_allowed = _join_groups(layout.all_allowed.cpu(), sizes, any_of=False)
    num_rows, num_heads = any_allowed.shape[:2]
    visits: list[Visit] = []
    for batch in range(num_rows):
        for kv_head in range(num_heads):
            rows = list(_rows_of(any_allowed[batch, kv_head], all_allowed[batch, kv_head], block_of(sizes), sizes))
            place = (batch if num_rows > 1 else None, kv_head if num_heads > 1 else None)
            merged = _merge(rows, max_pairs) if merges else rows
            visits += [Visit(*place, queries, keys, is_whole) for queries, keys, is_whole in merged]
    return tuple(_bundles(visits))


def _join_groups(blocks: Tensor, sizes: Sizes, *, any_of: bool) -> Tensor:
    """(b, H or 1, rows, columns) -> (b, K or 1, rows, columns): any or all of the query heads of a kv head."""
    if blocks.shape[1] in (1, sizes.num_kv_heads):
        return blocks
    groups = blocks.reshape(blocks.shape[0], sizes.num_kv_heads, -1, *blocks.shape[2:])
    return groups.any(2) if any_of else groups.all(2)


class _Row(NamedTuple):
    queries: Range
    keys: tuple[Range, ...]
    is_whole: bool


def _rows_of(any_allowed: Tensor, all_allowed: Tensor, block: int, sizes: Sizes) -> Iterator[_Row]:
    """Give the ranges of keys that each row of blocks reads; rows that read none are left out."""
    num_rows, num_columns = any_allowed.shape
    padded = torch.zeros(num_rows, num_columns + 2, dtype=torch.int8)
    padded[:, 1:-1] = any_allowed
    steps = padded.diff(dim=1)
    begins, ends = (steps == 1).nonzero().tolist(), (steps == -1).nonzero().tolist()
    is_whole = (all_allowed | ~any_allowed).all(1).tolist()
    runs = [(row, begin, end) for (row, begin), (_, end) in zip(begins, ends, strict=True)]
    for row, of_row in groupby(runs, key=lambda run: run[0]):
        keys = tuple((begin * block, min(end * block, sizes.key_len)) for _, begin, end in of_row)
        yield _Row((row * block, min((row + 1) * block, sizes.query_len)), keys, is_whole[row])


def _merge(rows: Sequence[_Row], max_pairs: int) -> Iterator[_Row]:
    """Put rows together that follow one another, while little is visited in vain."""
    current: _Row | None = None
    needed = 0  # pairs of the rows that are put together
    for row in rows:
        own = (row.queries[1] - row.queries[0]) * _length(row.keys)
        if current is not None and current.queries[1] == row.queries[0]:
            keys = current.keys if current.keys == row.keys else _union(current.keys, row.keys)
            num_rows = row.queries[1] - current.queries[0]
            pairs = num_rows * _length(keys)
            wasted = pairs - needed - own
            is_cheap = wasted <= OVERHEAD_PAIRS or 100 * wasted <= WASTE_PERCENT * pairs
            if num_rows <= MAX_ROWS and pairs <= max_pairs and is_cheap:
                is_whole = current.is_whole and row.is_whole and keys == current.keys == row.keys
                current, needed = _Row((current.queries[0], row.queries[1]), keys, is_whole), needed + own
                continue
        if current is not None:
            yield current
        current, needed = row, own
    if current is not None:
        yield current


def _length(keys: tuple[Range, ...]) -> int:
    return sum(end - begin for begin, end in keys)


def _union(some: tuple[Range, ...], others: tuple[Range, ...]) -> tuple[Range, ...]:
    joined: list[Range] = []
    for begin, end in sorted((*some, *others)):
        if joined and begin <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(joined[-1][1], end))
        else:
            joined.append((begin, end))
    return tuple(joined)


def _bundles(visits: Sequence[Visit]) -> Iterator[tuple[Visit, ...]]:
    """Put visits of single heads together that have as many queries and keys."""
    alone = [visit for visit in visits if visit.kv_head is None or visit.batch is not None]
    yield from ((visit,) for visit in alone)
    by_size: dict[tuple[int, int], list[Visit]] = {}
    for visit in visits:
        if visit.kv_head is not None and visit.batch is None:
            by_size.setdefault((visit.num_queries, visit.num_keys), []).append(visit)
    for (_, num_keys), alike in by_size.items():
        width = max(1, MAX_BUNDLED // (64 * num_keys))
        for first in range(0, len(alike), width):
            yield tuple(alike[first : first + width])
