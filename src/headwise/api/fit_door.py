"""What `fit` is given, checked once: the device, the fields of the step, the ranges of a sweep, the flags and paths."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from headwise.config.checks import require_flag, shown
from headwise.cost.devices import HERE, custom_device, find_device
from headwise.cost.results import Device
from headwise.cost.workload import Workload
from headwise.errors import ConfigError

OWN = {"batch", "seq"}
"""Fields of a workload that are parameters of `fit` itself."""


def check_step(step: Mapping[str, Any], *, lora_rank: int | None) -> None:
    """Raise ConfigError unless every name is a field of `Workload`; its values are checked there."""
    known = [field.name for field in fields(Workload) if field.name not in OWN]
    unknown = [name for name in step if name not in known]
    if unknown:
        raise ConfigError(f"fields of a step must be among {', '.join(known)}; got {', '.join(unknown)}")
    if lora_rank is not None and step.get("lora") is not None:
        raise ConfigError("lora_rank must be left out beside lora, which has a rank of its own")


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
