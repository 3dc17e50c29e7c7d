"""A device to fit: one of the catalogue by its name, this machine, or one of any memory."""

import ctypes
import difflib
import importlib.util
import os
import platform
import re
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from headwise.config.checks import shown
from headwise.cost.device_catalogue import DEVICES
from headwise.cost.results import Device, Rates
from headwise.errors import ConfigError
from headwise.results import BYTES_PER_GIB, BYTES_PER_KIB, BYTES_PER_MIB, format_bytes

if TYPE_CHECKING:
    from types import ModuleType

__all__ = ["DEVICES", "HERE", "custom_device", "find_device", "kernel_note_of", "this_machine", "usable_ram_bytes"]

HERE = "here"
"""The name of this machine: its GPU where torch can use one, else its own memory."""

CUSTOM = "custom"
"""The name of a device of which only the memory is known."""

MIN_MEMORY_BYTES = BYTES_PER_MIB
MAX_MEMORY_BYTES = 2**50

_DRIVERS = ("libcuda.so.1", "libamdhip64.so")

_IDLE_WORDS = {
    *("nvidia", "geforce", "tesla", "amd", "instinct", "radeon", "gpu", "generation", "hbm2", "hbm3", "hbm3e"),
    *("sxm", "sxm2", "sxm3", "sxm4", "sxm5"),
}
"""Words in the name that a driver gives which no name of the catalogue has."""

_PCIE_TOO = ("p100-16gb", "a100-40gb")
"""Devices whose rates are those of the card for a PCIe slot (too); others are slower there, or have a name of it."""

_UNIT_BYTES = {
    "": 1,
    "b": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
    "kib": BYTES_PER_KIB,
    "mib": BYTES_PER_MIB,
    "gib": BYTES_PER_GIB,
    "tib": 2**40,
}
_MEMORY = re.compile(r"([0-9]{1,20}(?:\.[0-9]{1,20})?(?:e\+?[0-9]{1,2})?)[ _]?([a-z]*)", re.IGNORECASE | re.ASCII)

_KERNEL_NOTES = {
    "rocm": (
        "on ROCm torch's flash and memory-efficient kernels come from AOTriton and need memory linear in the length "
        "too, but which of them runs is told here by CUDA's rules, which were not compared with ROCm's"
    ),
    "mps": (
        "on MPS which kernel runs is known only in part: in training torch takes plain products, which keep the score "
        "matrix, and without gradients kernels of its own, some of which build it (pytorch/pytorch#179294); so every "
        "step is reckoned with the plain products, which need the most"
    ),
    "tpu": (
        "on a TPU the XLA compiler chooses the kernels, fuses and computes again as it likes: they are unknown here, "
        "and plain products, which keep the score matrix, stand in their place"
    ),
}


def find_device(name: str) -> Device:
    """Return a device of the catalogue by its name in any case, or this machine for "here".

    Raises:
        ConfigError: there is no such device; the text names the nearest ones.
    """
    key = name.strip().lower()
    if key == HERE:
        return this_machine()
    if key not in DEVICES:
        near = difflib.get_close_matches(key[:80], DEVICES, n=3, cutoff=0.5)
        advice = f"did you mean {' or '.join(near)}?" if near else f"there are {', '.join((*DEVICES, HERE))}"
        raise ConfigError(f"there is no device {shown(name)}; {advice}")
    return DEVICES[key]


def custom_device(text: str, *, like: Device | None = None) -> Device:
    """Return a device of the memory that a text says: "24GiB", "24 GB" (24e9 bytes), "81920MiB", "80e9" (bytes).

    Args:
        text: a number and a unit, in any case: B, kB, MB, GB, TB (powers of 1000) or KiB, MiB, GiB, TiB (of 1024).
        like: the device that it is but for the memory. Default: an unknown CUDA device of compute capability 8.0.

    Raises:
        ConfigError: the text is no such size, or one that no device has.
    """
    memory_bytes = _read_memory(text)
    size = format_bytes(memory_bytes)
    if like is not None:
        description = f"{like.description}, with {size}"
        return replace(like, memory_bytes=memory_bytes, description=description, source="the caller", date=_today())
    return Device(
        name=CUSTOM,
        description=f"a GPU of {size}",
        memory_bytes=memory_bytes,
        kind="cuda",
        source="the caller",
        date=_today(),
        compute_capability=(8, 0),
    )


