import os
import platform
import re
import subprocess
import sys
from datetime import date
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwise.cost import devices
from headwise.cost.device_catalogue import MPS_HIGH_WATERMARK
from headwise.cost.devices import DEVICES, custom_device, find_device, kernel_note_of, this_machine
from headwise.cost.results import NO_FUSED_KERNELS
from headwise.errors import ConfigError
from headwise.kernels import NEWEST, SdpaCase, sdpa_kernel

GIB = 2**30

NOMINAL_GIB = {
    "p100-16gb": 16,
    "v100-16gb": 16,
    "v100-32gb": 32,
    "t4": 16,
    "rtx-2080-ti": 11,
    "rtx-3060": 12,
    "rtx-3080": 10,
    "rtx-3090": 24,
    "rtx-4070": 12,
    "rtx-4080": 16,
    "rtx-4090": 24,
    "rtx-5090": 32,
    "rtx-a4000": 16,
    "rtx-a5000": 24,
    "rtx-a6000": 48,
    "rtx-6000-ada": 48,
    "a10": 24,
    "a10g": 24,
    "a30": 24,
    "a40": 48,
    "a100-40gb": 40,
    "a100-80gb": 80,
    "l4": 24,
    "l40": 48,
    "l40s": 48,
    "h100-80gb": 80,
    "h100-pcie-80gb": 80,
    "h100-nvl-94gb": 94,
    "gh200-96gb": 96,
    "h200-141gb": 141,
    "b200-180gb": 180,
    "gb10-128gb": 128,
    "mi210": 64,
    "mi250": 64,
    "mi250x": 64,
    "mi300x": 192,
    "mi325x": 256,
    "mi355x": 288,
    "rx-7900-xtx": 24,
    "tpu-v4": 32,
    "tpu-v5e": 16,
    "tpu-v5p": 96,
    "tpu-v6e": 32,
}
MACS = [name for name, device in DEVICES.items() if device.kind == "mps"]
RATED = [name for name, device in DEVICES.items() if device.rates is not None]
GPUS_WITH_RATES = [name for name in RATED if DEVICES[name].kind in ("cuda", "rocm")]


def test_the_catalogue_holds_the_devices_that_it_promises():
    assert set(DEVICES) == {*NOMINAL_GIB, *(f"apple-m-{size}gb" for size in (8, 16, 24, 32, 64, 128))}


@pytest.mark.parametrize("name", NOMINAL_GIB)
def test_a_device_has_a_little_less_than_its_name_says(name):
    assert 0.9 * NOMINAL_GIB[name] * GIB < DEVICES[name].memory_bytes < NOMINAL_GIB[name] * GIB


@pytest.mark.parametrize("name", MACS)
def test_a_mac_gives_its_gpu_a_share_that_torch_multiplies_in_its_message(name):
    size, device = int(re.search(r"\d+", name)[0]), DEVICES[name]
    assert device.memory_bytes == int(size * GIB * (2 / 3 if size < 36 else 3 / 4))
    allowed = float(re.search(r"([\d.]+) GiB allowed", device.source)[1])
    assert device.memory_bytes * MPS_HIGH_WATERMARK / GIB == pytest.approx(allowed, abs=0.006)


