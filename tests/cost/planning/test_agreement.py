"""No answer contradicts itself: one setup has one verdict, and larger steps never fit where smaller ones do not."""

import re
from dataclasses import replace

import pytest

import headwise
from headwise.config.presets import preset
from headwise.cost.devices import DEVICES
from headwise.cost.planner import unmodelled
from headwise.cost.planning.catalogue import CATALOGUE
from headwise.cost.planning.closed_form import ClosedForm
from headwise.cost.planning.limits import with_length
from headwise.cost.planning.option import Place
from headwise.cost.planning.plan import plan
from headwise.cost.planning.setup import Setup
from headwise.cost.planning.verdict import Judge
from headwise.cost.sharding.results import SHARDINGS, Sharding
from headwise.cost.workload import Workload
from headwise.errors import HeadwiseError

H100 = DEVICES["h100-80gb"]
LLAMA = replace(preset("llama-3.2-1b"), blocks=preset("llama-3.2-1b").blocks[:2])
GPT2 = replace(preset("gpt2"), blocks=preset("gpt2").blocks[:1])
EAGER = {"attention": "eager", "dropout": False}
PREDICTOR = ClosedForm()
GIB = 2**30


def of(name, workload):
    """A step of a model of four layers."""
    config = preset(name, head=True)
    return Setup(config=replace(config, blocks=config.blocks[:4]), workload=Workload(**workload))


class Holes(ClosedForm):
    """Holes of 0 to 10 % that obey no law, in a model whose layers are soon used up."""

    def reserved(self, setup, capacity_bytes=None):
        workload = setup.workload
        percent = (7 * workload.batch + 3 * workload.seq + len(workload.precision)) % 11
        reserved = self.step(setup).peak_bytes * (100 + percent) // 100
        return None if capacity_bytes is not None and reserved > capacity_bytes else reserved


def roomy(peak_bytes, share):
    """A device with so many times the peak beside all that is not modelled."""
    parts = unmodelled(peak_bytes, H100, reserved_bytes=peak_bytes)
    return replace(H100, memory_bytes=int(share * peak_bytes) + sum(part.high for part in parts))


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
@pytest.mark.parametrize("share", [1.0, 1.05, 1.1, 1.5])
def test_all_that_one_answer_says_agrees(batch, share):
    workload = Workload(batch=batch, seq=256, precision="bf16", loss="cross_entropy")
    setup, predictor = Setup(config=LLAMA, workload=workload), Holes()
    device = roomy(predictor.step(setup).peak_bytes, share)
    axes = ((1, 2, 4, 9, 16), (64, 256, 300, 512, 1024, 2048))
    said = list(verdicts(plan(predictor, setup, device, axes=axes), workload))
    assert len(said) > 36
    for one_batch, one_seq, fits in said:
        for other_batch, other_seq, other_fits in said:
            if other_batch >= one_batch and other_seq >= one_seq:
                assert fits or not other_fits, ((one_batch, one_seq), (other_batch, other_seq))


@pytest.mark.parametrize(
    ("name", "device", "workload"),
    [
        ("gpt2", "mi300x", {"batch": 64, "seq": 1033, "optimizer": "momentum", "checkpoint": "full", **EAGER}),
        ("bert-base", "v100-32gb", {"batch": 40, "seq": 512, "checkpoint": "full", "optimizer": "momentum"}),
        ("gpt2", "a100-40gb", {"batch": 64, "seq": 512}),
        ("gpt2", "t4", {"batch": 128, "seq": 1024, "phase": "prefill", **EAGER}),
    ],
    ids=str,
)
def test_what_a_plan_says_fits_a_replay_says_too(name, device, workload):
    """Each change, list of changes and largest size that is "yes", asked by itself, with a replay."""
    device = replace(DEVICES[device], memory_bytes=int(PREDICTOR.step(of(name, workload)).peak_bytes * 1.1) + 2 * GIB)
    setup = of(name, workload)
    judge = Judge(PREDICTOR, device)
    planned = plan(PREDICTOR, setup, device)
    place = Place(judge, num_devices=8)
    options = {option.key: option for option in CATALOGUE}
    asked = 0
    for keys in [*((one.key,) for one in planned.changes if one.fits == "yes"), *(path.keys for path in planned.paths)]:
        changed = setup
        for key in keys:
            changed = options[key].make(changed, place).setup
        assert Judge(PREDICTOR, device).with_reserved(changed).fits == "yes", keys
        asked += 1
    sizes = [with_length(setup, planned.largest_seq)] if planned.largest_seq else []
    if planned.largest_batch:
        sizes.append(replace(setup, workload=replace(setup.workload, batch=planned.largest_batch)))
    assert all(Judge(PREDICTOR, device).with_reserved(one).fits == "yes" for one in sizes)
    assert asked > 4


@pytest.mark.parametrize("phase", ["train", "prefill", "decode"])
@pytest.mark.parametrize("kind", SHARDINGS)
def test_every_sharding_gets_an_answer_or_one_refusal_of_the_step_itself(kind, phase):
    workload = {"batch": 4, "seq": 96, "phase": phase, "dropout": False, "precision": "bf16"}
    sharding = Sharding(kind=kind, num_devices=4)
    setup = Setup(config=GPT2, workload=Workload(**workload), sharding=sharding)
    asked = {"gpu": "a100-80gb", "gpu_memory": "4GiB", "shard": kind, "num_gpus": 4, **workload}
    try:
        ClosedForm().step(setup)
    except HeadwiseError as refusal:
        assert phase == "decode" or kind in ("zero1", "zero2"), refusal
        with pytest.raises(HeadwiseError, match=re.escape(str(refusal))):
            headwise.fit(GPT2, **asked)
        return
    answer = headwise.fit(GPT2, sweep=("batch=4", "seq=30,64"), **asked)
    has_parts = kind in ("sequence", "context")
    assert answer.largest_seq % (4 if has_parts else 1) == 0
    assert [point.seq for point in answer.sweep.points] == ([64] if has_parts else [30, 64])
    assert answer.time is not None
