"""learn_step: every allocation of a step as a function of batch and length, and what is alive before it.

One play of few layers tells all: each tensor's shape is learned as a pattern, and the bytes alive before it are the sum
of the patterns alive then. Of a cycle of layers that comes many times, three turns are played (`repeat` does with two,
as it adds up nothing over the turns before); the middle one stands for all between, and what is alive before its
tensors grows from one to the next by what each leaves behind.
"""

import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod

from headwise.config.attention import AttentionConfig
from headwise.config.block import BlockConfig
from headwise.config.model import ModelConfig
from headwise.cost.oom.births import Birth, LearnedStep, MomentKind
from headwise.cost.oom.patterns import PROBE_BATCH, PROBE_SEQ, ZERO, Pattern, Poly, add, learn_pattern
from headwise.cost.step.cycles import find_cycles
from headwise.cost.step.optimizers import optimizer_states, trained_parameters
from headwise.cost.step.play import play_step
from headwise.cost.step.repeat import MAX_PLAYED_LAYERS
from headwise.cost.step.tape import BYTES_OF_DTYPE, Record, Tape
from headwise.cost.workload import Workload
from headwise.errors import UnsupportedError
from headwise.masks.patterns import SlidingWindow

_LAYER = re.compile(r"layer (\d+) ?")


@dataclass(frozen=True, slots=True)
class _Group:
    """Played layers that stand for others: how often their cycle comes, and the layers of the model that each is."""

    number: int
    times: int


def learn_step(config: ModelConfig, workload: Workload, *, reaches_windows: bool = True) -> LearnedStep:
    """Learn a step's allocations; the workload's own batch and length do not count.

    Args:
        config: the model.
        workload: all but batch and length.
        reaches_windows: whether texts are at least as long as the windows of the layers; transformers hands torch a
            mask tensor only then.

    Raises:
        UnsupportedError, ConfigError: as of `predict_ledger`.
    """
    blocks, groups, layers = _play_few(config)
    if not reaches_windows:
        blocks = [widen_window(block) for block in blocks]
    num_played = len(blocks) + (len(config.encoder.blocks) if config.encoder is not None else 0)
    if num_played > MAX_PLAYED_LAYERS:
        raise UnsupportedError(f"sizes are learned of at most {MAX_PLAYED_LAYERS} layers; got {num_played}")
    workload = replace(workload, batch=PROBE_BATCH, seq=PROBE_SEQ)
    tape = play_step(config, blocks, workload)
    walk = _Walk(tape, groups, layers)
    births = _join_layers(list(walk.births()))
    states = [state for one in trained_parameters(tape) for state in optimizer_states(one, workload)]
    weights = [1 if (group := walk.group_of(state.owner)) is None else group.times for state in states]
    total = sum(times * state.bytes for times, state in zip(weights, states, strict=True))
    if states and births:
        place = next((place for place, one in enumerate(births) if one.moment == "optimizer"), len(births))
        before = births[min(place, len(births) - 1)].before
        births[place:place] = _births_of_states(states, weights, before, walk)
    return LearnedStep(workload, tuple(births), total, reaches_windows)


def _play_few(config: ModelConfig) -> tuple[list[BlockConfig], list[_Group | None], list[range]]:
    """Return the layers to be played, the group of each, and the layers of the model that each stands for."""
    blocks: list[BlockConfig] = []
    groups: list[_Group | None] = []
    layers: list[range] = []
    place = 0
    for number, (cycle, times) in enumerate(find_cycles(config.blocks)):
        width = len(cycle)
        ends = [(0, 1), (width, times - 2), ((times - 1) * width, 1)] if times > 3 else [(0, 1)] * times
        for turn, (shift, repeats) in enumerate(ends):
            start = place + (shift if times > 3 else turn * width)
            for offset, block in enumerate(cycle):
                blocks.append(block)
                groups.append(_Group(number, repeats) if repeats > 1 else None)
                layers.append(range(start + offset, start + offset + (repeats - 1) * width + 1, width))
        place += width * times
    return blocks, groups, layers


def widen_window(block: BlockConfig) -> BlockConfig:
    """Return a layer whose window, if it has one, is wider than any text."""
    attention = block.attention
    if not isinstance(attention, AttentionConfig) or not isinstance(attention.mask, SlidingWindow):
        return block
    return replace(block, attention=replace(attention, mask=SlidingWindow(2 * PROBE_SEQ)))


