"""The memory of a step from its config, where there is a closed form of it."""

from dataclasses import replace

from headwise.config.linear import LinearAttentionConfig
from headwise.config.model import ModelConfig
from headwise.cost.memory import predict_step
from headwise.cost.reserved import predict_reserved
from headwise.cost.results import StepMemory
from headwise.cost.step.layer_kernel import kernel_of as kernel_of_layer
from headwise.cost.step.models import FAMILIES
from headwise.cost.workload import Workload
from headwise.errors import UnsupportedError
from headwise.kernels import KernelChoice

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


def kernel_of(config: ModelConfig, workload: Workload) -> KernelChoice | None:
    """Return the kernel of the first layer that attends through sdpa, torch's or our own; None where none does."""
    layers = (block.attention for block in config.blocks)
    attention = next((layer for layer in layers if not isinstance(layer, LinearAttentionConfig)), None)
    if workload.attention != "sdpa" or attention is None:
        return None
    return kernel_of_layer(config.model_type, attention, workload)


def kernel_note(place: str, kernel: KernelChoice) -> str:
    """Say which kernel attention runs somewhere, and why not a faster one."""
    why = f" ({'; '.join(kernel.reasons)})" if kernel.reasons else ""
    what = "as plain tensor operations" if kernel.name == "reference" else f"torch's {kernel.name} kernel"
    return f"On {place} attention runs {what}{why}."


def with_usual_attention(config: ModelConfig | None, workload: Workload) -> Workload:
    """Return the workload with the attention that transformers gives the family by itself: sdpa if it has that."""
    family = FAMILIES.get(config.model_type) if config else None
    return replace(workload, attention="eager") if family and not family.has_sdpa else workload