def _read_memory(text: str) -> int:
    match = _MEMORY.fullmatch(text.strip())
    unit_bytes = _UNIT_BYTES.get(match[2].lower()) if match else None
    if match is None or unit_bytes is None:
        raise ConfigError(
            f"the memory of a GPU must be a number with a unit (24GiB, 24GB, 81920MiB) or a number of bytes (80e9); "
            f"got {shown(text)}"
        )
    memory_bytes = Decimal(match[1]) * unit_bytes
    if not MIN_MEMORY_BYTES <= memory_bytes <= MAX_MEMORY_BYTES:
        advice = "; a number alone counts bytes: add a unit, as GiB" if not match[2] else ""
        raise ConfigError(f"the memory of a GPU must be between 1 MiB and 1024 TiB; got {shown(text)}{advice}")
    return int(memory_bytes)


def kernel_note_of(device: Device) -> str | None:
    """Say in a sentence what is known of a device's attention kernels; None where they are those of the tables.

    Source: pytorch, aten/src/ATen/native/transformers/hip/ (AOTriton), native/mps/operations/Attention.mm.
    """
    return _KERNEL_NOTES.get(device.kind)


def this_machine() -> Device:
    """Return this machine: its first GPU where torch can use one, else the memory that this process may use.

    torch is imported only where a GPU's driver is installed, and on Macs.
    """
    gpu = _this_gpu() if _has_gpu_driver() and importlib.util.find_spec("torch") else None
    return gpu or Device(
        name=HERE,
        description=f"this machine ({os.cpu_count()} CPU cores)",
        memory_bytes=usable_ram_bytes(),
        kind="cpu",
        source="the operating system",
        date=_today(),
    )


def _has_gpu_driver() -> bool:
    return _is_mac() or any(map(_has_library, _DRIVERS))


def _is_mac() -> bool:
    return (platform.system(), platform.machine()) == ("Darwin", "arm64")


def _has_library(name: str) -> bool:
    try:
        ctypes.CDLL(name)
    except OSError:
        return False
    return True


def _this_gpu() -> Device | None:
    import torch

    if torch.cuda.is_available():
        return _this_cuda_gpu(torch)
    if torch.backends.mps.is_available():
        return Device(
            name=HERE,
            description="this Mac's GPU",
            memory_bytes=torch.mps.recommended_max_memory(),
            kind="mps",
            source="Metal's recommended working set",
            date=_today(),
        )
    return None


def _this_cuda_gpu(torch: "ModuleType") -> Device:
    """Return the first GPU that torch's CUDA interface knows, which is AMD's too where torch was built for it."""
    properties = torch.cuda.get_device_properties(0)
    is_rocm = torch.version.hip is not None
    kind: Literal["cuda", "rocm"] = "rocm" if is_rocm else "cuda"
    return Device(
        name=HERE,
        description=f"this machine's {properties.name}",
        memory_bytes=properties.total_memory,
        kind=kind,
        source="the ROCm driver" if is_rocm else "the CUDA driver",
        date=_today(),
        compute_capability=None if is_rocm else (properties.major, properties.minor),
        rates=_rates_of(properties.name, properties.total_memory, kind),
    )


def _rates_of(name: str, memory_bytes: int, kind: str) -> Rates | None:
    """Return the rates of a device of the catalogue by the name that a driver gives it; None where none is meant.

    Drivers say "NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-40GB", "Tesla T4", "AMD Instinct MI300X". What is left
    without the maker, the memory and the slot must be the catalogue's name, so that a "3090 Ti" is no "3090"; and the
    memory must be the catalogue's within a tenth.
    """
    words = set(re.split(r"[^a-z0-9]+", name.lower())) - _IDLE_WORDS
    for device in DEVICES.values():
        own = set(device.name.split("-")) | ({"pcie"} & words if device.name in _PCIE_TOO else set())
        is_alike = 0.9 < memory_bytes / device.memory_bytes < 1.1
        if device.kind == kind and is_alike and _without_sizes(own) == _without_sizes(words):
            return device.rates
    return None


def _without_sizes(words: set[str]) -> set[str]:
    return {word for word in words if word and not re.fullmatch(r"[0-9]+gb", word)}


def usable_ram_bytes() -> int:
    """Return the memory of a machine with Linux or macOS, or what a container allows of it where that is less."""
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    limits = [total]
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            limits.append(int(Path(path).read_text()))
        except (OSError, ValueError):  # no such file, or "max": no limit
            continue
    return min(limits)


def _today() -> str:
    return datetime.now(tz=UTC).date().isoformat()
