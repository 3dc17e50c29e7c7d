"""plan_parts: which queries visit which keys, cut from a mask in blocks.

Rows of blocks that read nearly the same keys are visited together. A visit may hold pairs that are not allowed: a tile
of the mask then hides them. Visits of the same size in different heads are bundled, and those that follow one another
by a fixed step, as in a window, make a strip; each is computed as one batch.

Masks that are global tokens and distances need no torch, so that a plan on paper is the one that runs.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

from headwise.masks.patterns import Full, Mask
from headwise.masks.rows import Range, Row, Sizes, block_of, merge_rows, rows_of_form, rows_of_layout

if TYPE_CHECKING:
    from torch import Tensor

    from headwise.masks.layout import BlockLayout

FUSED_PAIRS = 2**20
"""Numbers of a tile that a kernel adds to scores, about: 4 MiB."""
PLAIN_PAIRS = 2**18
"""Scores of one matrix: 1 MiB, so that the passes over them find them in a core's cache."""
MAX_BUNDLED = 2**20  # numbers of gathered keys in one bundle, for each batch row
MAX_STRIP_NUMBERS = 2**17
"""Numbers of the keys of one kv head that a strip's views show in training: their gradients are written out before they
are added, so that more would not stay in a core's cache."""
MAX_SHOWN_NUMBERS = 2**19
"""The same where no gradient is wanted: longer strips are fewer calls, and take more memory for their output."""
MAX_SHARED_NUMBERS = 2**16  # of a tile that parts share
MAX_SHARED_TILES = 32  # 8 MiB
CACHED_PLANS = 64


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


Bundles = tuple[tuple[Visit, ...], ...]
Known = dict[int, Bundles]
"""Plans of one data mask and of one call's sizes, by the pairs that a visit may have at most."""


TileKey = tuple[int, int, int]
"""How far the first query stands behind the first key, number of queries, number of keys: of a visit whose keys stand
in a row, all that a mask reads that looks at distances alone."""


class Parts(NamedTuple):
    """What a call visits, in the pieces that are each computed as one.

    `bundles`: each a visit of all heads, or of one, or several visits: of one head each, or strips. `covers_all`: every
    query is visited. `are_strips`: several visits of a bundle are of all heads and follow one another by a fixed step.
    `shared_tiles`: of the mask, that several parts have.
    """

    bundles: Bundles
    covers_all: bool
    are_strips: bool = False
    shared_tiles: frozenset[TileKey] = frozenset()

    @property
    def most_pairs(self) -> int:
        """Queries times keys of the largest visit."""
        return max((visits[0].num_queries * visits[0].num_keys for visits in self.bundles), default=0)

    @property
    def gathers(self) -> bool:
        """Whether keys of single heads are gathered."""
        return not self.are_strips and any(len(visits) > 1 for visits in self.bundles)

    def largest(self) -> Bundles:
        """Return, in their order, those that may take the most memory: each has the most keys of its kind.

        The first that has a shared tile is among them.
        """
        by_keys = sorted(range(len(self.bundles)), key=lambda number: self.bundles[number][0].num_keys)
        most = {_kind_of(self.bundles[number]): number for number in by_keys}
        first = {tile_key(self.bundles[number][0]): number for number in reversed(range(len(self.bundles)))}
        kept = {*most.values(), *(first[key] for key in self.shared_tiles)}
        return tuple(self.bundles[number] for number in sorted(kept))


def tile_key(visit: Visit) -> TileKey | None:
    """Return what tells the tile of a visit from others, None for one that is not shared."""
    if len(visit.keys) > 1 or visit.kv_head is not None or visit.num_queries * visit.num_keys > MAX_SHARED_NUMBERS:
        return None
    return visit.queries[0] - visit.keys[0][0], visit.num_queries, visit.num_keys


def _kind_of(visits: tuple[Visit, ...]) -> tuple[int, int, bool, bool]:
    return len(visits), visits[0].num_queries, visits[0].is_whole, len(visits[0].keys) > 1


