"""Outline: the bytes alive at each moment of a step, and what fills its peak, without a list of every tensor."""

from collections.abc import Iterable
from dataclasses import dataclass

from headwise.config.model import ModelConfig
from headwise.cost.results import Kind, Ledger
from headwise.cost.step.play import Play, play_step
from headwise.cost.step.repeat import repeated_step
from headwise.cost.workload import Workload

STANDING = {"parameter": "weights", "gradient": "gradients", "optimizer": "optimizer states"}
"""What tensors of a kind are called together, whatever their shapes."""


@dataclass(frozen=True, kw_only=True)
class Group:
    """Tensors alive at the peak that are alike: `shape` None where they differ in it; `bytes` of all together."""

    name: str
    shape: tuple[int, ...] | None
    dtype: str
    count: int
    bytes: int


@dataclass(frozen=True, kw_only=True)
class Outline:
    """A ledger in short: its moments with the bytes alive at each, and the groups alive at the peak, largest first."""

    moments: tuple[str, ...]
    bytes_by_moment: tuple[int, ...]
    groups: tuple[Group, ...]

    @property
    def peak(self) -> int:
        """Index of the moment with the most bytes alive (the first of equals)."""
        return self.bytes_by_moment.index(self.peak_bytes)

    @property
    def peak_bytes(self) -> int:
        """The bytes alive then."""
        return max(self.bytes_by_moment)


Alike = tuple[str, Kind, tuple[int, ...], str, int, int]
"""Tensors that differ in nothing but their owner: name, kind, shape, dtype, bytes of one, and how many there are."""


def predict_outline(config: ModelConfig, workload: Workload, *, play: Play = play_step) -> Outline:
    """Return the outline of `predict_ledger`, whose arguments and refusals it shares."""
    step = repeated_step(config, workload, play)
    by_moment = step.bytes_by_moment
    peak = by_moment.index(max(by_moment))
    counts = {when: step.count_alive(when, peak) for when in {life.when for life in step.lives}}
    alive = ((one.name, one.kind, one.shape, one.dtype, one.bytes, counts[one.when]) for one in step.lives)
    return Outline(moments=step.moments, bytes_by_moment=by_moment, groups=_groups(alive))


def outline_of(ledger: Ledger) -> Outline:
    """Return a ledger in short."""
    alive = ((one.name, one.kind, one.shape, one.dtype, one.bytes, 1) for one in ledger.alive(ledger.peak))
    return Outline(moments=ledger.moments, bytes_by_moment=ledger.bytes_by_moment, groups=_groups(alive))


def _groups(alive: Iterable[Alike]) -> tuple[Group, ...]:
    totals: dict[tuple[str, tuple[int, ...] | None, str], list[int]] = {}
    for name, kind, shape, dtype, num_bytes, count in alive:
        key = (STANDING[kind], None, "") if kind in STANDING else (name, shape, dtype)
        total = totals.setdefault(key, [0, 0])
        total[0] += count
        total[1] += count * num_bytes
    groups = [
        Group(name=name, shape=shape, dtype=dtype, count=count, bytes=num_bytes)
        for (name, shape, dtype), (count, num_bytes) in totals.items()
        if count
    ]
    return tuple(sorted(groups, key=lambda one: (-one.bytes, one.name)))
