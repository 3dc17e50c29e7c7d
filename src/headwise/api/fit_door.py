"""What `fit` is given, checked once: the device, the fields of the step, the ranges of a sweep, the flags and paths."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from headwise.config.checks import require_choice, require_flag, require_size, shown
from headwise.config.model import ModelConfig
from headwise.cost.adapters import require_targets
from headwise.cost.devices import HERE, custom_device, find_device
from headwise.cost.results import Device
from headwise.cost.sharding.results import MAX_DEVICES, SHARDINGS
from headwise.cost.workload import Lora, Workload
from headwise.errors import ConfigError

OWN = {"batch", "seq"}
"""Fields of a workload that are parameters of `fit` itself."""

LORA_TARGETS = ("q_proj", "v_proj")
"""What `lora_rank` adapts."""


def check_step(step: Mapping[str, Any], *, lora_rank: int | None) -> None:
    """Raise ConfigError unless every name is a field of `Workload`; its values are checked there."""
    known = [field.name for field in fields(Workload) if field.name not in OWN]
    unknown = [name for name in step if name not in known]
    if unknown:
        raise ConfigError(f"fields of a step must be among {', '.join(known)}; got {', '.join(unknown)}")
    if lora_rank is None:
        return
    require_size("lora_rank", lora_rank)
    if step.get("lora") is not None:
        raise ConfigError("lora_rank must be left out beside lora, which has a rank of its own")


def adapters_of(config: ModelConfig | None, lora_rank: int | None) -> Lora | None:
    """Return the adapters that `lora_rank` asks for.

    Raises:
        ConfigError: the model has no such projections.
    """
    if lora_rank is None:
        return None
    lora = Lora(rank=lora_rank, targets=LORA_TARGETS)
    if config is not None:
        try:
            require_targets(config, lora)
        except ConfigError:
            raise ConfigError(
                f"lora_rank needs a model that projects queries and values from its tokens, {', '.join(LORA_TARGETS)}; "
                f"{config.name} does not: leave it out, or name other projections in Python, lora=headwise.Lora(...)"
            ) from None
    return lora


def check_devices(num_gpus: object, *, shard: object = None) -> None:
    """Raise ConfigError unless these are devices to spread a step over, and a way of doing it."""
    require_size("num_gpus", num_gpus, minimum=2, maximum=MAX_DEVICES)
    if shard is not None:
        require_choice("shard", shard, SHARDINGS)


def check_flags(**flags: object) -> None:
    """Raise ConfigError unless each is True or False."""
    for name, value in flags.items():
        require_flag(name, value)


def check_paths(**paths: object) -> None:
    """Raise ConfigError unless each is a path, or None."""
    for name, path in paths.items():
        if path is not None and not isinstance(path, str | os.PathLike):
            raise ConfigError(f"{name} must be a path; got {shown(path)}")


def check_progress(progress: object) -> None:
    """Raise ConfigError unless it can be called."""
    if progress is not None and not callable(progress):
        raise ConfigError(f"progress must be a function of a text and two numbers; got {shown(progress)}")


def check_sweep(sweep: object) -> None:
    """Raise ConfigError unless ranges come in a sequence of texts: a text alone is a sequence too, of letters."""
    is_sequence = isinstance(sweep, Sequence) and not isinstance(sweep, str | bytes)
    if sweep is not None and not (is_sequence and all(isinstance(text, str) for text in sweep)):  # type: ignore[attr-defined]
        raise ConfigError(f'sweep must be a sequence of ranges, ("batch=1..64", "seq=512..32768"); got {shown(sweep)}')


def find_fit_device(gpu: object, gpu_memory: object) -> Device:
    """Return the device of a catalogue's name, of a size alone, or a known one with another size.

    Raises:
        ConfigError: there is no such device, or no device has such a memory.
    """
    if not isinstance(gpu, str | Device):
        raise ConfigError(f'gpu must be a name of the catalogue, "{HERE}" or a Device; got {shown(gpu)}')
    if gpu_memory is None:
        return gpu if isinstance(gpu, Device) else find_device(gpu)
    if not isinstance(gpu_memory, str):
        raise ConfigError(f'gpu_memory must be a text with a unit, as "24GiB"; got {shown(gpu_memory)}')
    if isinstance(gpu, Device):
        return custom_device(gpu_memory, like=gpu)
    is_own = gpu.strip().lower() == HERE
    return custom_device(gpu_memory, like=None if is_own else find_device(gpu))
