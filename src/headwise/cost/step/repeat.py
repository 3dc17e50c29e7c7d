"""RepeatedStep: the step of a deep model, from the play of few of its layers.

Equal layers live alike, also where several kinds alternate. Of equal layers in a row, three are played (the first, one
for all in between, the last), and the lives of the middle one's tensors are shifted to every layer between. Of a cycle
of layers that comes many times in a row two turns are played, where one turn, from the second layer on, stands for all
in between. No cycle goes on from frozen layers to those that learn. A tensor of the outermost of the layers between may
end a moment off the play of all, where the first or last layer is at its worst at another operation.
"""

import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import NamedTuple

from headwise.collector import without_collections
from headwise.config.checks import require_instance
from headwise.config.model import BlockConfig, ModelConfig
from headwise.cost.results import Kind, bytes_at_moments
from headwise.cost.step.cycles import count_turns, find_cycles, turns_ahead
from headwise.cost.step.freezing import frozen_layers, require_frozen
from headwise.cost.step.instants import same_instants, worst_instants
from headwise.cost.step.optimizers import OPTIMIZER_STEP, optimizer_states, trained_parameters
from headwise.cost.step.play import Play, play_step
from headwise.cost.step.sends import Send, SendingTape
from headwise.cost.step.tape import Record, Tape
from headwise.cost.workload import Workload
from headwise.errors import UnsupportedError

MAX_PLAYED_LAYERS = 600  # about two seconds


When = tuple[int | None, int, int | None]
"""Layer, first and last moment of a life, as the play has them."""


class Life(NamedTuple):
    """One tensor of the played step: alive from moment `born` to moment `last`, None = to the end and on.

    A tensor of a layer has the layer's number, and the rest of its owner's name in `part`.
    """

    name: str
    kind: Kind
    bytes: int
    shape: tuple[int, ...]
    dtype: str
    owner: str
    layer: int | None
    part: str
    born: int
    last: int | None

    @property
    def when(self) -> When:
        """Of which layer it is, and when it is alive."""
        return self.layer, self.born, self.last


@dataclass(frozen=True, slots=True)
class _Moment:
    """A played moment: of a layer (`direction` 1 forward, -1 backward; `place` that of layer 0) or of none (0)."""

    place: int
    direction: int
    layer: int


