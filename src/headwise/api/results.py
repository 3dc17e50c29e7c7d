"""What the verbs answer with."""

from dataclasses import dataclass, fields
from typing import Any, Literal

from headwise.cost.results import (
    FitVerdict,
    FlopCount,
    KvLayer,
    LayerKind,
    MacCount,
    ParameterCount,
    StepMemory,
)
from headwise.cost.workload import Workload
from headwise.inspection.results import Inspection
from headwise.results import Result


@dataclass(frozen=True, kw_only=True)
class ModelSummary(Result):
    """Which model this is, in the words of its config; None where a module does not say."""

    name: str
    source: str
    model_type: str | None
    num_layers: int | None
    num_heads: int | None
    num_kv_heads: int | None
    embed_dim: int | None
    head_dim: int | None
    max_positions: int | None


@dataclass(frozen=True, kw_only=True)
class FlopsByPhase(Result):
    """FLOPs of one forward pass, of one training step and of one more token; None where they are not known.

    `train`: "model" FLOPs, 3 x forward. `backward`, `recomputed` and `hardware` are what the step really runs, with
    what checkpointing and fused kernels compute again. `decode`: one more token of each text against a cache of all.
    """

    forward: FlopCount
    train: FlopCount
    backward: FlopCount | None = None
    recomputed: FlopCount | None = None
    hardware: FlopCount | None = None
    decode: FlopCount | None = None

    @property
    def macs(self) -> "MacsByPhase":
        """The same in multiply-adds: half as many."""
        counts: dict[str, FlopCount | None] = {field.name: getattr(self, field.name) for field in fields(self)}
        macs: dict[str, Any] = {name: None if count is None else count.macs for name, count in counts.items()}
        return MacsByPhase(**macs)


@dataclass(frozen=True, kw_only=True)
class MacsByPhase(Result):
    """`FlopsByPhase` in multiply-adds (MACs): FLOPs / 2."""

    forward: MacCount
    train: MacCount
    backward: MacCount | None = None
    recomputed: MacCount | None = None
    hardware: MacCount | None = None
    decode: MacCount | None = None


@dataclass(frozen=True, kw_only=True)
class ComparedFigure(Result):
    """One figure on the independent paths, None where a path does not give it.

    `holds`: whether the paths agree as far as they are said to: within `tolerance`, a share of the last one.
    """

    what: str
    closed_form: int | None
    traced: int | None
    measured: int | None
    tolerance: float
    holds: bool


@dataclass(frozen=True, kw_only=True)
class Verification(Result):
    """The paths compared on a small model of the same build, with random weights, on this machine."""

    model: ModelSummary
    workload: Workload
    figures: tuple[ComparedFigure, ...]
    notes: tuple[str, ...] = ()

    @property
    def holds(self) -> bool:
        """Whether every figure agrees."""
        return all(figure.holds for figure in self.figures)

    def to_dict(self) -> dict[str, Any]:
        """As every result, with the verdict."""
        return {"holds": self.holds, **super().to_dict()}


@dataclass(frozen=True, kw_only=True)
class Count(Result):
    """What a model has and does, at one batch and length.

    `kv_cache_bytes`, `kv_cache_bytes_per_token` and `kv_layers` are None or empty for encoders; `dtype` is the KV
    cache's. `memory` is that of one step of `workload`, derived for a GPU where its device is "cuda". `source_of` says
    where the figures come from: "config" (closed forms), "trace" (the module's own code on tensors without
    numbers), or "module" (its code run). `macs` and `verification` are given on request. `notes` say what could not be
    known, and why.
    """

    model: ModelSummary
    batch: int
    seq: int
    dtype: str
    parameters: ParameterCount
    flops: FlopsByPhase | None
    kv_cache_bytes: int | None
    kv_cache_bytes_per_token: int | None
    kv_layers: tuple[KvLayer, ...] = ()
    layers: tuple[LayerKind, ...] = ()
    memory: StepMemory | None = None
    workload: Workload | None = None
    source_of: Literal["config", "trace", "module"] = "config"
    macs: MacsByPhase | None = None
    verification: Verification | None = None
    notes: tuple[str, ...] = ()

    def to_text(self) -> str:
        """As the command line prints it."""
        from headwise.report.count import count_text

        return count_text(self)


@dataclass(frozen=True, kw_only=True)
class ParametersSection(Result):
    """Parameters from the config alone, and from the module itself; None = that path was not open, `notes` says why."""

    predicted: ParameterCount | None
    counted: ParameterCount | None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class FlopsSection(Result):
    """FLOPs of a forward pass and of a training step (3 x forward), predicted; of a forward pass, counted as it ran."""

    forward: FlopCount | None
    train: FlopCount | None
    counted_forward: FlopCount | None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class MemorySection(Result):
    """Memory of a training step: predicted for this machine, measured on it, and whether it fits a device.

    Gaps are (predicted - measured) / measured, in percent. `predicted_for` is the device that `predicted` is for: this
    machine's CPU where a step was measured beside it; `fit` is about `fit.device`, whose kernels may differ. The KV
    cache is in `kv_cache_dtype`, the config's own or else bfloat16; all else is in the workload's precision.
    """

    predicted: StepMemory | None
    predicted_for: str | None
    measured: StepMemory | None
    saved_gap_percent: float | None
    peak_gap_percent: float | None
    kv_cache_bytes: int | None
    kv_cache_bytes_per_token: int | None
    kv_cache_dtype: str | None
    score_matrix_bytes: int | None
    fit: FitVerdict | None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Report(Result):
    """One model: what its attention costs, whether it fits, what its heads do."""

    model: ModelSummary
    workload: Workload
    parameters: ParametersSection
    flops: FlopsSection
    memory: MemorySection
    heads: Inspection | None
    heads_notes: tuple[str, ...] = ()
    seconds: float | None = None
    page: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """As every result, with `heads` a list of heads (or None): the maps belong to the page."""
        result = super().to_dict()
        inspection = result.pop("heads")
        result["heads"] = inspection and inspection.pop("heads")
        if inspection:
            del inspection["maps"]
        result["text"] = inspection
        return result

    def to_text(self) -> str:
        """As the command line prints it."""
        from headwise.report.text import report_text

        return report_text(self)
