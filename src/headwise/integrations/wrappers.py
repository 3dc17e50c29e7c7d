"""Modules that only run another one: compiled, or spread over devices."""

from torch import nn


def unwrapped(module: nn.Module) -> nn.Module:
    """Return the module inside torch.compile's, nn.DataParallel's or DistributedDataParallel's wrapper, or itself."""
    while True:
        inner = getattr(module, "_orig_mod", None)
        if inner is None and isinstance(module, nn.DataParallel | nn.parallel.DistributedDataParallel):
            inner = module.module
        if not isinstance(inner, nn.Module):
            return module
        module = inner
