"""What planning answers with: changes, moments, estimates and sweeps."""

from dataclasses import dataclass
from typing import Literal

from headwise.cost.sharding.results import Travel
from headwise.results import Result

Fits = Literal["yes", "tight", "no"]
ListName = Literal["same", "alters"]


@dataclass(frozen=True, kw_only=True)
class Change(Result):
    """One change of a setup, and what it does to the peak of the step.

    `key`: a short stable name. `change`: in words. `list`: "same" (the same model, batch and mathematics, but for
    rounding) or "alters" (another model, batch or approximation). `frees_bytes`: peak before - peak after, negative
    where it takes more. `extra_flops_fraction`: of the FLOPs that a step runs for each token, so that a smaller batch
    is not fewer FLOPs; negative where it runs fewer, None where they are not known. `applies`: False where it cannot be
    made here: nothing is freed, and `why` says the reason. `why`: also why a change that can be made frees nothing, or
    less than expected. `travels`: what each device sends to others in one optimizer step, of a sharding. `other_gpus`:
    how many devices it takes beside the one.
    """

    key: str
    change: str
    list: ListName
    applies: bool
    frees_bytes: int
    peak_bytes: int | None
    extra_flops_fraction: float | None
    fits: Fits | None
    why: str | None = None
    travels: tuple[Travel, ...] = ()
    other_gpus: int = 0


@dataclass(frozen=True, kw_only=True)
class Path(Result):
    """Changes made together: which ones, by key and in words, and what the step needs with them."""

    keys: tuple[str, ...]
    changes: tuple[str, ...]
    list: ListName
    peak_bytes: int
    extra_flops_fraction: float | None
    fits: Fits


@dataclass(frozen=True, kw_only=True)
class Moment(Result):
    """Bytes alive at one moment of a step, by kind; the KV cache apart, of whichever kind its tensors are."""

    moment: str
    parameter: int
    gradient: int
    optimizer: int
    saved: int
    temporary: int
    input: int
    kv_cache: int = 0

    @property
    def total(self) -> int:
        """All of them."""
        kept = self.parameter + self.gradient + self.optimizer + self.saved
        return kept + self.temporary + self.input + self.kv_cache


@dataclass(frozen=True, kw_only=True)
class TimeEstimate(Result):
    """The least time of a step by the roofline: the longer of computing and of moving bytes, phase by phase.

    `seconds`: sum over the phases. `flops_seconds`: FLOPs / peak rate. `bytes_seconds`: bytes moved / bandwidth.
    `binds`: which of the two is the longer over the step. A real step takes longer: kernels reach a share of each.

    Source: Williams, Waterman and Patterson 2009, "Roofline".
    """

    seconds: float
    flops_seconds: float
    bytes_seconds: float
    binds: Literal["FLOPs", "bandwidth"]
    flops: int
    moved_bytes: int
    flops_per_second: float
    bytes_per_second: float
    source: str


@dataclass(frozen=True, kw_only=True)
class SweepPoint(Result):
    """The step at one batch and length."""

    batch: int
    seq: int
    peak_bytes: int
    fits: Fits


@dataclass(frozen=True, kw_only=True)
class FrontierPoint(Result):
    """The largest length that fits at a batch; None: not even one token does. `is_limit`: the search ended there."""

    batch: int
    largest_seq: int | None
    is_limit: bool = False


@dataclass(frozen=True, kw_only=True)
class Sweep(Result):
    """Steps over a grid of batches and lengths, and for each batch the largest length that fits."""

    points: tuple[SweepPoint, ...]
    frontier: tuple[FrontierPoint, ...]