def plan_parts(
    mask: Mask | None,
    sizes: Sizes,
    *,
    is_fused: bool,
    has_bias: bool,
    head_dim: int,
    learns: bool,
    may_show: bool = True,
    known: Known | None = None,
) -> Parts:
    """Return the parts that hold every allowed pair once; queries without a key are in none.

    Args:
        mask: the mask, queries standing at the end of the keys. None: all pairs.
        sizes: of the call.
        is_fused: a kernel computes each part, else matrix products do.
        has_bias: there is something to add to the scores, so that tiles differ.
        head_dim: size of a head.
        learns: gradients are wanted.
        may_show: keys lie in memory so that strips can show them.
        known: what has been planned of this mask and these sizes; a plan of a data mask is looked up here and left here
            (one of a structural mask is remembered for good).
    """
    if 0 in sizes:
        return Parts((), covers_all=False)
    mask = Full() if mask is None else mask
    if mask.is_structural:
        most_keys = (MAX_STRIP_NUMBERS if learns else MAX_SHOWN_NUMBERS) // head_dim
        return _plan_parts_once(mask, sizes, is_fused, has_bias, may_show, most_keys)
    return parts_of(_plan_data(mask, sizes, most_pairs(sizes, is_fused=is_fused, has_bias=has_bias), known), sizes)


def parts_of(bundles: Bundles, sizes: Sizes) -> Parts:
    """Return bundles as parts, among which nothing is shared."""
    visits = [visit for bundle in bundles for visit in bundle]
    return Parts(bundles, sum(_num_rows(visit, sizes) for visit in visits) == _num_rows(_whole(sizes), sizes))


def _num_rows(visit: Visit, sizes: Sizes) -> int:
    """Return how many queries a visit has, over all batch rows and kv heads that it is of."""
    num_batch_rows = sizes.batch if visit.batch is None else 1
    return num_batch_rows * (sizes.num_kv_heads if visit.kv_head is None else 1) * visit.num_queries


def _whole(sizes: Sizes) -> Visit:
    return Visit(None, None, (0, sizes.query_len), ((0, sizes.key_len),), is_whole=True)


def _plan_data(mask: Mask, sizes: Sizes, max_pairs: int, known: Known | None) -> Bundles:
    known = {} if known is None else known
    if max_pairs not in known:
        known[max_pairs] = plan_visits(mask, sizes, max_pairs)
    return known[max_pairs]


@lru_cache(CACHED_PLANS)
def _plan_parts_once(mask: Mask, sizes: Sizes, is_fused: bool, has_bias: bool, may_show: bool, most_keys: int) -> Parts:
    bundles = plan_visits(mask, sizes, most_pairs(sizes, is_fused=is_fused, has_bias=has_bias))
    if has_bias or not mask.looks_at_distance_alone:
        return parts_of(bundles, sizes)
    strips: Bundles = ()
    if is_fused and may_show:
        alone = plan_visits(mask, sizes, FUSED_PAIRS, merges=False)
        strips = tuple(_merge_single(_cut_strips(alone, most_keys)))
    are_strips = bool(strips) and len(strips) <= len(bundles) // 2  # else better put rows together
    parts = strips if are_strips else bundles
    keys = Counter(tile_key(visits[0]) for visits in parts if not visits[0].is_whole)
    shared = [key for key, count in keys.most_common(MAX_SHARED_TILES) if key is not None and count > 1]
    return parts_of(parts, sizes)._replace(are_strips=are_strips, shared_tiles=frozenset(shared))


def visited_share(mask: Mask | None, sizes: Sizes, known: Known | None = None) -> float:
    """Return which share of all pairs is visited where a kernel computes the parts, forbidden ones among them.

    Args:
        mask, sizes, known: as of `plan_parts`.
    """
    mask = Full() if mask is None else mask
    if mask.is_structural:
        return _share_once(mask, sizes)
    return _share_of(_plan_data(mask, sizes, most_pairs(sizes, is_fused=True, has_bias=False), known), sizes)


