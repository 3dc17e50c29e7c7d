"""Pattern: the shape of a tensor as a function of batch and length, learned from one tensor of one step.

A step is played at a batch and a length with large prime factors, so that each dimension tells by division what it is
made of: (10007, 12, 2562304, 2562304) is (batch, 12, seq, seq).
"""

from dataclasses import dataclass
from functools import cached_property, lru_cache
from math import ceil, floor, gcd, sqrt

from headwise.cost.step.tape import BYTES_OF_DTYPE

_PRIME = 10_009
PROBE_BATCH = 10_007
PROBE_SEQ = 256 * _PRIME  # a multiple of every step that lengths are rounded up to

_LARGEST_OFFSET = 64
_FLOAT_ERROR = 1e-9

Poly = tuple[float, float, float, float, float, float]
"""Coefficients of 1, batch, seq, batch * seq, seq^2, batch * seq^2."""

ZERO: Poly = (0.0,) * 6


@dataclass(frozen=True, slots=True)
class Dim:
    """One dimension: `numerator * batch^has_batch * seq^has_seq / denominator`, rounded up, and an offset."""

    numerator: int
    denominator: int = 1
    has_batch: bool = False
    has_seq: bool = False
    offset: int = 0

    def at(self, batch: int, seq: int) -> int:
        """Return the dimension at a batch and length."""
        product = self.numerator * (batch if self.has_batch else 1) * (seq if self.has_seq else 1)
        return -(-product // self.denominator) + self.offset


@dataclass(frozen=True, eq=False)
class Pattern:
    """A shape and dtype, as functions of batch and length; compares by identity, and each is made once."""

    dims: tuple[Dim, ...]
    dtype: str

    @cached_property
    def has_batch(self) -> bool:
        """Whether the size depends on the batch."""
        return any(dim.has_batch for dim in self.dims)

    @cached_property
    def has_seq(self) -> bool:
        """Whether the size depends on the length."""
        return any(dim.has_seq for dim in self.dims)

    def shape_at(self, batch: int, seq: int) -> tuple[int, ...]:
        """Return the shape at a batch and length."""
        return tuple(dim.at(batch, seq) for dim in self.dims)

    def bytes_at(self, batch: int, seq: int) -> int:
        """Return the bytes at a batch and length."""
        size = BYTES_OF_DTYPE[self.dtype]
        for dim in self.dims:
            size *= dim.at(batch, seq)
        return size

    @cached_property
    def poly(self) -> Poly | None:
        """The bytes as a polynomial, without the rounding up; None: of a higher degree than any tensor of a model's."""
        terms = {(0, 0): float(BYTES_OF_DTYPE[self.dtype])}
        for dim in self.dims:
            factor = {(int(dim.has_batch), int(dim.has_seq)): dim.numerator / dim.denominator}
            if dim.offset:
                factor[0, 0] = factor.get((0, 0), 0.0) + dim.offset
            product: dict[tuple[int, int], float] = {}
            for (i, j), a in terms.items():
                for (k, m), b in factor.items():
                    product[i + k, j + m] = product.get((i + k, j + m), 0.0) + a * b
            terms = product
        places = {(0, 0): 0, (1, 0): 1, (0, 1): 2, (1, 1): 3, (0, 2): 4, (1, 2): 5}
        if any(power not in places for power in terms):
            return None
        row = [0.0] * 6
        for power, coefficient in terms.items():
            row[places[power]] = coefficient
        return tuple(row)  # type: ignore[return-value]  # six of them


@lru_cache(maxsize=65_536)
def learn_pattern(shape: tuple[int, ...], dtype: str) -> Pattern:
    """Return the pattern of a tensor of a step at `PROBE_BATCH` and `PROBE_SEQ`."""
    return Pattern(tuple(_learn_dim(size) for size in shape), dtype)


def _learn_dim(size: int) -> Dim:
    rest, has_batch = size, False
    if size and size % PROBE_BATCH == 0:
        rest, has_batch = size // PROBE_BATCH, True
    if rest and rest % _PRIME == 0:
        common = gcd(rest, PROBE_SEQ)
        return Dim(rest // common, PROBE_SEQ // common, has_batch, True)
    times = round(rest / PROBE_SEQ)
    if times and not has_batch and abs(rest - times * PROBE_SEQ) <= _LARGEST_OFFSET:
        return Dim(times, 1, False, True, rest - times * PROBE_SEQ)
    return Dim(rest, 1, has_batch)


def add(a: Poly, b: Poly, times: int | float = 1) -> Poly:
    """Return `a + times * b`."""
    return (
        a[0] + times * b[0],
        a[1] + times * b[1],
        a[2] + times * b[2],
        a[3] + times * b[3],
        a[4] + times * b[4],
        a[5] + times * b[5],
    )


def value_at(poly: Poly, batch: int | float, seq: int | float) -> float:
    """Return a polynomial's value."""
    one, b, s, bs, ss, bss = poly
    return one + b * batch + seq * (s + bs * batch + seq * (ss + bss * batch))


def seqs_within(poly: Poly, batch: int, low: int, high: int) -> tuple[int, int]:
    """Return the least and the largest length at which a polynomial that grows with it lies between two sizes.

    The least is above the largest where there is none. Both are reckoned in floats and a trifle too wide: the exact
    size must be asked of the pattern.
    """
    constant = poly[0] + poly[1] * batch
    linear = poly[2] + poly[3] * batch
    square = poly[4] + poly[5] * batch
    return _whole(_root(square, linear, low - constant), _root(square, linear, high - constant))


def batches_within(poly: Poly, low: int, high: int, *, seq: int = 0) -> tuple[int, int]:
    """Return the same for batches, at a length where the size depends on that too."""
    constant = poly[0] + seq * (poly[2] + seq * poly[4])
    slope = poly[1] + seq * (poly[3] + seq * poly[5])
    return _whole((low - constant) / slope, (high - constant) / slope)


def length_at(poly: Poly, batch: int | float, target: int | float) -> float:
    """Return the length at which a polynomial that grows with it has a value; 0 where there is none."""
    constant, linear, square = poly[0] + poly[1] * batch, poly[2] + poly[3] * batch, poly[4] + poly[5] * batch
    return _root(square, linear, target - constant) if linear > 0 or square > 0 else 0.0


def _whole(low: float, high: float) -> tuple[int, int]:
    return max(1, ceil(low - _FLOAT_ERROR * abs(low))), floor(high + _FLOAT_ERROR * abs(high))


def _root(square: float, linear: float, target: int | float) -> float:
    """Solve `square * x^2 + linear * x = target` for x >= 0."""
    if target <= 0:
        return 0.0
    if not square:
        return target / linear
    if not linear:
        return sqrt(target / square)
    return (sqrt(linear * linear + 4 * square * target) - linear) / (2 * square)
