"""Traced: the memory of a model's steps for planning, told by a trace where there is no closed form of its family."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torch import nn

from headwise.api.example import example_inputs
from headwise.api.running import explained
from headwise.api.tracing import with_modules_attention
from headwise.config.model import ModelConfig
from headwise.cost.allocator import replay_ledger
from headwise.cost.flops import TRAIN_PER_FORWARD
from headwise.cost.outline import Outline, outline_of
from headwise.cost.planning.setup import OutOfTime, Setup
from headwise.cost.results import Ledger, StepMemory
from headwise.cost.tracing.flops import trace_flops
from headwise.cost.tracing.sizes import BetweenSizes, between_sizes
from headwise.cost.tracing.trace import Followed, follow_step, step_memory
from headwise.cost.workload import Workload
from headwise.errors import HeadwiseError, UnsupportedError
from headwise.loading.build import build_module

MAX_TRACES = 16
"""Steps that are traced for one answer beside the step itself: every single change, and some pairs."""
MAX_EVENTS = 18_000
"""Births and releases of tensors that are recorded for one answer beside the step itself, about: four seconds. They are
counted, and not the seconds, so that an answer does not depend on what else a machine does."""
MORE_TRACES, MORE_EVENTS = 8, 30_000
"""Beside them, for the step itself at other batches and lengths: its largest ones are looked for."""
MAX_PASSES = 2  # of an accumulation: the third finds what the second found, and leaves what it left
NUM_SIZES = {"batch": 2, "seq": 3}
"""How many batches and lengths `between_sizes` needs to tell all others. They double, from the first one or from 2: of
one text or token torch copies less, as a tensor then lies in memory in any order."""
PADDED = 32  # kernels round rows up to this many; between two such lengths a few bytes of a row are left out
TWINS = {"fp16": "bf16", "amp-fp16": "amp-bf16"}
"""Precisions whose step differs from another's in the name of a dtype alone, where kernels serve both."""
FIRST_WITH_TWINS = (8, 0)  # compute capability; before, kernels for bfloat16 are missing
REPLAYED_STEPS = 2  # the second finds segments that the first has cut
MAX_REPLAYED_ENTRIES = 150_000  # a few seconds
# Where a config says how many positions its model has. A longer text is traced with as many as it has tokens.
POSITIONS = ("max_position_embeddings", "n_positions", "max_target_positions", "max_source_positions", "n_ctx")


