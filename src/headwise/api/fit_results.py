"""What `fit` and `oom` answer with."""

from dataclasses import dataclass
from typing import Any, Literal

from headwise.api.results import ModelSummary
from headwise.cost.oom.results import Candidate, OomKind, OomMessage
from headwise.cost.planning.results import Change, Fits, Moment, Path, Sweep, TimeEstimate
from headwise.cost.results import Device, Ledger, LedgerEntry, Unmodelled
from headwise.cost.sharding.results import Sharding
from headwise.cost.workload import Workload
from headwise.kernels import KernelChoice
from headwise.results import Result


@dataclass(frozen=True, kw_only=True)
class VerifiedChange(Result):
    """One change made to a small model of the same build and run here: what the peak and saved bytes are before it.

    `key`: that of the change, "base" for the step without any. `tolerance`: within which share predicted and measured
    must agree.
    """

    key: str
    change: str
    predicted_peak_bytes: int
    measured_peak_bytes: int
    predicted_saved_bytes: int
    measured_saved_bytes: int
    tolerance: float
    holds: bool


@dataclass(frozen=True, kw_only=True)
class FitVerification(Result):
    """The changes that can be made here, on a small model of the same build with random weights, run on this CPU."""

    model: ModelSummary
    workload: Workload
    changes: tuple[VerifiedChange, ...]
    notes: tuple[str, ...] = ()

    @property
    def holds(self) -> bool:
        """Whether every change does what is predicted."""
        return all(change.holds for change in self.changes)

    def to_dict(self) -> dict[str, Any]:
        """As every result, with the verdict."""
        return {"holds": self.holds, **super().to_dict()}


@dataclass(frozen=True, kw_only=True)
class TrackedStep(Result):
    """One step that was tracked and kept: what was predicted, and what was measured.

    `when`: UTC, ISO 8601. `measured_peak_bytes`: of tensors. `measured_allocated_bytes`, `measured_reserved_bytes`: of
    torch's CUDA allocator in all of the block, whatever else it held included; None on a CPU.
    """

    when: str
    model: str
    device: str
    batch: int | None
    seq: int | None
    predicted_peak_bytes: int | None
    measured_peak_bytes: int
    predicted_reserved_bytes: int | None = None
    measured_reserved_bytes: int | None = None
    measured_allocated_bytes: int | None = None

    @property
    def error(self) -> float | None:
        """Share by which the predicted peak is above the measured one; None where nothing was predicted."""
        if self.predicted_peak_bytes is None or not self.measured_peak_bytes:
            return None
        return self.predicted_peak_bytes / self.measured_peak_bytes - 1


@dataclass(frozen=True, kw_only=True)
class TrackedAccuracy(Result):
    """How near predictions came on one device: over its tracked steps whose peak was predicted, None without any.

    `median_error`: of the sizes of the relative errors of the peak. `worst_error`: the largest with its sign, above 0
    where more was predicted than measured.
    """

    device: str
    num_steps: int
    num_predicted: int
    median_error: float | None
    worst_error: float | None


@dataclass(frozen=True, kw_only=True)
class FitPlan(Result):
    """Does a step fit a device, what is it that fills it, and which single change frees how much.

    `spare_bytes`: capacity - (reserved bytes + the upper bound of what is not modelled); negative where that is more.
    `peak_label`: the moment of the peak in words. `largest`: the largest tensors alive then. `timeline`: the bytes at
    every moment. `ledger`: every tensor; its moments are those of the timeline. `kernel`: torch's kernel for the first
    layer that attends, None with eager attention. `changes`: ranked. `path`: the shortest list of changes that makes
    it fit, empty where it fits or none does. `paths`: others as short, and where one change is enough, the pairs that
    leave the batch and the length as they are. `largest_batch`, `largest_seq`: that fit, the other as it is; 0: none.
    `largest_image`: pixels a side, of a model of images of any size; None of others, and where it was not found.
    `history`: tracked steps, `accuracy`: of all of them by device. `source_of`: "config" (closed form) or "trace".
    """

    model: ModelSummary
    workload: Workload
    sharding: Sharding | None
    device: Device
    fits: Fits
    reason: str
    peak_bytes: int
    reserved_bytes: int | None
    capacity_bytes: int
    spare_bytes: int
    peak_moment: str
    peak_label: str
    largest: tuple[LedgerEntry, ...]
    timeline: tuple[Moment, ...]
    ledger: Ledger
    kernel: KernelChoice | None
    changes: tuple[Change, ...]
    path: tuple[str, ...]
    paths: tuple[Path, ...]
    largest_batch: int | None
    largest_seq: int | None
    unmodelled: tuple[Unmodelled, ...]
    time: TimeEstimate | None
    largest_image: int | None = None
    sweep: Sweep | None = None
    verification: FitVerification | None = None
    history: tuple[TrackedStep, ...] = ()
    accuracy: tuple[TrackedAccuracy, ...] = ()
    source_of: Literal["config", "trace"] = "config"
    page: str | None = None
    notes: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """As every result, with `ledger` a list of tensors: its moments are those of the timeline."""
        result = super().to_dict()
        result["ledger"] = result["ledger"]["entries"]
        return result

    def to_text(self) -> str:
        """As the command line prints it."""
        from headwise.report.fit import fit_text

        return fit_text(self)


@dataclass(frozen=True, kw_only=True)
class OomAnswer(Result):
    """What an out-of-memory message is about, and what to change.

    `kind`: what kind of failure it is, `evidence`: the figures that say so. `requested_bytes`: what was asked for, the
    middle of the message's rounding. `advice`: what to do about that kind.
    `candidates`: tensors of the size that was asked for, the likeliest first. `alive`: the largest tensors alive when
    the likeliest candidate is made; `peak_moment`: when that is. `changes`: as of `fit`, for the likeliest candidate's
    batch and length; empty without a model. `path`: the shortest list of them that makes it fit, in words;
    `path_peak_bytes`: the peak that it leaves.
    """

    kind: OomKind
    requested_bytes: int | None
    message: OomMessage
    evidence: tuple[str, ...]
    advice: tuple[str, ...]
    candidates: tuple[Candidate, ...]
    model: ModelSummary | None = None
    workload: Workload | None = None
    peak_moment: str | None = None
    alive: tuple[LedgerEntry, ...] = ()
    changes: tuple[Change, ...] = ()
    path: tuple[str, ...] = ()
    path_peak_bytes: int | None = None
    notes: tuple[str, ...] = ()

    def to_text(self) -> str:
        """As the command line prints it."""
        from headwise.report.oom import oom_text

        return oom_text(self)
