"""The whole plan: what it holds together, how little it asks for, and that odd setups get an answer."""

from dataclasses import replace

import pytest

from headwise.config.presets import preset
from headwise.cost.devices import DEVICES
from headwise.cost.memory import predict_ledger
from headwise.cost.outline import outline_of
from headwise.cost.parameters import count_parameters
from headwise.cost.planning.closed_form import ClosedForm
from headwise.cost.planning.limits import largest_batch
from headwise.cost.planning.plan import plan
from headwise.cost.planning.setup import Setup
from headwise.cost.results import Device, StepMemory
from headwise.cost.sharding.results import Sharding
from headwise.cost.step_flops import step_flops
from headwise.cost.workload import Lora, Workload
from headwise.errors import ConfigError, UnsupportedError

A100 = DEVICES["a100-80gb"]
CPU = Device(name="here", description="a machine", memory_bytes=2**34, kind="cpu", source="-", date="2026-01-01")
GPT2 = replace(preset("gpt2"), blocks=preset("gpt2").blocks[:2])


class Unreplayed(ClosedForm):
    """Closed forms whose steps reserve 3 % more than their peak, told without a replay."""

    def reserved(self, setup, capacity_bytes=None):
        reserved_bytes = int(1.03 * self.step(setup).peak_bytes)
        return reserved_bytes if capacity_bytes is None or reserved_bytes <= capacity_bytes else None


class Counting:
    """Peaks by a formula of the weights, the batch and the length; counts what a plan asks for."""

    def __init__(self, setup):
        self.base = predict_ledger(setup.config, setup.workload)
        self.steps, self.ledgers, self.outlines, self.replayed_layers = set(), 0, set(), 0

    def step(self, setup):
        self.steps.add(setup)
        workload = setup.workload
        weights = count_parameters(setup.config).total * (8 if workload.precision in ("bf16", "fp16") else 16)
        kept = workload.batch * workload.seq * setup.config.embed_dim * setup.config.num_layers
        kept *= 8 if workload.checkpoint == "full" else 64
        return StepMemory(parameter_bytes=weights, saved_bytes=kept, peak_bytes=weights + kept, peak_moment="loss")

    def ledger(self, setup):
        self.ledgers += 1
        return self.base

    def outline(self, setup):
        self.outlines.add(setup)
        return outline_of(self.base)

    def reserved(self, setup, capacity_bytes=None):
        self.replayed_layers += setup.config.num_layers
        reserved_bytes = int(1.03 * self.step(setup).peak_bytes)
        return reserved_bytes if capacity_bytes is None or reserved_bytes <= capacity_bytes else None

    def flops(self, setup):
        return step_flops(setup.config, setup.workload).hardware.dense


def test_a_sweep_that_is_too_large_is_refused_before_anything_is_told():
    predictor = Counting(Setup(config=GPT2, workload=Workload(batch=1, seq=8)))
    sizes = tuple(range(1, 101))
    with pytest.raises(ConfigError, match="at most 400 points"):
        plan(predictor, Setup(config=GPT2, workload=Workload(batch=1, seq=8)), A100, axes=(sizes, sizes))
    assert (predictor.steps, predictor.ledgers) == (set(), 0)


@pytest.mark.parametrize("name", ["bert-base", "vit-b-16", "llama-3-8b", "gemma-3-27b", "mixtral-8x7b"])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_plan_asks_for_few_predictions(name, precision):
    """A prediction takes 2 to 3 ms of most presets, a ledger 5, a replay below 1 a layer: below a second."""
    config = preset(name)
    seq = config.patches.num_tokens if config.patches else 512
    setup = Setup(config=config, workload=Workload(batch=8, seq=seq, precision=precision))
    predictor = Counting(setup)
    plan(predictor, setup, A100)
    assert len(predictor.steps) <= 160
    assert predictor.ledgers <= 40
    assert predictor.replayed_layers <= 300 + 2 * 192 + 2 * 62


@pytest.mark.parametrize("gib", [16, 24, 40, 80, 140])
def test_long_searches_are_cut_short_where_a_prediction_takes_long(gib):
    """Gemma 3 repeats six layers: fourteen are played for each prediction, not three."""
    device = replace(A100, memory_bytes=gib * 2**30)
    setup = Setup(config=preset("gemma-3-27b"), workload=Workload(batch=8, seq=512))
    predictor = Counting(setup)
    plan(predictor, setup, device)
    assert len(predictor.steps) <= 50


def test_a_plan_is_of_one_piece():
    setup = Setup(config=GPT2, workload=Workload(batch=96, seq=512, attention="eager", device="cpu", dropout=False))
    planned = plan(ClosedForm(), setup, CPU)
    assert planned.verdict.fits == "no"
    assert planned.ledger == predict_ledger(GPT2, setup.workload)
    assert planned.verdict.peak_bytes == planned.ledger.bytes_at(planned.ledger.peak)
    assert planned.largest_batch == largest_batch(ClosedForm(), setup, CPU)
    batch = next(change for change in planned.changes if change.key == "batch")
    assert batch.change == f"batch {planned.largest_batch} in place of 96"
    assert planned.paths
    assert all(path.fits == "yes" for path in planned.paths)