PUBLIC_GIB = {
    "p100-16gb": (16269 / 1024, 15.90),
    "v100-16gb": (15.78, 15.90),
    "v100-32gb": (31.74, 31.75),
    "t4": (14.56, 14.75, 15.83),
    "rtx-2080-ti": (10.76,),
    "rtx-3060": (11.75,),
    "rtx-3080": (9.78,),
    "rtx-3090": (23.56, 23.59, 23.69, 23.70),
    "rtx-4070": (11994 / 1024, 11.99),
    "rtx-4080": (16049 / 1024, 15.99),
    "rtx-4090": (23.52, 23.64, 23.65, 23.68),
    "rtx-5090": (31.34, 31.36, 32120 / 1024, 31.37),
    "rtx-a4000": (15.61,),
    "rtx-a5000": (22721 / 1024, 24248 / 1024),
    "rtx-a6000": (47.52,),
    "rtx-6000-ada": (44.43,),
    "a10": (21.99, 23028 / 1024),
    "a10g": (21.98, 22.20),
    "a30": (23.53,),
    "a40": (47622258688 / 2**30, 45416 / 1024),
    "a100-40gb": (39.39,),
    "a100-80gb": (79.14, 81051 / 1024),
    "l4": (23034 / 1024,),
    "l40": (44.40,),
    "l40s": (44.39, 44.42),
    "h100-80gb": (79.11, 81559 / 1024),
    "h100-pcie-80gb": (81008 / 1024,),
    "h100-nvl-94gb": (93.00, 95320 / 1024),
    "gh200-96gb": (94.50,),
    "h200-141gb": (139.72,),
    "b200-180gb": (178.35,),
    "gb10-128gb": (119.61, 121.69),
    "mi210": (63.98,),
    "mi250": (63.98,),
    "mi250x": (63.98,),
    "mi300x": (191.69, 191.98),
    "mi325x": (255.69, 255.98),
    "mi355x": (287.98,),
    "rx-7900-xtx": (23.98,),
    "tpu-v4": (30.75,),
    "tpu-v5e": (15.75,),
    "tpu-v5p": (95.74,),
    "tpu-v6e": (31.25, 31.246),
}
"""Figures of public messages and logs, written down when they were read and not taken from the catalogue."""


@pytest.mark.parametrize("name", NOMINAL_GIB)
def test_a_device_has_the_smallest_public_figure(name):
    *figures, last = PUBLIC_GIB[name]
    last -= 0.54 if name in ("a10", "l4") else 0  # of nvidia-smi, which shows what the driver keeps back
    assert DEVICES[name].memory_bytes / GIB == pytest.approx(min(*figures, last, 2**20), abs=0.005)


def figures(source):
    """Every memory in GiB that a source names."""
    found = [float(gib) for gib in re.findall(r"([\d.]+) ?GiB(?! allowed|, what)", source)]
    found += [float(gib) for gib in re.findall(r"of ([\d.]+)G hbm", source)]
    return found + [int(mib) / 1024 for mib in re.findall(r"(\d{4,6}) ?Mi?B\b", source)]


@pytest.mark.parametrize("name", NOMINAL_GIB)
def test_a_source_quotes_the_figure_and_none_below_it(name):
    device = DEVICES[name]
    taken_off = 0.54 if "taken off" in device.source else 0
    assert min(figures(device.source)) - taken_off == pytest.approx(device.memory_bytes / GIB, abs=0.001)


ADDRESS = r"https://(github\.com/[\w.-]+/[\w.-]+/(issues|pull)/\d+|huggingface\.co/blog/[\w/-]+)"
WITHOUT_ADDRESS = {"p100-16gb", "rtx-4070", "rtx-a5000", "h100-pcie-80gb", "tpu-v5e", "tpu-v5p"}


@pytest.mark.parametrize("name", DEVICES)
def test_a_device_has_a_source_with_an_address_or_one_that_says_that_it_has_none(name):
    device = DEVICES[name]
    assert device.name == name
    assert bool(re.search(ADDRESS, device.source)) == (name not in WITHOUT_ADDRESS)
    if name in WITHOUT_ADDRESS:
        assert device.source.startswith("a message quoted in public logs, without an address: ")
    assert date(2020, 1, 1) < date.fromisoformat(device.date) < date(2027, 1, 1)


@pytest.mark.parametrize("name", DEVICES)
def test_a_cuda_device_alone_has_a_compute_capability_that_torchs_kernels_are_built_for(name):
    device = DEVICES[name]
    if device.kind == "cuda":
        assert (6, 0) <= device.compute_capability <= NEWEST
    else:
        assert device.compute_capability is None


