"""The largest batch and length: they fit, one more does not, and nothing larger does."""

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwise.config.presets import preset
from headwise.cost.devices import DEVICES
from headwise.cost.planning.closed_form import ClosedForm
from headwise.cost.planning.limits import find_largest, largest_batch, largest_seq, with_length
from headwise.cost.planning.setup import Setup
from headwise.cost.planning.verdict import Judge
from headwise.cost.results import Device, StepMemory
from headwise.cost.sharding.results import Sharding
from headwise.cost.workload import MAX_TOKENS, Workload
from headwise.errors import UnsupportedError

GIB = 2**30
CPU = Device(name="here", description="a machine", memory_bytes=16 * GIB, kind="cpu", source="-", date="2026-01-01")
BERT = preset("bert-base")


class Formula:
    """A step whose peak is a formula of its batch and length; what it reserves is a share more."""

    def __init__(self, peak, holes=0.03, longest=None):
        self.peak, self.holes, self.longest = peak, holes, longest
        self.num_steps = self.num_replays = 0

    def step(self, setup):
        self.num_steps += 1
        if self.longest is not None and setup.workload.seq > self.longest:
            raise UnsupportedError("too long")
        peak = self.peak(setup.workload.batch, setup.workload.seq)
        return StepMemory(parameter_bytes=0, saved_bytes=0, peak_bytes=peak, peak_moment="loss")

    def reserved(self, setup, capacity_bytes=None):
        self.num_replays += 1
        reserved = int(self.step(setup).peak_bytes * (1 + self.holes))
        return None if capacity_bytes is not None and reserved > capacity_bytes else reserved

    def ledger(self, setup):
        raise AssertionError("a limit needs no ledger")

    def outline(self, setup):
        raise AssertionError("a word needs no outline")

    def flops(self, setup):
        raise AssertionError("a limit needs no FLOPs")


def at(batch=1, seq=1, config=BERT):
    return Setup(config=config, workload=Workload(batch=batch, seq=seq))


@settings(max_examples=25, deadline=None)
@given(
    standing=st.integers(0, 30 * GIB),
    each=st.integers(2**10, GIB),
    start=st.sampled_from([1, 7, 64, 5000]),
    power=st.sampled_from([1, 2]),
    memory_gib=st.integers(4, 40),
)
def test_the_largest_length_is_the_largest_that_bounds_say_fits(standing, each, start, power, memory_gib):
    device = replace(CPU, memory_bytes=memory_gib * GIB)
    predictor = Formula(lambda batch, seq: standing + each * seq**power)
    largest = largest_seq(predictor, at(seq=start), device)
    judge = Judge(predictor, device)
    if largest:
        assert judge.fits(with_length(at(), largest)) == "yes"
    assert judge.fits(with_length(at(), largest + 1)) != "yes"
    assert predictor.num_steps <= 64 + 40


@settings(max_examples=15, deadline=None)
@given(each=st.integers(2**27, GIB), holes=st.floats(0, 0.38), start=st.sampled_from([1, 8, 50]))
def test_replays_find_the_largest_batch_where_there_are_few(each, holes, start):
    device = DEVICES["v100-32gb"]
    predictor = Formula(lambda batch, seq: each * batch, holes=holes)
    largest = largest_batch(predictor, at(batch=start, config=replace(BERT, blocks=BERT.blocks[:1])), device)
    assert predictor.num_replays <= 12
    judge = Judge(predictor, device, max_replayed_layers=2**20)
    assert largest == next(batch for batch in range(1, 400) if judge.fits(at(batch=batch)) != "yes") - 1


@pytest.mark.parametrize("power", [20, 22, 24])
@pytest.mark.parametrize("holes", [0.0, 0.12, 0.37])
def test_replays_end_also_where_the_first_guess_is_far_off(power, holes):
    """Thousands of sizes between the bounds. The guess is off by at most 37 % of it: after steps of 1, 4 and 16 parts
    of 64, and at the most one to the middle, 8 or more of 12 replays halve what is less than half of the sizes.
    """
    device = DEVICES["v100-32gb"]
    predictor = Formula(lambda batch, seq: 2**power * batch, holes=holes)
    config = replace(BERT, blocks=BERT.blocks[:1])
    largest = largest_batch(predictor, at(config=config), device)
    assert predictor.num_replays <= 12
    judge = Judge(predictor, device, max_replayed_layers=2**20)
    more = largest + max(1, largest >> 7)
    assert judge.fits(at(batch=largest, config=config)) == "yes"
    assert judge.fits(at(batch=more, config=config)) != "yes"


def test_what_never_ends_is_bounded():
    predictor = Formula(lambda batch, seq: 1)
    assert largest_batch(predictor, at(seq=1024), CPU) == MAX_TOKENS // 1024
    assert largest_seq(predictor, at(batch=1024), CPU) == MAX_TOKENS // 1024
    assert largest_batch(predictor, at(), CPU) == 2**31 - 1
    assert largest_batch(predictor, at(batch=4), CPU, limit=3) == 3


def test_what_cannot_be_told_ends_a_search_and_not_the_answer():
    assert largest_seq(Formula(lambda batch, seq: seq, longest=777), at(seq=5), CPU) == 777
    assert largest_seq(Formula(lambda batch, seq: seq, longest=0), at(seq=5), CPU) == 0