def test_a_plan_is_the_same_each_time():
    setup = Setup(config=GPT2, workload=Workload(batch=64, seq=512, attention="eager", device="cpu"))
    assert plan(ClosedForm(), setup, CPU) == plan(ClosedForm(), setup, CPU)


def test_what_cannot_be_told_raises():
    with pytest.raises(UnsupportedError, match="got 'sdpa'"):
        plan(ClosedForm(), Setup(config=preset("gemma-2-9b"), workload=Workload(batch=1, seq=2)), A100)
    with pytest.raises(UnsupportedError, match="trace the module"):
        plan(ClosedForm(), Setup(config=None, workload=Workload(batch=1, seq=2)), A100)


class Traced(ClosedForm):
    """A predictor of a module without a config: what cannot be changed raises."""

    def step(self, setup):
        return super().step(replace(setup, config=self._config(setup)))

    def ledger(self, setup):
        return super().ledger(replace(setup, config=self._config(setup)))

    def outline(self, setup):
        return super().outline(replace(setup, config=self._config(setup)))

    def reserved(self, setup, capacity_bytes=None):
        return None

    def flops(self, setup):
        return None

    def _config(self, setup):
        if setup.sharding is not None or setup.workload.lora is not None or setup.config is not None:
            raise UnsupportedError("a trace tells of one device")
        return GPT2


def test_a_module_without_a_config_is_planned_too():
    setup = Setup(config=None, workload=Workload(batch=64, seq=512, attention="eager"))
    planned = plan(Traced(), setup, DEVICES["t4"])
    rows = {change.key: change for change in planned.changes}
    assert planned.verdict.fits == "no"
    assert rows["sdpa"].frees_bytes > 0
    assert rows["sdpa"].extra_flops_fraction is None
    assert "cannot be changed on paper" in rows["heads"].why
    assert "a trace tells of one device" in rows["zero3"].why
    assert planned.largest_batch > 0
    assert planned.paths


ODD = [
    {"batch": 1, "seq": 1},
    {"batch": 2**20, "seq": 2**20},
    {"batch": 1, "seq": 512, "phase": "prefill"},
    {"batch": 3, "seq": 512, "phase": "decode", "kv_cache": "int8"},
    {"batch": 7, "seq": 65, "accumulation": 2**31 - 1},
    {"batch": 2, "seq": 64, "lora": Lora(rank=2**20, targets=("q_proj",))},
    {"batch": 2, "seq": 64, "optimizer": "muon", "checkpoint": "full", "precision": "fp16"},
    {"batch": 2**31 - 1, "seq": 512, "device": "cpu"},
]


@pytest.mark.parametrize("workload", ODD, ids=str)
def test_odd_steps_are_planned(workload):
    step = Workload(**workload)
    device = CPU if step.device == "cpu" else DEVICES["t4"]
    planned = plan(Unreplayed(), Setup(config=GPT2, workload=step), device)
    assert planned.verdict.fits in ("yes", "tight", "no")
    assert (planned.largest_batch >= step.batch) == (planned.verdict.fits == "yes")
    for change in planned.changes:
        assert change.applies or change.why
        assert "\n" not in (change.why or "")


@pytest.mark.parametrize("kind", ["rocm", "mps", "tpu"])
def test_other_kinds_of_device_are_planned(kind):
    device = replace(A100, kind=kind, compute_capability=None, memory_bytes=2**34)
    planned = plan(Unreplayed(), Setup(config=GPT2, workload=Workload(batch=64, seq=1024)), device)
    assert planned.verdict.fits == "no"
    assert planned.largest_batch > 0


def test_a_device_of_nothing_fits_nothing():
    planned = plan(Unreplayed(), Setup(config=GPT2, workload=Workload(batch=2, seq=64)), replace(A100, memory_bytes=1))
    assert (planned.verdict.fits, planned.largest_batch, planned.largest_seq, planned.paths) == ("no", 0, 0, ())


def test_one_device_is_no_sharding():
    planned = plan(Unreplayed(), Setup(config=GPT2, workload=Workload(batch=2, seq=64)), A100, num_devices=1)
    row = next(change for change in planned.changes if change.key == "zero1")
    assert row.why == "it takes two devices at least; there is 1"


def test_a_step_that_is_spread_already_is_not_spread_again():
    sharding = Sharding(kind="zero3", num_devices=4)
    planned = plan(Unreplayed(), Setup(config=GPT2, workload=Workload(batch=2, seq=64), sharding=sharding), A100)
    row = next(change for change in planned.changes if change.key == "tensor")
    assert row.why == "already spread over 4 devices: FSDP2 (ZeRO-3)"
    assert (
        planned.verdict.unmodelled_high_bytes
        > plan(Unreplayed(), Setup(config=GPT2, workload=Workload(batch=2, seq=64)), A100).verdict.unmodelled_high_bytes
    )
