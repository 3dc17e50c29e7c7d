"""The devices that headwise knows by name: memory and peak rates, each with its source and the source's date.

Memory. The GB in a card's name is not what a program gets: the driver keeps a part back. `memory_bytes` is what the
driver reports to a process as the total (torch's `get_device_properties(0).total_memory`), which torch prints as the
capacity when memory runs out. It varies by driver and by error correction; the smallest of the public figures that were
found stands here, with where it was read. Where only nvidia-smi's figure was found, 0.54 GiB are taken off: what an
H100 keeps back (81559 MiB shown, 79.11 GiB reported). Of a few devices the figure was read in logs that are public but
have no address that lasts; their source says so.

Macs share their memory with the GPU. `memory_bytes` is what Metal recommends as the GPU's working set, two thirds of
small memories and three quarters of large ones; torch lets tensors grow to 1.7 times that, and prints the product.

Rates are the vendor's, dense: where a data sheet prints a figure with structured sparsity, half of it. Those of GeForce
cards are for sums in float32, as torch multiplies. AMD's float32 rate is that of its matrix units, which round nothing
away. TPUs multiply in bfloat16. No rates stand here of three: of a Mac its memory says, but not which chip it has; of a
GB10 NVIDIA prints the rate of FP4 alone; of a Radeon RX 7900 XTX AMD prints none of matrix units in float32.

A device of which no figure was found is left out, as the GeForce RTX 4060 Ti with 16 GB.
"""

from typing import Literal, NamedTuple

from headwise.cost.results import Device, Rates
from headwise.results import BYTES_PER_GIB, BYTES_PER_MIB

READ = "2026-11-29"
"""When figures without a date of their own were read."""

MPS_HIGH_WATERMARK = 1.7
"""Times the recommended working set that torch lets tensors take: aten/src/ATen/mps/MPSAllocator.h."""

_MIB_KEPT_BACK = 553  # 0.54 GiB

_UNADDRESSED = "a message quoted in public logs, without an address"


class _Memory(NamedTuple):
    name: str
    description: str
    gib: float
    source: str
    date: str


def _seen(name: str, description: str, gib: float, thread: str, date: str, also: str = "") -> _Memory:
    """A device in an out-of-memory message of torch, in a public thread."""
    source = f"out-of-memory message of torch in https://github.com/{thread}: {gib:.2f} GiB{also}"
    return _Memory(name, description, gib, source, date)


def _reported(name: str, description: str, gib: float, thread: str, date: str) -> _Memory:
    """A device in a public thread that gives the total which the driver reports."""
    return _Memory(name, description, gib, f"the driver's total, {gib:.2f} GiB, in https://github.com/{thread}", date)


def _logged(name: str, description: str, mib: int, line: str, also: str = "") -> _Memory:
    """A device in a line that torch or a program printed, in logs that are public but have no lasting address."""
    source = f'{_UNADDRESSED}: "{line}"{also}'
    return _Memory(name, description, mib * BYTES_PER_MIB / BYTES_PER_GIB, source, READ)


def _told(name: str, description: str, gib: float, also: str) -> _Memory:
    """A device in an out-of-memory message of torch without a lasting address; `also`: a larger figure with one."""
    return _Memory(name, description, gib, f'{_UNADDRESSED}: "a total capacity of {gib:.2f} GiB"{also}', READ)


def _shown(name: str, description: str, mib: int, thread: str, date: str) -> _Memory:
    """A device in a table of nvidia-smi, in a public thread."""
    source = f"nvidia-smi shows {mib} MiB in https://github.com/{thread}; 0.54 GiB, what an H100 keeps back, taken off"
    return _Memory(name, description, (mib - _MIB_KEPT_BACK) * BYTES_PER_MIB / BYTES_PER_GIB, source, date)


def _mac(gigabytes: int, share: float, allowed_gib: float, thread: str, date: str, also: str) -> _Memory:
    source = (
        f"out-of-memory message of torch in https://github.com/{thread} ({also}): {allowed_gib:.2f} GiB allowed, "
        f"{MPS_HIGH_WATERMARK} times what Metal recommends"
    )
    description = f"an Apple M-series Mac with {gigabytes} GB"
    return _Memory(f"apple-m-{gigabytes}gb", description, share * gigabytes, source, date)


def _tpu(version: str, gib: float) -> _Memory:
    source = f'{_UNADDRESSED}: "Used ... of {gib}G hbm", as XLA prints it'
    return _Memory(f"tpu-{version}", f"a chip of Google's TPU {version}", gib, source, READ)


