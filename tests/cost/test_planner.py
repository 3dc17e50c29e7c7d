from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwise.cost.devices import DEVICES
from headwise.cost.planner import SEGMENT_BYTES, judge, unmodelled
from headwise.cost.results import Device
from headwise.errors import ConfigError

GIB = 2**30
CPU = Device(name="here", description="a machine", memory_bytes=16 * GIB, kind="cpu", source="-", date="2026-01-01")
EVERY_DEVICE = [*DEVICES.values(), CPU]


def bounds(peak_bytes: int, device: Device) -> tuple[int, int]:
    parts = unmodelled(peak_bytes, device)
    return sum(part.low_bytes for part in parts), sum(part.high_bytes for part in parts)


@given(device=st.sampled_from(EVERY_DEVICE), share=st.floats(0, 1.5))
def test_yes_fits_at_the_worst_no_fails_at_the_best_and_tight_is_between(device, share):
    peak_bytes = int(share * device.memory_bytes)
    low, high = bounds(peak_bytes, device)
    verdict = judge(peak_bytes, device)
    whole_segments = (peak_bytes + SEGMENT_BYTES - 1) // SEGMENT_BYTES * SEGMENT_BYTES
    assert (verdict.fits == "yes") == (whole_segments + high <= device.memory_bytes)
    assert (verdict.fits == "no") == (peak_bytes + low > device.memory_bytes)
    assert (verdict.unmodelled_low_bytes, verdict.unmodelled_high_bytes) == (low, high)
    assert (verdict.peak_bytes, verdict.device) == (peak_bytes, device)


@pytest.mark.parametrize("device", EVERY_DEVICE, ids=lambda device: device.name)
def test_all_three_answers_occur_in_order_as_the_peak_grows(device):
    order = ["yes", "tight", "no"]
    answers = [judge(device.memory_bytes * percent // 100, device).fits for percent in range(120)]
    assert set(answers) == set(order)
    assert answers == sorted(answers, key=order.index)


@pytest.mark.parametrize("device", [DEVICES["t4"], CPU], ids=lambda device: device.name)
def test_holes_between_blocks_may_take_12_percent_of_the_peak(device):
    holes = next(part for part in unmodelled(10_000, device) if "holes" in part.what)
    assert (holes.low_bytes, holes.high_bytes) == (0, 1200)


@given(device=st.sampled_from(EVERY_DEVICE), peak_bytes=st.integers(0, 2**50))
def test_every_bound_is_a_range(device, peak_bytes):
    for part in unmodelled(peak_bytes, device):
        assert 0 <= part.low_bytes <= part.high_bytes


def test_the_last_segment_counts_whole():
    t4 = DEVICES["t4"]
    peak_bytes = 3 * SEGMENT_BYTES + 1
    high = bounds(peak_bytes, t4)[1]
    assert judge(peak_bytes, replace(t4, memory_bytes=4 * SEGMENT_BYTES + high)).fits == "yes"
    assert judge(peak_bytes, replace(t4, memory_bytes=4 * SEGMENT_BYTES + high - 1)).fits == "tight"


@pytest.mark.parametrize("device", EVERY_DEVICE, ids=lambda device: device.name)
def test_no_begins_with_the_first_byte_that_the_lower_bound_leaves_no_room_for(device):
    room = device.memory_bytes - bounds(0, device)[0]  # no part's lower bound grows with the peak
    assert judge(room, device).fits == "tight"
    assert judge(room + 1, device).fits == "no"


def test_the_reason_names_the_peak_the_capacity_and_what_is_not_modelled():
    reason = judge(10 * GIB, DEVICES["t4"]).reason
    assert "10.00 GiB at the peak" in reason
    assert "NVIDIA T4 has 14.56 GiB" in reason
    assert "CUDA context 286.1 MiB to 2.00 GiB" in reason
    assert "\n" not in reason
    assert "interpreter" in judge(10 * GIB, CPU).reason


def test_a_peak_is_a_number_of_bytes():
    with pytest.raises(ConfigError, match="peak_bytes must be between 0"):
        judge(-1, CPU)
