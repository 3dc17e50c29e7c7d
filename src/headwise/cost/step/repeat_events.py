"""changes_of: every allocation and free of a deep model's step, in order, from the play of few of its layers."""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator
from itertools import groupby
from typing import NamedTuple

from headwise.cost.step.optimizers import optimizer_states, trained_parameters
from headwise.cost.step.repeat import RepeatedStep
from headwise.cost.step.tape import Tape
from headwise.cost.workload import Workload

STANDING_KINDS = ("parameter", "input")
"""Kinds of tensors that stand from step to step."""


class Change(NamedTuple):
    """An allocation (`bytes`), or a free (None), of the tensor with a number, in the moment of a step with an index.

    `is_standing`: the tensor stands from step to step.
    """

    moment: int
    number: int
    bytes: int | None
    is_standing: bool


def changes_of(step: RepeatedStep) -> Iterator[Change]:
    """Give the allocations and frees of a whole step in order.

    What a play of few layers does in the stretch of one layer is done in that of every layer that it stands for. What
    it does for several layers in one stretch, as it makes weights and an optimizer's roots, it does for one layer after
    the other. Work for one parameter after another (an optimizer that loops) stays that of the played layers.

    What stands from step to step is made and not freed, unless a longer one comes in its place.
    """
    # Within a moment the order is that of blocks, each of one layer or of several in a stretch that is none's; then of
    # the layers; then of the places in the played stretch.
    moments: list[list[tuple[int, int, int, int, int | None, bool]]] = [[] for _ in range(len(step.moments) + 1)]
    records = step.tape.records
    layers = [step.layer_of(record) for record in records]
    firsts = list(_first_numbers(step, layers))
    played = list(_played_events(step, layers))
    twins = {event.like: event.place for event in played}
    before, block = None, 0
    for event in played:
        index, stretch, place = event.number, event.stretch, event.place
        record, layer, number = records[index], layers[index], firsts[index]
        num_bytes = record.bytes if event.is_made else None
        is_standing = record.kind in STANDING_KINDS
        shifts = step.shifts(layer)
        if len(shifts) == 1 or (stretch, shifts) != before or step.is_of_layer(stretch):
            before, block = (stretch, shifts), place
        if event.is_after_all:  # the order makes no difference
            moments[-1] += [(block, 0, 0, number + each, num_bytes, is_standing) for each in range(len(shifts))]
            continue
        inner = step.inner_stretches.get(stretch, stretch)
        own = step.first_moment(stretch)
        there = place if inner == stretch else twins.get(event.twin_in(inner, step), place)
        for moment, shift in zip(step.places(stretch, layer), shifts, strict=True):
            where = (block, shift, place) if inner == stretch or moment == own else (there, shift, there)
            moments[moment].append((*where, number, num_bytes, is_standing))
            number += 1
    for moment, changes in enumerate(moments):
        changes.sort()
        for _, _, _, number, num_bytes, is_standing in changes:
            yield Change(moment, number, num_bytes, is_standing)


class _Event(NamedTuple):
    """An allocation or a free of the play: of the record with a number, in which stretch, and the how manieth there.

    `like`: stretch, layer, name with the rest of the owner, whether it is made, and the how manieth of these it is.
    """

    number: int
    is_made: bool
    stretch: int
    place: int
    is_after_all: bool
    like: tuple[int, int | None, str, bool, int]

    def twin_in(self, inner: int, step: RepeatedStep) -> tuple[int, int | None, str, bool, int]:
        """Return what the event is like that stands to an inner stretch as this one to its own."""
        _, layer, name, is_made, rank = self.like
        if layer is not None:
            layer += step.layer_of_stretch(inner) - step.layer_of_stretch(self.stretch)
        return inner, layer, name, is_made, rank


def _played_events(step: RepeatedStep, layers: list[int | None]) -> Iterator[_Event]:
    tape = step.tape
    begins = [stretch.begin_tick for stretch in tape.stretches]
    counts: Counter[tuple[int, int | None, str, bool]] = Counter()
    stretch, place = 0, -1
    for tick, index, is_made in sorted(changes_of_tape(tape)):
        record, layer = tape.records[index], layers[index]
        before, stretch = stretch, max(bisect_left(begins, tick) - 1, 0)
        place = place + 1 if stretch == before else 0
        owner = record.owner if layer is None else record.owner.removeprefix(f"layer {layer}")
        like = (stretch, layer, f"{record.name}|{owner}", is_made)
        yield _Event(index, is_made, stretch, place, tick > tape.tick, (*like, counts[like]))
        counts[like] += 1


def states_of(step: RepeatedStep, workload: Workload) -> list[int]:
    """Return the bytes of every state of the optimizer, layer by layer."""
    sizes: list[int] = []
    for shifts, parameters in groupby(trained_parameters(step.tape), lambda one: step.shifts(step.layer_of(one))):
        block = [state.bytes for one in parameters for state in optimizer_states(one, workload)]
        sizes += len(shifts) * block
    return sizes


def changes_of_tape(tape: Tape) -> Iterator[tuple[int, int, bool]]:
    """Give the ticks at which a play makes and frees its tensors, by place among its records."""
    for index, record in enumerate(tape.records):
        yield record.born, index, True
        # What is found and goes is a cache, in whose place a longer one comes.
        is_replaced = record.kind == "input" and record.freed is not None and record.freed <= tape.last_tick
        if record.kind not in STANDING_KINDS or is_replaced:
            yield tape.tick + 1 if record.freed is None else record.freed, index, False


def _first_numbers(step: RepeatedStep, layers: list[int | None]) -> Iterator[int]:
    """Give the number of each record's first tensor; those that it is shifted to have the next ones."""
    number = 0
    for layer in layers:
        yield number
        number += len(step.shifts(layer))
