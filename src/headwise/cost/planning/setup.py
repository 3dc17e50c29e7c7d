"""Setup: a model, what is asked of it, and over how many devices it is spread. The thing that a change changes."""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from headwise.config.model import ModelConfig
from headwise.cost.outline import Outline
from headwise.cost.results import Ledger, StepMemory
from headwise.cost.sharding.results import DATA_PARALLEL, Sharding
from headwise.cost.workload import Workload
from headwise.errors import UnsupportedError

TEXT_PARALLEL = ("sequence", "context")
"""Shardings under which each device has an equal part of every text."""


@dataclass(frozen=True, kw_only=True)
class Setup:
    """A step on paper. With a sharding, the workload is that of each device.

    `config`: the model as it is read; a length beyond its position table is predicted with a longer one. None for a
    model of a family that is read nowhere: a trace alone tells of it, and no change of the model.
    """

    config: ModelConfig | None
    workload: Workload
    sharding: Sharding | None = None

    @property
    def num_copies(self) -> int:
        """How many devices work on texts of their own."""
        sharding = self.sharding
        return sharding.num_devices if sharding is not None and sharding.kind in DATA_PARALLEL else 1

    @property
    def length_step(self) -> int:
        """Which multiples a length must be: of the devices, where they have equal parts of a text."""
        sharding = self.sharding
        return sharding.num_devices if sharding is not None and sharding.kind in TEXT_PARALLEL else 1

    @property
    def num_tokens(self) -> int:
        """Tokens that one step goes over, on all devices: of a decode, the one that each text grows by."""
        workload = self.workload
        length = 1 if workload.phase == "decode" else workload.seq
        return workload.batch * length * workload.accumulation * self.num_copies


class OutOfTime(UnsupportedError):  # noqa: N818  what it is
    """A predictor that takes long has told enough; what is asked now is left out, so that the answer comes in time."""


@runtime_checkable
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

    def outline(self, setup: Setup) -> Outline:
        """Return the bytes at each moment of one device, and what fills the peak: a ledger in short."""
        ...

    def reserved(self, setup: Setup, capacity_bytes: int | None = None) -> int | None:
        """Return what torch's CUDA allocator reserves within a capacity; None where it does not fit or is not known."""
        ...

    def flops(self, setup: Setup) -> int | None:
        """Return the dense FLOPs that one optimizer step runs, over all devices; None where they are not known."""
        ...
