import os
import re
import subprocess
import sys
from datetime import date

import pytest

from headwise.cost.devices import DEVICES, find_device, this_machine
from headwise.errors import ConfigError

GIB = 2**30

NOMINAL_GB = {
    "v100-32gb": 32,
    "a100-40gb": 40,
    "a100-80gb": 80,
    "h100-80gb": 80,
    "h200-141gb": 141,
    "rtx-3090": 24,
    "rtx-4090": 24,
    "t4": 16,
    "l4": 24,
}


def test_the_catalogue_holds_the_devices_that_it_promises():
    assert set(DEVICES) == set(NOMINAL_GB)


@pytest.mark.parametrize("name", NOMINAL_GB)
def test_a_device_has_a_little_less_than_its_name_says(name):
    assert 0.9 * NOMINAL_GB[name] * 10**9 < DEVICES[name].memory_bytes < NOMINAL_GB[name] * GIB


@pytest.mark.parametrize("name", NOMINAL_GB)
def test_a_device_has_its_source_and_the_sources_date(name):
    device = DEVICES[name]
    assert device.kind == "cuda"
    assert device.name == name
    assert re.search(r"https://(github\.com/.+/issues/\d+|huggingface\.co/blog/.+)", device.source)
    assert date(2023, 1, 1) < date.fromisoformat(device.date) < date(2027, 1, 1)


@pytest.mark.parametrize("name", ["t4", "T4", " H200-141GB ", "RTX-3090"])
def test_a_device_is_found_in_any_case(name):
    assert find_device(name) is DEVICES[name.strip().lower()]


@pytest.mark.parametrize(("name", "near"), [("a100", "a100-80gb"), ("h100-80", "h100-80gb"), ("rtx3090", "rtx-3090")])
def test_an_unknown_device_is_answered_with_near_ones(name, near):
    with pytest.raises(ConfigError, match=f"no device '{name}'; did you mean .*{near}"):
        find_device(name)


def test_a_name_far_from_all_is_answered_with_all():
    with pytest.raises(ConfigError, match=r"there are v100-32gb, .*, l4, here"):
        find_device("zzzzzz")


def test_here_is_this_machine():
    device = this_machine()
    assert find_device("HERE") == device
    assert device.name == "here"
    assert device.memory_bytes > 2**28
    if device.kind == "cpu":
        assert device.memory_bytes <= os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def test_without_a_cuda_driver_this_machine_is_known_without_torch():
    code = (
        "import sys; from headwise.cost import devices; devices._has_cuda_driver = lambda: False; "
        "assert devices.this_machine().kind == 'cpu'; assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_gpu_that_torch_can_use_is_this_machine(monkeypatch):
    import torch

    from headwise.cost import devices

    class Properties:
        name = "Some GPU"
        total_memory = 7 * GIB
        major, minor = 9, 1

    monkeypatch.setattr(devices, "_has_cuda_driver", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: Properties)
    device = this_machine()
    assert (device.kind, device.memory_bytes, device.name) == ("cuda", 7 * GIB, "here")
    assert "Some GPU" in device.description
    assert device.compute_capability == (9, 1)
