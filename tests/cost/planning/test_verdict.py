from dataclasses import replace

import pytest

from headwise.config.presets import preset
from headwise.cost.devices import DEVICES
from headwise.cost.planner import judge, unmodelled
from headwise.cost.planning.closed_form import ClosedForm
from headwise.cost.planning.setup import Setup
from headwise.cost.planning.verdict import Judge, judge_setup
from headwise.cost.reserved import predict_reserved
from headwise.cost.results import Device, StepMemory
from headwise.cost.sharding.results import Sharding
from headwise.cost.workload import Workload

GIB = 2**30
T4 = DEVICES["t4"]
CPU = Device(name="here", description="a machine", memory_bytes=16 * GIB, kind="cpu", source="-", date="2026-01-01")
SETUP = Setup(config=preset("gpt2"), workload=Workload(batch=2, seq=16))


class Fixed:
    """A step of a given peak that reserves a given number of bytes; replays are counted."""

    def __init__(self, peak_bytes, reserved_bytes):
        self.peak_bytes, self.reserved_bytes = peak_bytes, reserved_bytes
        self.capacities = []

    def step(self, setup):
        return StepMemory(parameter_bytes=0, saved_bytes=0, peak_bytes=self.peak_bytes, peak_moment="loss")

    def reserved(self, setup, capacity_bytes=None):
        self.capacities.append(capacity_bytes)
        is_too_much = capacity_bytes is not None and self.reserved_bytes > capacity_bytes
        return None if is_too_much else self.reserved_bytes

    def ledger(self, setup):
        raise AssertionError("a verdict needs no ledger")

    def outline(self, setup):
        raise AssertionError("a word needs no outline")

    def flops(self, setup):
        raise AssertionError("a verdict needs no FLOPs")


def room(peak_bytes, device=T4):
    parts = unmodelled(peak_bytes, device, reserved_bytes=peak_bytes)
    return device.memory_bytes - sum(part.high for part in parts)


def test_bounds_that_tell_need_no_replay():
    for peak_bytes, answer in ((GIB, "yes"), (20 * GIB, "no")):
        predictor = Fixed(peak_bytes, peak_bytes)
        assert judge_setup(predictor, SETUP, T4) == judge(peak_bytes, T4, workload=SETUP.workload)
        assert judge_setup(predictor, SETUP, T4).fits == answer
        assert predictor.capacities == []


def test_between_the_bounds_a_replay_tells():
    peak_bytes = 12 * GIB
    assert judge(peak_bytes, T4).fits == "tight"
    for more, answer in ((0, "yes"), (1, "tight")):
        predictor = Fixed(peak_bytes, room(peak_bytes) + more)
        verdict = judge_setup(predictor, SETUP, T4)
        assert verdict.fits == answer
        assert predictor.capacities == [room(peak_bytes)]
        assert verdict.reserved_bytes == (room(peak_bytes) if answer == "yes" else None)


@pytest.mark.parametrize("kind", ["cpu", "mps", "tpu"])
def test_devices_with_another_allocator_get_no_replay(kind):
    device = replace(CPU, kind=kind)
    peak_bytes = next(n * GIB // 4 for n in range(1, 80) if judge(n * GIB // 4, device).fits == "tight")
    predictor = Fixed(peak_bytes, peak_bytes)
    assert judge_setup(predictor, SETUP, device).fits == "tight"
    assert Judge(predictor, device).with_reserved(SETUP).reserved_bytes is None
    assert predictor.capacities == []


def test_a_setup_is_judged_once():
    predictor = Fixed(12 * GIB, 13 * GIB)
    asked = Judge(predictor, T4)
    assert asked(SETUP) is asked(SETUP)
    assert (asked.num_judged, len(predictor.capacities)) == (1, 1)


def test_replays_end_when_their_layers_are_used_up_and_bounds_remain():
    predictor = Fixed(12 * GIB, 12 * GIB)
    asked = Judge(predictor, T4, max_replayed_layers=25)  # GPT-2 has 12 layers
    setups = [replace(SETUP, workload=Workload(batch=batch, seq=16)) for batch in (1, 2, 3)]
    assert [asked.fits(setup) for setup in setups] == ["yes", "yes", "tight"]


def test_the_reserved_bytes_of_what_does_not_fit_are_those_without_a_limit():
    predictor = Fixed(20 * GIB, 23 * GIB)
    verdict = Judge(predictor, T4).with_reserved(SETUP)
    assert (verdict.fits, verdict.reserved_bytes) == ("no", 23 * GIB)
    assert predictor.capacities == [None]


def test_holes_larger_than_the_bound_take_a_yes_back():
    predictor = Fixed(8 * GIB, 14 * GIB)
    assert judge(8 * GIB, T4, workload=SETUP.workload).fits == "yes"
    verdict = Judge(predictor, T4).with_reserved(SETUP)
    assert (verdict.fits, verdict.reserved_bytes) == ("tight", 14 * GIB)


def test_bounds_allow_more_for_holes_where_a_step_keeps_little():
    """Beside 9 of 14.56 GiB there is room for 40 % of it, and not for as much again."""
    asked = Judge(Fixed(6 * GIB + 2**29, 0), T4)
    kept = [SETUP, replace(SETUP, workload=replace(SETUP.workload, accumulation=3))]
    little = [{"checkpoint": "full"}, {"checkpoint": "selective"}, {"frozen_layers": 1}, {"phase": "prefill"}]
    assert [asked.by_bounds(setup).fits for setup in kept] == ["yes", "yes"]
    for changed in little:
        setup = replace(SETUP, workload=replace(SETUP.workload, **changed))
        assert asked.by_bounds(setup).fits == "tight"


def test_the_reserved_bytes_of_a_roomy_device_are_those_of_the_replay():
    workload = Workload(batch=3, seq=65)
    verdict = Judge(ClosedForm(), DEVICES["a100-80gb"]).with_reserved(Setup(config=preset("gpt2"), workload=workload))
    assert verdict.reserved_bytes == predict_reserved(preset("gpt2"), workload)
    assert verdict.fits == "yes"


def test_a_deep_model_that_cannot_fit_is_not_replayed():
    deep = replace(SETUP, config=replace(SETUP.config, blocks=SETUP.config.blocks[:1] * 49))
    predictor = Fixed(20 * GIB, 23 * GIB)
    assert Judge(predictor, T4).with_reserved(deep).reserved_bytes is None
    assert predictor.capacities == []


def test_the_reserved_bytes_of_what_does_not_fit_take_no_no_back():
    """A replay counts cuBLAS's workspace, so that less is left to the lower bound beside it."""
    predictor = Fixed(12 * GIB, 12 * GIB + 64 * 2**20)
    parts = unmodelled(12 * GIB, T4)
    device = replace(T4, memory_bytes=12 * GIB + sum(part.low for part in parts) - 1)
    assert Judge(predictor, device).fits(SETUP) == "no"
    assert judge(12 * GIB, device, reserved_bytes=12 * GIB + 64 * 2**20).fits == "tight"
    verdict = Judge(predictor, device).with_reserved(SETUP)
    assert (verdict.fits, verdict.reserved_bytes) == ("no", 12 * GIB + 64 * 2**20)


def test_what_a_step_usually_needs_has_the_buffers_of_its_devices():
    asked = Judge(Fixed(GIB, GIB), T4)
    spread = replace(SETUP, sharding=Sharding(kind="zero3", num_devices=2))
    more = asked.usual_need(spread, asked.by_bounds(spread)) - asked.usual_need(SETUP, asked.by_bounds(SETUP))
    assert more == 2 * GIB
