"""Rows of blocks of a mask: which ranges of keys each reads, and which rows are better taken together.

Masks that are global tokens and distances need no torch.
"""

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

from headwise.masks.distances import GlobalAndLocal

if TYPE_CHECKING:
    from torch import Tensor

BLOCK = 32
"""Tokens of a block up to `MANY_TOKENS`; above, twice as many, so that the plan stays small."""
MANY_TOKENS = 16_384
MANY_TOKENS_FORETOLD = 131_072  # the same of masks whose rows need no layout
MAX_ROWS = 512  # queries of one visit
OVERHEAD_PAIRS = 2048
"""Pairs, of one head, that take as long as one more visit."""
WASTE_PERCENT = 5
"""What of a visit may be pairs that no row of its blocks asked for."""

Range = tuple[int, int]


class Sizes(NamedTuple):
    """Of a call: B, H, K, T and S."""

    batch: int
    num_heads: int
    num_kv_heads: int
    query_len: int
    key_len: int


def block_of(sizes: Sizes, many_tokens: int = MANY_TOKENS) -> int:
    """Return how many tokens a block of a plan has."""
    return BLOCK if max(sizes.query_len, sizes.key_len) <= many_tokens else 2 * BLOCK


class Row(NamedTuple):
    """Queries in a row with the ranges of keys that they read. `is_whole`: every pair is allowed."""

    queries: Range
    keys: tuple[Range, ...]
    is_whole: bool


def rows_of_form(form: GlobalAndLocal, sizes: Sizes) -> Iterator[Row]:
    """Give the ranges of keys that each row of blocks reads, by what is known of tokens and distances alone."""
    query_len, key_len = sizes.query_len, sizes.key_len
    block = block_of(sizes, MANY_TOKENS_FORETOLD)
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
            yield Row((begin, end), keys, num_pairs == (end - begin) * _length(keys))


def rows_of_layout(any_allowed: "Tensor", all_allowed: "Tensor", sizes: Sizes) -> Iterator[Row]:
    """Give the ranges of keys that each row of blocks reads; rows that read none are left out."""
    from torch.nn.functional import pad

    block = block_of(sizes)
    steps = pad(any_allowed.char(), (1, 1)).diff(dim=1)
    begins, ends = (steps == 1).nonzero().tolist(), (steps == -1).nonzero().tolist()
    is_whole = (all_allowed | ~any_allowed).all(1).tolist()
    runs = [(row, begin, end) for (row, begin), (_, end) in zip(begins, ends, strict=True)]
    for row, of_row in groupby(runs, key=lambda run: run[0]):
        keys = tuple((begin * block, min(end * block, sizes.key_len)) for _, begin, end in of_row)
        yield Row((row * block, min((row + 1) * block, sizes.query_len)), keys, is_whole[row])


def merge_rows(rows: Sequence[Row], max_pairs: int) -> Iterator[Row]:
    """Put rows together that follow one another, while little is visited in vain."""
    current: Row | None = None
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
                current, needed = Row((current.queries[0], row.queries[1]), keys, is_whole), needed + own
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
