"""Sets of distances: what a mask allows when it looks at `query_index - key_index` and at nothing else.

Causal, windows and all their combinations are such masks. From the set alone follow, in closed form, how many pairs are
allowed, whether a key is read by nobody, and whether a query reads nothing.
"""

import math
from typing import NamedTuple

INFINITY = math.inf


class Distances(NamedTuple):
    """A set of whole numbers, as sorted, disjoint, half-open intervals `[low, high)`; the ends may be infinite."""

    intervals: tuple[tuple[int | float, int | float], ...]

    def __and__(self, other: "Distances") -> "Distances":
        """Return the distances that are in both sets."""
        overlaps = (
            (max(low, other_low), min(high, other_high))
            for low, high in self.intervals
            for other_low, other_high in other.intervals
        )
        # Both being sorted and disjoint, so are the overlaps in this order.
        return Distances(tuple((low, high) for low, high in overlaps if low < high))

    def __invert__(self) -> "Distances":
        """Return the distances that are not in the set."""
        ends = [-INFINITY, *(end for interval in self.intervals for end in interval), INFINITY]
        gaps = zip(ends[::2], ends[1::2], strict=True)
        return Distances(tuple((low, high) for low, high in gaps if low < high))

    def __or__(self, other: "Distances") -> "Distances":
        """Return the distances that are in either set."""
        return ~(~self & ~other)

    def within(self, query_len: int, key_len: int) -> "Distances":
        """Return the distances that occur between queries at the end of the keys and those keys."""
        return self & Distances(((1 - query_len, key_len),))

    def count_pairs(self, query_len: int, key_len: int) -> int:
        """Count the (query, key) pairs at these distances, the queries standing at the end of the keys."""
        offset = key_len - query_len  # query i has index offset + i

        def count_from(distance: int | float) -> int:
            """Count the pairs with query_index - key_index >= distance."""
            # The last query reads `longest` keys from the first on, the query before it one less, and so on: a
            # triangle. What of it lies before the first query or after the last key is cut off; within the distances
            # that occur the two cuts never meet.
            longest = query_len + offset - int(distance)
            return _triangle(longest) - _triangle(longest - query_len) - _triangle(longest - key_len)

        return sum(count_from(low) - count_from(high) for low, high in self.within(query_len, key_len).intervals)

    def longest_gap(self, query_len: int, key_len: int) -> int:
        """Return the longest run of distances that occur but are not allowed.

        A key meets `query_len` neighbouring distances and a query meets `key_len`. So every key is read by some query
        if the run is shorter than `query_len`, and every query reads some key if it is shorter than `key_len`.
        """
        gaps = (~self).within(query_len, key_len).intervals
        return max([0, *(int(high - low) for low, high in gaps)])


EVERY_DISTANCE = Distances(((-INFINITY, INFINITY),))
NO_DISTANCE = Distances(())


class GlobalAndLocal(NamedTuple):
    """A mask whose first `num_global` tokens see all and are seen by all, and that elsewhere allows some distances."""

    num_global: int
    distances: Distances

    def count_pairs(self, query_len: int, key_len: int) -> int:
        """Count the allowed pairs, the queries standing at the end of the keys."""
        rest = max(key_len - self.num_global, 0)  # keys that are not global

        def count_last(num_queries: int) -> int:
            """Count the pairs of so many last queries with keys that are not global, by their distances."""
            return self.distances.count_pairs(num_queries, rest)

        inside, behind = min(query_len, key_len), min(query_len, rest)  # queries of the stream, and behind the tokens
        num_global = inside - behind
        by_distance = count_last(query_len) - count_last(inside) + count_last(behind)
        return num_global * key_len + (query_len - num_global) * (key_len - rest) + by_distance


def count_multiples(query_len: int, key_len: int, *, step: int, first: int, end: int | float) -> int:
    """Count the pairs whose distance is `step` times a whole number from `first` (0 or more) up to below `end`.

    The queries stand at the end of the keys.
    """
    offset = key_len - query_len  # query i has index offset + i, and reads the key at distance d if d <= offset + i
    end = min(end, -(-key_len // step))
    if end <= first:
        return 0
    whole = min(max(offset // step + 1, first), int(end))  # up to here every query has such a key
    number = int(end) - whole
    ends = number * key_len - step * (whole + int(end) - 1) * number // 2
    return (whole - first) * query_len + ends


def _triangle(side: int) -> int:
    return side * (side + 1) // 2 if side > 0 else 0
