"""The machine that a run is on: the device that it trains on, and what numbers may depend on beside the settings."""

import platform
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from headwise.errors import ConfigError

CPU_INFO = Path("/proc/cpuinfo")  # Linux names its processor there


def device_for(device: str | torch.device | None) -> torch.device:
    """Return the device to train on.

    Args:
        device: of torch's, by name. Default: the GPU that torch uses, where it sees one, else the CPU.

    Raises:
        ConfigError: there is no such device here.
    """
    if device is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        wanted = torch.device(device)
    except RuntimeError as error:
        raise ConfigError(f"device must be cpu, cuda, or cuda:0 and so on; got {device!r}") from error
    if wanted.type not in ("cpu", "cuda"):
        raise ConfigError(f"device must be cpu, cuda, or cuda:0 and so on; got {str(device)!r}")
    if wanted.type == "cuda" and (wanted.index or 0) >= torch.cuda.device_count():
        raise ConfigError(
            f"device must be one that torch sees here; got {str(device)!r} of {torch.cuda.device_count()} GPUs"
        )
    return wanted


def rng_devices(device: torch.device) -> list[torch.device]:
    """Return the devices, beside the CPU, whose stream of random numbers a run on a device reads."""
    return [device] if device.type == "cuda" else []


def environment(device: torch.device | None = None) -> dict[str, Any]:
    """Return what numbers may depend on beside the settings, and when they were made.

    Args:
        device: that is trained on. Default: the CPU.
    """
    on_gpu = device is not None and device.type == "cuda"
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "headwise": _own_version(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "system": platform.system(),
        "machine": platform.machine(),
        "processor": _processor(),
        "capability": torch.backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(),
        "device": torch.cuda.get_device_name(device) if on_gpu else "cpu",
    }


def _own_version() -> str | None:
    try:
        return version("headwise")
    except PackageNotFoundError:  # run from its source, without being installed
        return None


def _processor() -> str:
    try:
        lines = CPU_INFO.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()
