"""Which dimensions of a head are turned together by rotary positions."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class RotationPairs:
    """The pairs of dimensions that rotary positions turn, and how fast.

    A turn changes each product `q_d * k_d`, and moves numbers between the two of a pair. The sum over a pair depends on
    the two vectors before they were turned and on the distance of their positions alone.

    Args:
        frequencies: radians by which each pair turns from one position to the next, of pair 0, 1, ...
        pairing: "half": pair i is dimensions i and i + their number; "interleaved": 2 i and 2 i + 1.

    Source: Su et al. 2021, "RoFormer", section 3.2.2.
    """

    frequencies: Sequence[float]
    pairing: Literal["half", "interleaved"]

    @property
    def rotary_dim(self) -> int:
        """How many of a head's first dimensions are turned."""
        return 2 * len(self.frequencies)

    def dimensions_of(self, pair: int) -> tuple[int, int]:
        """Return the two dimensions of a pair."""
        if self.pairing == "interleaved":
            return 2 * pair, 2 * pair + 1
        return pair, pair + len(self.frequencies)

    def wavelength_of(self, pair: int) -> float | None:
        """Return after how many tokens a pair has turned once; None: it does not turn."""
        frequency = self.frequencies[pair]
        return 2 * math.pi / frequency if frequency else None
