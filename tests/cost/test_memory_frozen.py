"""Frozen embeddings and first layers: predicted, traced and measured."""

import dataclasses
from itertools import pairwise

import pytest
import torch
import transformers

from headwise.config.huggingface import read_config
from headwise.config.presets import preset
from headwise.cost.memory import predict_ledger, predict_step
from headwise.cost.running.flop_counter import FlopCounter
from headwise.cost.running.freezing import freeze_layers
from headwise.cost.running.measure import measure_training_step
from headwise.cost.running.prepare import prepare_module
from headwise.cost.step import repeat
from headwise.cost.step_flops import step_flops
from headwise.cost.tracing.trace import step_memory, trace_step
from headwise.cost.workload import Lora, Workload
from headwise.errors import ConfigError, UnsupportedError

VOCAB, LAYERS, BATCH, SEQ = 97, 5, 3, 11
SHARED = {"vocab_size": VOCAB, "num_hidden_layers": LAYERS, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
LLAMA = SHARED | {
    "hidden_size": 24,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 10,
    "intermediate_size": 37,
    "max_position_embeddings": 53,
}
BERT = {"hidden_size": 21, "num_attention_heads": 3, "intermediate_size": 37, "max_position_embeddings": 53}
CONFIGS = {
    "bert": SHARED | BERT,
    "gpt2": SHARED | {"n_embd": 21, "n_head": 3, "n_positions": 53},
    "gpt_neox": SHARED | BERT | {"hidden_size": 24},
    "llama": LLAMA,
    "mistral": LLAMA | {"sliding_window": 7},
    "gemma": LLAMA,
    "olmo2": LLAMA | {"hidden_size": 60},
    "gpt_oss": LLAMA | {"intermediate_size": 40, "num_local_experts": 5, "num_experts_per_tok": 2, "sliding_window": 7},
    "mixtral": LLAMA | {"intermediate_size": 40, "num_local_experts": 5, "num_experts_per_tok": 2},
    "t5": {
        "vocab_size": VOCAB,
        "d_model": 20,
        "d_kv": 7,
        "d_ff": 37,
        "num_layers": LAYERS,
        "num_heads": 3,
        "pad_token_id": 0,
        "decoder_start_token_id": 0,
    },
}


def build(family, attention="sdpa", *, head=True, **changes):
    config = transformers.AutoConfig.for_model(family, **(CONFIGS[family] | changes))
    heads = {"bert": transformers.AutoModelForMaskedLM, "t5": transformers.AutoModelForSeq2SeqLM}
    auto = heads.get(family, transformers.AutoModelForCausalLM) if head else transformers.AutoModel
    model = auto.from_config(config, attn_implementation=attention)
    return model, read_config(model.config.to_dict() | {"architectures": [type(model).__name__]}, name=family)


def inputs_of(family):
    ids = torch.randint(3, VOCAB, (BATCH, SEQ))
    return {"input_ids": ids, "decoder_input_ids": ids} if family == "t5" else {"input_ids": ids}


def frozen(num_layers, **changes):
    return Workload(**{"batch": BATCH, "seq": SEQ, "device": "cpu", "frozen_layers": num_layers, **changes})


POINTS = [  # each family meets four, so that all values of all settings are met
    ({"attention": "sdpa", "checkpoint": "none", "precision": "fp32", "dropout": True}, 3),
    ({"attention": "eager", "checkpoint": "full", "precision": "fp32", "dropout": False}, 3),
    ({"attention": "sdpa", "checkpoint": "full", "precision": "amp-bf16", "dropout": False}, 1),
    ({"attention": "eager", "checkpoint": "none", "precision": "amp-bf16", "dropout": True}, LAYERS),
    ({"attention": "sdpa", "checkpoint": "selective", "precision": "fp32", "dropout": True}, 1),
]


@pytest.mark.parametrize("family", [family for family in CONFIGS if family != "t5"])
def test_saved_bytes_are_the_measured_ones_and_the_peak_is_within_1_percent(family):
    model, config = build(family, "eager")
    for changes, num_frozen in POINTS:
        if family == "gpt_oss" and changes["attention"] == "sdpa":  # it has none
            changes = changes | {"attention": "eager"}  # noqa: PLW2901
        workload = frozen(num_frozen, **changes)
        predicted = predict_step(config, workload)
        measured = measure_training_step(model, inputs_of(family), workload=workload)
        assert predicted.saved_bytes == measured.saved_bytes, workload
        assert predicted.parameter_bytes == measured.parameter_bytes
        if workload.precision == "fp32":  # what products of narrow numbers take for themselves is not foreseen
            assert abs(predicted.peak_bytes - measured.peak_bytes) <= measured.peak_bytes / 100, workload


@pytest.mark.parametrize("family", ["gemma", "gpt_oss", "mixtral"])
def test_what_gradients_flow_through_and_does_not_learn_keeps_no_more_than_it_must(family):
    """A frozen product keeps no input, and scaled embeddings are one leaf, though backward runs through all."""
    model, config = build(family, "eager")
    workload = frozen(LAYERS, attention="eager", checkpoint="full", dropout=False)
    predicted = predict_step(config, workload)
    measured = measure_training_step(model, inputs_of(family), workload=workload)
    assert predicted.saved_bytes == measured.saved_bytes
    assert abs(predicted.peak_bytes - measured.peak_bytes) <= measured.peak_bytes / 1000


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_an_encoder_is_frozen_with_the_first_layer_of_its_decoder(attention):
    model, config = build("t5", attention)
    for num_frozen in (1, 3):
        workload = frozen(num_frozen, attention=attention)
        predicted = predict_step(config, workload)
        measured = measure_training_step(model, inputs_of("t5"), workload=workload)
        assert predicted.saved_bytes == measured.saved_bytes
        assert abs(predicted.peak_bytes - measured.peak_bytes) <= measured.peak_bytes / 100


@pytest.mark.parametrize(
    ("family", "num_frozen", "changes"),
    [
        ("llama", 3, {"checkpoint": "none", "device": "cuda", "precision": "bf16"}),
        ("gpt2", 1, {"checkpoint": "full", "device": "cuda", "precision": "amp-fp16"}),
        ("mixtral", 3, {"checkpoint": "none", "device": "cpu"}),
    ],
)
def test_a_step_is_the_traced_one(family, num_frozen, changes):
    model, config = build(family)
    workload = frozen(num_frozen, **changes)
    predicted, traced = predict_step(config, workload), step_memory(trace_step(model, inputs_of(family), workload))
    assert (predicted.saved_bytes, predicted.parameter_bytes) == (traced.saved_bytes, traced.parameter_bytes)
    assert abs(predicted.peak_bytes - traced.peak_bytes) <= traced.peak_bytes / 100


def test_a_trace_of_a_deep_frozen_model_is_repeated_from_few_layers():
    model, config = build("llama", num_hidden_layers=14)
    workload = frozen(2)
    traced = step_memory(trace_step(model, inputs_of("llama"), workload))
    assert predict_step(config, workload).saved_bytes == traced.saved_bytes


def lives(ledger):
    """All lives in an order of their own. Of what the optimizer makes for one weight after another, any may stand."""
    entries = (
        dataclasses.replace(entry, name="work") if entry.owner == "optimizer step" else entry
        for entry in ledger.entries
    )
    return sorted(map(repr, entries))


@pytest.mark.parametrize("checkpoint", ["none", "full"])
@pytest.mark.parametrize("num_frozen", [1, 2, 5, 6, 9, 12])
def test_no_cycle_goes_on_from_frozen_layers_to_those_that_learn(num_frozen, checkpoint, monkeypatch):
    """Played in full, the step is the same: 12 layers, of two kinds in turn."""
    content = LLAMA | {"model_type": "gemma3_text", "num_hidden_layers": 12, "sliding_window": 7}
    content |= {"layer_types": 6 * ["sliding_attention", "full_attention"]}
    config = read_config(content, name="deep")
    workload = frozen(num_frozen, checkpoint=checkpoint)
    shortened = predict_ledger(config, workload)
    monkeypatch.setattr(repeat, "find_cycles", lambda blocks: [([block], 1) for block in blocks])
    whole = predict_ledger(config, workload)
    assert shortened.moments == whole.moments
    assert lives(shortened) == lives(whole)


def kinds_of(ledger, kind):
    layers = {entry.owner.split(" ")[1] for entry in ledger.entries if entry.kind == kind and "layer" in entry.owner}
    others = {entry.owner for entry in ledger.entries if entry.kind == kind and "layer" not in entry.owner}
    return layers, others


def test_gradients_states_and_saved_tensors_are_those_of_the_layers_that_learn():
    config = preset("llama-3-8b")
    ledger = predict_ledger(config, Workload(batch=2, seq=64, precision="bf16", frozen_layers=30))
    for kind in ("gradient", "optimizer"):
        assert kinds_of(ledger, kind) == ({"30", "31"}, {"head"})
    # The first norm that learns keeps what it made of the frozen layers' output, not the output itself.
    assert kinds_of(ledger, "saved") == ({"30", "31"}, {"head", "embeddings"})  # with cosines and sines


def test_a_head_that_is_tied_to_the_embeddings_is_frozen_with_them():
    tied, untied = (
        predict_ledger(dataclasses.replace(config, head=dataclasses.replace(config.head, tied=is_tied)), frozen(1))
        for config in (preset("gpt2"),)
        for is_tied in (True, False)
    )
    table = ("gradient of output weight", "gradient of token table")
    assert not [entry for entry in tied.entries if entry.name in table]
    assert [entry.name for entry in untied.entries if entry.name in table] == ["gradient of output weight"]


def test_where_transformers_checkpoints_frozen_layers_keep_their_inputs_all_the_same():
    """It makes what the embeddings give need a gradient, for the sake of adapters: more is kept than without."""
    config = preset("llama-3-8b")
    kept = {
        checkpoint: kinds_of(predict_ledger(config, frozen(16, checkpoint=checkpoint)), "saved")[0]
        for checkpoint in ("none", "full")
    }
    assert kept["full"] == {str(layer) for layer in range(32)}  # what each layer gives the next one
    assert kept["none"] == {str(layer) for layer in range(16, 32)}


def test_each_layer_more_that_is_frozen_saves_and_peaks_less():
    config = preset("bert-base")
    steps = [predict_step(config, Workload(batch=8, seq=128, frozen_layers=number)) for number in range(12)]
    for before, after in pairwise(steps):
        assert after.saved_bytes < before.saved_bytes
        assert after.peak_bytes < before.peak_bytes


def test_freezing_is_of_training_alone():
    config = preset("llama-3-8b")
    for phase in ("prefill", "decode"):
        steps = [predict_step(config, frozen(number, phase=phase)) for number in (0, 7)]
        assert steps[0] == steps[1]


@pytest.mark.parametrize("predict", [predict_step, predict_ledger, step_flops])
def test_more_layers_than_there_are_cannot_be_frozen(predict):
    with pytest.raises(ConfigError, match="at most the number of layers of bert-base, 12; got 13"):
        predict(preset("bert-base"), frozen(13))


def test_something_must_learn():
    with pytest.raises(ConfigError, match="something of bert-base must learn"):
        predict_step(preset("bert-base"), frozen(12))  # no norm stands behind its last layer


def test_adapters_beside_frozen_layers_are_refused():
    with pytest.raises(ConfigError, match="frozen_layers must be 0 beside lora, which freezes every weight; got 2"):
        frozen(2, lora=Lora(rank=3))
    with pytest.raises(ConfigError, match=r"frozen_layers must be between 0 and .*; got -1"):
        frozen(-1)


def learning(model):
    return {name for name, parameter in model.named_parameters() if parameter.requires_grad}


def test_what_is_frozen_in_a_module_is_embeddings_and_first_layers():
    model, _ = build("gpt_neox")
    freeze_layers(model, 2)
    names = learning(model)
    assert {name for name in names if ".layers." not in name} == {
        "gpt_neox.final_layer_norm.weight",
        "gpt_neox.final_layer_norm.bias",
        "lm_head.weight",
    }
    assert {name.split(".")[2] for name in names if ".layers." in name} == {"2", "3", "4"}


def test_a_head_is_no_embedding_whatever_its_name_says():
    sizes = {"vocab_size": 11, "hidden_size": 12, "num_hidden_layers": 2, "num_attention_heads": 3}
    words = {"bos_token_id": 1, "eos_token_id": 2, "tie_word_embeddings": False}
    model = transformers.GPTNeoXJapaneseForCausalLM(transformers.GPTNeoXJapaneseConfig(**sizes, **words))
    freeze_layers(model, 2)
    assert learning(model) == {
        "gpt_neox_japanese.final_layer_norm.weight",
        "gpt_neox_japanese.final_layer_norm.bias",
        "embed_out.weight",
    }


def test_embeddings_that_a_module_lists_after_its_layers_are_frozen_too():
    """BART's decoder has a norm of its embeddings behind its layers."""
    sizes = {"d_model": 12, "encoder_layers": 2, "decoder_layers": 3, "decoder_attention_heads": 3}
    more = {"encoder_attention_heads": 3, "encoder_ffn_dim": 7, "decoder_ffn_dim": 7, "vocab_size": 11}
    model = transformers.BartModel(transformers.BartConfig(**sizes, **more, max_position_embeddings=17))
    freeze_layers(model, 1)
    assert {name.split(".")[2] for name in learning(model)} == {"1", "2"}
    assert all(name.startswith("decoder.layers.") for name in learning(model))


def test_a_module_without_a_list_of_layers_cannot_be_frozen():
    with pytest.raises(UnsupportedError, match="freezing needs a ModuleList of equal layers; Linear has none"):
        freeze_layers(torch.nn.Linear(2, 3), 1)
    model, _ = build("gpt2")
    with pytest.raises(ConfigError, match="at most the number of layers of GPT2LMHeadModel, 5; got 6"):
        freeze_layers(model, 6)
    before = learning(model)
    freeze_layers(model, 0)
    assert learning(model) == before


@pytest.mark.parametrize("family", ["bert", "gpt2", "llama", "olmo2", "mixtral", "t5"])
def test_flops_of_a_frozen_step_are_counted_ones(family):
    for num_frozen in (1, 3, LAYERS):
        model, config = build(family, "eager")
        workload = frozen(num_frozen, attention="eager", dropout=False)
        prepare_module(model, workload)
        with FlopCounter() as counter:
            model(**inputs_of(family)).logits.sum().backward()
        assert step_flops(config, workload).hardware.dense == counter.count.dense, num_frozen


def test_flops_of_frozen_layers_under_checkpoints_are_their_inputs_gradients():
    """Backward of a frozen layer: one product for each with a weight, two for each of the core; then all runs again."""
    config = build("llama")[1]
    free, step = (
        step_flops(config, frozen(3, attention="eager", checkpoint=checkpoint)) for checkpoint in ("none", "full")
    )
    per_layer = step.recomputed.dense / LAYERS
    assert step.model == free.model
    core = 2 * BATCH * 6 * SEQ * SEQ * (10 + 10)
    assert step.backward.dense - free.backward.dense == 3 * (per_layer - core + 2 * core)


def test_frozen_layers_count_no_backward_in_model_flops():
    config = build("llama")[1]
    step = step_flops(config, frozen(LAYERS, attention="eager"))
    head = 2 * BATCH * SEQ * 24 * VOCAB
    assert step.model.dense == step.forward.dense + 2 * head
