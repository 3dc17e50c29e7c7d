"""Few layers played for many: cycles of unlike layers, bounded time, and what grows with what."""

import dataclasses
import re
import time
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwise.config.huggingface import read_config
from headwise.config.presets import PRESETS, preset
from headwise.cost.allocator import replay
from headwise.cost.memory import predict_ledger, predict_step
from headwise.cost.reserved import predict_reserved, step_events
from headwise.cost.step.cycles import count_played, find_cycles
from headwise.cost.step.repeat import MAX_PLAYED_LAYERS, RepeatedStep
from headwise.cost.workload import Lora, Workload
from headwise.errors import UnsupportedError
from headwise.masks.patterns import SlidingWindow

BASE = preset("llama-3.2-1b")
FULL = BASE.blocks[0]
WINDOW = dataclasses.replace(FULL, attention=dataclasses.replace(FULL.attention, mask=SlidingWindow(5)))
WIDE = dataclasses.replace(FULL, feed_forward=dataclasses.replace(FULL.feed_forward, hidden_dim=64))
KINDS = {"F": FULL, "W": WINDOW, "S": WIDE}
CASES = {
    "plain": {},
    "cpu": {"device": "cpu"},
    "eager": {"attention": "eager"},
    "full": {"checkpoint": "full", "device": "cpu"},
    "selective": {"checkpoint": "selective", "attention": "eager"},
    "accumulated": {"accumulation": 3},
    "adapted": {"lora": Lora(rank=2)},
    "adafactor": {"optimizer": "adafactor", "optimizer_step": "foreach"},
    "muon": {"optimizer": "muon"},
    "lion": {"optimizer": "lion", "optimizer_step": "loop"},
    "cross-entropy": {"loss": "cross_entropy", "precision": "amp-bf16"},
    "prefill": {"phase": "prefill"},
}


def model(pattern):
    return dataclasses.replace(BASE, blocks=tuple(KINDS[letter] for letter in pattern))


def played(config):
    """The same model with layers that differ in a number that needs no memory, so that each one is played."""
    blocks = (dataclasses.replace(block, norm_eps=1e-6 * (1 + index)) for index, block in enumerate(config.blocks))
    return dataclasses.replace(config, blocks=tuple(blocks))


@pytest.mark.parametrize(
    ("pattern", "cycles"),
    [
        ("F", [("F", 1)]),
        ("FFFFF", [("F", 5)]),
        ("FWFWFWFW", [("FW", 4)]),
        ("WWWWWF" * 4 + "WW", [("WWWWWF", 4), ("W", 1), ("W", 1)]),
        ("FFFFFWWWWWW", [("F", 5), ("W", 6)]),
        ("SFFFFF", [("S", 1), ("F", 5)]),
    ],
)
def test_layers_are_cut_into_cycles(pattern, cycles):
    found = find_cycles(model(pattern).blocks)
    assert found == [([KINDS[letter] for letter in cycle], times) for cycle, times in cycles]


@pytest.mark.parametrize("case", CASES)
def test_layers_of_a_cycle_live_as_played_ones(case):
    config = model("SFWFWFWFWF")
    workload = Workload(batch=2, seq=11, **CASES[case])
    shifted, whole = predict_ledger(config, workload), predict_ledger(played(config), workload)
    assert shifted.moments == whole.moments
    assert Counter(shifted.entries) == Counter(whole.entries)
    assert predict_step(config, workload) == predict_step(played(config), workload)


def test_adapters_in_one_layer_of_a_cycle_live_as_played_ones():
    config = preset("qwen3-next-80b")
    config = dataclasses.replace(config, blocks=config.blocks[:20])  # queries and values in every fourth layer alone
    workload = Workload(batch=1, seq=11, lora=Lora(rank=2), attention="eager")
    assert predict_step(config, workload) == predict_step(played(config), workload)


@settings(max_examples=12, deadline=None)
@given(pattern=st.text("FWS", min_size=1, max_size=12), case=st.sampled_from(sorted(CASES)))
def test_any_sequence_of_layers_lives_as_if_played(pattern, case):
    workload = Workload(batch=1, seq=7, **CASES[case])
    assert predict_step(model(pattern), workload) == predict_step(played(model(pattern)), workload)


