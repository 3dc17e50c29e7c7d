"""Birth, an allocation of a step as a function of batch and length, and LearnedStep, all of them in order."""

from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from typing import Literal, NamedTuple

from headwise.cost.oom.patterns import ZERO, Pattern, Poly, add
from headwise.cost.results import Kind
from headwise.cost.workload import Workload
from headwise.results import BYTES_PER_MIB

MomentKind = Literal["loading", "forward", "loss", "backward", "optimizer"]

SMALL_BYTES = 4 * BYTES_PER_MIB  # tensors of a fixed size below it do not decide when a step fails


class Birth(NamedTuple):
    """An allocation, of one tensor or of equal ones in equal layers.

    `owner`: without the layer. `layers`: those of the model that have it, or None. `before`: bytes alive just before
    it, in the first of them to come; `growth`: by how much more in each next one. `states`: whether the optimizer's
    states are alive then: "later" (from the second step on), "always" or "never". `times`: number of tensors that this
    stands for.
    """

    name: str
    kind: Kind
    owner: str
    layers: range | None
    moment: MomentKind
    pattern: Pattern
    before: Poly
    growth: Poly
    states: Literal["later", "always", "never"]
    times: int


class Cluster(NamedTuple):
    """Allocations of one pattern and one kind of moment."""

    pattern: Pattern
    moment: MomentKind
    births: tuple[Birth, ...]
    num_tensors: int


class Visit(NamedTuple):
    """Allocations in a row that repeat together, layer by layer; `tops`: bytes alive with each, in the first layer."""

    births: tuple[Birth, ...]
    tops: tuple[Poly, ...]


@dataclass(frozen=True)
class LearnedStep:
    """All allocations of a step in order, and what the optimizer's states take once they are there.

    `reaches_windows`: whether it is of texts at least as long as the windows of the model's layers.
    """

    workload: Workload
    births: tuple[Birth, ...]
    states_bytes: int
    reaches_windows: bool = True

    @cached_property
    def clusters(self) -> tuple[Cluster, ...]:
        """The allocations by pattern and kind of moment."""
        found: dict[tuple[Pattern, MomentKind], list[Birth]] = {}
        for birth in self.births:
            found.setdefault((birth.pattern, birth.moment), []).append(birth)
        return tuple(Cluster(*key, tuple(births), sum(one.times for one in births)) for key, births in found.items())

    @cached_property
    def visits(self) -> tuple[Visit, ...]:
        """The allocations that can decide when a loaded model fails, in stretches that repeat together."""
        major = (
            birth
            for birth in self.births
            if birth.moment != "loading"
            and (birth.pattern.has_batch or birth.pattern.has_seq or birth.pattern.bytes_at(1, 1) >= SMALL_BYTES)
        )
        grouped = groupby(major, key=lambda birth: (birth.moment, birth.kind == "optimizer", birth.times, birth.growth))
        visits = (tuple(births) for _, births in grouped)
        return tuple(
            Visit(births, tuple(add(one.before, one.pattern.poly or ZERO) for one in births)) for births in visits
        )

    @cached_property
    def total(self) -> Poly:
        """The bytes of all allocations of the step."""
        total = ZERO
        for birth in self.births:
            total = add(total, birth.pattern.poly or ZERO, birth.times)
        return total
