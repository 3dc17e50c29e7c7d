"""plan_parts: which queries visit which keys, cut from a mask in blocks.

Rows of blocks that read nearly the same keys are visited together. A visit may hold pairs that are not allowed: a tile
of the mask then hides them. Visits of the same size in different heads are bundled, and those that follow one another
by a fixed step, as in a window, make a strip; each is computed as one batch.

Masks that are global tokens and distances need no torch, so that a plan on paper is the one that runs.
"""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

from headwise.masks.distances import GlobalAndLocal
from headwise.masks.patterns import Full, Mask

if TYPE_CHECKING:
    from torch import Tensor

    from headwise.masks.layout import BlockLayout

BLOCK = 32
"""Tokens of a block up to `MANY_TOKENS`; above, twice as many, so that the plan stays small."""
MANY_TOKENS = 16_384
MAX_ROWS = 512  # queries of one visit
OVERHEAD_PAIRS = 2048
"""Pairs, of one head, that take as long as one more visit."""
WASTE_PERCENT = 5
"""What of a visit may be pairs that no row of its blocks asked for."""
FUSED_PAIRS = 2**20
"""Numbers of a tile that a kernel adds to scores, about: 4 MiB."""
PLAIN_PAIRS = 2**18
"""Scores of one matrix: 1 MiB, so that the passes over them find them in a core's cache."""
MAX_BUNDLED = 2**20  # numbers of gathered keys in one bundle, for each batch row
MAX_STRIP_NUMBERS = 2**17
"""Numbers of the keys of one kv head that a strip's views show: their gradients are written out before they are added,
so that more would not stay in a core's cache."""
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


class Parts(NamedTuple):
    """What a call visits, in the pieces that are each computed as one.

    `bundles`: each a visit of all heads, or of one, or several visits of one head each. `are_strips`: those of several
    visits are visits of all heads that follow one another by a fixed step.
    """

    bundles: Bundles
    are_strips: bool


def plan_parts(
    mask: Mask | None, sizes: Sizes, *, is_fused: bool, has_bias: bool, head_dim: int, may_show: bool = True
) -> Parts:
    """Return the parts that hold every allowed pair once; queries without a key are in none.

    Args:
        mask: the mask, queries standing at the end of the keys. None: all pairs.
        sizes: of the call.
        is_fused: a kernel computes each part, else matrix products do.
        has_bias: there is something to add to the scores, so that tiles differ.
        head_dim: size of a head.
        may_show: keys lie in memory so that strips can show them.
    """
    if 0 in sizes:
        return Parts((), are_strips=False)
    mask = Full() if mask is None else mask
    plan = _plan_parts_once if mask.is_structural else _plan_parts
    return plan(mask, sizes, is_fused, has_bias, head_dim, may_show)


def _plan_parts(mask: Mask, sizes: Sizes, is_fused: bool, has_bias: bool, head_dim: int, may_show: bool) -> Parts:
    bundles = plan_visits(mask, sizes, most_pairs(sizes, is_fused=is_fused, has_bias=has_bias))
    if is_fused and may_show and not has_bias and mask.looks_at_distance_alone:
        alone = plan_visits(mask, sizes, FUSED_PAIRS, merges=False)
        strips = tuple(_cut_strips(alone, head_dim))
        if len(strips) <= len(bundles) // 2:  # else better put rows together
            return Parts(strips, are_strips=True)
    return Parts(bundles, are_strips=False)


_plan_parts_once = lru_cache(CACHED_PLANS)(_plan_parts)


def visited_share(mask: Mask | None, sizes: Sizes) -> float:
    """Return which share of all pairs is visited where a kernel computes the parts, forbidden ones among them."""
    mask = Full() if mask is None else mask
    return (_share_once if mask.is_structural else _share)(mask, sizes)


def _share(mask: Mask, sizes: Sizes) -> float:
    visited = 0
    for bundle in plan_visits(mask, sizes, most_pairs(sizes, is_fused=True, has_bias=False)):
        for visit in bundle:
            num_rows = sizes.batch if visit.batch is None else 1
            num_heads = sizes.num_kv_heads if visit.kv_head is None else 1
            visited += num_rows * num_heads * visit.num_queries * visit.num_keys
    return visited / (sizes.batch * sizes.num_kv_heads * sizes.query_len * sizes.key_len)


_share_once = lru_cache(CACHED_PLANS)(_share)


def most_pairs(sizes: Sizes, *, is_fused: bool, has_bias: bool) -> int:
    """Return how many queries times keys a visit of more than one row of blocks may have."""
    if is_fused:
        return FUSED_PAIRS // (sizes.num_heads if has_bias else 1)
    return PLAIN_PAIRS // (sizes.num_heads // sizes.num_kv_heads)