@settings(max_examples=15, deadline=None)
@given(
    batch=st.integers(1, 8),
    seq=st.integers(1, 300),
    layers=st.integers(1, 40),
    case=st.sampled_from(sorted(CASES)),
    grown=st.sampled_from(["batch", "seq", "layers"]),
)
def test_a_peak_never_shrinks_where_batch_length_or_depth_grows(batch, seq, layers, case, grown):
    less = {"batch": batch, "seq": seq, "layers": layers}
    more = less | {grown: less[grown] + 1}
    peaks = [
        predict_step(model("F" * size["layers"]), Workload(batch=size["batch"], seq=size["seq"], **CASES[case]))
        for size in (less, more)
    ]
    assert peaks[0].peak_bytes <= peaks[1].peak_bytes
    assert peaks[0].saved_bytes <= peaks[1].saved_bytes


@pytest.mark.parametrize("case", CASES)
def test_every_layer_adds_the_same_to_what_is_saved(case):
    workload = Workload(batch=2, seq=11, **CASES[case])
    saved = [predict_step(model("F" * layers), workload).saved_bytes for layers in (10, 11, 12, 500)]
    assert saved[1] - saved[0] == saved[2] - saved[1]
    assert saved[3] - saved[0] == 490 * (saved[1] - saved[0])


@pytest.mark.parametrize("pattern", ["F", "FW", "WWWWWF"])
def test_ten_thousand_layers_are_answered_at_once(pattern):
    config = model((pattern * 10_000)[:10_000])
    started = time.process_time()
    predict_step(config, Workload(batch=1, seq=512))
    assert time.process_time() - started < 2  # a tenth of it, on an idle machine


def test_ten_thousand_unlike_layers_are_refused_at_once():
    config = played(model("F" * 10_000))
    started = time.process_time()
    with pytest.raises(UnsupportedError, match=rf"at most {MAX_PLAYED_LAYERS} layers that do not repeat.*got 10000"):
        predict_step(config, Workload(batch=1, seq=512))
    assert time.process_time() - started < 5


@pytest.mark.parametrize("name", [name for name in PRESETS if PRESETS[name].config["model_type"] in ("gpt2", "llama")])
def test_a_preset_is_answered_in_milliseconds(name):
    config = preset(name)
    started = time.process_time()
    predict_step(config, Workload(batch=1, seq=512))
    assert time.process_time() - started < 0.3


@pytest.mark.parametrize("case", [case for case in CASES if case not in ("cpu", "full")])
def test_events_of_a_step_add_up_to_its_peak(case):
    workload = Workload(batch=2, seq=11, **CASES[case])
    config = model("FFWFSF")
    replayed = replay(step_events(config, workload))
    step = predict_step(config, workload, with_reserved=True)
    assert replayed.requested_peak_bytes == step.peak_bytes
    assert step.reserved_bytes == predict_reserved(config, workload) == replayed.reserved_peak_bytes
    assert replayed.reserved_peak_bytes >= replayed.allocated_peak_bytes >= step.peak_bytes


def test_between_two_steps_weights_states_and_inputs_stay():
    workload = Workload(batch=1, seq=7)
    sizes, alive = {}, 0
    for key, num_bytes in step_events(model("FF"), workload):
        alive += num_bytes if num_bytes is not None else -sizes[key]
        sizes[key] = num_bytes
    ledger = predict_ledger(model("FF"), workload)
    assert alive == sum(ledger.kind_bytes(kind) for kind in ("parameter", "optimizer", "input"))


def test_what_cannot_be_replayed_is_refused():
    with pytest.raises(UnsupportedError, match="reserves memory on CUDA alone; got device 'cpu'"):
        predict_reserved(BASE, Workload(batch=1, seq=7, device="cpu"))
    with pytest.raises(UnsupportedError, match="models of at most 200 layers; got 201: predict_step gives the peak"):
        predict_reserved(model("F" * 201), Workload(batch=1, seq=7))
    deep = read_config({"model_type": "t5", "num_layers": 10_000, "num_decoder_layers": 1}, name="t5")
    with pytest.raises(UnsupportedError, match="models of at most 200 layers; got 10001"):
        predict_reserved(deep, Workload(batch=1, seq=7))
    assert predict_step(BASE, Workload(batch=1, seq=7, device="cpu"), with_reserved=True).reserved_bytes is None


@pytest.mark.parametrize("workload", [{}, {"lora": Lora(rank=2)}, {"frozen_layers": 4}], ids=str)
@pytest.mark.parametrize("name", ["gpt2", "t5-small", "gemma-3-27b", "qwen3-next-80b"])
def test_the_layers_that_are_played_are_counted_before(name, workload):
    config, step = preset(name), Workload(batch=1, seq=64, **workload)
    tape = RepeatedStep(config, step).tape
    layers = {stretch.label for stretch in tape.stretches if re.fullmatch(r"forward: layer \d+", stretch.label)}
    encoder = 0 if config.encoder is None else len(config.encoder.blocks)
    assert count_played(config, step) == len(layers) + encoder
