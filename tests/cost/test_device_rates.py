"""The catalogue's memory and rates against what a card's parts give: its pins, its cores and their clocks.

None of these figures is a rate of a data sheet: a wrong digit in the catalogue meets a product of other numbers here.
"""

import pytest

from headwise.cost.devices import DEVICES

# device: (width of the memory bus in bits, Gbit/s of each)
BUSES = {
    "p100-16gb": (4096, 1.43),
    "v100-16gb": (4096, 1.752),
    "v100-32gb": (4096, 1.752),
    "t4": (256, 10),
    "rtx-2080-ti": (352, 14),
    "rtx-3060": (192, 15),
    "rtx-3080": (320, 19),
    "rtx-3090": (384, 19.5),
    "rtx-4070": (192, 21),
    "rtx-4080": (256, 22.4),
    "rtx-4090": (384, 21),
    "rtx-5090": (512, 28),
    "rtx-a4000": (256, 14),
    "rtx-a5000": (384, 16),
    "rtx-a6000": (384, 16),
    "rtx-6000-ada": (384, 20),
    "a10": (384, 12.5),
    "a10g": (384, 12.5),
    "a30": (3072, 2.43),
    "a40": (384, 14.5),
    "a100-40gb": (5120, 2.43),
    "a100-80gb": (5120, 3.186),
    "l4": (192, 12.5),
    "l40": (384, 18),
    "l40s": (384, 18),
    "h100-80gb": (5120, 5.238),
    "h100-pcie-80gb": (5120, 3.186),
    "h100-nvl-94gb": (6016, 5.2),
    "gh200-96gb": (6144, 5.2),
    "h200-141gb": (6144, 6.25),
    "b200-180gb": (8192, 7.5),
    "mi210": (4096, 3.2),
    "mi250": (4096, 3.2),
    "mi250x": (4096, 3.2),
    "mi300x": (8192, 5.2),
    "mi325x": (8192, 6),
    "mi355x": (8192, 8),
    "tpu-v4": (4096, 2.4),
    "tpu-v5e": (2048, 3.2),
    "tpu-v5p": (6144, 3.6),
    "tpu-v6e": (4096, 3.2),
}
IN_WHOLE_TENTHS = {"h100-pcie-80gb", "mi325x", "mi355x", "tpu-v4"}
"""Whose vendor prints a bandwidth of so few digits."""

# device: (lanes that multiply and add float32 once a tick, GHz)
CORES = {
    "p100-16gb": (3584, 1.303),
    "v100-16gb": (5120, 1.53),
    "v100-32gb": (5120, 1.53),
    "t4": (2560, 1.59),
    "rtx-2080-ti": (4352, 1.545),
    "rtx-3060": (3584, 1.78),
    "rtx-3080": (8704, 1.71),
    "rtx-3090": (10496, 1.695),
    "rtx-4070": (5888, 2.48),
    "rtx-4080": (9728, 2.505),
    "rtx-4090": (16384, 2.52),
    "rtx-5090": (21760, 2.407),
    "rtx-a4000": (6144, 1.56),
    "rtx-a5000": (8192, 1.695),
    "rtx-a6000": (10752, 1.8),
    "rtx-6000-ada": (18176, 2.505),
    "a10": (9216, 1.695),
    "a30": (3584, 1.44),
    "a40": (10752, 1.74),
    "a100-40gb": (6912, 1.41),
    "a100-80gb": (6912, 1.41),
    "l4": (7424, 2.04),
    "l40": (18176, 2.49),
    "l40s": (18176, 2.52),
    "h100-80gb": (16896, 1.98),
    "h100-pcie-80gb": (14592, 1.755),
    "h100-nvl-94gb": (16896, 1.785),
    "gh200-96gb": (16896, 1.98),
    "h200-141gb": (16896, 1.98),
    "b200-180gb": (18944, 1.965),
    "mi210": (13312, 1.7),
    "mi250": (13312, 1.7),
    "mi250x": (14080, 1.7),
    "mi300x": (38912, 2.1),
    "mi325x": (38912, 2.1),
    "mi355x": (32768, 2.4),
}

# how many times as fast as float32 float16 is, with sums in float32
TIMES_FLOAT32 = {
    2: "p100-16gb rtx-3060 rtx-3080 rtx-3090 rtx-4070 rtx-4080 rtx-4090 rtx-5090 a10g l40",
    4: "rtx-2080-ti rtx-a4000 rtx-a5000 rtx-a6000 rtx-6000-ada a10 a40 l4 l40s mi210 mi250 mi250x",
    8: "v100-16gb v100-32gb t4 mi300x mi325x",
    16: "a30 a100-40gb a100-80gb mi355x",
}

# device: (units, float16 operations of each a tick, GHz): tensor cores that run at a clock of their own, and TPUs
UNITS = {
    "h100-80gb": (132, 4096, 1.83),
    "h100-pcie-80gb": (114, 4096, 1.62),
    "h100-nvl-94gb": (132, 4096, 1.545),
    "gh200-96gb": (132, 4096, 1.83),
    "h200-141gb": (132, 4096, 1.83),
    "b200-180gb": (148, 8192, 1.855),
    "tpu-v4": (8, 2 * 128 * 128, 1.05),
    "tpu-v5e": (4, 2 * 128 * 128, 1.5),
    "tpu-v5p": (8, 2 * 128 * 128, 1.75),
    "tpu-v6e": (4, 2 * 256 * 256, 1.75),
}
RATED = [name for name, device in DEVICES.items() if device.rates is not None]


def test_every_rated_device_is_checked_here():
    times = [name for names in TIMES_FLOAT32.values() for name in names.split()]
    assert set(BUSES) == set(RATED)
    assert set(CORES) == {name for name in RATED if DEVICES[name].rates.fp32 is not None} - {"a10g"}
    assert sorted([*times, *UNITS]) == sorted(RATED)


@pytest.mark.parametrize("name", BUSES)
def test_a_bandwidth_is_that_of_all_pins_of_the_memory(name):
    bits, gigabits = BUSES[name]
    expected = pytest.approx(bits / 8 * gigabits * 1e9, rel=0.03 if name in IN_WHOLE_TENTHS else 0.01)
    assert DEVICES[name].rates.bytes_per_second == expected


@pytest.mark.parametrize("name", CORES)
def test_float32_is_two_operations_for_each_core_and_tick(name):
    cores, gigahertz = CORES[name]
    assert DEVICES[name].rates.fp32 == pytest.approx(2 * cores * gigahertz * 1e9, rel=0.01)


@pytest.mark.parametrize(("times", "names"), TIMES_FLOAT32.items())
def test_float16_is_a_power_of_two_of_float32(times, names):
    for name in names.split():
        rates = DEVICES[name].rates
        assert rates.fp16 == pytest.approx(times * rates.fp32, rel=0.015), name


@pytest.mark.parametrize("name", UNITS)
def test_units_with_a_clock_of_their_own_do_so_many_operations_a_tick(name):
    units, operations, gigahertz = UNITS[name]
    rates = DEVICES[name].rates
    assert (rates.fp16 or rates.bf16) == pytest.approx(units * operations * gigahertz * 1e9, rel=0.01)


@pytest.mark.parametrize("name", [name for name in RATED if DEVICES[name].rates.tf32 is not None])
def test_tf32_is_half_of_bfloat16(name):
    assert DEVICES[name].rates.tf32 == pytest.approx(DEVICES[name].rates.bf16 / 2, rel=0.012)