class RepeatedStep:
    """A played step, and how its lives repeat over the layers of the whole model.

    Args:
        config, workload: what is played.
        play: how, of a model with fewer layers.

    Attributes:
        lives: of every tensor that was played.
        moments: names of all moments of the whole step.
        tape: the play.
        inner_stretches: which stretch of a layer that stands for several is like that of a layer of its run.
        sends: what one device of several sends to others, each with how many operations of the whole step are like it.
    """

    def __init__(self, config: ModelConfig, workload: Workload, play: Play = play_step):
        require_frozen(config, workload)
        self._shifts: list[range] = []  # by how many layers each played layer is shifted
        self._runs: list[int] = []  # which run of equal cycles each played layer is of
        border = frozen_layers(workload)
        turns = turns_ahead(workload)
        frozen = self._choose(config.blocks[:border], border=0, turns=turns)
        blocks = frozen + self._choose(config.blocks[border:], border=border, turns=turns)
        num_played = len(blocks) + (len(config.encoder.blocks) if config.encoder is not None else 0)
        if num_played > MAX_PLAYED_LAYERS:
            raise UnsupportedError(
                f"memory is predicted for models with at most {MAX_PLAYED_LAYERS} layers that do not repeat (all of an "
                f"encoder beside a decoder); got {num_played}: give a model of fewer layers"
            )
        with without_collections():
            tape = self.tape = play(config, blocks, replace(workload, frozen_layers=len(frozen)))
        self.moments: tuple[str, ...] = ()  # set by the next line
        self._played = list(self._repeat_moments(tape, config.num_layers, border))
        self.inner_stretches = self._like_inner(tape)
        self.lives = [self._renamed(life) for life in self._lives(tape, workload)]
        sends = tape.sends if isinstance(tape, SendingTape) else []
        self.sends: list[tuple[Send, int]] = [(one, len(self.shifts(_split_owner(one.owner)[0]))) for one in sends]

    def _choose(self, layers: Sequence[BlockConfig], *, border: int, turns: int) -> list[BlockConfig]:
        """Choose the layers to play of some in a row, with `border` layers before them; note how each is shifted.

        Before the turn of a cycle that stands for others one layer is played, or so many `turns`.
        """
        chosen: list[BlockConfig] = []
        place = border
        for cycle, times in find_cycles(layers):
            width, shift = len(cycle), place - len(self._shifts)
            ahead = max(1, turns * width)
            count = count_turns(width, times, turns)
            chosen += count * cycle
            once, last = range(shift, shift + 1), shift + (times - count) * width
            if times > count:
                rest = (count - 1) * width - ahead
                self._shifts += [
                    *ahead * [once],
                    *width * [range(shift, last + 1, width)],
                    *rest * [range(last, last + 1)],
                ]
            else:
                self._shifts += times * width * [once]
            run = self._runs[-1] + 1 if self._runs else 0
            self._runs += (len(self._shifts) - len(self._runs)) * [run]
            place += times * width
        return chosen

    def shifts(self, layer: int | None) -> range:
        """Return by how many layers a life is shifted to give each tensor that it stands for."""
        return range(1) if layer is None else self._shifts[layer]

    def in_order(self, lives: Iterable[Life]) -> list[tuple[Life, int]]:
        """Give each tensor that some lives stand for, as the life and its shift, layer by layer as a whole play does.

        Lives of no layer stay before or after those of layers.
        """
        placed: list[tuple[int, Life, int]] = []
        place = -1
        for life in lives:
            if life.layer is not None:
                place = len(self.moments)  # for what comes after the layers
            placed += [
                (place if life.layer is None else life.layer + shift, life, shift) for shift in self.shifts(life.layer)
            ]
        return [(life, shift) for _, life, shift in sorted(placed, key=lambda one: one[0])]

    def owner(self, life: Life, shift: int) -> str:
        """Return whose a life is when it is shifted."""
        return life.owner if life.layer is None else f"layer {life.layer + shift}{life.part}"

    def layer_of(self, record: Record) -> int | None:
        """Return the played layer that a record belongs to, or None."""
        return _split_owner(record.owner)[0]

    def is_of_layer(self, stretch: int) -> bool:
        """Tell whether a played stretch is a layer's."""
        return self._played[stretch].direction != 0

    def layer_of_stretch(self, stretch: int) -> int:
        """Return the played layer whose stretch it is; 0 for one of no layer."""
        return self._played[stretch].layer

    def first_moment(self, stretch: int) -> int:
        """Return the moment that a played stretch is, of those that it stands for the one of the lowest layer."""
        moment = self._played[stretch]
        return moment.place + moment.direction * (moment.layer + self._shifts[moment.layer][0])

    def _lives(self, tape: Tape, workload: Workload) -> Iterator[Life]:
        # Of a layer that stands for several the neighbours are layers like itself, so that in the first and last one
        # what counts for it is the instant that is the worst in the layer between.
        own, inner = worst_instants(tape), same_instants(tape, self.inner_stretches)
        for record in tape.records:
            layer, part = _split_owner(record.owner)
            span = _stretches_of(record, inner if len(self.shifts(layer)) > 1 else own)
            if span is not None:
                yield _life(record, _kind(record, tape), layer, part, *span)
        for parameter in trained_parameters(tape):
            for record in optimizer_states(parameter, workload):
                yield _life(record, "optimizer", *_split_owner(record.owner), 0, None)

    def _like_inner(self, tape: Tape) -> dict[int, int]:
        """Tell which stretches, of the first and last layers of a run, are like which of the layers between."""
        places = {stretch.label: index for index, stretch in enumerate(tape.stretches)}
        inner: dict[int, list[int]] = {}  # by run, its layers that stand for several
        for layer, run in enumerate(self._runs):
            if len(self._shifts[layer]) > 1:
                inner.setdefault(run, []).append(layer)
        like = {}
        for index, moment in enumerate(self._played):
            layers = inner.get(self._runs[moment.layer], []) if moment.direction else []
            if layers:
                one = layers[(moment.layer - layers[0]) % len(layers)]
                like[index] = places[f"{'forward' if moment.direction == 1 else 'backward'}: layer {one}"]
        return like

    def _renamed(self, life: Life) -> Life:
        """Give a life the whole model's number where its name has that of a layer, as an optimizer's work does."""
        match = re.search(r" of layer (\d+)", life.name) if life.owner == OPTIMIZER_STEP else None
        if match is None:
            return life
        layer = int(match[1]) + self._shifts[int(match[1])][0]  # of layers alike, the first is the worst
        return life._replace(name=f"{life.name[: match.start(1)]}{layer}{life.name[match.end(1) :]}")

    def span(self, layer: int | None, born: int, last: int | None, shift: int) -> tuple[int, int | None]:
        """Return the moments from which, and before which, the life of a tensor of a layer lasts when it is shifted."""
        return self._place(born, layer, shift), None if last is None else self._place(last, layer, shift) + 1

    @cached_property
    def bytes_by_moment(self) -> tuple[int, ...]:
        """The bytes alive at each moment of the whole step."""
        alike: Counter[When] = Counter()
        for life in self.lives:
            alike[life.layer, life.born, life.last] += life.bytes
        spans = (
            (*self.span(layer, born, last, shift), num_bytes)
            for (layer, born, last), num_bytes in alike.items()
            for shift in self.shifts(layer)
        )
        return tuple(bytes_at_moments(len(self.moments), spans))

    def count_alive(self, when: When, moment: int) -> int:
        """Count the tensors alive at a moment of those that a life stands for."""
        spans = (self.span(*when, shift) for shift in self.shifts(when[0]))
        return sum(born <= moment and (freed is None or moment < freed) for born, freed in spans)

    def places(self, played: int, layer: int | None) -> Sequence[int]:
        """Return where a played moment stands for each of the layers that a layer stands for."""
        shifts = self.shifts(layer)
        first = self._place(played, layer, shifts[0])
        if len(shifts) == 1:
            return (first,)
        step = self._place(played, layer, shifts[1]) - first
        return range(first, first + len(shifts) * step, step) if step else (first,) * len(shifts)

    def _place(self, played: int, layer: int | None, shift: int) -> int:
        """Return where a played moment stands for a life of a layer: a neighbour of that layer is shifted with it.

        What lasts from or to a layer of another run meets the nearest of those that the played one stands for. What
        belongs to no layer meets the last in time: it is handed on from one to the next.
        """
        moment = self._played[played]
        if moment.direction and (layer is None or self._runs[layer] != self._runs[moment.layer]):
            is_highest = moment.direction == 1 if layer is None else layer > moment.layer
            shift = self._shifts[moment.layer][-1 if is_highest else 0]
        return moment.place + moment.direction * (moment.layer + shift)

    def _repeat_moments(self, tape: Tape, num_layers: int, border: int) -> Iterator[_Moment]:
        moments: list[str] = []
        places: dict[str, int] = {}  # where layer 0 stands, forward and backward
        for stretch in tape.stretches:
            match = re.fullmatch(r"(forward|backward): layer (\d+)", stretch.label)
            if match is None:
                yield _Moment(len(moments), 0, 0)
                moments.append(stretch.label)
                continue
            way, direction = match[1], 1 if match[1] == "forward" else -1
            if way not in places:
                places[way] = len(moments) + (0 if direction == 1 else num_layers - 1)
                first = 0 if direction == 1 or tape.embeddings_learn else border  # no backward goes below
                moments += [f"{way}: layer {layer}" for layer in range(first, num_layers)[::direction]]
            yield _Moment(places[way], direction, int(match[2]))
        self.moments = tuple(moments)