_THREAD = "in https://github.com/"

_NVIDIA = (
    _logged("p100-16gb", "NVIDIA P100 16 GB", 16269, "CUDA:0 (Tesla P100-PCIE-16GB, 16269MiB)"),
    _seen("v100-16gb", "NVIDIA V100 16 GB", 15.78, "kchengiva/Shift-GCN/issues/34", "2021-09-15"),
    _seen("v100-32gb", "NVIDIA V100 32 GB", 31.74, "liucongg/ChatGLM-Finetuning/issues/73", "2023-07-11"),
    _seen("t4", "NVIDIA T4", 14.56, "Zheng-Chong/CatVTON/issues/133", "2025-11-25"),
    _seen("rtx-2080-ti", "NVIDIA GeForce RTX 2080 Ti", 10.76, "JDAI-CV/image-captioning/issues/11", "2020-07-10"),
    _seen("rtx-3060", "NVIDIA GeForce RTX 3060 12 GB", 11.75, "Kunhao-Liu/StyleGaussian/issues/12", "2024-11-13"),
    _seen("rtx-3080", "NVIDIA GeForce RTX 3080 10 GB", 9.78, "zai-org/CogVideo/issues/34", "2023-03-11"),
    _seen("rtx-3090", "NVIDIA GeForce RTX 3090", 23.56, "noonghunna/club-3090/issues/58", "2026-05-05"),
    _logged("rtx-4070", "NVIDIA GeForce RTX 4070", 11994, "CUDA:0 (NVIDIA GeForce RTX 4070, 11994MiB)"),
    _logged(
        "rtx-4080",
        "NVIDIA GeForce RTX 4080",
        16049,
        "name='NVIDIA GeForce RTX 4080', total_memory=16049MB",
        f"; 15.99 GiB, with Windows, {_THREAD}aigc-apps/sd-webui-EasyPhoto/issues/281",
    ),
    _seen("rtx-4090", "NVIDIA GeForce RTX 4090", 23.52, "Soul-AILab/SoulX-FlashTalk/issues/5", "2026-01-09"),
    _told(
        "rtx-5090",
        "NVIDIA GeForce RTX 5090",
        31.34,
        f"; 31.36 GiB {_THREAD}TrajectoryCrafter/TrajectoryCrafter/issues/20",
    ),
    _seen("rtx-a4000", "NVIDIA RTX A4000", 15.61, "DengKaiCQ/VGGT-Long/issues/6", "2025-07-14"),
    _logged("rtx-a5000", "NVIDIA RTX A5000", 22721, "CUDA:0 (NVIDIA RTX A5000, 22721MiB)", "; 24248MiB without ECC"),
    _reported("rtx-a6000", "NVIDIA RTX A6000", 47.52, "ultralytics/ultralytics/issues/19084", "2025-02-05"),
    _seen("rtx-6000-ada", "NVIDIA RTX 6000 Ada", 44.43, "DINGYANB/MTVCrafter/issues/21", "2025-07-18", ", with ECC"),
    _shown("a10", "NVIDIA A10", 23028, "QwenLM/Qwen3/issues/678", "2024-06-20"),
    _told("a10g", "NVIDIA A10G", 21.98, f"; 22.20 GiB {_THREAD}XavierXiao/Dreambooth-Stable-Diffusion/issues/18"),
    _seen("a30", "NVIDIA A30", 23.53, "google/RB-Modulation/issues/5", "2024-09-13"),
    _reported("a40", "NVIDIA A40", 44.35, "pyscf/gpu4pyscf/issues/304", "2025-01-23"),
    _seen("a100-40gb", "NVIDIA A100 40 GB", 39.39, "philschmid/llm-sagemaker-sample/issues/25", "2024-08-06"),
    _seen("a100-80gb", "NVIDIA A100 80 GB", 79.14, "lianqi1008/Control-GIC/issues/6", "2025-10-16"),
    _shown("l4", "NVIDIA L4", 23034, "lmstudio-ai/lmstudio-bug-tracker/issues/1638", READ),
    _seen("l40", "NVIDIA L40", 44.40, "NVlabs/Eagle/issues/68", "2026-06-04"),
    _told("l40s", "NVIDIA L40S", 44.39, f"; 44.42 GiB {_THREAD}stepfun-ai/Step-Video-T2V/issues/8"),
    _seen("h100-80gb", "NVIDIA H100 80 GB", 79.11, "vllm-project/vllm/issues/27508", "2025-10-25"),
    _logged("h100-pcie-80gb", "NVIDIA H100 PCIe 80 GB", 81008, "name='NVIDIA H100 PCIe', total_memory=81008MB"),
    _seen("h100-nvl-94gb", "NVIDIA H100 NVL 94 GB", 93.00, "ali-vilab/VACE/issues/56", "2025-05-16"),
    _seen("gh200-96gb", "NVIDIA GH200 96 GB", 94.50, "vllm-project/vllm/issues/9630", "2024-10-23", " (a 96 GB H100)"),
    _Memory(
        "h200-141gb",
        "NVIDIA H200 141 GB",
        139.72,
        "out-of-memory message of torch in https://huggingface.co/blog/LinkedIn/gpt-oss-agentic-rl: 139.72 GiB",
        "2026-01-27",
    ),
    _reported("b200-180gb", "NVIDIA B200 180 GB", 178.35, "pytorch/ao/pull/4002", "2026-03-05"),
    _told(
        "gb10-128gb",
        "NVIDIA GB10 128 GB (DGX Spark), which its CPU shares",
        119.61,
        f"; 121.69 GiB {_THREAD}MiaAI-Lab/GLM-5.3-Flash-EXL3-2x-DGX-Sparks/issues/47",
    ),
)
_AMD = (
    _seen("mi210", "AMD Instinct MI210", 63.98, "ROCm/ROCm/issues/3579", "2024-08-14", ", of half an MI250X"),
    _seen(
        "mi250", "half of an AMD Instinct MI250", 63.98, "ROCm/ROCm/issues/3579", "2024-08-14", ", of half an MI250X"
    ),
    _seen("mi250x", "half of an AMD Instinct MI250X", 63.98, "ROCm/ROCm/issues/3579", "2024-08-14"),
    _told("mi300x", "AMD Instinct MI300X", 191.69, f"; 191.98 GiB {_THREAD}vllm-project/vllm/issues/7951"),
    _told("mi325x", "AMD Instinct MI325X", 255.69, f"; 255.98 GiB {_THREAD}vllm-project/vllm/issues/41962"),
    _seen(
        "mi355x", "AMD Instinct MI355X", 287.98, "pytorch/pytorch/issues/175431", "2026-02-20", " (a card of 288 GB)"
    ),
    _reported("rx-7900-xtx", "AMD Radeon RX 7900 XTX", 23.98, "ilya-zlobintsev/LACT/pull/533", "2025-04-06"),
)
_APPLE = (
    _mac(8, 2 / 3, 9.07, "lllyasviel/Fooocus/issues/980", "2023-11-18", "an M1"),
    _mac(16, 2 / 3, 18.13, "haoheliu/AudioLDM2/issues/20", "2023-08-15", "an M1"),
    _mac(24, 2 / 3, 27.20, "Comfy-Org/ComfyUI/issues/7440", "2025-03-31", "no Mac is named"),
    _mac(32, 2 / 3, 36.27, "robbyant-research/MagicQuill/issues/120", "2025-03-07", "no Mac is named"),
    _mac(64, 3 / 4, 81.60, "BoBo0037/bobo-fun/issues/8", "2025-01-26", "an M1 Max"),
    _mac(128, 3 / 4, 163.20, "Comfy-Org/ComfyUI/issues/9308", "2025-08-13", "an M3 Max"),
)
_GOOGLE = (
    _Memory(
        "tpu-v4",
        "a chip of Google's TPU v4",
        30.75,
        'message of XLA in https://github.com/erfanzar/EasyDeL/issues/166: "Used 63.80G of 30.75G hbm"',
        READ,
    ),
    _tpu("v5e", 15.75),
    _tpu("v5p", 95.74),
    _Memory(
        "tpu-v6e",
        "a chip of Google's TPU v6e",
        31.246,
        "XLA's limit, 31.246 GiB, of a TPU without its version in https://github.com/EnzymeAD/Enzyme-JAX/pull/2422; "
        f'{_UNADDRESSED}: "Used ... of 31.25G hbm" on a v6e',
        "2026-04-13",
    ),
)
# Source: NVIDIA, "CUDA GPU Compute Capability", read 2026-11-29.
_CAPABILITIES = {
    (6, 0): ("p100-16gb",),
    (7, 0): ("v100-16gb", "v100-32gb"),
    (7, 5): ("t4", "rtx-2080-ti"),
    (8, 0): ("a30", "a100-40gb", "a100-80gb"),
    (8, 6): ("rtx-3060", "rtx-3080", "rtx-3090", "rtx-a4000", "rtx-a5000", "rtx-a6000", "a10", "a10g", "a40"),
    (8, 9): ("rtx-4070", "rtx-4080", "rtx-4090", "rtx-6000-ada", "l4", "l40", "l40s"),
    (9, 0): ("h100-80gb", "h100-pcie-80gb", "h100-nvl-94gb", "gh200-96gb", "h200-141gb"),
    (10, 0): ("b200-180gb",),
    (12, 0): ("rtx-5090",),
    (12, 1): ("gb10-128gb",),
}
_CAPABILITY_OF = {name: capability for capability, names in _CAPABILITIES.items() for name in names}


