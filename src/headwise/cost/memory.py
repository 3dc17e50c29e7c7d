"""Memory of a training step or a prefill, predicted from the config alone: every tensor, and the peak.

Equal layers in a row live alike: three of them are played (the first, one for all in between, the last), and the lives
of the middle one's tensors are shifted to every layer between. A moment of the ledger is a stretch of the step at its
worst instant, and holds the tensors that are alive then.
"""

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby

from headwise.config.model import BlockConfig, ModelConfig
from headwise.cost.results import Kind, Ledger, LedgerEntry, StepMemory, bytes_at_moments
from headwise.cost.step.play import optimizer_records, play_step
from headwise.cost.step.tape import Record, Tape
from headwise.cost.workload import Workload


def predict_ledger(config: ModelConfig, workload: Workload) -> Ledger:
    """Return every tensor of a step with its life.

    The step is one of transformers 5.24's implementation under torch 2.13, at float32, on full texts without padding,
    with one AdamW or SGD update in its steady state. On CPU, saved tensors are exact to the byte; what kernels take for
    themselves is not counted. On CUDA the kernels' needs are derived from their sources, not measured.

    Args:
        config: the model; its `model_type` says whose implementation.
        workload: batch, length, phase, attention, optimizer, device and dropout.

    Raises:
        UnsupportedError: no implementation is known for the `model_type`.
    """
    step = _Step(config, workload)
    entries = []
    for life in step.lives:
        for shift in step.shifts(life.layer):
            owner = life.owner if life.layer is None else f"layer {life.layer + shift}{life.part}"
            born, freed = step.span(life.layer, life.born, life.last, shift)
            entry = LedgerEntry(
                name=life.name,
                kind=life.kind,
                bytes=life.bytes,
                shape=life.shape,
                dtype=life.dtype,
                owner=owner,
                born=born,
                freed=freed,
            )
            entries.append(entry)
    return Ledger(moments=step.moments, entries=tuple(entries))


def predict_step(config: ModelConfig, workload: Workload) -> StepMemory:
    """Return the totals of `predict_ledger` without its entries: parameters, saved bytes, the peak and its moment."""
    step = _Step(config, workload)
    totals: Counter[Kind] = Counter()
    alike: Counter[tuple[int | None, int, int | None]] = Counter()
    for life in step.lives:
        totals[life.kind] += life.bytes * len(step.shifts(life.layer))
        alike[life.layer, life.born, life.last] += life.bytes
    spans = (
        (*step.span(layer, born, last, shift), num_bytes)
        for (layer, born, last), num_bytes in alike.items()
        for shift in step.shifts(layer)
    )
    by_moment = bytes_at_moments(len(step.moments), spans)
    peak_bytes = max(by_moment)
    return StepMemory(
        parameter_bytes=totals["parameter"],
        saved_bytes=totals["saved"],
        peak_bytes=peak_bytes,
        peak_moment=step.moments[by_moment.index(peak_bytes)].split(":")[0],
    )


@dataclass(frozen=True, slots=True)
class _Life:
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


@dataclass(frozen=True, slots=True)
class _Moment:
    """A played moment: of a layer (`direction` 1 forward, -1 backward; `place` that of layer 0) or of none (0)."""

    place: int
    direction: int
    layer: int


class _Step:
    """A played step, and how its lives repeat over the layers of the whole model."""

    def __init__(self, config: ModelConfig, workload: Workload):
        blocks: list[BlockConfig] = []
        self._shifts: list[range] = []  # by how many layers each played layer is shifted
        num_skipped = 0
        for block, group in groupby(config.blocks):
            num_equal = sum(1 for _ in group)
            num_middle = max(num_equal - 2, 0)
            blocks += min(num_equal, 3) * [block]
            if num_equal <= 3:
                self._shifts += num_equal * [range(num_skipped, num_skipped + 1)]
                continue
            self._shifts += [range(num_skipped, num_skipped + 1), range(num_skipped, num_skipped + num_middle)]
            num_skipped += num_equal - 3
            self._shifts.append(range(num_skipped, num_skipped + 1))
        tape = play_step(config, blocks, workload)
        self.moments: tuple[str, ...] = ()  # set by the next line
        self._played = list(self._repeat_moments(tape))
        self.lives = list(_lives(tape, workload))

    def shifts(self, layer: int | None) -> range:
        """Return by how many layers a life is shifted to give each tensor that it stands for."""
        return range(1) if layer is None else self._shifts[layer]

    def span(self, layer: int | None, born: int, last: int | None, shift: int) -> tuple[int, int | None]:
        """Return the moments from which, and before which, the life of a tensor of a layer lasts when it is shifted."""
        return self._place(layer, born, shift), None if last is None else self._place(layer, last, shift) + 1

    def _place(self, layer: int | None, played: int, shift: int) -> int:
        moment = self._played[played]
        if layer is None:  # what belongs to no layer meets the first or the last one
            shift = self._shifts[moment.layer].stop - 1 if moment.layer == len(self._shifts) - 1 else 0
        return moment.place + moment.direction * (moment.layer + shift)

    def _repeat_moments(self, tape: Tape) -> Iterator[_Moment]:
        moments: list[str] = []
        for stretch in tape.stretches:
            match = re.fullmatch(r"(forward|backward): layer (\d+)", stretch.label)
            if match is None:
                yield _Moment(len(moments), 0, 0)
                moments.append(stretch.label)
                continue
            direction = 1 if match[1] == "forward" else -1
            layer = int(match[2])
            shifts = self._shifts[layer][::direction]
            yield _Moment(len(moments) - direction * (layer + shifts[0]), direction, layer)
            moments += [f"{match[1]}: layer {layer + shift}" for shift in shifts]
        self.moments = tuple(moments)


def _lives(tape: Tape, workload: Workload) -> Iterator[_Life]:
    for record, born, last in tape.lives():
        yield _life(record, _kind(record, tape), born, last)
    for gradient in tape.gradients:
        for record in optimizer_records(gradient.record, workload.optimizer):
            yield _life(record, "optimizer", 0, None)


def _kind(record: Record, tape: Tape) -> Kind:
    """Return the kind of a tensor; it is saved if an operation kept it and backward found it so."""
    is_held = record.freed is None or tape.first_backward_tick is None or record.freed > tape.first_backward_tick
    return "saved" if record.kind == "temporary" and record.is_kept and is_held else record.kind


def _life(record: Record, kind: Kind, born: int, last: int | None) -> _Life:
    match = re.match(r"layer (\d+)", record.owner)
    layer, part = (int(match[1]), record.owner[match.end() :]) if match else (None, "")
    return _Life(record.name, kind, record.bytes, record.shape, record.dtype, record.owner, layer, part, born, last)
