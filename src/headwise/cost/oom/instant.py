"""find_instant: what is alive just before the tensor of a candidate is made, on the tape of its step."""

import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from headwise.config.model import ModelConfig
from headwise.cost.oom.births import MomentKind
from headwise.cost.oom.results import Candidate
from headwise.cost.reserved import MAX_LISTED_LAYERS
from headwise.cost.results import LedgerEntry
from headwise.cost.step.optimizers import OPTIMIZER_STEP, optimizer_states, trained_parameters
from headwise.cost.step.play import play_step
from headwise.cost.step.tape import Record, Tape
from headwise.cost.workload import Workload
from headwise.results import Result

LOADING: Literal["loading"] = "loading"

_LAYER = re.compile(r"layer \d+ ?")


@dataclass(frozen=True, kw_only=True)
class Instant(Result):
    """Just before a tensor is made: in which part of the step that is, and what is alive, largest first."""

    label: str
    alive: tuple[LedgerEntry, ...]

    @property
    def num_bytes(self) -> int:
        """The bytes alive."""
        return sum(entry.bytes for entry in self.alive)


class _Birth(NamedTuple):
    """A tensor that is made at a tick, and how many of the optimizer's states are there before it."""

    tick: int
    num_states: int
    before: int


def find_instant(
    config: ModelConfig,
    workload: Workload,
    candidate: Candidate,
    *,
    observed_bytes: int | None,
    limit_bytes: int | None,
) -> Instant | None:
    """Find the instant at which a candidate is made, among its members and the layers that have one.

    It is the one before which the bytes alive are nearest to those that the message says. Where it says none, it is the
    first for which there is no room, else the one with the most alive. None: the tensor is not made in this step, or
    the model has too many layers to list.

    Args:
        config: the model.
        workload: the step.
        candidate: the tensor.
        observed_bytes: of tensors, as the message says.
        limit_bytes: of the device.

    Raises:
        UnsupportedError, ConfigError: as of `predict_ledger`.
    """
    if config.num_layers + (len(config.encoder.blocks) if config.encoder else 0) > MAX_LISTED_LAYERS:
        return None
    tape = play_step(config, config.blocks, workload)
    states = [state for one in trained_parameters(tape) for state in optimizer_states(one, workload)]
    births = list(_births(tape, states, candidate))
    if not births:
        return None
    instant = _instant(tape, states, _choose(births, candidate.bytes, observed_bytes, limit_bytes))
    return replace(instant, label=LOADING) if candidate.moment == LOADING else instant


def _births(tape: Tape, states: Sequence[Record], candidate: Candidate) -> Iterator[_Birth]:
    """Give each time that a member of the candidate is made, in a first step without states and in a later one."""
    begins = [stretch.begin_tick for stretch in tape.stretches]
    state_bytes = sum(state.bytes for state in states)
    for record in tape.records:
        if not _is_it(record, candidate):
            continue
        moment = _moment_of(tape, begins, record)
        if moment != candidate.moment:
            continue
        before = sum(other.bytes for other in tape.records if _is_alive(other, record.born))
        if moment != "optimizer" or not states:
            yield _Birth(record.born, 0, before)
        if moment != LOADING and states:
            yield _Birth(record.born, len(states), before + state_bytes)
    if candidate.moment == "optimizer":
        first_work = next((one.begin_tick for one in tape.stretches if one.label == OPTIMIZER_STEP), tape.tick)
        before = sum(other.bytes for other in tape.records if _is_alive(other, first_work + 1))
        for place, state in enumerate(states):
            if _is_it(state, candidate):
                yield _Birth(first_work + 1, place, before)
            before += state.bytes


def _is_it(record: Record, candidate: Candidate) -> bool:
    if (record.shape, record.dtype) != (candidate.shape, candidate.dtype):
        return False
    owner, name = _LAYER.sub("", record.owner, count=1), _LAYER.sub("", record.name)
    return (f"{owner}: {name}" if owner else name) in candidate.members


def _is_alive(record: Record, tick: int) -> bool:
    """Whether a tensor is alive just before another is made at a tick."""
    return record.born < tick and (record.freed is None or record.freed >= tick)


def _moment_of(tape: Tape, begins: Sequence[int], record: Record) -> MomentKind:
    if record.kind in ("parameter", "input"):
        return LOADING
    label = tape.stretches[_stretch_at(begins, record.born)].label
    if label.startswith(("forward", "backward")):
        return "forward" if label.startswith("forward") else "backward"
    return "loss" if label == "loss" else "optimizer"


def _stretch_at(begins: Sequence[int], tick: int) -> int:
    return max(0, bisect_right(begins, tick - 1) - 1)


def _choose(births: Sequence[_Birth], num_bytes: int, observed: int | None, limit: int | None) -> _Birth:
    if observed is not None:
        return min(births, key=lambda birth: abs(birth.before - observed))
    steady = [birth for birth in births if birth.num_states] or list(births)
    full = (birth for birth in steady if limit is not None and birth.before + num_bytes > limit)
    return next(full, None) or max(steady, key=lambda birth: birth.before)


def _instant(tape: Tape, states: Sequence[Record], birth: _Birth) -> Instant:
    begins = [stretch.begin_tick for stretch in tape.stretches]
    alive = [record for record in tape.records if _is_alive(record, birth.tick)] + list(states[: birth.num_states])
    entries = [
        LedgerEntry(
            name=record.name,
            kind=record.kind,
            bytes=record.bytes,
            shape=record.shape,
            dtype=record.dtype,
            owner=record.owner,
            born=_stretch_at(begins, record.born),
            freed=None if record.freed is None else _stretch_at(begins, record.freed),
        )
        for record in alive
    ]
    return Instant(
        label=tape.stretches[_stretch_at(begins, birth.tick)].label,
        alive=tuple(sorted(entries, key=lambda entry: -entry.bytes)),
    )