class _Walk:
    """The events of a tape in order, with the bytes alive at each.

    The births fall into visits: to one layer, forward or backward, to a group of layers, or to something else. `whole`
    counts a group's tensors as often as the group comes. That is right except near a visit: copies of the group that
    were not yet visited are as the group was before the visit began, those that were are as it is when what follows is
    done too (until then a neighbour holds or lacks what layers hand to each other).
    """

    def __init__(self, tape: Tape, groups: Sequence[_Group | None], layers: Sequence[range]):
        self._groups = groups
        self._layers = layers
        self._tape = tape
        self._records = sorted(tape.records, key=lambda record: record.born)
        learned: dict[tuple[tuple[int, ...], str], Pattern] = {}
        self._patterns = []
        for record in self._records:
            key = (record.shape, record.dtype)
            if key not in learned:
                learned[key] = learn_pattern(*key)
            self._patterns.append(learned[key])

    def group_of(self, owner: str) -> _Group | None:
        """Return the group of a tensor's layer."""
        match = _LAYER.match(owner)
        return self._groups[int(match[1])] if match else None

    def births(self) -> Iterator[Birth]:
        """Give every allocation in order."""
        records = self._records
        polys = [
            (pattern.poly if is_whole(record) else None) or ZERO
            for record, pattern in zip(records, self._patterns, strict=True)
        ]
        groups = [self.group_of(record.owner) for record in records]
        deaths = sorted((record.freed, index) for index, record in enumerate(records) if record.freed is not None)
        visits, visit_of = self._visits(groups)
        whole = ZERO
        parts: dict[_Group, Poly] = {}
        at_begin: list[dict[_Group, Poly]] = []  # the parts when each visit begins, and at the end
        near = [{group for group in visits[max(0, one - 1) : one + 2] if group} for one in range(len(visits))]
        seen: list[
            tuple[Poly, list[tuple[_Group, Poly]]]
        ] = []  # whole, and parts of the groups near, before each birth

        def change(index: int, sign: float) -> None:
            nonlocal whole
            group = groups[index]
            whole = add(whole, polys[index], sign * (1 if group is None else group.times))
            if group is not None:
                parts[group] = add(parts.get(group, ZERO), polys[index], sign)

        dead = 0
        for index, record in enumerate(records):
            while dead < len(deaths) and deaths[dead][0] < record.born:
                change(deaths[dead][1], -1.0)
                dead += 1
            visit = visit_of[index]
            if visit == len(at_begin):
                at_begin.append(dict(parts))
            seen.append((whole, [(group, parts.get(group, ZERO)) for group in near[visit]]))
            change(index, 1.0)
        at_begin += [dict(parts), dict(parts)]
        for index, record in enumerate(records):
            if polys[index] is ZERO:
                continue
            before, near_parts = seen[index]
            visit = visit_of[index]
            growth = ZERO
            for group, part in near_parts:
                is_visited = visits[visit] == group
                place = visit + 1 if not is_visited and visit and visits[visit - 1] == group else visit - is_visited
                other = at_begin[max(0, place)].get(group, ZERO)
                before = add(before, add(other, part, -1.0), group.times - 1.0)
                if is_visited:
                    growth = add(at_begin[visit + 2].get(group, ZERO), other, -1.0)
            yield self._birth(index, record, before, growth)

    def _visits(self, groups: Sequence[_Group | None]) -> tuple[list[_Group | None], list[int]]:
        """Return the group of each visit, and the visit of each birth."""
        visits: list[_Group | None] = []
        visit_of: list[int] = []
        before: object = None
        for record, group in zip(self._records, groups, strict=True):
            label, visited = self._label(record, group)
            if not visit_of or label != before:
                visits.append(visited)
                before = label
            visit_of.append(len(visits) - 1)
        return visits, visit_of

    def _birth(self, index: int, record: Record, before: Poly, growth: Poly) -> Birth:
        layers, part = self.layers_of(record.owner)
        moment = find_moment(record, self._tape)
        return Birth(
            name=strip_layer(record.name),
            kind=record.kind,
            owner=part,
            layers=layers,
            moment=moment,
            pattern=self._patterns[index],
            before=before,
            growth=growth,
            states={"loading": "never", "optimizer": "always"}.get(moment, "later"),  # type: ignore[arg-type]
            times=1 if layers is None else len(layers),
        )

    def layers_of(self, owner: str) -> tuple[range | None, str]:
        """Return the layers that a played owner stands for, and the rest of its name."""
        match = _LAYER.match(owner)
        return (self._layers[int(match[1])], owner[match.end() :]) if match else (None, strip_layer(owner))

    def _label(self, record: Record, group: _Group | None) -> tuple[object, _Group | None]:
        """Return what tells one visit from the next, and the group that it visits."""
        label = _label_of(record, self._tape)
        match = re.fullmatch(r"(forward|backward): layer (\d+)", label)
        if match is None:
            return (label, group, None if group else record.owner), group
        visited = self._groups[int(match[2])]
        return (label if visited is None else (match[1], visited.number), visited), visited


