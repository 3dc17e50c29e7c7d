"""An axis with round numbers on it, from a value to where it stands in a drawing."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

STEPS = (1.0, 2.0, 2.5, 5.0)  # times powers of ten: what stands between two numbers of an axis


@dataclass(frozen=True, kw_only=True)
class Axis:
    """A line of values.

    Args:
        low, high: values at its ends, the second above the first.
        first, last: where its ends stand in the drawing.
        is_logarithmic: whether equal ratios, not equal differences, are equally long; values are above 0 then.
    """

    low: int | float
    high: int | float
    first: float
    last: float
    is_logarithmic: bool = False

    def place(self, value: int | float) -> float:
        """Return where a value stands; one beyond an end stands at that end."""
        low, high, at = (self._scaled(one) for one in (self.low, self.high, min(self.high, max(self.low, value))))
        return self.first + (self.last - self.first) * (at - low) / (high - low)

    def ticks(self, most: int = 6) -> list[float]:
        """Return round values on it, at most so many, the finest that there are."""
        return round_values(self.low, self.high, most=most)

    def _scaled(self, value: int | float) -> float:
        return math.log(value) if self.is_logarithmic else float(value)


def axis_of(values: Sequence[int | float], *, first: float, last: float, held: Sequence[int | float] = ()) -> Axis:
    """Return a linear axis on which all values stand, with some room at its ends.

    Args:
        values: at least one.
        first, last: where its ends stand.
        held: values that must be on it, too: 0, say.
    """
    low, high = min(*values, *held, math.inf), max(*values, *held, -math.inf)
    # a single value, or values that only rounding tells apart, stand in the middle
    room = 0.04 * (high - low) if high - low > 1e-9 * max(abs(low), abs(high)) else max(0.05 * abs(high), 0.01)
    return Axis(low=low - room, high=high + room, first=first, last=last)


def round_values(low: int | float, high: int | float, *, most: int) -> list[float]:
    """Return multiples of the finest round step between two values, ends included, that are at most so many."""
    power = math.floor(math.log10((high - low) / most)) - 1
    while True:
        for step in STEPS:
            size = step * 10.0**power
            start, end = math.ceil(low / size - 1e-9), math.floor(high / size + 1e-9)
            if end - start + 1 <= most:
                # by whole numbers, so that 3 x 0.1 is not 0.30000000000000004
                return [round(number * size, max(0, 2 - power)) + 0.0 for number in range(start, end + 1)]
        power += 1


def tick_words(values: Sequence[int | float], *, sign: bool = False) -> list[str]:
    """Write the numbers of an axis, all with as many decimals as the finest of them needs."""
    step = min((b - a for a, b in pairwise(values)), default=abs(values[0]) if values else 1.0)
    decimals = next((d for d in range(8) if abs(round(step, d) - step) < 1e-6 * abs(step or 1.0)), 8)
    return [
        f"{value:{'+' if sign and value else ''}.{decimals}f}" if abs(value) < 1e5 else f"{value:g}" for value in values
    ]
