"""Steps of Qwen3-Next: gated delta nets worked through chunk by chunk, against the module's own code and real steps."""

import dataclasses
import json
from itertools import pairwise

import pytest
import torch
import transformers

from headwise.config.huggingface import read_config
from headwise.config.presets import preset
from headwise.cost.memory import predict_ledger, predict_step
from headwise.cost.running.measure import measure_training_step
from headwise.cost.step import delta_rule
from headwise.cost.step.play import play_step
from headwise.cost.tracing.trace import step_memory, trace_step
from headwise.cost.workload import Lora, Workload
from headwise.errors import UnsupportedError

CHUNK = 64
SIZES = {
    "vocab_size": 97,
    "hidden_size": 24,
    "intermediate_size": 37,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 24,
    "max_position_embeddings": 613,
    "linear_key_head_dim": 5,
    "linear_value_head_dim": 7,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 6,
    "moe_intermediate_size": 40,
    "shared_expert_intermediate_size": 41,
    "num_experts": 5,
    "num_experts_per_tok": 2,
    "layer_types": ["linear_attention", "full_attention"],
    "mlp_only_layers": [0],
    "pad_token_id": 0,
}
LINEAR = {"num_hidden_layers": 1, "layer_types": ["linear_attention"]}


def build(attention="sdpa", **changes):
    """A tiny model with random weights, and the config that describes it."""
    settings = transformers.Qwen3NextConfig(**(SIZES | changes))
    model = transformers.Qwen3NextForCausalLM._from_config(settings, attn_implementation=attention)
    content = json.loads(model.config.to_json_string()) | {"architectures": ["Qwen3NextForCausalLM"]}
    return model, read_config(content, name="tiny")


def ids_of(workload):
    return {"input_ids": torch.ones(workload.batch, workload.seq, dtype=torch.int64)}


def require_traced(model, config, workload):
    """Saved bytes to the byte; the peak but for single numbers and rows of sums, in tiny models up to 0.5 %."""
    predicted = predict_step(config, workload)
    traced = step_memory(trace_step(model, ids_of(workload), workload))
    assert predicted.saved_bytes == traced.saved_bytes
    assert predicted.parameter_bytes == traced.parameter_bytes
    assert abs(predicted.peak_bytes - traced.peak_bytes) <= 0.005 * traced.peak_bytes


@pytest.mark.parametrize(
    ("heads", "batch", "seq"),
    [
        *[((2, 6), 3, 63), ((2, 6), 3, 130), ((2, 6), 2, 128), ((2, 6), 2, 1)],
        *[((3, 3), 3, 65), ((3, 3), 2, 128), ((3, 3), 1, 64)],
        *[((1, 3), 3, 65), ((1, 3), 1, 130), ((1, 1), 2, 65), ((1, 1), 1, 63)],
    ],
)
def test_a_step_is_the_traced_one_at_any_length_and_grouping(heads, batch, seq):
    """Where a chunk is whole or alone, and heads are single, copies become views."""
    model, config = build(**LINEAR, linear_num_key_heads=heads[0], linear_num_value_heads=heads[1])
    require_traced(model, config, Workload(batch=batch, seq=seq, device="cpu", optimizer="sgd"))


@pytest.mark.parametrize(
    ("device", "attention", "seq", "precision", "checkpoint"),
    [
        ("cpu", "eager", 65, "fp32", "none"),
        ("cpu", "eager", 65, "bf16", "selective"),
        ("cpu", "eager", 130, "amp-bf16", "full"),
        ("cuda", "sdpa", 130, "fp32", "full"),
        ("cuda", "sdpa", 130, "bf16", "none"),
        ("cuda", "eager", 63, "amp-bf16", "none"),
    ],
)
def test_a_step_is_the_traced_one_in_any_precision(device, attention, seq, precision, checkpoint):
    model, config = build(attention, attention_dropout=0.1)
    workload = Workload(
        batch=3, seq=seq, device=device, attention=attention, precision=precision, checkpoint=checkpoint
    )
    require_traced(model, config, workload)


@pytest.mark.parametrize(
    "changes",
    [
        {"accumulation": 2, "loss": "cross_entropy"},
        {"loss": "chunked_cross_entropy", "optimizer": "sgd"},
        {"lora": Lora(rank=2, targets=("out_proj",))},
        {"lora": Lora(rank=3), "checkpoint": "full"},
        {"frozen_layers": 1},
    ],
)
def test_what_learns_and_the_loss_are_as_in_other_families(changes):
    model, config = build()
    require_traced(model, config, Workload(batch=2, seq=70, device="cpu", **changes))


@pytest.mark.parametrize("seq", [63, 130])
def test_a_real_step_keeps_what_is_predicted(seq):
    model, config = build()
    workload = Workload(batch=2, seq=seq, device="cpu", optimizer="sgd")
    measured = measure_training_step(model, ids_of(workload), workload=workload)
    predicted = predict_step(config, workload)
    assert predicted.saved_bytes == measured.saved_bytes
    assert predicted.peak_bytes == pytest.approx(measured.peak_bytes, rel=0.01)