class Traced:
    """A `Predictor` for a model without a closed form: its module's own code runs without numbers.

    It tells what a workload changes: batch, length, precision, attention, optimizer, checkpointing, adapters. It cannot
    tell another model (fewer heads, a window) nor a step over several devices.

    A trace takes seconds for a large model, so few are made: of all batches two, and of all lengths three, where they
    make the same tensors in the same order; the others are reckoned from those. Where the first trace shows that layers
    that look alike live alike, others at its length run few of them. The step that is asked for first is always traced.
    When so much was recorded more is refused, and the plan says what was left out: the same on every machine.

    Args:
        subject: what a config.json says, or a module.
        name: what to call the model in errors.
        config: what is read of the subject, where its family is known: that of the setups. Default: nothing.
    """

    def __init__(self, subject: Mapping[str, Any] | nn.Module, name: str, *, config: ModelConfig | None = None):
        self.name, self.config = name, config
        self._subject = subject
        self._num_events = 0
        self._most_events = 1  # of one trace
        self._first: Workload | None = None
        self._regular_seq = 0  # the longest length at which layers were seen to live alike
        self._is_irregular = False  # whether they were seen not to
        self._ledgers: dict[Workload, Ledger] = {}  # that were traced
        self._steps: dict[Workload, StepMemory] = {}
        self._between: dict[tuple[str, Workload], BetweenSizes | None] = {}  # None: those that were traced do not tell
        self._refused: dict[Workload, HeadwiseError] = {}
        self._forward_flops: dict[tuple[int, int], int] = {}
        self._modules: dict[tuple[tuple[str, int], ...], nn.Module] = {}  # the latest one, by its longer tables

    def with_own_attention(self, workload: Workload) -> Workload:
        """Return a workload with the attention that transformers gives the module by itself."""
        return with_modules_attention(self._module(workload.seq), workload)

    def step(self, setup: Setup) -> StepMemory:
        """Return the totals of a step.

        Raises:
            UnsupportedError: the setup's model is not this one or is sharded, torch or the module cannot do what is
                asked for, or enough was traced.
            HeadwiseError: the module cannot be built or run.
        """
        workload = self._workload_of(setup)
        if workload not in self._steps:
            self._steps[workload] = step_memory(self._ledger_of(workload))
        return self._steps[workload]

    def ledger(self, setup: Setup) -> Ledger:
        """Return every tensor of a step.

        Raises:
            HeadwiseError: as of `step`.
        """
        return self._ledger_of(self._workload_of(setup))

    def outline(self, setup: Setup) -> Outline:
        """Return the ledger of a step in short.

        Raises:
            HeadwiseError: as of `step`.
        """
        return outline_of(self.ledger(setup))

    def reserved(self, setup: Setup, capacity_bytes: int | None = None) -> int | None:
        """Return what torch's CUDA allocator reserves for two steps; None on a CPU, and where they do not fit.

        Raises:
            HeadwiseError: as of `step`.
        """
        ledger = self.ledger(setup)
        if setup.workload.device != "cuda" or len(ledger.entries) > MAX_REPLAYED_ENTRIES:
            return None
        steps = REPLAYED_STEPS if setup.workload.phase == "train" else 1
        replayed = replay_ledger(ledger, steps=steps, capacity_bytes=capacity_bytes)
        return None if replayed.out_of_memory else replayed.reserved_peak_bytes

    def flops(self, setup: Setup) -> int | None:
        """Return the dense FLOPs of a step: forward passes, three for a training step, four if layers run again.

        None where a part of the forward pass runs again, or a part of the weights learns: how much is not told.

        Raises:
            HeadwiseError: as of `step`.
        """
        workload = self._workload_of(setup)
        if workload.phase == "prefill":
            return self._forward(workload)
        is_partial = workload.checkpoint == "selective" or workload.lora is not None or workload.frozen_layers
        if workload.phase != "train" or is_partial or workload.loss == "chunked_cross_entropy":
            return None
        passes = TRAIN_PER_FORWARD + (workload.checkpoint == "full")
        return passes * workload.accumulation * self._forward(workload)

    def _workload_of(self, setup: Setup) -> Workload:
        """Return the workload of a setup that can be traced."""
        if setup.sharding is not None:
            raise UnsupportedError(f"a step over several devices is told in closed form, and {self.name} has none")
        workload = setup.workload
        if setup.config != self.config:
            raise UnsupportedError(f"a change of the model is told in closed form, and {self.name} has none")
        if workload.phase == "decode":
            raise UnsupportedError(f"a step against a cache is told in closed form, and {self.name} has none")
        if workload.kv_cache != "model":
            raise UnsupportedError(f"a narrower cache is told in closed form, and {self.name} has none")
        if workload.attention == "sdpa" and not getattr(self._module(workload.seq), "_supports_sdpa", True):
            raise UnsupportedError(f"transformers has {self.name}'s family with eager attention only; got 'sdpa'")
        return workload

    def _ledger_of(self, workload: Workload) -> Ledger:
        """Return a ledger that was traced, else one reckoned from others that were, else a new trace."""
        self._first = self._first or workload
        if workload in self._ledgers:
            return self._ledgers[workload]
        if workload.accumulation > MAX_PASSES:
            return self._ledger_of(replace(workload, accumulation=MAX_PASSES))
        twin = TWINS.get(workload.precision)
        if twin and workload.device == "cuda" and workload.compute_capability >= FIRST_WITH_TWINS:
            return _in_float16(self._ledger_of(replace(workload, precision=twin)))  # type: ignore[arg-type]
        for field in NUM_SIZES:
            ledger = self._reckoned(workload, field)
            if ledger is not None:
                return ledger
        return self._traced(workload)

    def _reckoned(self, workload: Workload, field: str) -> Ledger | None:
        """Return a ledger by its batch or its length; None where that is to be traced, or does not tell it."""
        size, sizes = getattr(workload, field), self._sizes_for(workload, field)
        if size in (1, getattr(self._first, field), *sizes) or not sizes:
            return None
        family = (field, _resized(workload, field, sizes[0]))
        if family not in self._between:
            try:  # the longest first: of those below it is known then how layers live
                known = {one: self._ledger_of(_resized(workload, field, one)) for one in reversed(sizes)}
            except HeadwiseError:  # too long for the model, or no budget is left: the size itself may do
                known = {}
            self._between[family] = between_sizes(known) if known else None
        between = self._between[family]
        return None if between is None else between.at(size)

    def _sizes_for(self, workload: Workload, field: str) -> tuple[int, ...]:
        """Return the batches or lengths that tell a workload's, none where none do.

        A table of positions grows with texts beyond it and not before, so lengths on one side of it tell no other.
        """
        count = NUM_SIZES[field]
        start = max(2, getattr(self._first, field))
        tables = self._tables() if field == "seq" else []
        if field == "seq":
            start = -(-start // PADDED) * PADDED
        if tables:
            least, most = min(tables), max(tables)
            if workload.seq > most:
                start = max(getattr(self._first, field), most + 1)
            elif workload.seq <= least:
                start = min(start, least >> (count - 1))
            else:
                start = 0
        return tuple(start << number for number in range(count)) if start >= 2 else ()

    def _tables(self) -> list[int]:
        """Return the positions that the model has."""
        subject = self._subject
        if isinstance(subject, nn.Module):
            told = {key: getattr(getattr(subject, "config", None), key, None) for key in POSITIONS}
        else:
            told = {key: subject.get(key) for key in POSITIONS}
        return [positions for positions in told.values() if isinstance(positions, int) and positions > 0]

    def _traced(self, workload: Workload) -> Ledger:
        if workload in self._refused:
            raise self._refused[workload]
        self._require_budget(workload)
        try:
            followed = self._trace(workload)
        except HeadwiseError as error:
            self._refused[workload] = error
            self._num_events += self._most_events  # how far it came is not known
            raise
        if followed.is_regular:
            self._regular_seq = max(self._regular_seq, workload.seq)
        else:
            self._is_irregular = True
        self._num_events += followed.num_events if self._ledgers else 0
        self._most_events = max(self._most_events, followed.num_events)
        self._ledgers[workload] = followed.ledger
        return followed.ledger

    def _require_budget(self, workload: Workload) -> None:
        """Refuse a trace when enough was recorded; sizes of the first step are asked for last, and have a part."""
        assert self._first is not None
        is_of_sizes = workload == _sized_as(self._first, workload)
        most_traces = MAX_TRACES + is_of_sizes * MORE_TRACES
        most_events = MAX_EVENTS + is_of_sizes * MORE_EVENTS
        if len(self._ledgers) > most_traces or self._num_events >= most_events:
            raise OutOfTime(
                f"left out to answer in time: steps of {self.name} have to be traced, and {len(self._ledgers)} others "
                "were"
            )

    def _trace(self, workload: Workload) -> Followed:
        module = self._module(workload.seq)
        with explained(self.name):
            inputs = example_inputs(module, batch=workload.batch, seq=workload.seq)
            return follow_step(module, inputs, workload, is_regular=self._are_layers_regular(workload.seq))

    def _are_layers_regular(self, seq: int) -> bool | None:
        """Tell whether layers that look alike live alike at a length; None: not known.

        What looks at a layer's number may do so at long texts alone (a window).
        """
        if self._is_irregular:
            return False
        return True if seq <= self._regular_seq else None

    def _forward(self, workload: Workload) -> int:
        size = (workload.batch, workload.seq)
        if size not in self._forward_flops:
            module = self._module(workload.seq)
            with explained(self.name):
                inputs = example_inputs(module, batch=workload.batch, seq=workload.seq)
                self._forward_flops[size] = trace_flops(module, inputs).dense
        return self._forward_flops[size]

    def _module(self, seq: int) -> nn.Module:
        """Return the module in hand, or build it without weights, with positions for so many tokens."""
        subject = self._subject
        if isinstance(subject, nn.Module):
            return subject
        short = [key for key in POSITIONS if isinstance(subject.get(key), int) and subject[key] < seq]
        longer = tuple((key, seq) for key in short)
        if longer not in self._modules:
            self._modules = {longer: build_module({**subject, **dict(longer)}, name=self.name)}
        return self._modules[longer]


def _sized_as(workload: Workload, other: Workload) -> Workload:
    """Return a workload with the batch and the length of another."""
    return replace(workload, batch=other.batch, seq=other.seq)


def _resized(workload: Workload, field: str, size: int) -> Workload:
    """Return a workload of another batch or length."""
    return replace(workload, batch=size) if field == "batch" else replace(workload, seq=size)


def _in_float16(ledger: Ledger) -> Ledger:
    """Return a ledger of bfloat16 with float16 in its place."""
    entries = (replace(one, dtype="float16") if one.dtype == "bfloat16" else one for one in ledger.entries)
    return Ledger(moments=ledger.moments, entries=tuple(entries))