@pytest.mark.parametrize("name", RATED)
def test_rates_have_a_document_and_the_year_of_its_edition(name):
    rates = DEVICES[name].rates
    document = (
        r"((NVIDIA|AMD) .+ data sheet|NVIDIA, \".+ GPU Architecture\"|NVIDIA's specification|Google Cloud, \"TPU v)"
    )
    assert re.match(document, rates.source)
    assert 2016 <= int(rates.date) <= 2026
    known = [rate for rate in (rates.fp32, rates.tf32, rates.fp16, rates.bf16) if rate is not None]
    assert all(1e12 < rate < 1e16 for rate in known)
    assert 0.25e12 < rates.bytes_per_second <= 8e12


@pytest.mark.parametrize("name", GPUS_WITH_RATES)
def test_narrower_products_are_never_slower(name):
    rates = DEVICES[name].rates
    ladder = [rate for rate in (rates.fp32, rates.tf32, rates.fp16) if rate is not None]
    assert ladder == sorted(ladder)


@pytest.mark.parametrize("name", GPUS_WITH_RATES)
def test_bfloat16_is_as_fast_as_float16_from_ampere_on_and_missing_before(name):
    device = DEVICES[name]
    is_older = device.compute_capability is not None and device.compute_capability < (8, 0)
    assert device.rates.bf16 == (None if is_older else device.rates.fp16)
    assert (device.rates.tf32 is None) or not is_older


@pytest.mark.parametrize(
    ("name", "bf16", "bandwidth"),
    [
        ("a100-80gb", 312e12, 2.039e12),
        ("h100-80gb", 989.5e12, 3.35e12),
        ("b200-180gb", 2250e12, 7.7e12),
        ("mi300x", 1307.4e12, 5.3e12),
        ("t4", None, 0.32e12),  # 256 bits at 10 Gbit/s each
    ],
)
def test_rates_are_dense(name, bf16, bandwidth):
    assert (DEVICES[name].rates.bf16, DEVICES[name].rates.bytes_per_second) == (bf16, bandwidth)


@pytest.mark.parametrize("name", ["t4", "T4", " H200-141GB ", "RTX-3090", "Apple-M-16GB"])
def test_a_device_is_found_in_any_case(name):
    assert find_device(name) is DEVICES[name.strip().lower()]


@pytest.mark.parametrize(
    ("name", "near"), [("a100", "a100-[48]0gb"), ("h100-80", "h100-80gb"), ("rtx3090", "rtx-3090"), ("mi300", "mi300x")]
)
def test_an_unknown_device_is_answered_with_near_ones(name, near):
    with pytest.raises(ConfigError, match=f"no device '{name}'; did you mean .*{near}"):
        find_device(name)


def test_a_name_far_from_all_is_answered_with_all():
    with pytest.raises(ConfigError, match=r"there are p100-16gb, .*, tpu-v6e, here"):
        find_device("zzzzzz")


