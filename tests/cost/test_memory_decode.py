"""One more token against a cache: predicted from the config, run for real, and traced."""

from dataclasses import replace

import pytest
import torch
import transformers

from headwise.config.huggingface import read_config
from headwise.config.presets import preset
from headwise.cost.flops import decode_flops
from headwise.cost.kv import kv_cache_bytes
from headwise.cost.memory import predict_ledger, predict_step
from headwise.cost.reserved import predict_reserved, step_events
from headwise.cost.running.measure_decode import measure_decode
from headwise.cost.step import repeat
from headwise.cost.step_flops import step_flops
from headwise.cost.tracing.trace import step_memory, trace_step
from headwise.cost.workload import Workload
from headwise.errors import ConfigError, UnsupportedError

SHARED = {"vocab_size": 97, "num_hidden_layers": 3, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
SIZES = SHARED | {
    "hidden_size": 24,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "intermediate_size": 37,
    "max_position_embeddings": 997,
}
LLAMA = SIZES | {"head_dim": 10}
EXPERTS = {"intermediate_size": 40, "num_local_experts": 5, "num_experts_per_tok": 2}
CONFIGS = {
    "gpt2": SHARED | {"n_embd": 21, "n_head": 3, "n_positions": 997},
    "gpt_neox": SIZES | {"num_attention_heads": 3},
    "llama": LLAMA,
    "mistral": LLAMA | {"sliding_window": 29},
    "qwen3": LLAMA,
    "phi3": SIZES,
    "gemma": LLAMA | {"num_key_value_heads": 1},
    "gemma2": LLAMA | {"sliding_window": 29, "query_pre_attn_scalar": 10},
    "gemma3_text": LLAMA
    | {"sliding_window": 29, "layer_types": ["sliding_attention", "sliding_attention", "full_attention"]},
    "gpt_oss": LLAMA | EXPERTS | {"sliding_window": 29},
    "mixtral": LLAMA | EXPERTS,
    "deepseek_v3": SIZES
    | {
        "num_key_value_heads": 6,
        "n_routed_experts": 4,
        "n_group": 2,
        "topk_group": 1,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 40,
        "first_k_dense_replace": 1,
        "kv_lora_rank": 10,
        "q_lora_rank": 11,
        "qk_nope_head_dim": 6,
        "qk_rope_head_dim": 4,
        "v_head_dim": 7,
    },
    "t5": {
        "vocab_size": 97,
        "d_model": 20,
        "d_kv": 7,
        "d_ff": 37,
        "num_layers": 2,
        "num_heads": 3,
        "pad_token_id": 0,
        "decoder_start_token_id": 0,
    },
}
EAGER_ONLY = ("gemma2", "gpt_oss")
ALL = [
    (family, attention)
    for family in CONFIGS
    for attention in ("sdpa", "eager")
    if attention == "eager" or family not in EAGER_ONLY
]
POINTS = [(5, 331), (1, 30), (3, 28), (2, 1)]  # a window of 29 is passed, just passed, not full


def build(family, attention="sdpa", **changes):
    """A tiny model with random weights, and the config that describes it."""
    content = CONFIGS[family] | changes
    config = transformers.AutoConfig.for_model(family, **content)
    auto = transformers.AutoModelForSeq2SeqLM if family == "t5" else transformers.AutoModelForCausalLM
    model = auto.from_config(config, attn_implementation=attention)
    return model, read_config(model.config.to_dict() | {"architectures": [type(model).__name__]}, name=family)


def decode(**changes):
    return Workload(**{"batch": 3, "seq": 31, "device": "cpu", "phase": "decode", **changes})


def cached(ledger):
    return [entry for entry in ledger.entries if entry.name.startswith("cached")]


def alive_at_the_end(entries, ledger):
    return [entry for entry in entries if entry.is_alive(len(ledger.moments) - 1)]


@pytest.mark.parametrize(("family", "attention"), ALL)
def test_peak_of_a_decode_is_the_measured_one_within_1_percent(family, attention):
    model, config = build(family, attention)
    for batch, seq in POINTS:
        workload = decode(batch=batch, seq=seq, attention=attention)
        predicted, measured = predict_step(config, workload), measure_decode(model, workload=workload)
        assert predicted.parameter_bytes == measured.parameter_bytes
        assert predicted.saved_bytes == measured.saved_bytes == 0
        assert abs(predicted.peak_bytes - measured.peak_bytes) <= measured.peak_bytes / 100, (batch, seq)


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_without_windows_and_experts_the_peak_is_exact_but_for_single_numbers(attention):
    """Missing are numbers that Python hands to an operation: of 4 bytes, 3 a layer."""
    for family in ("gpt2", "llama", "qwen3", "gemma"):
        model, config = build(family, attention)
        workload = decode(batch=5, seq=331, attention=attention)
        measured = measure_decode(model, workload=workload).peak_bytes
        assert 0 <= measured - predict_step(config, workload).peak_bytes <= 4 * 3 * config.num_layers


@pytest.mark.parametrize(
    ("family", "device", "precision"),
    [
        ("llama", "cpu", "amp-bf16"),
        ("llama", "cuda", "fp32"),
        ("mistral", "cuda", "bf16"),
        ("deepseek_v3", "cuda", "bf16"),
        ("t5", "cuda", "amp-fp16"),
    ],
)
def test_peak_of_a_decode_is_the_traced_one(family, device, precision):
    model, config = build(family)
    workload = decode(seq=331, device=device, precision=precision)
    traced = step_memory(trace_step(model, {}, workload))
    predicted = predict_step(config, workload)
    assert abs(predicted.peak_bytes - traced.peak_bytes) <= traced.peak_bytes / 100
    assert predicted.parameter_bytes == traced.parameter_bytes


def test_what_a_decode_holds_is_counted_by_hand():
    """GPT-2, 1 layer, 2 texts, the 5th token: width 6, 2 heads of 3, float32."""
    content = {"model_type": "gpt2", "n_embd": 6, "n_head": 2, "n_layer": 1, "n_positions": 9, "vocab_size": 11}
    ledger = predict_ledger(read_config(content, name="m"), decode(batch=2, seq=5, attention="eager"))
    layer = ledger.moments.index("forward: layer 0")
    found = {entry.name: entry for entry in cached(ledger) if entry.kind == "input"}
    assert {name: entry.shape for name, entry in found.items()} == {
        "cached keys": (2, 2, 4, 3),
        "cached values": (2, 2, 4, 3),
    }
    left = alive_at_the_end(cached(ledger), ledger)
    assert [(entry.name, entry.shape, entry.dtype, entry.owner) for entry in left] == [
        ("cached keys", (2, 2, 5, 3), "float32", "layer 0 attention"),
        ("cached values", (2, 2, 5, 3), "float32", "layer 0 attention"),
    ]
    assert all(entry.born == 0 for entry in found.values())
    assert all(entry.born == layer for entry in left)
    assert [entry.shape for entry in ledger.entries if entry.name == "token ids"] == [(2, 1)]
    assert [entry.shape for entry in ledger.entries if entry.name == "attention weights"] in ([(2, 2, 1, 5)], [])


def test_old_keys_go_before_new_values_come_but_a_window_makes_both_first():
    """The most that is alive while the cache of the only layer grows: 3 of 4 tensors, or with a window all 4."""
    growing = {}
    for family, seq in (("llama", 31), ("mistral", 23)):  # of a window that is not full
        _, config = build(family, num_hidden_layers=1, vocab_size=3, hidden_size=6, intermediate_size=3)
        tape = _play(config, decode(batch=7, seq=seq))
        tensors = [record for record in tape.records if record.name in ("cached keys", "cached values")]
        ticks = [record.born for record in tensors]
        growing[family] = max(
            sum(one.born <= tick and (one.freed is None or tick < one.freed) for one in tensors) for tick in ticks
        )
    assert growing == {"llama": 3, "mistral": 4}


def _play(config, workload):
    return repeat.play_step(config, config.blocks, workload)


@pytest.mark.parametrize(
    "name", ["gpt2", "llama-3-8b", "mistral-7b", "gemma-3-27b", "gpt-oss-20b", "deepseek-v3", "t5-small"]
)
def test_what_a_decode_leaves_is_the_kv_cache(name):
    """Two closed forms that share nothing: the play of a step, and the sum over layers."""
    config, attention = preset(name), "eager" if name == "gpt-oss-20b" else "sdpa"
    for seq in (1000, 5000):
        ledger = predict_ledger(config, decode(batch=2, seq=seq, precision="bf16", attention=attention))
        left = alive_at_the_end(cached(ledger), ledger)
        assert sum(entry.bytes for entry in left) == kv_cache_bytes(config, batch=2, seq=seq, dtype="bfloat16")


def test_a_windowed_layer_needs_no_more_however_long_the_text_is():
    _, config = build("mistral")
    peaks = {seq: predict_step(config, decode(seq=seq)).peak_bytes for seq in (29, 30, 31, 300, 900)}
    assert peaks[31] == peaks[300] == peaks[900] == peaks[30]
    assert peaks[29] < peaks[30]  # the old cache is one token shorter


def test_fused_kernels_read_grouped_heads_as_they_are_and_eager_attention_copies_them():
    _, config = build("llama")
    copies = {}
    for attention in ("sdpa", "eager"):
        ledger = predict_ledger(config, decode(seq=331, attention=attention))
        copies[attention] = {entry.shape for entry in ledger.entries if entry.name == "key of each head"}
    assert copies == {"sdpa": set(), "eager": {(3, 6, 331, 10)}}


def test_in_float32_on_cuda_grouped_heads_fall_to_the_math_kernel_that_copies_them():
    _, config = build("llama")
    names = {
        precision: {entry.name for entry in predict_ledger(config, decode(device="cuda", precision=precision)).entries}
        for precision in ("fp32", "bf16")
    }
    assert "key of each head" in names["fp32"]
    assert "key of each head" not in names["bf16"]


def test_a_window_packs_the_queries_of_a_group_in_place_of_copying_its_keys():
    _, config = build("mistral")
    ledger = predict_ledger(config, decode(seq=331, device="cuda", precision="bf16"))
    assert "key of each head" not in {entry.name for entry in ledger.entries}


def test_latent_attention_caches_latent_vectors_and_makes_every_heads_keys_of_all_of_them():
    _, config = build("deepseek_v3")
    ledger = predict_ledger(config, decode(seq=331))
    left = alive_at_the_end(cached(ledger), ledger)
    assert {(entry.name, entry.shape) for entry in left} == {
        ("cached latent vectors", (3, 1, 331, 10)),
        ("cached rotary keys", (3, 1, 331, 4)),
    }
    made = {entry.shape for entry in ledger.entries if entry.name == "key"}
    assert made == {(3, 6, 331, 10)}


@pytest.mark.parametrize("family", ["gpt2", "llama", "mixtral", "deepseek_v3", "t5"])
def test_flops_of_a_decode_are_counted_ones(family):
    model, config = build(family, "eager")
    workload = decode(batch=2, seq=23, attention="eager")
    measured = measure_decode(model, workload=workload, with_flops=True)
    assert measured.flops == decode_flops(config, batch=2, seq=23).dense
    assert step_flops(config, workload).hardware == decode_flops(config, batch=2, seq=23)
    assert step_flops(config, workload).backward.dense == 0


@pytest.mark.parametrize("family", ["llama", "gemma3_text"])
def test_a_deep_model_is_played_from_few_of_its_layers(family, monkeypatch):
    kinds = {"layer_types": 5 * ["sliding_attention", "full_attention"]} if family == "gemma3_text" else {}
    _, config = build(family, num_hidden_layers=10, **kinds)
    workload = decode(seq=331)
    shortened = predict_ledger(config, workload)
    monkeypatch.setattr(repeat, "find_cycles", lambda blocks: [([block], 1) for block in blocks])
    whole = predict_ledger(config, workload)
    assert shortened.moments == whole.moments
    assert sorted(map(str, shortened.entries)) == sorted(map(str, whole.entries))


def test_the_replay_of_a_decode_frees_the_old_cache():
    _, config = build("llama")
    workload = decode(seq=331, device="cuda", precision="bf16")
    alive, most = {}, 0
    for key, num_bytes in step_events(config, workload):
        if num_bytes is None:
            del alive[key]
        else:
            alive[key] = num_bytes
        most = max(most, sum(alive.values()))
    assert most == predict_step(config, workload).peak_bytes
    assert predict_reserved(config, workload) >= most


def test_the_module_and_the_random_state_are_left_as_they_were():
    model, _ = build("llama")
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    was_training, use_cache = model.training, model.config.use_cache
    torch.manual_seed(0)
    expected = torch.rand(3)
    torch.manual_seed(0)
    measured = measure_decode(model, workload=decode(), timed_steps=2)
    assert torch.equal(torch.rand(3), expected)
    assert (model.training, model.config.use_cache) == (was_training, use_cache)
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert measured.seconds is not None and measured.seconds > 0


@pytest.mark.parametrize("name", ["bert-base", "vit-b-16"])
def test_an_encoder_has_no_decode(name):
    seq = 197 if name == "vit-b-16" else 31
    for predict in (predict_step, predict_ledger, step_flops):
        with pytest.raises(ConfigError, match=f"must be a decoder .*{name} is an encoder"):
            predict(preset(name), decode(seq=seq))


def test_what_cannot_decode_says_so():
    own = read_config(CONFIGS["llama"] | {"model_type": "llama"}, name="own")
    with pytest.raises(UnsupportedError, match="of headwise's own blocks its cache is"):
        predict_step(replace(own, model_type="headwise"), decode())
    bert = transformers.BertModel(transformers.BertConfig(**SHARED, hidden_size=12, num_attention_heads=3))
    with pytest.raises(UnsupportedError, match="needs a decoder"):
        measure_decode(bert, workload=decode())
    with pytest.raises(UnsupportedError, match="needs a decoder of transformers, which takes a cache; got Linear"):
        measure_decode(torch.nn.Linear(2, 3), workload=decode())
    model, _ = build("gpt2")
    with pytest.raises(ConfigError, match="a decode needs phase 'decode'; got 'train'"):
        measure_decode(model, workload=Workload(batch=1, seq=2, device="cpu"))
    with pytest.raises(ConfigError, match="measured where the module is; got a module on cpu"):
        measure_decode(model, workload=decode(device="cuda"))
    with pytest.raises(UnsupportedError, match="a cache of 8 bits is predicted, not run"):
        measure_decode(model, workload=decode(kv_cache="int8"))