@lru_cache(CACHED_PLANS)
def _share_once(mask: Mask, sizes: Sizes) -> float:
    return _share_of(plan_visits(mask, sizes, most_pairs(sizes, is_fused=True, has_bias=False)), sizes)


def _share_of(bundles: Bundles, sizes: Sizes) -> float:
    visited = sum(_num_rows(visit, sizes) * visit.num_keys for bundle in bundles for visit in bundle)
    return visited / (_num_rows(_whole(sizes), sizes) * sizes.key_len)


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
        rows = list(rows_of_form(form, sizes))
        merged = merge_rows(rows, max_pairs) if merges else rows
        return tuple((Visit(None, None, row.queries, row.keys, row.is_whole),) for row in merged)
    layout = mask.block_layout(
        block_of(sizes), sizes.query_len, sizes.key_len, batch_size=sizes.batch, num_heads=sizes.num_heads
    )
    return visits_of(layout, sizes, max_pairs, merges=merges)


def visits_of(layout: "BlockLayout", sizes: Sizes, max_pairs: int, *, merges: bool = True) -> Bundles:
    """Return the bundles of visits of a layout whose blocks have `block_of` tokens."""
    any_allowed = _join_groups(layout.any_allowed.cpu(), sizes, any_of=True)
    all_allowed = _join_groups(layout.all_allowed.cpu(), sizes, any_of=False)
    num_rows, num_heads = any_allowed.shape[:2]
    visits: list[Visit] = []
    for batch in range(num_rows):
        for kv_head in range(num_heads):
            rows = list(rows_of_layout(any_allowed[batch, kv_head], all_allowed[batch, kv_head], sizes))
            place = (batch if num_rows > 1 else None, kv_head if num_heads > 1 else None)
            merged = merge_rows(rows, max_pairs) if merges else rows
            visits += [Visit(*place, row.queries, row.keys, row.is_whole) for row in merged]
    return tuple(_bundles(visits))


def _join_groups(blocks: "Tensor", sizes: Sizes, *, any_of: bool) -> "Tensor":
    """(b, H or 1, rows, columns) -> (b, K or 1, rows, columns): any or all of the query heads of a kv head."""
    if blocks.shape[1] in (1, sizes.num_kv_heads):
        return blocks
    groups = blocks.reshape(blocks.shape[0], sizes.num_kv_heads, -1, *blocks.shape[2:])
    return groups.any(2) if any_of else groups.all(2)


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


def _cut_strips(bundles: Bundles, most_keys: int) -> Iterator[tuple[Visit, ...]]:
    """Give runs of visits that make a strip, and those that make none one by one."""
    run: list[Visit] = []
    for (visit,) in bundles:
        most = max(1, most_keys // visit.num_keys)
        if run and not (len(run) < most and _follows(visit, run[-1])):
            yield tuple(run)
            run = []
        run.append(visit)
    if run:
        yield tuple(run)


def _merge_single(strips: Iterable[tuple[Visit, ...]]) -> Iterator[tuple[Visit, ...]]:
    """Put visits together that are alone and follow one another, as where a window is cut off by the first key."""
    for are_alone, some in groupby(strips, key=lambda visits: len(visits) == 1):
        if not are_alone:
            yield from some
            continue
        rows = [Row(visit.queries, visit.keys, visit.is_whole) for (visit,) in some]
        yield from ((Visit(None, None, row.queries, row.keys, row.is_whole),) for row in merge_rows(rows, FUSED_PAIRS))


def _follows(visit: Visit, before: Visit) -> bool:
    step = before.num_queries
    return (
        len(visit.keys) == len(before.keys) == 1
        and visit.num_queries == step
        and visit.num_keys == before.num_keys
        and visit.num_keys % step == 0
        and visit.queries[0] - before.queries[0] == visit.keys[0][0] - before.keys[0][0] == step
    )
