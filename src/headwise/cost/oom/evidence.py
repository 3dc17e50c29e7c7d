"""How well an allocation explains what a message says beside the size: the bytes in use then, and the capacity.

What torch calls allocated is the sum of blocks, somewhat more than the tensors in them hold: sizes are rounded up, a
block may be larger than what it was taken for, and libraries have workspaces in it. So it should lie a little above
what a ledger adds up; where the process holds something else too, it may lie anywhere.
"""

from collections.abc import Container
from math import exp, inf
from typing import NamedTuple

from headwise.cost.oom.births import Birth, Cluster, LearnedStep
from headwise.cost.oom.patterns import ZERO, Pattern, value_at
from headwise.cost.oom.results import OomMessage
from headwise.results import BYTES_PER_GIB, BYTES_PER_MIB

_ELSEWHERE = 0.03  # chance that something else is in the allocator too, so that the figure says nothing

# How far above the ledger the figure lies: exponential distances of several means, a share of the ledger and bytes
# each, with their weights. In replays of predicted steps half lie within 2 MiB, nine of ten within 30; cuBLAS's
# workspaces add 8 to 72.
_ABOVE = ((0.5, 0.0, 3.0 * BYTES_PER_MIB), (0.3, 0.0, 24.0 * BYTES_PER_MIB), (0.2, 0.004, 24.0 * BYTES_PER_MIB))
_BELOW = 1.0 * BYTES_PER_MIB
_FAR = 4  # so many times as far, hardly anything is left of the chance

# The least and the most of a device that a process fills with tensors before it fails: the rest is its context,
# libraries and holes between blocks.
_FILLED = (0.8, 1.0)

_HOLES = 0.1  # chance that an allocation fails that raises nothing, for there are more holes than before
_ROUNDING = 1.001  # of printed sizes
_UNFORESEEN = 0.002  # that it fails though there was no room for something earlier


class Weighed(NamedTuple):
    """An allocation of a step at a batch and length: the bytes before it, and how likely it is what fails.

    Of equal layers, the bytes are those of the layer where they are nearest to what the message says.
    """

    birth: Birth
    before: float
    weight: float
    chance: float  # that there is no room for it, whatever the message says of the bytes in use
    has_states: bool  # whether the optimizer has stepped before


class _Later(NamedTuple):
    """The layers after the first of some that repeat: how many, and by how much more is in use in each.

    `most`: bytes in use at most before all of them; `inside`: just before an allocation, in the layer itself or the one
    before it, less what has grown by then.
    """

    num_layers: int
    growth: float
    most: float
    inside: float


def spread(observed: int) -> float:
    """Return the density, per GiB, of allocated bytes of which nothing is known."""
    return BYTES_PER_GIB / (2 * observed + BYTES_PER_GIB)


def density(observed: int, before: int | float, growth: int | float, times: int) -> float:
    """Return the density, per GiB, of the allocated bytes in each of several layers, added up.

    Args:
        observed: allocated bytes as the message says.
        before: bytes of tensors before the first layer's.
        growth: by how much more before each next one's.
        times: number of layers.
    """
    end = before + growth * (times - 1)
    low, high = (before, end) if growth >= 0 else (end, before)
    margin = _FAR * (_ABOVE[-1][1] * high + _ABOVE[-1][2])
    if observed < low - 16 * _BELOW or observed > high + margin:
        return 0.0
    rounding = printed_within(observed)
    if high - low <= _BELOW:
        return times * _density(observed, (low + high) / 2, rounding)
    reach = int(margin / abs(growth)) + 1
    nearest = round((observed - before) / growth)
    ahead, behind = (1, reach) if growth > 0 else (reach, 1)
    places = range(max(0, nearest - behind), min(times - 1, nearest + ahead) + 1)
    found = 0.0
    for place in places:
        found += _density(observed, before + growth * place, rounding)
    return found


def printed_within(observed: int) -> float:
    """Return by how much a figure of a message may differ from the bytes: two decimals are printed, of GiB or MiB."""
    return 0.00501 * BYTES_PER_GIB if observed >= BYTES_PER_GIB else 0.00501 * BYTES_PER_MIB


def _density(observed: int, predicted: int | float, rounding: float) -> float:
    distance = observed - predicted
    if distance > rounding:
        beyond, distance = 1.0, distance - rounding
    else:
        beyond, distance = exp((distance + rounding) / _BELOW) if distance < -rounding else 1.0, 0.0
    found = 0.0
    width = 2 * rounding + _BELOW
    for weight, share, mean in _ABOVE:
        scale = share * predicted + mean
        found += weight * exp(-distance / scale) / (scale + width)
    return BYTES_PER_GIB * (1 - _ELSEWHERE) * beyond * found


def rough_weight(step: LearnedStep, cluster: Cluster, batch: int, seq: int, observed: int | None) -> float:
    """Return how likely one of some equal allocations fails, as far as each can be judged alone."""
    share = cluster.num_tensors * value_at(cluster.pattern.poly or ZERO, batch, seq) / value_at(step.total, batch, seq)
    if observed is None:
        return share
    found = share * _ELSEWHERE * spread(observed)
    states = step.states_bytes
    tokens, square, cube = batch * seq, seq * seq, batch * seq * seq
    for birth in cluster.births:  # the polynomials are written out: this is where the time goes
        one, b, s, bs, ss, bss = birth.before
        before = one + b * batch + s * seq + bs * tokens + ss * square + bss * cube
        growth = 0.0
        times = birth.times
        if times > 1:
            one, b, s, bs, ss, bss = birth.growth
            growth = one + b * batch + s * seq + bs * tokens + ss * square + bss * cube
        if birth.states != "later" or not states:
            found += density(observed, before + states * (birth.states == "always"), growth, times)
        else:
            found += 0.5 * density(observed, before, growth, times)
            found += 0.5 * density(observed, before + states, growth, times)
    return found


