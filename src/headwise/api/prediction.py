"""The memory of a step from its config, where there is a closed form of it."""

from dataclasses import replace

from headwise.config.model import ModelConfig
from headwise.cost.memory import predict_step
from headwise.cost.reserved import predict_reserved
from headwise.cost.results import StepMemory
from headwise.cost.step.models import FAMILIES
from headwise.cost.workload import Workload
from headwise.errors import UnsupportedError

NO_CLOSED_FORM = "There is no closed form of the memory of a step of {} with this setting: it is not predicted."


def predict(config: ModelConfig | None, workload: Workload) -> StepMemory | None:
    """Predict the memory of a step; None where there is no config, or no closed form of its kind."""
    try:
        return None if config is None else predict_step(config, workload)
    except UnsupportedError:
        return None


def reserved(config: ModelConfig, workload: Workload) -> int | None:
    """Predict what torch's CUDA allocator reserves for a step; None on a CPU, and where it cannot be replayed."""
    try:
        return predict_reserved(config, workload) if workload.device == "cuda" else None
    except UnsupportedError:
        return None


def with_usual_attention(config: ModelConfig | None, workload: Workload) -> Workload:
    """Return the workload with the attention that transformers gives the family by itself: sdpa if it has that."""
    family = FAMILIES.get(config.model_type) if config else None
    return replace(workload, attention="eager") if family and not family.has_sdpa else workload