@lru_cache(maxsize=16)  # a step's totals and its ledger are often both asked for
def _repeated_step(config: ModelConfig, workload: Workload, play: Play) -> RepeatedStep:
    return RepeatedStep(config, workload, play)


def repeated_step(config: ModelConfig, workload: Workload, play: Play = play_step) -> RepeatedStep:
    """Return the played step, or the one that was played of the same; nobody changes it.

    Raises:
        ConfigError: an argument is no config or no workload.
        HeadwiseError: as of `predict_ledger`.
    """
    require_instance("config", config, ModelConfig)
    require_instance("workload", workload, Workload)
    return _repeated_step(config, workload, play)


def _stretches_of(record: Record, ticks: Sequence[int]) -> tuple[int, int | None] | None:
    """Return the first and last stretch at whose instant a record is alive (None = to the end), or None for no such."""
    born = bisect_left(ticks, record.born)
    last = None if record.freed is None else bisect_left(ticks, record.freed) - 1
    return (born, last) if born < len(ticks) and (last is None or born <= last) else None


def _kind(record: Record, tape: Tape) -> Kind:
    """Return the kind of a tensor; it is saved if an operation kept it and backward found it so."""
    tick = tape.first_backward_tick
    is_held = tick is None or (record.born <= tick and (record.freed is None or record.freed > tick))
    return "saved" if record.kind == "temporary" and record.is_kept and is_held else record.kind


def _life(record: Record, kind: Kind, layer: int | None, part: str, born: int, last: int | None) -> Life:
    return Life(record.name, kind, record.bytes, record.shape, record.dtype, record.owner, layer, part, born, last)


@lru_cache(maxsize=4096)
def _split_owner(owner: str) -> tuple[int | None, str]:
    """Return the layer of an owner such as "layer 3 attention", and what follows."""
    match = re.match(r"layer (\d+)", owner)
    return (int(match[1]), owner[match.end() :]) if match else (None, "")