_Rate = int | float | None


def _rates(fp32: _Rate, tf32: _Rate, fp16: _Rate, bf16: _Rate, memory: float, source: str, date: str) -> Rates:
    """Write rates given in TFLOP/s, and of memory in TB/s; the date is the year of the document's edition."""
    flops = [None if rate is None else float(round(rate * 1e12)) for rate in (fp32, tf32, fp16, bf16)]
    return Rates(
        fp32=flops[0],
        tf32=flops[1],
        fp16=flops[2],
        bf16=flops[3],
        bytes_per_second=float(round(memory * 1e12)),
        source=source,
        date=date,
    )


_V100_RATES = _rates(15.7, None, 125, None, 0.9, "NVIDIA V100 data sheet, SXM2", "2020")
_TURING = 'NVIDIA, "Turing GPU Architecture", WP-09183-001'
_AMPERE = 'NVIDIA, "Ampere GA102 GPU Architecture"'
_ADA = 'NVIDIA, "Ada GPU Architecture"'
_RTX_3060 = f"NVIDIA's specification (3584 cores, 1.78 GHz), and tensor cores as in {_AMPERE}"
_RTX_4070 = f"NVIDIA's specification (5888 cores, 2.48 GHz), and tensor cores as in {_ADA}"
_HALF = "half of what it prints with sparsity"
_QUARTER = f"{_HALF}, and TF32 at half of FP16's rate"

