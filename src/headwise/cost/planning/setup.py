"""Setup: a model, what is asked of it, and over how many devices it is spread. The thing that a change changes."""

from dataclasses import dataclass
from typing import Protocol

from headwise.config.model import ModelConfig
from headwise.cost.results import Ledger, StepMemory
from headwise.cost.sharding.results import Sharding
from headwise.cost.workload import Workload


@dataclass(frozen=True, kw_only=True)
class Setup:
    """A step on paper. With a sharding, the workload is that of each device."""

    config: ModelConfig
    workload: Workload
    sharding: Sharding | None = None


class Predictor(Protocol):
    """How the memory and FLOPs of a setup are told: in closed form, or by a trace.

    Each raises a HeadwiseError for a setup that it cannot tell.
    """

    def step(self, setup: Setup) -> StepMemory:
        """Return the totals of one device: parameters, saved bytes, peak."""
        ...

    def ledger(self, setup: Setup) -> Ledger:
        """Return every tensor of one device."""
        ...

    def reserved(self, setup: Setup, capacity_bytes: int | None = None) -> int | None:
        """Return what torch's CUDA allocator reserves within a capacity; None where it does not fit or is not known."""
        ...

    def flops(self, setup: Setup) -> int | None:
        """Return the dense FLOPs that one optimizer step runs, over all devices; None where they are not known."""
        ...
