"""ClosedForm: memory and FLOPs of a setup told from its config alone, without torch."""

from collections.abc import Iterator
from functools import lru_cache

from headwise.config.model import ModelConfig
from headwise.cost.allocator import replay
from headwise.cost.memory import predict_ledger, predict_step
from headwise.cost.outline import Outline, predict_outline
from headwise.cost.planning.positions import with_positions
from headwise.cost.planning.setup import OutOfTime, Setup
from headwise.cost.reserved import Event, repeated_events
from headwise.cost.results import Ledger, StepMemory
from headwise.cost.sharding.predict import (
    predict_sharded_ledger,
    predict_sharded_outline,
    predict_sharded_step,
    sharded_events,
)
from headwise.cost.step.cycles import count_played
from headwise.cost.step_flops import step_flops
from headwise.errors import UnsupportedError

MAX_STEPS = 4096  # totals that are remembered: a plan asks for a few hundred
MAX_LEDGERS = 32  # whole ledgers are large
QUICK_LAYERS = 24
"""Of published models fewer layers are played to tell a step: the others repeat them."""
MAX_SLOW_LAYERS = 2500
"""Layers beyond those that are played for one answer: some seconds."""


class ClosedForm:
    """The closed forms as a `Predictor`. What was told once is remembered.

    Of a deep model whose layers do not repeat a step takes long to tell. Few are told then, the same on every machine:
    the first in any case; when, for others, `MAX_SLOW_LAYERS` have been played others are refused.
    """

    def __init__(self) -> None:
        self._steps = lru_cache(MAX_STEPS)(self._step)
        self._outlines = lru_cache(MAX_LEDGERS)(self._outline)
        self._ledgers = lru_cache(MAX_LEDGERS)(self._ledger)
        self._first: Setup | None = None
        self._slow_layers = 0  # that were played for others

    def step(self, setup: Setup) -> StepMemory:
        """Return the totals of one device.

        Raises:
            UnsupportedError, ConfigError: as of `predict_step`, and of `predict_sharded_step`.
            OutOfTime: enough layers were played.
        """
        return self._steps(setup)

    def ledger(self, setup: Setup) -> Ledger:
        """Return every tensor of one device.

        Raises:
            UnsupportedError, ConfigError: as of `predict_ledger`, and of `predict_sharded_ledger`.
            OutOfTime: as of `step`.
        """
        return self._ledgers(setup)

    def outline(self, setup: Setup) -> Outline:
        """Return the ledger of one device in short.

        Raises:
            UnsupportedError, ConfigError: as of `ledger`.
            OutOfTime: as of `step`.
        """
        return self._outlines(setup)

    def reserved(self, setup: Setup, capacity_bytes: int | None = None) -> int | None:
        """Return what torch's CUDA allocator reserves at most for two steps.

        Args:
            setup: what is replayed.
            capacity_bytes: most bytes that it can get. Default: no limit.

        Returns:
            The bytes; None where they do not fit the capacity, for a step on a CPU, and for more layers than are
            replayed.
        """
        if setup.workload.device != "cuda":
            return None
        try:
            replayed = replay(setup_events(setup), capacity_bytes=capacity_bytes)
        except UnsupportedError:
            return None
        return None if replayed.out_of_memory else replayed.reserved_peak_bytes

    def flops(self, setup: Setup) -> int | None:
        """Return the dense FLOPs that one optimizer step runs, over all devices."""
        config, workload = _config_of(setup), setup.workload
        return step_flops(config, workload).hardware.dense * setup.num_copies

    def _step(self, setup: Setup) -> StepMemory:
        config = self._affordable(setup)
        if setup.sharding is None:
            return predict_step(config, setup.workload)
        return predict_sharded_step(config, setup.workload, setup.sharding)

    def _ledger(self, setup: Setup) -> Ledger:
        config = self._affordable(setup)
        if setup.sharding is None:
            return predict_ledger(config, setup.workload)
        return predict_sharded_ledger(config, setup.workload, setup.sharding)

    def _outline(self, setup: Setup) -> Outline:
        config = self._affordable(setup)
        if setup.sharding is None:
            return predict_outline(config, setup.workload)
        return predict_sharded_outline(config, setup.workload, setup.sharding)

    def _affordable(self, setup: Setup) -> ModelConfig:
        """Return the config of a setup whose layers may be played, and count them."""
        config = _config_of(setup)
        self._first = self._first or setup
        num_played = count_played(config, setup.workload)
        if num_played > QUICK_LAYERS and setup != self._first:
            if self._slow_layers >= MAX_SLOW_LAYERS:
                raise OutOfTime(
                    f"left out to answer in time: {num_played} layers of {config.name} differ from those before them, "
                    "and all are played to tell a step"
                )
            self._slow_layers += num_played
        return config


def _config_of(setup: Setup) -> ModelConfig:
    """Return the config of a setup, with a position table that its length fits."""
    if setup.config is None:
        raise UnsupportedError("a closed form needs the config of the model; got none: trace the module")
    return with_positions(setup.config, setup.workload.seq)


def setup_events(setup: Setup) -> Iterator[Event]:
    """Give the allocations and frees of a setup, as of `repeated_events`, or `sharded_events`."""
    config = _config_of(setup)
    if setup.sharding is None:
        return repeated_events(config, setup.workload)
    return sharded_events(config, setup.workload, setup.sharding)
