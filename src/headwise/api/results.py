"""What the verbs answer with."""

from dataclasses import dataclass
from typing import Any

from headwise.cost.results import FitVerdict, FlopCount, ParameterCount, StepMemory
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
    """FLOPs of one forward pass, and of one training step (3 x forward: "model" FLOPs)."""

    forward: FlopCount
    train: FlopCount


@dataclass(frozen=True, kw_only=True)
class Count(Result):
    """What a model has and does, at one batch and length.

    `kv_cache_bytes` and `kv_cache_bytes_per_token` are None for encoders; `dtype` is the KV cache's. `notes` say what
    could not be known, and why.
    """

    model: ModelSummary
    batch: int
    seq: int
    dtype: str
    parameters: ParameterCount
    flops: FlopsByPhase | None
    kv_cache_bytes: int | None
    kv_cache_bytes_per_token: int | None
    notes: tuple[str, ...] = ()

    def to_text(self) -> str:
        """As the command line prints it."""
        from headwise.report.text import count_text

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