_RATES = {
    "p100-16gb": _rates(9.3, None, 18.7, None, 0.732, "NVIDIA P100 PCIe data sheet", "2016"),
    "v100-16gb": _V100_RATES,
    "v100-32gb": _V100_RATES,
    "t4": _rates(
        8.1, None, 65, None, 0.32, "NVIDIA T4 data sheet, and its memory's rate (320 GB/s) as in " + _TURING, "2019"
    ),
    "rtx-2080-ti": _rates(13.4, None, 53.8, None, 0.616, f"{_TURING}, of the reference card", "2018"),
    "rtx-3060": _rates(12.8, 12.8, 25.6, 25.6, 0.36, _RTX_3060, "2021"),
    "rtx-3080": _rates(29.8, 29.8, 59.5, 59.5, 0.76, _AMPERE, "2021"),
    "rtx-3090": _rates(35.6, 35.6, 71, 71, 0.936, _AMPERE, "2021"),
    "rtx-4070": _rates(29.2, 29.2, 58.4, 58.4, 0.504, _RTX_4070, "2023"),
    "rtx-4080": _rates(48.7, 48.7, 97.5, 97.5, 0.7168, _ADA, "2023"),
    "rtx-4090": _rates(82.6, 82.6, 165.2, 165.2, 1.008, _ADA, "2023"),
    "rtx-5090": _rates(104.8, 104.8, 209.5, 209.5, 1.792, 'NVIDIA, "RTX Blackwell GPU Architecture"', "2025"),
    "rtx-a4000": _rates(19.2, 38.35, 76.7, 76.7, 0.448, f"NVIDIA RTX A4000 data sheet, {_QUARTER}", "2021"),
    "rtx-a5000": _rates(27.8, 55.55, 111.1, 111.1, 0.768, f"NVIDIA RTX A5000 data sheet, {_QUARTER}", "2021"),
    "rtx-a6000": _rates(38.7, 77.4, 154.8, 154.8, 0.768, _AMPERE, "2021"),
    "rtx-6000-ada": _rates(
        91.1,
        182.1,
        364.2,
        364.2,
        0.96,
        "NVIDIA RTX 6000 Ada data sheet, a quarter of FP8 with sparsity, and an eighth for TF32",
        "2023",
    ),
    "a10": _rates(31.2, 62.5, 125, 125, 0.6, "NVIDIA A10 data sheet", "2021"),
    "a10g": _rates(35, 35, 70, 70, 0.6, "NVIDIA A10G data sheet, at Amazon Web Services", "2021"),
    "a30": _rates(10.3, 82, 165, 165, 0.933, "NVIDIA A30 data sheet", "2021"),
    "a40": _rates(37.4, 74.8, 149.7, 149.7, 0.696, "NVIDIA A40 data sheet", "2021"),
    "a100-40gb": _rates(19.5, 156, 312, 312, 1.555, "NVIDIA A100 data sheet", "2021"),
    "a100-80gb": _rates(19.5, 156, 312, 312, 2.039, "NVIDIA A100 data sheet, SXM", "2021"),
    "l4": _rates(30.3, 60, 121, 121, 0.3, f"NVIDIA L4 data sheet, {_HALF}", "2023"),
    "l40": _rates(90.5, 90.5, 181.05, 181.05, 0.864, "NVIDIA L40 data sheet", "2023"),
    "l40s": _rates(91.6, 183, 362.05, 362.05, 0.864, "NVIDIA L40S data sheet", "2023"),
    "h100-80gb": _rates(67, 494.5, 989.5, 989.5, 3.35, f"NVIDIA H100 data sheet, SXM, {_HALF}", "2023"),
    "h100-pcie-80gb": _rates(51, 378, 756.5, 756.5, 2.0, f"NVIDIA H100 data sheet, PCIe, {_HALF}", "2023"),
    "h100-nvl-94gb": _rates(60, 417.5, 835.5, 835.5, 3.9, f"NVIDIA H100 data sheet, NVL, {_HALF}", "2024"),
    "gh200-96gb": _rates(67, 494.5, 989.5, 989.5, 4.0, f"NVIDIA GH200 data sheet, HBM3, {_HALF}", "2023"),
    "h200-141gb": _rates(67, 494.5, 989.5, 989.5, 4.8, f"NVIDIA H200 data sheet, SXM, {_HALF}", "2024"),
    "b200-180gb": _rates(75, 1125, 2250, 2250, 7.7, f"NVIDIA HGX B200 data sheet, of one GPU, {_HALF}", "2024"),
    "mi210": _rates(45.3, None, 181, 181, 1.6384, "AMD Instinct MI210 data sheet", "2022"),
    "mi250": _rates(45.25, None, 181.05, 181.05, 1.6384, "AMD Instinct MI250 data sheet, half of the card", "2021"),
    "mi250x": _rates(47.85, None, 191.5, 191.5, 1.6384, "AMD Instinct MI250X data sheet, half of the card", "2021"),
    "mi300x": _rates(163.4, 653.7, 1307.4, 1307.4, 5.3, "AMD Instinct MI300X data sheet", "2023"),
    "mi325x": _rates(163.4, 653.7, 1307.4, 1307.4, 6.0, "AMD Instinct MI325X data sheet", "2024"),
    "mi355x": _rates(157.3, None, 2516.6, 2516.6, 8.0, "AMD Instinct MI355X data sheet", "2025"),
    "tpu-v4": _rates(None, None, None, 275, 1.2, 'Google Cloud, "TPU v4"', "2023"),
    "tpu-v5e": _rates(None, None, None, 197, 0.819, 'Google Cloud, "TPU v5e"', "2023"),
    "tpu-v5p": _rates(None, None, None, 459, 2.765, 'Google Cloud, "TPU v5p"', "2023"),
    "tpu-v6e": _rates(None, None, None, 918, 1.638, 'Google Cloud, "TPU v6e"', "2024"),
}


def _devices(kind: Literal["cuda", "rocm", "mps", "tpu"], rows: tuple[_Memory, ...]) -> dict[str, Device]:
    return {
        row.name: Device(
            name=row.name,
            description=row.description,
            memory_bytes=int(row.gib * BYTES_PER_GIB),
            kind=kind,
            source=row.source,
            date=row.date,
            compute_capability=_CAPABILITY_OF.get(row.name),
            rates=_RATES.get(row.name),
        )
        for row in rows
    }


DEVICES = _devices("cuda", _NVIDIA) | _devices("rocm", _AMD) | _devices("mps", _APPLE) | _devices("tpu", _GOOGLE)
