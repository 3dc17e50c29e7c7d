"""The config of a module in hand, read off the module itself: nothing of it is copied or run."""

from typing import Any

from torch import nn

from headwise.config.huggingface import read_config
from headwise.config.model import ModelConfig

WRAPPED_AS = ("module", "_orig_mod")  # how DataParallel and its like, and torch.compile, hold what they wrap
MAX_WRAPPERS = 8


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
