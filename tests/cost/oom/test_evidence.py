"""What a message says of the bytes in use tells allocations of one size apart."""

import pytest

from headwise.cost.oom.births import Birth, Cluster, LearnedStep
from headwise.cost.oom.evidence import density, rough_weight, spread, weigh
from headwise.cost.oom.patterns import PROBE_BATCH, ZERO, learn_pattern
from headwise.cost.oom.results import OomMessage
from headwise.cost.workload import Workload

GIB = 2**30
TENSOR = learn_pattern((PROBE_BATCH, GIB), "uint8")  # a GiB for each text
WORKLOAD = Workload(batch=1, seq=1)


def gib(constant, per_text=0):
    return (float(constant * GIB), float(per_text * GIB), 0.0, 0.0, 0.0, 0.0)


def birth(name, before, *, growth=0, layers=None, moment="forward", states="never"):
    times = 1 if layers is None else len(layers)
    return Birth(name, "temporary", "", layers, moment, TENSOR, gib(before), gib(growth), states, times)


def message(**figures):
    return OomMessage(
        backend="cuda",
        wording="test",
        requested_text=None,
        requested_low_bytes=GIB,
        requested_high_bytes=GIB,
        **figures,
    )


def weights(step, **figures):
    found = {}
    for one in weigh(step, 1, 1, message(**figures), {TENSOR}):
        found[one.birth.name] = found.get(one.birth.name, 0.0) + one.weight
    return found


def test_the_bytes_in_use_lie_at_the_ledgers_or_a_little_above():
    at = density(20 * GIB, 20 * GIB, 0, 1)
    assert at > density(20 * GIB, 20 * GIB - 100 * 2**20, 0, 1) > density(20 * GIB, 20 * GIB + 100 * 2**20, 0, 1)
    assert density(20 * GIB, 5 * GIB, 0, 1) == 0


def test_of_layers_the_one_counts_that_is_nearest():
    alone = density(23 * GIB, 23 * GIB, 0, 1)
    assert density(23 * GIB, 20 * GIB, GIB, 12) == pytest.approx(alone, rel=1e-4)
    assert density(23 * GIB, 26 * GIB, -GIB, 12) == pytest.approx(alone, rel=1e-4)
    assert density(23 * GIB, 20 * GIB, GIB, 3) == 0
    assert density(20 * GIB, 20 * GIB, 0, 12) == pytest.approx(12 * density(20 * GIB, 20 * GIB, 0, 1))


def test_the_density_of_what_may_be_anything_adds_up_to_less_than_one():
    assert sum(spread(size * GIB) for size in range(200)) < 4
    assert spread(GIB) > spread(20 * GIB)


def test_what_raises_the_bytes_in_use_is_likelier_than_what_comes_under_an_earlier_peak():
    step = LearnedStep(WORKLOAD, (birth("peak", 30), birth("under it", 20, moment="loss")), 0)
    under = weights(step, allocated_bytes=20 * GIB, capacity_bytes=24 * GIB)["under it"]
    step = LearnedStep(WORKLOAD, (birth("low", 10), birth("raises", 20, moment="loss")), 0)
    found = weights(step, allocated_bytes=20 * GIB, capacity_bytes=24 * GIB)
    assert found["raises"] > 100 * under  # there was no room for the peak, so it would not have come so far
    assert found["raises"] > 100 * found["low"]


def test_there_are_more_bytes_in_use_once_the_optimizer_has_stepped():
    step = LearnedStep(WORKLOAD, (birth("tensor", 10, states="later"),), 8 * GIB)
    for in_use in (10, 18):
        assert weights(step, allocated_bytes=in_use * GIB)["tensor"] > 1
        assert rough_weight(step, step.clusters[0], 1, 1, in_use * GIB) > 1
    assert weights(step, allocated_bytes=14 * GIB)["tensor"] < 0.01


def test_without_bytes_in_use_the_raise_within_the_capacity_decides():
    step = LearnedStep(WORKLOAD, (birth("too early", 5), birth("at the rim", 18), birth("later", 30)), 0)
    found = weights(step, capacity_bytes=20 * GIB)  # tensors fill 16 to 20 GiB of it
    floor = found["too early"]
    assert found["at the rim"] - floor == pytest.approx((19 - 16) / 4)
    assert found["later"] - floor == pytest.approx((20 - 19) / 4)
    assert floor < 0.02


def test_a_rough_weight_sees_the_bytes_in_use_but_no_earlier_peak():
    births = (birth("peak", 30), birth("under it", 20, moment="loss"))
    step = LearnedStep(WORKLOAD, births, 0)
    clusters = {cluster.moment: cluster for cluster in step.clusters}
    assert isinstance(clusters["loss"], Cluster)
    assert (
        rough_weight(step, clusters["loss"], 1, 1, 20 * GIB)
        > 1
        > rough_weight(step, clusters["forward"], 1, 1, 20 * GIB)
    )
    assert rough_weight(step, clusters["loss"], 1, 1, None) == 0.5  # its share of all that is allocated


def test_nothing_is_weighed_of_a_step_without_the_pattern():
    assert weigh(LearnedStep(WORKLOAD, (birth("tensor", 1),), 0), 1, 1, message(), set()) == []
    assert LearnedStep(WORKLOAD, (), 0).total == ZERO
