"""ReplicaTape: all weights and gradients on every device, and the optimizer's states shared out by whole weights.

This is torch's DistributedDataParallel with a ZeroRedundancyOptimizer. DDP keeps buckets, as large as all gradients, in
which these travel; they are made once and stay. With `gradient_as_bucket_view=True` the gradients lie in them, else
(torch's default) they are tensors of their own beside them. The optimizer's weights are shared out one after the other,
the largest first, to the device that has the least so far; each steps its own and sends them to all others.

Source: Li et al. 2020, "PyTorch Distributed", section 3; Rajbhandari et al. 2020, "ZeRO", section 5.1; torch 2.13,
nn/parallel/distributed.py and distributed/optim/zero_redundancy_optimizer.py.
"""

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from math import prod

from headwise.cost.results import Ledger, LedgerEntry, StepMemory
from headwise.cost.step.optimizers import OPTIMIZER_STEP, optimizer_states, play_optimizer
from headwise.cost.step.repeat import RepeatedStep
from headwise.cost.step.tape import Node, Record, Shape, Storage, Tape, Value
from headwise.cost.workload import Workload

PLACES = ("gradient of", "bucket for the gradient of")
"""How the name of what a weight's gradient travels in begins: where gradients are views of it, and where not."""


@dataclass
class ReplicaTape(Tape):
    """A tape whose gradients have buckets to travel in, and whose optimizer is left to `OwnOptimizer`.

    Args:
        gradients_are_views: gradients lie in the buckets.
    """

    gradients_are_views: bool = True
    _buckets: dict[tuple[str, str], Storage] = field(default_factory=dict)
    _kept: list[Storage] = field(default_factory=list)

    def parameter(
        self, name: str, shape: Shape, dtype: str = "float32", *, is_frozen: bool = False, is_adapter: bool = False
    ) -> Value:
        """Allocate a weight, and its gradient's place in a bucket."""
        weight = super().parameter(name, shape, dtype, is_frozen=is_frozen, is_adapter=is_adapter)
        if weight.node is not None:
            what = PLACES[0 if self.gradients_are_views else 1]
            self._buckets[self.owner, name] = self.stand(f"{what} {name}", shape, dtype, kind="gradient")
        return weight

    def begin(self, label: str) -> None:
        """Begin a stretch; when the optimizer's comes, it finds no gradients, and so does nothing."""
        if label == OPTIMIZER_STEP:
            self._kept, self.gradients = self.gradients, []
        super().begin(label)

    def keep_gradient(self, parameter: Node, gradient: Storage) -> None:
        """Copy a gradient into its bucket, or leave it for the optimizer."""
        if not self.gradients_are_views:
            super().keep_gradient(parameter, gradient)

    def hold_earlier_gradients(self, parameters: Sequence[Node]) -> None:
        """Gradients of earlier passes lie in the buckets, or stand beside them."""
        self.accumulates = True
        if not self.gradients_are_views:
            super().hold_earlier_gradients(parameters)


class OwnOptimizer:
    """What the device with the largest share of the weights holds for its own optimizer.

    Args:
        step: a step on a `ReplicaTape`.
        workload: of that step.
        num_devices: over how many devices the weights are shared out.

    Attributes:
        states: there from the beginning.
        work: what the optimizer's step holds at its worst instant.
    """

    def __init__(self, step: RepeatedStep, workload: Workload, num_devices: int):
        gradients = {(life.owner, life.name) for life in step.lives if life.kind == "gradient"}
        trained = [
            Record(life.name, "parameter", life.shape, life.dtype, step.owner(life, shift), life.bytes, 0)
            for life, shift in step.in_order(life for life in step.lives if life.kind == "parameter")
            if gradients & {(life.owner, f"{what} {life.name}") for what in PLACES}
        ]
        own = largest_share(trained, num_devices)
        self.states = [state for record in own for state in optimizer_states(record, workload)]
        self.work = list(_play_optimizer(own, workload))

    def add_to_ledger(self, ledger: Ledger) -> Ledger:
        """Return the ledger of the step with both."""
        last = len(ledger.moments) - 1
        states = (_entry(record, 0, None) for record in self.states)
        work = (_entry(record, last, last + 1) for record in self.work)
        return replace(ledger, entries=(*ledger.entries, *states, *work))

    def add_to_totals(self, totals: StepMemory, step: RepeatedStep) -> StepMemory:
        """Return the totals of the step with both."""
        last_bytes = sum(
            life.bytes
            for life in step.lives
            for shift in step.shifts(life.layer)
            if step.span(life.layer, life.born, life.last, shift)[1] in (None, len(step.moments))
        )
        last_bytes += sum(record.bytes for record in self.work)
        state_bytes = sum(record.bytes for record in self.states)
        if last_bytes > totals.peak_bytes:
            return replace(totals, peak_bytes=last_bytes + state_bytes, peak_moment=OPTIMIZER_STEP)
        return replace(totals, peak_bytes=totals.peak_bytes + state_bytes)


def largest_share(weights: Sequence[Record], num_devices: int) -> list[Record]:
    """Share weights out, the largest first, each to the device that has the fewest numbers; return the largest share.

    Of equal weights the first comes first, and of equal devices the first gets it.
    """
    devices = [(0, rank) for rank in range(min(num_devices, len(weights)))]
    shares: dict[int, list[Record]] = {rank: [] for _, rank in devices}
    for weight in sorted(weights, key=lambda one: -prod(one.shape)):
        numel, rank = devices[0]
        heapq.heapreplace(devices, (numel + prod(weight.shape), rank))
        shares[rank].append(weight)
    return shares[min(devices, key=lambda one: (-one[0], one[1]))[1]] if devices else []


def _play_optimizer(parameters: Sequence[Record], workload: Workload) -> Iterator[Record]:
    """Give what an optimizer's step over some weights holds at its worst instant."""
    tape = Tape(device=workload.device)
    tape.begin("before")
    for one in parameters:
        gradient = Record(f"gradient of {one.name}", "gradient", one.shape, one.dtype, one.owner, 0, 0)
        tape.records.append(one)
        tape.gradients.append(Storage(tape, gradient, "tokens", False))
    play_optimizer(tape, workload)
    instant = tape.stretches[-1].peak_tick
    for record in tape.records:
        if record.kind == "temporary" and record.born <= instant and (record.freed is None or record.freed > instant):
            yield record


def _entry(record: Record, born: int, freed: int | None) -> LedgerEntry:
    return LedgerEntry(
        name=record.name,
        kind=record.kind,
        bytes=record.bytes,
        shape=record.shape,
        dtype=record.dtype,
        owner=record.owner,
        born=born,
        freed=freed,
    )
