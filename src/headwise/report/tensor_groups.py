"""Tensors alive at a moment, with those of many layers that are alike told as one: "layers 0-11: 12 x 6.00 GiB"."""

import heapq
import re
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from headwise.cost.results import Kind, Ledger, LedgerEntry

# a number that stands alone in an owner's name: "layer 3 attention", "encoder.layer.3.attention"
_NUMBER = re.compile(r"(?<!\w)[0-9]{1,9}(?!\w)")
_MAX_RUNS = 3


@dataclass(frozen=True, kw_only=True)
class TensorGroup:
    """Tensors of one name, kind, shape and dtype whose owners differ in numbers alone; `bytes` are those of one.

    `kind`: a field of a `Moment`.
    """

    owner: str
    name: str
    kind: Kind | Literal["kv_cache"]
    shape: tuple[int, ...]
    dtype: str
    bytes: int
    count: int

    @property
    def total_bytes(self) -> int:
        """Bytes of all of them."""
        return self.count * self.bytes


@dataclass(frozen=True)
class _Likeness:
    """What tensors of a group have in common."""

    owner: str
    name: str
    kind: Kind | Literal["kv_cache"]
    shape: tuple[int, ...]
    dtype: str
    bytes: int


def group_tensors(entries: Iterable[LedgerEntry], *, limit: int) -> tuple[TensorGroup, ...]:
    """Return the groups of these tensors that take the most bytes together, largest first."""
    alive = _Alive()
    for entry in entries:
        alive.add(entry)
    return alive.largest(limit)


def largest_groups(ledger: Ledger, moments: Iterable[int], *, limit: int) -> dict[int, tuple[TensorGroup, ...]]:
    """Return for each of these moments the groups alive then that take the most bytes together, largest first."""
    born: dict[int, list[LedgerEntry]] = defaultdict(list)
    freed: dict[int, list[LedgerEntry]] = defaultdict(list)
    for entry in ledger.entries:
        born[entry.born].append(entry)
        if entry.freed is not None:
            freed[entry.freed].append(entry)
    wanted = set(moments)
    alive = _Alive()
    found = {}
    for moment in range(max(wanted, default=-1) + 1):
        for entry in born[moment]:
            alive.add(entry)
        for entry in freed[moment]:
            alive.remove(entry)
        if moment in wanted:
            found[moment] = alive.largest(limit)
    return found


class _Alive:
    """The groups alive at a moment, kept up to date from birth to birth."""

    def __init__(self) -> None:
        self._owners: dict[_Likeness, Counter[tuple[int, ...]]] = defaultdict(Counter)
        self._counts: Counter[_Likeness] = Counter()

    def add(self, entry: LedgerEntry) -> None:
        likeness, numbers = _split(entry)
        self._owners[likeness][numbers] += 1
        self._counts[likeness] += 1

    def remove(self, entry: LedgerEntry) -> None:
        likeness, numbers = _split(entry)
        owners = self._owners[likeness]
        owners[numbers] -= 1
        if not owners[numbers]:
            del owners[numbers]
        self._counts[likeness] -= 1
        if not self._counts[likeness]:
            del self._counts[likeness], self._owners[likeness]

    def largest(self, limit: int) -> tuple[TensorGroup, ...]:
        """Return the groups with the most bytes; of equals the one with the larger tensors, then the older one."""
        sizes = ((count * one.bytes, one.bytes, -place) for place, (one, count) in enumerate(self._counts.items()))
        likenesses = list(self._counts)
        return tuple(self._group(likenesses[-place]) for _, _, place in heapq.nlargest(limit, sizes))

    def _group(self, one: _Likeness) -> TensorGroup:
        return TensorGroup(
            owner=_name_owners(one.owner, self._owners[one]),
            name=one.name,
            kind=one.kind,
            shape=one.shape,
            dtype=one.dtype,
            bytes=one.bytes,
            count=self._counts[one],
        )


def _split(entry: LedgerEntry) -> tuple[_Likeness, tuple[int, ...]]:
    """Return what an entry shares with others of its group, and the numbers of its own owner."""
    owner = entry.owner.replace("\0", "\ufffd")  # a name of the user's, who may put anything into it
    numbers = tuple(int(number) for number in _NUMBER.findall(owner))
    owner = _NUMBER.sub("\0", owner)
    kind = "kv_cache" if entry.is_kv_cache else entry.kind
    return _Likeness(owner, entry.name, kind, entry.shape, entry.dtype, entry.bytes), numbers


def _name_owners(owner: str, numbers: Iterable[tuple[int, ...]]) -> str:
    """Write an owner with the numbers of all that are alike in place of its own: "layers 0-11 attention"."""
    ranges = [_name_range(column) for column in zip(*numbers, strict=True)]
    first, *parts = owner.split("\0")
    for number, part in zip(ranges, parts, strict=True):
        if first.endswith("layer ") and not number.isdigit():
            first = first.removesuffix(" ") + "s "
        first += number + part
    return first


def _name_range(numbers: Iterable[int]) -> str:
    """Write numbers in few characters: 3; 0-11; 0-2, 5, 7-9; of more than three runs the first and the last: 0...22."""
    runs: list[list[int]] = []
    for number in sorted(set(numbers)):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    if len(runs) > _MAX_RUNS:
        return f"{runs[0][0]}...{runs[-1][1]}"
    return ", ".join(str(low) if low == high else f"{low}-{high}" for low, high in runs)
