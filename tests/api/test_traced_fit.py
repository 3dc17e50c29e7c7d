"""Traced: a predictor for planning where a trace alone tells of a model."""

from dataclasses import replace

import pytest

from headwise.api.traced_fit import Traced
from headwise.config.huggingface import read_config
from headwise.cost.memory import predict_step
from headwise.cost.planning.closed_form import ClosedForm
from headwise.cost.planning.positions import with_positions
from headwise.cost.planning.setup import Setup
from headwise.cost.sharding.results import Sharding
from headwise.cost.workload import Lora, Workload
from headwise.errors import HeadwiseError, UnsupportedError

NEO = {
    "model_type": "gpt_neo",
    "hidden_size": 24,
    "num_layers": 2,
    "num_heads": 3,
    "vocab_size": 61,
    "max_position_embeddings": 32,
    "attention_types": [[["global", "local"], 1]],
}
GPT2 = {"model_type": "gpt2", "n_embd": 24, "n_head": 3, "n_layer": 2, "n_positions": 32, "vocab_size": 61}
WORKLOAD = Workload(batch=3, seq=11, attention="eager")
SETUP = Setup(config=None, workload=WORKLOAD)


@pytest.fixture
def neo():
    return Traced(NEO, "neo")


def test_what_is_traced_equals_the_closed_form_where_there_is_one():
    config = read_config(GPT2, name="gpt2")
    setup = Setup(config=config, workload=replace(WORKLOAD, device="cpu"))
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

    base = peak()
    assert peak(batch=6) > base > peak(seq=5)
    assert peak(phase="prefill") < base


def test_a_length_beyond_the_positions_has_a_longer_table(neo):
    def parameter_bytes(seq):
        return neo.step(replace(SETUP, workload=replace(WORKLOAD, seq=seq, device="cpu"))).parameter_bytes

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
    longer = replace(setup, config=with_positions(config, 37), workload=replace(WORKLOAD, seq=37))
    assert traced.step(longer).parameter_bytes > traced.step(setup).parameter_bytes


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


@pytest.mark.parametrize("sizes", [{"batch": 7}, {"seq": 19}, {"batch": 5, "seq": 29}, {"seq": 61}])
def test_other_batches_and_lengths_are_reckoned_as_they_would_be_traced(asked, sizes):
    other = replace(FIRST, **sizes)
    told = asked.ledger(replace(SETUP, workload=other))
    assert other not in asked._ledgers, "it was traced"
    assert told == traced_anew(other)


def test_a_search_over_sizes_takes_few_traces(neo, monkeypatch):
    traced = []
    trace = neo._trace
    monkeypatch.setattr(neo, "_trace", lambda workload: traced.append(workload) or trace(workload))
    peaks = [
        neo.step(replace(SETUP, workload=replace(WORKLOAD, batch=batch, seq=7))).peak_bytes for batch in range(2, 90)
    ]
    assert peaks == sorted(set(peaks))
    assert len(traced) <= 3


def test_float16_takes_what_bfloat16_takes(neo):
    workload = replace(WORKLOAD, precision="fp16")
    told = neo.ledger(replace(SETUP, workload=workload))
    assert workload not in neo._ledgers
    assert told == neo._trace(workload)


def test_after_so_many_traces_others_are_left_out_and_told_so():
    traced = Traced(NEO, "neo", max_traces=2)
    optimizers = ("adamw", "sgd", "momentum")
    setups = [replace(SETUP, workload=replace(WORKLOAD, optimizer=optimizer)) for optimizer in optimizers]
    first, _ = traced.step(setups[0]), traced.step(setups[1])
    with pytest.raises(
        UnsupportedError, match="left out to answer in time: steps of neo have to be traced, and 2 others"
    ):
        traced.step(setups[2])
    assert traced.step(setups[0]) == first


def test_after_so_many_seconds_too():
    traced = Traced(NEO, "neo", max_seconds=1e-9)
    traced.step(SETUP)
    with pytest.raises(UnsupportedError, match="left out to answer in time"):
        traced.step(replace(SETUP, workload=replace(WORKLOAD, optimizer="sgd")))


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