@pytest.mark.parametrize(
    ("text", "memory_bytes"),
    [
        ("24GiB", 24 * GIB),
        ("24 GB", 24 * 10**9),
        ("24gb", 24 * 10**9),
        ("81920MiB", 80 * GIB),
        ("80e9", 80 * 10**9),
        ("80E+9", 80 * 10**9),
        ("22.5 GiB", 45 * GIB // 2),
        (" 1.5TiB ", 3 * 2**39),
        ("1TB", 10**12),
        ("2048kib", 2**21),
        ("5000 KB", 5_000_000),
        ("25769803776", 24 * GIB),
        ("25769803776B", 24 * GIB),
        ("1MiB", 2**20),
        ("1024TiB", 2**50),
    ],
)
def test_a_memory_is_read_in_units_of_1000_and_of_1024(text, memory_bytes):
    device = custom_device(text)
    assert device.memory_bytes == memory_bytes
    assert (device.kind, device.compute_capability, device.rates) == ("cuda", (8, 0), None)
    assert device.description.startswith("a GPU of ")


@pytest.mark.parametrize(
    "text", ["", "GiB", "24 G", "24Gi", "-24GiB", "1,5GiB", "nan", "inf", "24GiB 2", "٢٤GiB", "1e"]
)
def test_what_is_no_memory_gets_one_line_that_says_how_it_is_written(text):
    with pytest.raises(ConfigError, match=r"must be a number with a unit \(24GiB, 24GB, 81920MiB\)") as raised:
        custom_device(text)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("text", ["24", "0GiB", "1048575", "1025TiB", "1e99", "9999999999999999 TB"])
def test_a_memory_that_no_device_has_is_refused(text):
    with pytest.raises(ConfigError, match="must be between 1 MiB and 1024 TiB; got"):
        custom_device(text)


def test_a_number_without_a_unit_is_explained():
    with pytest.raises(ConfigError, match="'24'; a number alone counts bytes: add a unit"):
        custom_device("24")


@given(text=st.one_of(st.text(max_size=40), st.from_regex(r"[0-9.e+]{0,30} ?[kKmMgGtTiIbB]{0,4}", fullmatch=True)))
def test_any_text_is_a_memory_within_bounds_or_one_line(text):
    try:
        assert 2**20 <= custom_device(text).memory_bytes <= 2**50
    except ConfigError as error:
        assert "\n" not in str(error)
        assert len(str(error)) < 300


@given(mib=st.integers(1, 2**30), places=st.integers(0, 3))
def test_the_same_memory_in_any_unit_is_the_same_device(mib, places):
    in_gib = Decimal(mib) / 1024
    assert custom_device(f"{mib}MiB").memory_bytes == mib * 2**20
    assert custom_device(f"{in_gib:f} GiB").memory_bytes == mib * 2**20
    assert custom_device(f"{mib * 2**20}.{'0' * places or '0'}").memory_bytes == mib * 2**20


def test_a_device_with_other_memory_is_that_device_in_all_else():
    like = DEVICES["h100-80gb"]
    device = custom_device("40GiB", like=like)
    assert (device.name, device.kind, device.compute_capability) == (like.name, like.kind, like.compute_capability)
    assert device.rates == like.rates
    assert device.memory_bytes == 40 * GIB
    assert device.description == "NVIDIA H100 80 GB, with 40.00 GiB"
    assert "issues" not in device.source


def test_only_devices_without_cudas_kernels_have_a_note():
    noted = {device.kind for device in DEVICES.values() if kernel_note_of(device)}
    assert noted == {"rocm", "mps", "tpu"}
    assert kernel_note_of(DEVICES["t4"]) is None
    assert "AOTriton" in kernel_note_of(DEVICES["mi300x"])
    assert "need the most" in kernel_note_of(DEVICES["apple-m-16gb"])
    assert "unknown" in kernel_note_of(DEVICES["tpu-v5e"])


def test_only_where_no_kernel_is_known_to_save_memory_a_step_is_reckoned_without_fused_ones():
    without = {device.kind for device in DEVICES.values() if device.step_capability == NO_FUSED_KERNELS}
    assert without == {"mps", "tpu"}
    for dtype in ("float32", "bfloat16", "float16"):
        for mask in ("none", "causal", "bool"):
            case = SdpaCase("cuda", dtype, 64, 64, mask=mask, compute_capability=NO_FUSED_KERNELS)
            assert sdpa_kernel(case).name == "math"
    assert DEVICES["t4"].step_capability == (7, 5)
    assert DEVICES["mi300x"].step_capability == (8, 0)


def test_here_is_this_machine():
    device = this_machine()
    assert find_device("HERE") == device
    assert device.name == "here"
    assert device.memory_bytes > 2**28
    if device.kind == "cpu":
        assert device.memory_bytes <= os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        assert device.rates is None


def test_without_a_gpus_driver_this_machine_is_known_without_torch():
    code = (
        "import sys; from headwise.cost import devices; devices._has_gpu_driver = lambda: False; "
        "assert devices.this_machine().kind == 'cpu'; assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_mac_with_its_own_chip_has_a_gpu_and_another_machine_needs_a_driver(monkeypatch):
    monkeypatch.setattr(devices, "_DRIVERS", ("libno-such-driver.so",))
    for system, machine, has_gpu in (("Darwin", "arm64", True), ("Darwin", "x86_64", False), ("Linux", "arm64", False)):
        monkeypatch.setattr(platform, "system", lambda system=system: system)
        monkeypatch.setattr(platform, "machine", lambda machine=machine: machine)
        assert devices._has_gpu_driver() is has_gpu


class Properties:
    name = "Some GPU"
    total_memory = 7 * GIB
    major, minor = 9, 1


@pytest.fixture
def a_gpu(monkeypatch):
    """Make torch say that this machine has a GPU, and return what it then is."""
    import torch

    def make(name, memory_bytes, hip=None):
        properties = type("Named", (Properties,), {"name": name, "total_memory": memory_bytes})
        monkeypatch.setattr(devices, "_has_gpu_driver", lambda: True)
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: properties)
        monkeypatch.setattr(torch.version, "hip", hip)
        return this_machine()

    return make


@pytest.mark.parametrize(("hip", "kind", "capability"), [(None, "cuda", (9, 1)), ("6.4", "rocm", None)])
def test_a_gpu_that_torch_can_use_is_this_machine(a_gpu, hip, kind, capability):
    device = a_gpu("Some GPU", 7 * GIB, hip)
    assert (device.kind, device.memory_bytes, device.name) == (kind, 7 * GIB, "here")
    assert "Some GPU" in device.description
    assert device.compute_capability == capability
    assert device.rates is None


@pytest.mark.parametrize(
    ("named", "gib", "name"),
    [
        ("NVIDIA H100 80GB HBM3", 79.11, "h100-80gb"),
        ("NVIDIA H100 PCIe", 79.11, "h100-pcie-80gb"),
        ("NVIDIA H100 NVL", 93.1, "h100-nvl-94gb"),
        ("NVIDIA A100-SXM4-40GB", 39.39, "a100-40gb"),
        ("NVIDIA A100-SXM4-80GB", 79.15, "a100-80gb"),
        ("Tesla V100-SXM2-32GB", 31.75, "v100-32gb"),
        ("Tesla P100-PCIE-16GB", 15.9, "p100-16gb"),
        ("Tesla T4", 14.75, "t4"),
        ("NVIDIA GeForce RTX 2080 Ti", 10.76, "rtx-2080-ti"),
        ("NVIDIA GeForce RTX 3090", 23.69, "rtx-3090"),
        ("NVIDIA RTX 6000 Ada Generation", 47.4, "rtx-6000-ada"),
        ("NVIDIA GH200 480GB", 94.5, "gh200-96gb"),
        ("AMD Instinct MI300X", 191.98, "mi300x"),
    ],
)
def test_a_gpu_of_the_catalogue_has_its_rates_here_too(a_gpu, named, gib, name):
    device = a_gpu(named, int(gib * GIB), "6.4" if name.startswith("mi") else None)
    assert device.rates == DEVICES[name].rates is not None
    assert device.memory_bytes == int(gib * GIB)


@pytest.mark.parametrize(
    ("named", "gib"),
    [
        ("NVIDIA GeForce RTX 3090 Ti", 23.69),
        ("NVIDIA GeForce RTX 4080 SUPER", 15.7),
        ("NVIDIA GeForce RTX 3080 Laptop GPU", 9.8),
        ("NVIDIA GeForce RTX 3060", 7.66),  # a card of the same name with 8 GB
        ("Tesla V100-PCIE-32GB", 31.75),
        ("NVIDIA A100 80GB PCIe", 79.15),
        ("NVIDIA H20", 95.1),
        ("", 79.11),
    ],
)
def test_a_gpu_of_a_like_name_has_no_rates(a_gpu, named, gib):
    assert a_gpu(named, int(gib * GIB)).rates is None


def test_a_macs_gpu_has_what_metal_recommends(monkeypatch):
    import torch

    monkeypatch.setattr(devices, "_has_gpu_driver", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    monkeypatch.setattr(torch.mps, "recommended_max_memory", lambda: 5 * GIB)
    device = this_machine()
    assert (device.kind, device.memory_bytes, device.name) == ("mps", 5 * GIB, "here")


def test_where_torch_sees_no_gpu_this_machine_is_its_memory(monkeypatch):
    import torch

    monkeypatch.setattr(devices, "_has_gpu_driver", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    assert this_machine().kind == "cpu"