@pytest.mark.parametrize("kind", ["sequence", "context"])
@pytest.mark.parametrize(("start", "device_gib"), [(49, 4), (7, 16), (7000, 1)])
def test_lengths_of_equal_parts_are_multiples_of_the_devices(kind, start, device_gib):
    class Parts(Formula):
        def step(self, setup):
            assert setup.workload.seq % 7 == 0
            return super().step(setup)

    device = replace(CPU, memory_bytes=device_gib * GIB)
    setup = replace(at(seq=start), sharding=Sharding(kind=kind, num_devices=7))
    predictor = Parts(lambda batch, seq: 2**20 * seq)
    largest = largest_seq(predictor, setup, device)
    judge = Judge(predictor, device)
    assert largest % 7 == 0
    assert largest == 0 or judge.fits(with_length(setup, largest)) == "yes"
    assert judge.fits(with_length(setup, largest + 7)) != "yes"
    assert (largest > 0) == (device_gib > 1)


def test_least_sizes_that_cannot_be_told_do_not_hide_larger_ones():
    class NotOne(Formula):
        def step(self, setup):
            if setup.workload.seq < 3:
                raise UnsupportedError("too short")
            return super().step(setup)

    largest = largest_seq(NotOne(lambda batch, seq: 2**20 * seq), at(seq=2**20), CPU)
    assert largest == largest_seq(Formula(lambda batch, seq: 2**20 * seq), at(seq=2**20), CPU) > 1000


def test_a_step_of_which_nothing_fits_is_found_with_three_predictions():
    predictor = Formula(lambda batch, seq: 2**40 + seq)
    assert largest_seq(predictor, at(seq=4096), CPU) == 0
    assert predictor.num_steps <= 3


def test_a_second_search_finds_what_the_first_found_though_holes_obey_no_law():
    """Reserved bytes leap with the size: what one search did not try, a later one takes as said."""

    class Leaping(Formula):
        def reserved(self, setup, capacity_bytes=None):
            self.holes = 0.01 + 0.11 * (setup.workload.batch * 37 % 5) / 5
            return super().reserved(setup, capacity_bytes)

    device = DEVICES["v100-32gb"]
    for each in range(2**24, 2**27, 2**22 + 12345):
        predictor = Leaping(lambda batch, seq, each=each: each * batch)
        judge = Judge(predictor, device)
        first = largest_batch(predictor, at(batch=64), device, judge=judge)
        assert largest_batch(predictor, at(batch=9), device, judge=judge) == first
        assert judge.fits(at(batch=first)) == "yes"
        assert all(judge.fits(at(batch=more)) != "yes" for more in range(first + 1, 2 * first, max(1, first // 40)))


def test_a_step_whose_smallest_size_is_too_much_has_none():
    for device in (CPU, DEVICES["t4"]):
        predictor = Formula(lambda batch, seq: 2**40)
        assert largest_batch(predictor, at(batch=64), device) == 0
        assert predictor.num_replays == 0


def test_an_image_has_one_length():
    vit = preset("vit-b-16")
    assert largest_seq(ClosedForm(), at(seq=197, config=vit), CPU) is None


@pytest.mark.parametrize("device", [CPU, DEVICES["t4"]], ids=lambda device: device.name)
@pytest.mark.parametrize("workload", [{}, {"attention": "eager", "checkpoint": "full"}], ids=str)
def test_limits_of_a_real_model_fit_and_one_more_does_not(device, workload):
    gpt2 = preset("gpt2")
    config = replace(gpt2, blocks=gpt2.blocks[:3])
    step = Workload(batch=5, seq=2048, device=device.step_device, **workload)
    setup = Setup(config=with_length(Setup(config=config, workload=step), 2048).config, workload=step)
    predictor = ClosedForm()
    judge = Judge(predictor, device, max_replayed_layers=10_000)
    batch = largest_batch(predictor, setup, device)
    assert batch > 1
    assert judge.fits(replace(setup, workload=replace(step, batch=batch))) == "yes"
    assert judge.fits(replace(setup, workload=replace(step, batch=batch + 1))) != "yes"
    seq = largest_seq(predictor, setup, device)
    assert seq > 256
    assert judge.fits(with_length(setup, seq)) == "yes"
    assert judge.fits(with_length(setup, seq + max(1, seq // 32))) != "yes"
    if device is CPU:
        assert judge.fits(with_length(setup, seq + 1)) != "yes"


@pytest.mark.parametrize("name", ["gpt2", "llama-3.2-1b"])
@pytest.mark.parametrize("workload", [{}, {"precision": "amp-bf16"}, {"checkpoint": "full"}], ids=str)
def test_the_peak_never_shrinks_with_the_batch_or_the_length(name, workload):
    predictor, config = ClosedForm(), preset(name)
    config = replace(config, blocks=config.blocks[:2])

    def peak(batch, seq):
        setup = Setup(config=config, workload=Workload(batch=batch, seq=seq, **workload))
        return predictor.step(with_length(setup, seq)).peak_bytes

    sizes = (2, 3, 16, 63, 64, 65, 513, 2048)
    for one, more in pairwise(sizes):
        assert peak(one, 100) <= peak(more, 100)
        assert peak(2, one) <= peak(2, more)


def test_a_search_tries_few_sizes():
    predictor = Formula(lambda batch, seq: GIB + 3 * 2**20 * batch)
    judge = Judge(predictor, CPU)
    largest = find_largest(lambda batch: at(batch=batch), judge, start=1, limit=2**31 - 1)
    assert largest > 3000
    assert judge.num_judged < 32
