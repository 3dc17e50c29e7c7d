"""Devices by name: the memory that a process can really use, each with its source and the source's date.

The GB in a card's name is not what a program gets: the driver keeps a part back. `memory_bytes` is what CUDA reports to
a process as the total (`cudaDeviceProp.totalGlobalMem`), which torch prints as the capacity when memory runs out. It
varies by driver and by error correction; of several public figures the smallest stands here.
"""

import ctypes
import difflib
import importlib.util
import os
from datetime import UTC, datetime
from pathlib import Path

from headwise.config.checks import shown
from headwise.cost.results import Device
from headwise.errors import ConfigError
from headwise.results import BYTES_PER_GIB

HERE = "here"
"""The name of this machine: its GPU where torch can use one, else its own memory."""


def _cuda(name: str, description: str, gib: float, source: str, date: str) -> Device:
    return Device(
        name=name,
        description=description,
        memory_bytes=int(gib * BYTES_PER_GIB),
        kind="cuda",
        source=source,
        date=date,
        compute_capability=_COMPUTE_CAPABILITIES[name],
    )


# Source: NVIDIA, "CUDA GPU Compute Capability", read 2026-11-29.
_COMPUTE_CAPABILITIES = {
    "v100-32gb": (7, 0),
    "t4": (7, 5),
    "a100-40gb": (8, 0),
    "a100-80gb": (8, 0),
    "rtx-3090": (8, 6),
    "rtx-4090": (8, 9),
    "l4": (8, 9),
    "h100-80gb": (9, 0),
    "h200-141gb": (9, 0),
}
_MESSAGE = "out-of-memory message of torch in https://github.com/"

DEVICES: dict[str, Device] = {
    device.name: device
    for device in (
        _cuda(
            "v100-32gb",
            "NVIDIA V100 32 GB",
            31.74,
            f"{_MESSAGE}liucongg/ChatGLM-Finetuning/issues/73",
            "2023-07-11",
        ),
        _cuda(
            "a100-40gb",
            "NVIDIA A100 40 GB",
            39.39,
            f"{_MESSAGE}philschmid/llm-sagemaker-sample/issues/25",
            "2024-08-06",
        ),
        _cuda("a100-80gb", "NVIDIA A100 80 GB", 79.14, f"{_MESSAGE}lianqi1008/Control-GIC/issues/6", "2025-10-16"),
        _cuda("h100-80gb", "NVIDIA H100 80 GB", 79.11, f"{_MESSAGE}vllm-project/vllm/issues/27508", "2025-10-25"),
        _cuda(
            "h200-141gb",
            "NVIDIA H200 141 GB",
            139.72,
            "out-of-memory message of torch in https://huggingface.co/blog/LinkedIn/gpt-oss-agentic-rl",
            "2026-01-27",
        ),
        _cuda(
            "rtx-3090", "NVIDIA GeForce RTX 3090", 23.69, f"{_MESSAGE}DAMO-NLP-SG/VideoLLaMA3/issues/38", "2025-02-24"
        ),
        _cuda(
            "rtx-4090", "NVIDIA GeForce RTX 4090", 23.52, f"{_MESSAGE}Soul-AILab/SoulX-FlashTalk/issues/5", "2026-01-09"
        ),
        _cuda("t4", "NVIDIA T4", 14.56, f"{_MESSAGE}Zheng-Chong/CatVTON/issues/133", "2025-11-25"),
        _cuda(
            "l4",
            "NVIDIA L4",
            # 23034 MiB = 22.49 GiB, less 0.54 GiB: what an H100 keeps back (81559 MiB shown, 79.11 GiB reported).
            21.95,
            "no message of torch with an address was found; nvidia-smi shows 23034 MiB in "
            "https://github.com/lmstudio-ai/lmstudio-bug-tracker/issues/1638, and 0.54 GiB is taken off, "
            "what an H100 keeps back",
            "2026-11-29",
        ),
    )
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


def this_machine() -> Device:
    """Return this machine: its first GPU where torch can use one, else the memory that this process may use.

    torch is imported only where a CUDA driver is installed.
    """
    gpu = _this_gpu() if _has_cuda_driver() and importlib.util.find_spec("torch") else None
    return gpu or Device(
        name=HERE,
        description=f"this machine ({os.cpu_count()} CPU cores)",
        memory_bytes=usable_ram_bytes(),
        kind="cpu",
        source="the operating system",
        date=_today(),
    )


def _has_cuda_driver() -> bool:
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return True


def _this_gpu() -> Device | None:
    import torch

    if not torch.cuda.is_available():
        return None
    properties = torch.cuda.get_device_properties(0)
    return Device(
        name=HERE,
        description=f"this machine's {properties.name}",
        memory_bytes=properties.total_memory,
        kind="cuda",
        source="the CUDA driver",
        date=_today(),
        compute_capability=(properties.major, properties.minor),
    )


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