def find_moment(record: Record, tape: Tape) -> MomentKind:
    """Return when a tensor is made."""
    if record.kind in ("parameter", "input"):
        return "loading"
    label = _label_of(record, tape)
    if label.startswith("forward"):
        return "forward"
    if label.startswith("backward"):
        return "backward"
    return "loss" if label == "loss" else "optimizer"


def strip_layer(name: str) -> str:
    """Return a name or an owner without the number of its layer."""
    return _LAYER.sub("", name)


def _label_of(record: Record, tape: Tape) -> str:
    place = bisect_right(tape.stretches, record.born - 1, key=lambda stretch: stretch.begin_tick)
    return tape.stretches[max(0, place - 1)].label


def _join_layers(births: Sequence[Birth]) -> list[Birth]:
    """Join the tensors of a group of layers with those of the layers before and after it that continue the row."""
    alone: dict[tuple[object, ...], list[int]] = {}
    for index, birth in enumerate(births):
        if birth.layers is not None and birth.times == 1:
            alone.setdefault(_key(birth), []).append(index)
    joined: list[Birth | None] = list(births)
    taken: set[int] = set()
    for index, birth in enumerate(births):
        if birth.layers is None or birth.times == 1:
            continue
        first, layers, before, place = index, birth.layers, birth.before, index
        start = add(birth.before, birth.growth, -1.0)
        end = add(birth.before, birth.growth, birth.times)
        for other in alone.get(_key(birth), ()):
            one = births[other]
            assert one.layers is not None
            if other in taken or one.layers[0] not in (layers.start - layers.step, layers[-1] + layers.step):
                continue
            if other < index and _is_same(one.before, start):
                before, place = one.before, other
            elif not (other > index and _is_same(one.before, end)):
                continue
            taken.add(other)
            joined[other] = None
            low, high = min(layers.start, one.layers.start), max(layers[-1], one.layers.start)
            layers = range(low, high + 1, layers.step)
        joined[first] = None
        joined[place] = birth._replace(layers=layers, before=before, times=len(layers))
    return [birth for birth in joined if birth is not None]


def _key(birth: Birth) -> tuple[object, ...]:
    return birth.name, birth.owner, birth.kind, birth.moment, birth.pattern


def _is_same(a: Poly, b: Poly) -> bool:
    return all(abs(one - other) <= 1e-9 * (abs(one) + abs(other)) for one, other in zip(a, b, strict=True))


def is_whole(record: Record) -> bool:
    """Tell whether a tensor holds as many numbers as its shape says; an expanded one holds a single one."""
    return record.bytes == BYTES_OF_DTYPE[record.dtype] * prod(record.shape)


def _births_of_states(states: Sequence[Record], weights: Sequence[int], before: Poly, walk: _Walk) -> Iterator[Birth]:
    """Give the allocations of the optimizer's states in the first step, in the order of the parameters."""
    place = 0
    while place < len(states):
        group = walk.group_of(states[place].owner)
        end = place + 1
        while group is not None and end < len(states) and walk.group_of(states[end].owner) == group:
            end += 1
        visit = sum(state.bytes for state in states[place:end])
        made = 0
        for state in states[place:end]:
            layers, part = walk.layers_of(state.owner)
            yield Birth(
                name=state.name,
                kind="optimizer",
                owner=part,
                layers=layers,
                moment="optimizer",
                pattern=learn_pattern(state.shape, state.dtype),
                before=add(before, (1.0, 0.0, 0.0, 0.0, 0.0, 0.0), made),
                growth=(float(visit), 0.0, 0.0, 0.0, 0.0, 0.0) if group else ZERO,
                states="never",
                times=1 if layers is None else len(layers),
            )
            made += state.bytes
        before = add(before, (1.0, 0.0, 0.0, 0.0, 0.0, 0.0), weights[place] * visit)
        place = end
