"""Traced: a predictor for planning where a trace alone tells of a model."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from headwise.api import traced_fit
from headwise.api.traced_fit import Traced
from headwise.config.huggingface import read_config
from headwise.cost.memory import predict_step
from headwise.cost.planning.closed_form import ClosedForm
from headwise.cost.planning.setup import OutOfTime, Setup
from headwise.cost.sharding.results import Sharding
from headwise.cost.tracing.trace import step_memory
from headwise.cost.workload import Lora, Workload
from headwise.errors import HeadwiseError, UnsupportedError

NEO = {
    "model_type": "gpt_neo",
    "hidden_size": 24,
    "num_layers": 1,
    "num_heads": 3,
    "vocab_size": 61,
    "max_position_embeddings": 32,
    "attention_types": [[["local"], 1]],
}
GPT2 = {"model_type": "gpt2", "n_embd": 24, "n_head": 3, "n_layer": 1, "n_positions": 32, "vocab_size": 61}
WORKLOAD = Workload(batch=3, seq=11, attention="eager", optimizer="sgd")
SETUP = Setup(config=None, workload=WORKLOAD)


@pytest.fixture
def neo():
    return Traced(NEO, "neo")


def test_what_is_traced_equals_the_closed_form_where_there_is_one():
    config = read_config(GPT2, name="gpt2")
    setup = Setup(config=config, workload=replace(WORKLOAD, device="cpu", optimizer="adamw"))
    told = Traced(GPT2, "gpt2", config=config).step(setup)
    closed = predict_step(config, setup.workload)
    assert told.saved_bytes == closed.saved_bytes and told.parameter_bytes == closed.parameter_bytes
    assert abs(told.peak_bytes - closed.peak_bytes) <= 0.01 * closed.peak_bytes


def test_a_step_is_the_totals_of_its_ledger_and_is_traced_once(neo, monkeypatch):
    ledger, step = neo.ledger(SETUP), neo.step(SETUP)
    assert step.peak_bytes == ledger.bytes_at(ledger.peak)
    monkeypatch.setattr(neo, "_trace", lambda _: pytest.fail("traced again"))
    assert neo.ledger(SETUP) is ledger and neo.step(SETUP) == step


def test_workloads_change_what_is_told(neo):
    def peak(**changes):
        return neo.step(replace(SETUP, workload=replace(WORKLOAD, **changes))).peak_bytes

    assert peak(optimizer="adamw") > peak() > peak(phase="prefill")


def test_a_length_beyond_the_positions_has_a_longer_table(neo):
    def parameter_bytes(seq):
        workload = replace(WORKLOAD, phase="prefill", seq=seq, device="cpu")
        return neo.step(replace(SETUP, workload=workload)).parameter_bytes

    assert parameter_bytes(32) == parameter_bytes(31)
    assert parameter_bytes(37) - parameter_bytes(32) == 5 * 24 * 4


def test_another_model_or_several_devices_are_refused_in_words():
    config = read_config(GPT2, name="gpt2")
    traced = Traced(GPT2, "gpt2", config=config)
    setup = Setup(config=config, workload=WORKLOAD)
    with pytest.raises(UnsupportedError, match="a change of the model is told in closed form, and gpt2 has none"):
        traced.step(replace(setup, config=replace(config, name="another")))
    with pytest.raises(UnsupportedError, match="a change of the model"):
        Traced(NEO, "neo").step(setup)
    with pytest.raises(UnsupportedError, match="several devices"):
        traced.flops(replace(setup, sharding=Sharding(kind="zero3", num_devices=2)))
    for changes, text in (({"phase": "decode"}, "against a cache"), ({"kv_cache": "int8"}, "narrower cache")):
        with pytest.raises(UnsupportedError, match=text):
            traced.reserved(replace(setup, workload=replace(WORKLOAD, **changes)))
    short, long = (replace(WORKLOAD, phase="prefill", seq=seq) for seq in (11, 37))
    longer = replace(setup, workload=long)
    assert traced.step(longer).parameter_bytes > traced.step(replace(setup, workload=short)).parameter_bytes


def traced_anew(workload, subject=NEO):
    """Return what a new predictor traces, which has nothing to reckon it from."""
    return Traced(subject, "neo").ledger(replace(SETUP, workload=workload))


FIRST = replace(WORKLOAD, seq=7)


@pytest.fixture(scope="module")
def asked():
    """A predictor that has been asked for one step."""
    predictor = Traced(NEO, "neo")
    predictor.step(replace(SETUP, workload=FIRST))
    return predictor


@pytest.mark.parametrize("sizes", [{"batch": 5, "seq": 29}, {"phase": "prefill", "seq": 61}])
def test_other_batches_and_lengths_are_reckoned_as_they_would_be_traced(asked, sizes):
    other = replace(FIRST, **sizes)
    told = asked.ledger(replace(SETUP, workload=other))
    assert other not in asked._ledgers, "it was traced"
    assert told == traced_anew(other)


def test_a_search_over_sizes_takes_few_traces(neo, monkeypatch):
    traced = []
    trace = neo._trace
    monkeypatch.setattr(neo, "_trace", lambda workload: traced.append(workload) or trace(workload))
    workload = replace(WORKLOAD, phase="prefill", seq=7)
    peaks = [neo.step(replace(SETUP, workload=replace(workload, batch=batch))).peak_bytes for batch in range(2, 30)]
    assert peaks == sorted(set(peaks))
    assert len(traced) <= 3


def test_float16_takes_what_bfloat16_takes(neo):
    workload = replace(WORKLOAD, precision="fp16")
    told = neo.ledger(replace(SETUP, workload=workload))
    assert workload not in neo._ledgers
    assert told == neo._trace(workload).ledger


def test_after_so_many_events_other_steps_are_left_out_and_told_so(monkeypatch):
    first, second, third = (
        replace(SETUP, workload=replace(WORKLOAD, phase="prefill", precision=precision, compute_capability=(8, 0)))
        for precision in ("fp32", "bf16", "amp-bf16")
    )
    monkeypatch.setattr(traced_fit, "MAX_EVENTS", 1)
    traced = Traced(NEO, "neo")
    told = traced.step(first)  # the step that is asked for does not count
    traced.step(second)
    with pytest.raises(
        OutOfTime, match="left out to answer in time: steps of neo have to be traced, and 2 others were"
    ):
        traced.step(third)
    assert traced.step(first) == told


def test_after_so_many_traces_too(monkeypatch):
    monkeypatch.setattr(traced_fit, "MAX_TRACES", 1)
    traced = Traced(NEO, "neo")
    first = replace(WORKLOAD, phase="prefill", precision="bf16", seq=7, compute_capability=(8, 0))
    for workload in (first, replace(first, precision="fp32")):
        traced.step(replace(SETUP, workload=workload))
    with pytest.raises(OutOfTime, match="2 others were"):
        traced.step(replace(SETUP, workload=replace(first, precision="amp-bf16")))
    assert traced.step(replace(SETUP, workload=replace(first, batch=1))).peak_bytes > 0


def test_sizes_of_the_first_step_are_told_though_changes_are_left_out(monkeypatch):
    monkeypatch.setattr(traced_fit, "MAX_EVENTS", 0)
    traced = Traced(NEO, "neo")
    first = replace(FIRST, phase="prefill")
    traced.step(replace(SETUP, workload=first))
    assert traced.step(replace(SETUP, workload=replace(first, batch=7))).peak_bytes > 0
    with pytest.raises(OutOfTime):
        traced.step(replace(SETUP, workload=replace(first, precision="amp-bf16", batch=11)))
    monkeypatch.setattr(traced_fit, "MORE_EVENTS", 0)
    with pytest.raises(OutOfTime):
        traced.step(replace(SETUP, workload=replace(first, seq=11)))


def test_a_pass_after_the_second_finds_what_the_second_found(neo):
    few, many = (replace(WORKLOAD, seq=7, accumulation=passes) for passes in (2, 4))
    told = neo.step(replace(SETUP, workload=many))
    assert many not in neo._ledgers
    assert told == step_memory(neo._trace(many).ledger) == neo.step(replace(SETUP, workload=few))


def test_where_layers_live_alike_few_of_them_run_for_other_steps():
    traced = Traced(GPT2 | {"n_layer": 5}, "gpt2")
    traced.step(SETUP)
    workload = replace(WORKLOAD, checkpoint="full")
    followed = traced._trace(workload)
    assert followed.num_events < len(followed.ledger.moments) - 1  # not all of them ran
    traced._regular_seq = 0
    whole = traced._trace(workload)
    assert whole.num_events > followed.num_events
    assert followed.ledger == whole.ledger
    assert traced._are_layers_regular(WORKLOAD.seq + 1) is None  # a longer text may meet what reads layers' numbers


class Uneven(nn.Module):
    """Layers that look alike, of which the last makes more."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(5, 5) for _ in range(7))

    def forward(self, x):
        for number, layer in enumerate(self.layers):
            x = layer(x).exp() if number > 5 else layer(x)
        return x


