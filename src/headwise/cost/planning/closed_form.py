"""ClosedForm: memory and FLOPs of a setup told from its config alone, without torch."""

from collections.abc import Iterator
from functools import lru_cache

from headwise.config.model import ModelConfig
from headwise.cost.allocator import replay
from headwise.cost.memory import predict_ledger, predict_step
from headwise.cost.planning.setup import Setup
from headwise.cost.reserved import Event, step_events
from headwise.cost.results import Ledger, StepMemory
from headwise.cost.sharding.predict import predict_sharded_ledger, predict_sharded_step, sharded_events
from headwise.cost.step_flops import step_flops
from headwise.errors import UnsupportedError

MAX_STEPS = 4096  # totals that are remembered: a plan asks for a few hundred
MAX_LEDGERS = 32  # whole ledgers are large


class ClosedForm:
    """The closed forms as a `Predictor`. What was told once is remembered."""

    def __init__(self) -> None:
        self._steps = lru_cache(MAX_STEPS)(_step)
        self._ledgers = lru_cache(MAX_LEDGERS)(_ledger)

    def step(self, setup: Setup) -> StepMemory:
        """Return the totals of one device.

        Raises:
            UnsupportedError, ConfigError: as of `predict_step`, and of `predict_sharded_step`.
        """
        return self._steps(setup)

    def ledger(self, setup: Setup) -> Ledger:
        """Return every tensor of one device.

        Raises:
            UnsupportedError, ConfigError: as of `predict_ledger`, and of `predict_sharded_ledger`.
        """
        return self._ledgers(setup)

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


def _config_of(setup: Setup) -> ModelConfig:
    if setup.config is None:
        raise UnsupportedError("a closed form needs the config of the model; got none: trace the module")
    return setup.config


def setup_events(setup: Setup) -> Iterator[Event]:
    """Give the allocations and frees of a setup, as of `step_events`, or `sharded_events`."""
    config = _config_of(setup)
    if setup.sharding is None:
        return step_events(config, setup.workload)
    return sharded_events(config, setup.workload, setup.sharding)


def _step(setup: Setup) -> StepMemory:
    config = _config_of(setup)
    if setup.sharding is None:
        return predict_step(config, setup.workload)
    return predict_sharded_step(config, setup.workload, setup.sharding)


def _ledger(setup: Setup) -> Ledger:
    config = _config_of(setup)
    if setup.sharding is None:
        return predict_ledger(config, setup.workload)
    return predict_sharded_ledger(config, setup.workload, setup.sharding)