def weigh(
    step: LearnedStep, batch: int | float, seq: int, message: OomMessage, patterns: Container[Pattern]
) -> list[Weighed]:
    """Weigh the allocations of some patterns of a step at a batch and length, each in its turn.

    What fails is the first allocation for which there is no room, so it raises the bytes in use above all before it; if
    not, there were more holes between blocks than at the earlier peak, and that must have had room on the device. The
    first step has no optimizer's states until its end, later ones have them, and come only where the first one fitted.

    Args:
        step: the step.
        batch, seq: its batch and length.
        message: what torch says.
        patterns: of the allocations that are asked for.
    """
    trace = _Trace(step, batch, seq, message, patterns)
    most = trace.run(0.0, has_states=False)
    if step.states_bytes:
        trace.run(most, has_states=True)
    return trace.found


class _Trace:
    """One step from its first allocation to its last, before the optimizer's states and with them."""

    def __init__(
        self, step: LearnedStep, batch: int | float, seq: int, message: OomMessage, patterns: Container[Pattern]
    ):
        self._step = step
        self._batch, self._seq = batch, seq
        self._observed, self._capacity = message.allocated_bytes, message.capacity_bytes
        self._room = inf if message.capacity_bytes is None else float(message.capacity_bytes)
        if message.reserved_bytes is not None and message.free_bytes is not None:
            self._room = min(self._room, _ROUNDING * (message.reserved_bytes + message.free_bytes))
        self._patterns = patterns
        self._total = value_at(step.total, batch, seq)
        self._tops = [[value_at(top, batch, seq) for top in visit.tops] for visit in step.visits]
        self.found: list[Weighed] = []

    def run(self, most: int | float, *, has_states: bool) -> float:
        """Weigh what is asked for, where `most` bytes were in use before, and return the most of now."""
        share = 0.5 if self._step.states_bytes else 1.0
        for visit, tops in zip(self._step.visits, self._tops, strict=True):
            first = visit.births[0]
            if first.kind == "optimizer" and has_states:
                continue
            is_beside = first.states == "always" or (has_states and first.states == "later")
            beside = self._step.states_bytes if is_beside else 0
            growth = value_at(first.growth, self._batch, self._seq) if first.times > 1 else 0.0
            highest = max(tops) + beside
            inside = 0.0  # the most in use in the visit's first layer so far
            for birth, bare in zip(visit.births, tops, strict=True):
                top = bare + beside
                if birth.pattern in self._patterns:
                    size = value_at(birth.pattern.poly or ZERO, self._batch, self._seq)
                    chance = self._chance(top, size, max(most, inside))
                    later = _Later(birth.times - 1, growth, most, max(inside, highest - growth))
                    weight = self._weight(top, size, chance, max(most, inside), later)
                    before = self._nearest(top - size, growth, birth.times)
                    self.found.append(Weighed(birth, before, share * weight, chance, has_states))
                inside = max(inside, top)
            most = max(most, highest + max(0.0, growth) * (first.times - 1))
        return most

    def _weight(self, top: float, size: float, chance: float, earlier: float, later: _Later) -> float:
        """Weigh an allocation in the first layer, where `earlier` bytes were in use at most, and in the later ones."""
        weight = (1 + later.num_layers) * size / self._total * _ELSEWHERE
        if self._observed is None:
            weight += self._raised(top, earlier)
            if later.num_layers and later.growth > 0:
                before = max(later.most, later.inside + later.growth)
                weight += later.num_layers * self._raised(top + later.growth, before)
            return weight
        weight *= spread(self._observed)
        weight += chance * density(self._observed, top - size, 0.0, 1)
        if later.num_layers:
            place = round((self._observed - top + size) / later.growth) if later.growth else 1
            grown = later.growth * min(later.num_layers, max(1, place))
            chance = self._chance(top + grown, size, max(later.most, later.inside + grown))
            weight += chance * density(self._observed, top - size + later.growth, later.growth, later.num_layers)
        return weight

    def _nearest(self, before: int | float, growth: int | float, times: int) -> float:
        """Return the bytes alive before an allocation in the layer in which they come nearest to the message's."""
        if self._observed is None or not growth:
            return before
        return before + growth * min(times - 1, max(0, round((self._observed - before) / growth)))

    def _chance(self, top: float, size: float, earlier: int | float) -> float:
        """Return the chance that there is no room for an allocation, though there was for all earlier ones."""
        if earlier <= top - size:
            return 1.0
        if earlier > self._room:
            return _UNFORESEEN
        return max(_HOLES, (top - earlier) / size)

    def _raised(self, top: float, earlier: int | float) -> float:
        """Return the chance, where the bytes in use are not known, that the room ends between two heights."""
        if self._capacity is None:
            return max(0.0, top - earlier) / self._total
        low, high = (share * self._capacity for share in _FILLED)
        return max(0.0, min(top, high) - max(earlier, low)) / (high - low)
