"""between_sizes: the ledger of a step at another batch or length, from traces at a few of them."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from math import lcm, prod

from headwise.cost.results import Ledger, LedgerEntry
from headwise.cost.tracing.lives import WORKSPACE


def between_sizes(known: Mapping[int, Ledger]) -> "BetweenSizes | None":
    """Return what tells the ledger of a step at any size, from its ledgers at some; None where these are not alike.

    A dimension of a tensor that depends on a size does so in a straight line: `heads * batch`, `seq + 1`. So the bytes
    of a tensor are a polynomial of the size, of degree 1 in a batch and 2 in a length (scores have it twice), and as
    many sizes as its degree plus one tell it for all: sum over i of bytes_i prod over j != i of (size - s_j) / (s_i -
    s_j). That holds as long as the step makes the same tensors in the same order, which is checked of the known sizes
    alone; dimensions that bend between three of them (a window that a text outgrows) are refused.

    What kernels take for themselves may bend: they count in blocks, and go other ways for more rows. Unless it grows
    with the square between all known sizes, the share is told that a size has of what the largest known one takes.

    Args:
        known: ledgers by their sizes, two for a batch and three for a length.

    Source: Lagrange's form of the interpolating polynomial.
    """
    sizes, ledgers = list(known), list(known.values())
    first = ledgers[0]
    if any((one.moments, len(one.entries)) != (first.moments, len(first.entries)) for one in ledgers[1:]):
        return None
    tensors = list(zip(*(ledger.entries for ledger in ledgers), strict=True))
    if not all(_are_alike(alike, sizes) for alike in tensors):
        return None
    return BetweenSizes(sizes, first.moments, tensors)


class BetweenSizes:
    """Ledgers at some sizes, of the same tensors in the same order."""

    def __init__(self, sizes: Sequence[int], moments: tuple[str, ...], tensors: Sequence[tuple[LedgerEntry, ...]]):
        self._sizes, self._moments, self._tensors = sizes, moments, tensors

    def at(self, size: int) -> Ledger:
        """Return the ledger at a size."""
        weights, divisor = _weights(self._sizes, size)
        entries = []
        for alike in self._tensors:
            one = alike[0]
            num_bytes, shape = one.bytes, one.shape
            if any(other.bytes != num_bytes or other.shape != shape for other in alike):
                num_bytes = _weigh(weights, divisor, [other.bytes for other in alike])
                dims = zip(*(other.shape for other in alike), strict=True)
                shape = tuple(_weigh(weights, divisor, values) for values in dims)
            if _is_workspace(one):
                known = sorted((one, entry.bytes) for one, entry in zip(self._sizes, alike, strict=True))
                if not _is_quadratic(known):
                    largest, most_bytes = known[-1]
                    num_bytes = -(-most_bytes * size // largest)
                shape = (num_bytes,)
            entries.append(
                LedgerEntry(
                    name=one.name,
                    kind=one.kind,
                    bytes=num_bytes,
                    shape=shape,
                    dtype=one.dtype,
                    owner=one.owner,
                    born=one.born,
                    freed=one.freed,
                    line=one.line,
                )
            )
        return Ledger(moments=self._moments, entries=tuple(entries))


def _weights(sizes: Sequence[int], size: int) -> tuple[list[int], int]:
    """Return what each known value counts, as whole numbers over one divisor."""
    above = [prod(size - other for other in sizes if other != one) for one in sizes]
    below = [prod(one - other for other in sizes if other != one) for one in sizes]
    divisor = lcm(*below)
    return [top * (divisor // bottom) for top, bottom in zip(above, below, strict=True)], divisor


def _weigh(weights: Sequence[int], divisor: int, values: Sequence[int]) -> int:
    return max(0, sum(weight * value for weight, value in zip(weights, values, strict=True)) // divisor)


def _is_workspace(entry: LedgerEntry) -> bool:
    return entry.name.startswith(WORKSPACE)


def _is_quadratic(known: Sequence[tuple[int, int]]) -> bool:
    """Tell whether values grow rather with the square of a size than with the size, from each to the next."""
    return all(
        value**2 * before**3 > value_before**2 * size**3 and value_before > 0
        for (before, value_before), (size, value) in pairwise(known)
    )


def _are_alike(entries: Sequence[LedgerEntry], sizes: Sequence[int]) -> bool:
    """Tell whether tensors of several ledgers are one tensor at several sizes."""
    one = entries[0]
    mark = (one.name, one.kind, one.dtype, one.owner, one.born, one.freed, len(one.shape))
    if any(
        mark != (other.name, other.kind, other.dtype, other.owner, other.born, other.freed, len(other.shape))
        for other in entries[1:]
    ):
        return False
    return _is_workspace(one) or all(
        _is_straight(dims, sizes) for dims in zip(*(other.shape for other in entries), strict=True)
    )


def _is_straight(dims: Sequence[int], sizes: Sequence[int]) -> bool:
    points = list(zip(sizes, dims, strict=True))
    (start, at_start), (end, at_end) = points[0], points[-1]
    return all((dim - at_start) * (end - start) == (at_end - at_start) * (size - start) for size, dim in points[1:-1])
