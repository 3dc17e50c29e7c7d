"""Grid: a tensor of places on a tape, which a mask or a bias can be asked about: its memory is seen, no number is."""

from math import prod
from typing import Any

from headwise.cost.step.tape import Shape, Storage, Tape


class Grid:
    """A tensor that operators make others of, in the shape to which both sides broadcast.

    Arithmetic gives int64, comparisons give bool, and `& | ^` what comes; `made` gives any dtype. The memory of each
    lives as long as Python holds it, as a tensor's does.

    Args:
        tape: where it is made.
        shape: its shape.
        dtype: "int64", "bool", or one of numbers.
    """

    __slots__ = ("_tape", "dtype", "shape", "storage")

    def __init__(self, tape: Tape, shape: Shape, dtype: str = "int64"):
        self._tape, self.shape, self.dtype = tape, shape, dtype
        self.storage: Storage = tape.new("what a mask makes", shape, dtype, layout="heads")

    def made(self, dtype: str, *others: "Grid") -> "Grid":
        """Return what an operation makes of it, and of others, element by element."""
        shape = self.shape
        for other in others:
            shape = _broadcast(shape, other.shape)
        return Grid(self._tape, shape, dtype)

    @property
    def size(self) -> int:
        """Number of its elements."""
        return prod(self.shape)

    def _number(self, other: "Grid | int") -> "Grid":
        return Grid(self._tape, _broadcast(self.shape, _shape_of(other)))

    def _truth(self, other: "Grid | int") -> "Grid":
        return Grid(self._tape, _broadcast(self.shape, _shape_of(other)), "bool")

    def _alike(self, other: "Grid | int") -> "Grid":
        is_bool = self.dtype == "bool" and (not isinstance(other, Grid) or other.dtype == "bool")
        return self._truth(other) if is_bool else self._number(other)

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = _number
    __floordiv__ = __rfloordiv__ = __mod__ = __rmod__ = __rshift__ = _number

    def __abs__(self) -> "Grid":
        return self._number(self)

    __neg__ = __pos__ = __abs__

    def __invert__(self) -> "Grid":
        return self._alike(self)

    __lt__ = __le__ = __gt__ = __ge__ = __eq__ = __ne__ = _truth  # type: ignore[assignment]
    __and__ = __rand__ = __or__ = __ror__ = __xor__ = __rxor__ = _alike
    __hash__ = None  # type: ignore[assignment]

    def __bool__(self) -> Any:
        raise TypeError("a tensor on a tape has no truth")


def _shape_of(other: "Grid | int") -> Shape:
    return other.shape if isinstance(other, Grid) else ()


def _broadcast(some: Shape, other: Shape) -> Shape:
    """Return the shape to which two broadcast; of as many dimensions each, or none."""
    return tuple(max(pair) for pair in zip(some, other, strict=True)) if other else some