def plan_visits(mask: Mask, sizes: Sizes, max_pairs: int, *, merges: bool = True) -> Bundles:
    """Return the bundles of visits that hold every allowed pair once; queries without a key are in none.

    Args:
        mask: the mask, queries standing at the end of the keys.
        sizes: of the call, none of them 0.
        max_pairs: queries times keys of one visit at most, where it has more than one row of blocks.
        merges: whether rows of blocks that read nearly the same are visited together.
    """
    form = mask.global_and_local()
    if form is not None:
        rows = list(_rows_of_form(form, block_of(sizes), sizes))
        merged = _merge(rows, max_pairs) if merges else rows
        return tuple((Visit(None, None, row.queries, row.keys, row.is_whole),) for row in merged)
    layout = mask.block_layout(
        block_of(sizes), sizes.query_len, sizes.key_len, batch_size=sizes.batch, num_heads=sizes.num_heads
    )
    return visits_of(layout, sizes, max_pairs, merges=merges)


def block_of(sizes: Sizes) -> int:
    """Return how many tokens a block of a plan has."""
    return BLOCK if max(sizes.query_len, sizes.key_len) <= MANY_TOKENS else 2 * BLOCK


def visits_of(layout: "BlockLayout", sizes: Sizes, max_pairs: int, *, merges: bool = True) -> Bundles:
    """Return the bundles of visits of a layout whose blocks have `block_of` tokens."""
    any_allowed = _join_groups(layout.any_allowed.cpu(), sizes, any_of=True)
    all_allowed = _join_groups(layout.all_allowed.cpu(), sizes, any_of=False)
    num_rows, num_heads = any_allowed.shape[:2]
    visits: list[Visit] = []
    for batch in range(num_rows):
        for kv_head in range(num_heads):
            rows = list(_rows_of_layout(any_allowed[batch, kv_head], all_allowed[batch, kv_head], sizes))
            place = (batch if num_rows > 1 else None, kv_head if num_heads > 1 else None)
            merged = _merge(rows, max_pairs) if merges else rows
            visits += [Visit(*place, row.queries, row.keys, row.is_whole) for row in merged]
    return tuple(_bundles(visits))


def _join_groups(blocks: "Tensor", sizes: Sizes, *, any_of: bool) -> "Tensor":
    """(b, H or 1, rows, columns) -> (b, K or 1, rows, columns): any or all of the query heads of a kv head."""
    if blocks.shape[1] in (1, sizes.num_kv_heads):
        return blocks
    groups = blocks.reshape(blocks.shape[0], sizes.num_kv_heads, -1, *blocks.shape[2:])
    return groups.any(2) if any_of else groups.all(2)


class _Row(NamedTuple):
    queries: Range
    keys: tuple[Range, ...]
    is_whole: bool


def _rows_of_form(form: GlobalAndLocal, block: int, sizes: Sizes) -> Iterator[_Row]:
    """Give the ranges of keys that each row of blocks reads, by what is known of tokens and distances alone."""
    query_len, key_len = sizes.query_len, sizes.key_len
    intervals = form.distances.within(query_len, key_len).intervals
    offset = key_len - query_len
    pairs_from_here = form.count_pairs(query_len, key_len)
    for begin in range(0, query_len, block):
        end = min(begin + block, query_len)
        pairs_after = form.count_pairs(query_len - end, key_len)
        num_pairs, pairs_from_here = pairs_from_here - pairs_after, pairs_after
        first, last = offset + begin, offset + end - 1  # indices of the queries
        if max(first, 0) <= min(last, form.num_global - 1):
            read: list[Range] = [(0, key_len)]
        else:
            read = [(0, form.num_global)] if form.num_global else []
            read += [(int(first - high + 1), int(last - low + 1)) for low, high in intervals]
        keys: tuple[Range, ...] = ()
        for some in read:
            first_key, end_key = max(some[0], 0), min(some[1], key_len)
            if first_key < end_key:
                keys = _union(keys, ((first_key // block * block, min(-(-end_key // block) * block, key_len)),))
        if keys:
            yield _Row((begin, end), keys, num_pairs == (end - begin) * _length(keys))


def _rows_of_layout(any_allowed: "Tensor", all_allowed: "Tensor", sizes: Sizes) -> Iterator[_Row]:
    """Give the ranges of keys that each row of blocks reads; rows that read none are left out."""
    from torch.nn.functional import pad

    block = block_of(sizes)
    steps = pad(any_allowed.char(), (1, 1)).diff(dim=1)
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


def _cut_strips(bundles: Bundles, head_dim: int) -> Iterator[tuple[Visit, ...]]:
    """Give runs of visits that make a strip, and those that make none one by one."""
    run: list[Visit] = []
    for (visit,) in bundles:
        most = max(1, MAX_STRIP_NUMBERS // (visit.num_keys * head_dim))
        if run and not (len(run) < most and _follows(visit, run[-1])):
            yield tuple(run)
            run = []
        run.append(visit)
    if run:
        yield tuple(run)


def _follows(visit: Visit, before: Visit) -> bool:
    step = before.num_queries
    return (
        len(visit.keys) == len(before.keys) == 1
        and visit.num_queries == step
        and visit.num_keys == before.num_keys
        and visit.num_keys % step == 0
        and visit.queries[0] - before.queries[0] == visit.keys[0][0] - before.keys[0][0] == step
    )
