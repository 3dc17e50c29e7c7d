"""No answer contradicts itself: one setup has one verdict, and larger steps never fit where smaller ones do not."""

from dataclasses import replace

import pytest

import headwise
from headwise.config.presets import preset
from headwise.cost.devices import DEVICES
from headwise.cost.planning.closed_form import ClosedForm
from headwise.cost.planning.plan import plan
from headwise.cost.planning.setup import Setup
from headwise.cost.planning.verdict import Judge
from headwise.cost.sharding.results import SHARDINGS, Sharding
from headwise.cost.workload import Workload
from headwise.errors import HeadwiseError

MIB = 2**20
H100 = DEVICES["h100-80gb"]
LLAMA = replace(preset("llama-3.2-1b"), blocks=preset("llama-3.2-1b").blocks[:2])
GPT2 = replace(preset("gpt2"), blocks=preset("gpt2").blocks[:1])


class Holes(ClosedForm):
    """Holes of 0 to 10 % that obey no law, in a model whose layers are soon used up."""

    def reserved(self, setup, capacity_bytes=None):
        workload = setup.workload
        percent = (7 * workload.batch + 3 * workload.seq + len(workload.precision)) % 11
        reserved = self.step(setup).peak_bytes * (100 + percent) // 100
        return None if capacity_bytes is not None and reserved > capacity_bytes else reserved


def verdicts(planned, workload):
    """Every statement about a batch and a length: (batch, length, whether it fits)."""
    batch, seq = workload.batch, workload.seq
    yield batch, seq, planned.verdict.fits == "yes"
    for point in planned.sweep.points:
        yield point.batch, point.seq, point.fits == "yes"
    for change in planned.changes:
        if change.applies and change.key in ("batch", "seq"):
            size = int(change.change.split()[1])
            yield *((size, seq) if change.key == "batch" else (batch, size)), change.fits == "yes"
    edges = [(batch, planned.largest_seq)] + [(edge.batch, edge.largest_seq or 0) for edge in planned.sweep.frontier]
    for edge_batch, largest in edges:
        yield edge_batch, largest + 1, False
        if largest:
            yield edge_batch, largest, True
    yield planned.largest_batch + 1, seq, False
    if planned.largest_batch:
        yield planned.largest_batch, seq, True


@pytest.mark.parametrize("batch", [1, 2, 9])
@pytest.mark.parametrize("share", [0.97, 1.0, 1.04, 1.2, 2.0])
def test_all_that_one_answer_says_agrees(batch, share):
    workload = Workload(batch=batch, seq=256, precision="bf16", loss="cross_entropy")
    setup, predictor = Setup(config=LLAMA, workload=workload), Holes()
    device = replace(H100, memory_bytes=int(share * predictor.step(setup).peak_bytes) + 2000 * MIB)
    axes = ((1, 2, 4, 9, 16), (64, 256, 300, 512, 1024, 2048))
    said = list(verdicts(plan(predictor, setup, device, axes=axes), workload))
    assert len(said) > 40
    for one_batch, one_seq, fits in said:
        for other_batch, other_seq, other_fits in said:
            if other_batch >= one_batch and other_seq >= one_seq:
                assert fits or not other_fits, ((one_batch, one_seq), (other_batch, other_seq))


def test_a_change_that_frees_bytes_of_a_step_that_fits_fits_when_no_layers_are_left():
    setup, predictor = Setup(config=LLAMA, workload=Workload(batch=2, seq=256, precision="bf16")), ClosedForm()
    peak = predictor.step(setup).peak_bytes
    device = replace(H100, memory_bytes=int(1.06 * peak) + 1400 * MIB)
    judge = Judge(predictor, device, max_replayed_layers=0)
    smaller = replace(setup, workload=replace(setup.workload, batch=1, frozen_layers=1))
    larger = replace(setup, workload=replace(setup.workload, precision="amp-bf16"))
    assert judge.by_bounds(setup).fits == judge.by_bounds(smaller).fits == "tight"
    assert Judge(predictor, device, max_replayed_layers=0).fits(smaller) == "tight"
    assert judge.with_reserved(setup).fits == "yes"
    assert judge.fits(smaller) == "yes"
    assert judge.fits(larger) != "yes"


@pytest.mark.parametrize("phase", ["train", "prefill", "decode"])
@pytest.mark.parametrize("kind", SHARDINGS)
def test_every_sharding_gets_an_answer_or_one_refusal_of_the_step_itself(kind, phase):
    """A device so small that searches go down to the least, and one so large that they go up."""
    for config in (GPT2, LLAMA):
        for memory in ("1GiB", "40GiB"):
            workload = {"batch": 4, "seq": 96, "phase": phase, "dropout": False}
            step = Workload(**workload)
            try:
                ClosedForm().step(Setup(config=config, workload=step, sharding=Sharding(kind=kind, num_devices=4)))
            except HeadwiseError as refusal:
                assert phase == "decode" or kind in ("zero1", "zero2"), refusal
                with pytest.raises(HeadwiseError):
                    headwise.fit(config, gpu="a100-80gb", gpu_memory=memory, shard=kind, num_gpus=4, **workload)
                continue
            plan_ = headwise.fit(
                config,
                gpu="a100-80gb",
                gpu_memory=memory,
                shard=kind,
                num_gpus=4,
                sweep=("batch=1..4", "seq=30,64,96"),
                **workload,
            )
            has_parts = kind in ("sequence", "context")
            assert plan_.largest_seq % (4 if has_parts else 1) == 0
            assert {point.seq for point in plan_.sweep.points} == ({64, 96} if has_parts else {30, 64, 96})
            assert plan_.time is not None