def test_where_layers_do_not_live_alike_all_of_them_run():
    traced = Traced(Uneven(), "uneven")
    workload = Workload(batch=3, seq=5)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(traced_fit, "example_inputs", lambda module, *, batch, seq: {"x": torch.empty(batch, seq)})
        traced.step(replace(SETUP, workload=workload))
        told = traced.ledger(replace(SETUP, workload=replace(workload, optimizer="sgd")))
    assert sum(entry.name == "exp" for entry in told.entries) == 1
    assert traced._are_layers_regular(5) is False


class Reader(nn.Module):
    """A table of many rows, read once: in backward torch sorts the tokens if they are more than 3072."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(50_021, 3)

    def forward(self, input_ids):
        return self.table(input_ids).exp()


def test_what_kernels_take_for_themselves_is_hardly_told_as_less():
    traced = Traced(Reader(), "reader")
    first = Workload(batch=2, seq=640)

    def workspace(predictor, seq):
        ledger = predictor.ledger(replace(SETUP, workload=replace(first, seq=seq)))
        return sum(entry.bytes for entry in ledger.entries if entry.name.startswith("workspace"))

    workspace(traced, 640)
    for seq in (2000, 40_009):
        exact = workspace(Traced(Reader(), "reader"), seq)
        assert 0.999 * exact <= workspace(traced, seq) <= 2 * exact
        assert replace(first, seq=seq) not in traced._ledgers, "it was traced"


def test_what_torch_cannot_do_is_refused_once_and_for_all(neo, monkeypatch):
    setup = replace(SETUP, workload=replace(WORKLOAD, optimizer="adamw8bit"))
    with pytest.raises(UnsupportedError, match="adamw8bit"):
        neo.step(setup)
    monkeypatch.setattr(neo, "_trace", lambda _: pytest.fail("traced again"))
    with pytest.raises(UnsupportedError, match="adamw8bit"):
        neo.ledger(setup)


def test_reserved_bytes_are_replayed_within_a_capacity(neo):
    reserved = neo.reserved(SETUP)
    assert reserved is not None and reserved >= neo.step(SETUP).peak_bytes
    assert reserved % 2**21 == 0  # whole segments
    assert neo.reserved(SETUP, reserved) == reserved
    assert neo.reserved(SETUP, neo.step(SETUP).peak_bytes) is None
    assert neo.reserved(replace(SETUP, workload=replace(WORKLOAD, device="cpu"))) is None


def test_flops_are_those_of_the_passes_that_are_known():
    config = read_config(GPT2, name="gpt2")
    traced = Traced(GPT2, "gpt2", config=config)

    def told(predictor, **changes):
        workload = replace(WORKLOAD, dropout=False, device="cpu", **changes)
        return predictor.flops(Setup(config=config, workload=workload))

    for changes in ({}, {"accumulation": 2}, {"phase": "prefill"}, {"optimizer": "sgd"}):
        assert told(traced, **changes) == told(ClosedForm(), **changes)
    assert told(traced, checkpoint="full") == told(traced) // 3 * 4
    for changes in ({"checkpoint": "selective"}, {"lora": Lora(rank=2)}, {"frozen_layers": 1}):
        assert told(traced, **changes) is None


@pytest.mark.parametrize(
    "content", [{}, {"model_type": "no-such"}, NEO | {"num_layers": 10**9}, NEO | {"num_heads": 7}]
)
def test_a_config_that_cannot_be_built_is_one_clear_error(content):
    with pytest.raises(HeadwiseError) as raised:
        Traced(content, "mine").step(SETUP)
    assert "mine" in str(raised.value) and "\n" not in str(raised.value)
