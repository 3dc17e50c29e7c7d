"""The config of a module in hand, and how it computes, read off the module itself: nothing of it is copied or run."""

from typing import Any

import torch
from torch import nn

from headwise.config.huggingface import read_config
from headwise.config.model import ModelConfig

WRAPPED_AS = ("module", "_orig_mod")  # how DataParallel and its like, and torch.compile, hold what they wrap
MAX_WRAPPERS = 8
_PRECISIONS = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}


def unwrap(module: nn.Module) -> nn.Module:
    """Return the module inside wrappers that spread or compile it."""
    for _ in range(MAX_WRAPPERS):
        parts = (getattr(module, name, None) for name in WRAPPED_AS)
        inner = next((part for part in parts if isinstance(part, nn.Module)), None)
        if inner is None or hasattr(module, "config"):
            break
        module = inner
    return module


def config_of(module: nn.Module) -> ModelConfig | None:
    """Read the Hugging Face config that a module carries; None where it has none, or is of a family not known here."""
    inner = unwrap(module)
    config: Any = getattr(inner, "config", None)
    if not hasattr(config, "to_dict"):
        return None
    name = type(inner).__name__
    try:
        return read_config({**config.to_dict(), "architectures": [name]}, name=name)
    except Exception:  # an unknown family; or a config of a user's own class, which may raise anything
        return None


def attention_of(module: nn.Module) -> str | None:
    """Return the attention that a model of transformers runs, "sdpa" or "eager"; None: another one, or not told."""
    config: Any = getattr(unwrap(module), "config", None)
    attention = getattr(config, "_attn_implementation", None)
    return attention if attention in ("sdpa", "eager") else None


def is_checkpointed(module: nn.Module) -> bool:
    """Tell whether a model of transformers checkpoints its layers, which it does in training alone."""
    return bool(getattr(unwrap(module), "is_activation_checkpointing", False)) and module.training


def precision_of(module: nn.Module, autocast_dtype: torch.dtype | None) -> str | None:
    """Return what a `Workload` calls the precision; None where it has no name for it.

    Args:
        module: its weights say their dtype.
        autocast_dtype: what torch's autocast computes in; None: it is off.
    """
    dtypes = {parameter.dtype for parameter in module.parameters()}
    dtype = dtypes.pop() if len(dtypes) == 1 else None
    if dtype not in _PRECISIONS:
        return None
    if autocast_dtype is None:
        return _PRECISIONS[dtype]
    if dtype is not torch.float32 or autocast_dtype not in (torch.bfloat16, torch.float16):
        return None
    return f"amp-{_PRECISIONS[autocast_dtype]}"


def autocast_dtype_on(device_type: str) -> torch.dtype | None:
    """Return what torch's autocast computes in on a kind of device; None: it is off."""
    is_on = torch.amp.is_autocast_available(device_type) and torch.is_autocast_enabled(device_type)
    return torch.get_autocast_dtype(device_type) if is_on else None
