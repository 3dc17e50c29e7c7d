"""Traced: the memory of a model's steps for planning, told by a trace where there is no closed form of its family."""

import time
from collections.abc import Mapping
from typing import Any

from torch import nn

from headwise.api.example import example_inputs
from headwise.api.running import explained
from headwise.config.model import ModelConfig
from headwise.cost.allocator import replay_ledger
from headwise.cost.flops import TRAIN_PER_FORWARD
from headwise.cost.planning.positions import with_positions
from headwise.cost.planning.setup import Setup
from headwise.cost.results import Ledger, StepMemory
from headwise.cost.tracing.flops import trace_flops
from headwise.cost.tracing.trace import step_memory, trace_step
from headwise.cost.workload import Workload
from headwise.errors import UnsupportedError
from headwise.loading.build import build_module

MAX_TRACES = 48  # enough for every single change, and a search for the largest batch and length
MAX_SECONDS = 20.0
REPLAYED_STEPS = 2  # the second finds segments that the first has cut
MAX_REPLAYED_ENTRIES = 150_000  # a few seconds
# Where a config says how many positions its model has. A longer text is traced with as many as it has tokens.
POSITIONS = ("max_position_embeddings", "n_positions", "max_target_positions", "max_source_positions", "n_ctx")


class Traced:
    """A `Predictor` for a model without a closed form: its module's own code runs without numbers.

    It tells what a workload changes: batch, length, precision, attention, optimizer, checkpointing, adapters. It cannot
    tell another model (fewer heads, a window) nor a step over several devices. Each workload is traced once, which
    takes seconds for a large model; so after some of them it refuses others, and the plan says what was left out.

    Args:
        subject: what a config.json says, or a module.
        name: what to call the model in errors.
        config: what is read of the subject, where its family is known: that of the setups. Default: nothing.
        max_traces: how many steps may be traced.
        max_seconds: how long tracing may take in all, as far as no single trace takes longer.
    """

    def __init__(
        self,
        subject: Mapping[str, Any] | nn.Module,
        name: str,
        *,
        config: ModelConfig | None = None,
        max_traces: int = MAX_TRACES,
        max_seconds: float = MAX_SECONDS,
    ):
        self.name, self.config = name, config
        self._subject = subject
        self._max_traces, self._max_seconds = max_traces, max_seconds
        self._seconds = 0.0
        self._ledgers: dict[Workload, Ledger] = {}
        self._refused: dict[Workload, UnsupportedError] = {}
        self._forward_flops: dict[tuple[int, int], int] = {}
        self._modules: dict[tuple[tuple[str, int], ...], nn.Module] = {}  # the latest one, by its longer tables

    def step(self, setup: Setup) -> StepMemory:
        """Return the totals of a step.

        Raises:
            UnsupportedError: the setup's model is not this one or is sharded, torch or the module cannot do what is
                asked for, or enough was traced.
            HeadwiseError: the module cannot be built or run.
        """
        return step_memory(self.ledger(setup))

    def ledger(self, setup: Setup) -> Ledger:
        """Return every tensor of a step.

        Raises:
            HeadwiseError: as of `step`.
        """
        workload = self._workload_of(setup)
        if workload in self._refused:
            raise self._refused[workload]
        if workload not in self._ledgers:
            self._require_budget()
            started = time.perf_counter()
            try:
                self._ledgers[workload] = self._trace(workload)
            except UnsupportedError as error:
                self._refused[workload] = error
                raise
            finally:
                self._seconds += time.perf_counter() - started
        return self._ledgers[workload]

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
        longer = None if self.config is None else with_positions(self.config, workload.seq)
        if setup.config not in (self.config, longer):
            raise UnsupportedError(f"a change of the model is told in closed form, and {self.name} has none")
        if workload.phase == "decode":
            raise UnsupportedError(f"a step against a cache is told in closed form, and {self.name} has none")
        if workload.kv_cache != "model":
            raise UnsupportedError(f"a narrower cache is told in closed form, and {self.name} has none")
        return workload

    def _require_budget(self) -> None:
        if len(self._ledgers) < self._max_traces and self._seconds < self._max_seconds:
            return
        raise UnsupportedError(
            f"left out to answer in time: steps of {self.name} have to be traced, and {len(self._ledgers)} others were "
            f"in {self._seconds:.0f} s"
        )

    def _trace(self, workload: Workload) -> Ledger:
        module = self._module(workload.seq)
        with explained(self.name):
            inputs = example_inputs(module, batch=workload.batch, seq=workload.seq)
            return trace_step(module, inputs, workload)

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