@pytest.mark.parametrize(("precision", "seq"), [("fp32", 3), ("bf16", 130), ("amp-bf16", 64)])
def test_a_prefill_is_the_traced_one_to_the_end(precision, seq):
    """It leaves a state and the last tokens of the convolution, which reads four; 3 are padded."""
    model, config = build("eager")
    workload = Workload(
        batch=3, seq=seq, phase="prefill", precision=precision, attention="eager", device="cpu", dropout=False
    )
    predicted = predict_ledger(config, workload)
    traced = trace_step(model, ids_of(workload), workload)
    assert predicted.bytes_at(predicted.peak) == pytest.approx(traced.bytes_at(traced.peak), rel=0.005)
    in_layer = [index for index, name in enumerate(traced.moments) if name == "forward: model.layers.0"]
    peak_bytes = predicted.bytes_at(predicted.moments.index("forward: layer 0"))
    assert peak_bytes == pytest.approx(max(map(traced.bytes_at, in_layer)), rel=0.0005)
    entries = predicted.alive(len(predicted.moments) - 1)
    left = {entry.name: entry.bytes for entry in entries if "layer 0" in entry.owner and "cached" in entry.name}
    number_bytes = 4 if precision == "fp32" else 2
    channels = 2 * 2 * 5 + 6 * 7
    assert left == {
        "cached state": 4 * 3 * 6 * 5 * 7,
        "cached tokens of the convolution": number_bytes * 3 * channels * 4,
    }
    sizes = [entry.bytes for entry in traced.alive(len(traced.moments) - 1)]
    assert set(left.values()) <= set(sizes)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"checkpoint": "full"},
        {"precision": "amp-bf16"},
        {"precision": "amp-bf16", "checkpoint": "full", "device": "cuda"},
        {"precision": "bf16", "lora": Lora(rank=2)},
        {"phase": "prefill"},
        {"frozen_layers": 1, "accumulation": 2},
    ],
)
@pytest.mark.parametrize("seq", [CHUNK * 4, CHUNK * 5, CHUNK * 7 - 1, CHUNK * 13])
def test_a_few_chunks_say_what_all_of_them_say_in_every_stretch_of_a_step(seq, changes, monkeypatch):
    _, config = build(linear_key_head_dim=17, linear_value_head_dim=3)
    workload = Workload(batch=2, seq=seq, **({"device": "cpu"} | changes))
    few = play_step(config, config.blocks, workload), predict_step(config, workload)
    monkeypatch.setattr(delta_rule, "MAX_PLAYED_CHUNKS", 100)
    every = play_step(config, config.blocks, workload), predict_step(config, workload)
    assert [one.peak_bytes for one in few[0].stretches] == [one.peak_bytes for one in every[0].stretches]
    assert few[1] == every[1]


def test_a_long_text_takes_no_more_work_than_a_short_one():
    config = preset("qwen3-next-80b")
    tapes = [play_step(config, config.blocks[:4], Workload(batch=1, seq=seq)) for seq in (2**10, 2**13, 2**20)]
    assert len({len(tape.records) for tape in tapes}) == 1


def test_every_further_chunk_keeps_the_same():
    _, config = build(**LINEAR)
    saved = [
        predict_step(config, Workload(batch=2, seq=CHUNK * chunks, device="cpu")).saved_bytes for chunks in range(2, 9)
    ]
    assert len({after - before for before, after in pairwise(saved)}) == 1


def test_the_pairs_of_a_chunk_are_kept_five_times():
    """Both products, the decay between tokens, and both products with it: (B, H, N, C, C) each."""
    _, config = build(**LINEAR)
    entries = predict_ledger(config, Workload(batch=2, seq=130, device="cpu")).entries
    squares = [entry for entry in entries if entry.kind == "saved" and entry.shape == (2, 6, 3, CHUNK, CHUNK)]
    assert len(squares) == 5


def test_a_decode_and_other_forms_are_refused():
    _, config = build()
    with pytest.raises(
        UnsupportedError, match=r"one more token is not predicted for gated delta nets; got phase 'decode'"
    ):
        predict_step(config, Workload(batch=1, seq=7, phase="decode"))
    linear, full = config.blocks
    ungated = dataclasses.replace(full, attention=dataclasses.replace(full.attention, output_gate=False))
    with pytest.raises(UnsupportedError, match="got no output gate"):
        predict_step(dataclasses.replace(config, blocks=(linear, ungated)), Workload(batch=1, seq=7))
    llama = dataclasses.replace(config, model_type="llama")
    with pytest.raises(UnsupportedError, match="got LinearAttentionConfig"):
        predict_step(llama, Workload(batch=1, seq=7))
