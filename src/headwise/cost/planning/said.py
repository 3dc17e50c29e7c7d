"""Said: which batches and lengths have been said to fit, and what follows for others."""

from collections.abc import Hashable
from dataclasses import replace

from headwise.cost.planning.setup import Setup

_Sizes = tuple[int, int]
"""Batch and length."""


class Said:
    """What has been said of setups, by family: those that differ in batch and length alone."""

    def __init__(self) -> None:
        self._families: dict[Hashable, dict[_Sizes, bool]] = {}

    def tells(self, setup: Setup) -> bool | None:
        """Tell whether a setup fits: True where a larger one does, False where a smaller one does not, else None."""
        batch, seq = setup.workload.batch, setup.workload.seq
        for (other_batch, other_seq), fits in self._families.get(_family_of(setup), {}).items():
            if fits and other_batch >= batch and other_seq >= seq:
                return True
            if not fits and other_batch <= batch and other_seq <= seq:
                return False
        return None

    def add(self, setup: Setup, fits: bool) -> None:
        """Remember of a setup whether it fits, unless that is known already."""
        if self.tells(setup) is None:
            sizes = setup.workload.batch, setup.workload.seq
            self._families.setdefault(_family_of(setup), {})[sizes] = fits

    def forget(self, setup: Setup) -> None:
        """Forget what was said of this very setup."""
        self._families.get(_family_of(setup), {}).pop((setup.workload.batch, setup.workload.seq), None)


def _family_of(setup: Setup) -> Hashable:
    return setup.config, replace(setup.workload, batch=1, seq=1), setup.sharding
