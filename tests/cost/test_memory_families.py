"""Saved bytes of every family that is known, in every precision, against real steps of tiny models."""

import dataclasses
import json

import pytest
import torch
import transformers

from headwise.config.attention import ALiBi
from headwise.config.huggingface import read_config
from headwise.cost.memory import predict_ledger, predict_step
from headwise.cost.running.measure import measure_training_step
from headwise.cost.step.models import FAMILIES
from headwise.cost.workload import Workload
from headwise.errors import UnsupportedError

VOCAB = 97
SHARED = {"vocab_size": VOCAB, "num_hidden_layers": 2, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
BERT = SHARED | {"hidden_size": 21, "num_attention_heads": 3, "intermediate_size": 37, "max_position_embeddings": 53}
WHOLE_HEADS = SHARED | {
    "hidden_size": 24,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "intermediate_size": 37,
    "max_position_embeddings": 53,
}
LLAMA = WHOLE_HEADS | {"head_dim": 10}
# Rows of a grouped product must be whole 16 bytes, in narrow dtypes too.
EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 40}
CONFIGS = {
    "bert": BERT,
    "deepseek_v3": SHARED
    | EXPERTS
    | {
        "hidden_size": 24,
        "num_attention_heads": 3,
        "num_key_value_heads": 3,
        "intermediate_size": 37,
        "n_routed_experts": 4,
        "n_group": 2,
        "topk_group": 1,
        "n_shared_experts": 1,
        "first_k_dense_replace": 1,
        "kv_lora_rank": 10,
        "q_lora_rank": 11,
        "qk_nope_head_dim": 6,
        "qk_rope_head_dim": 4,
        "v_head_dim": 7,
        "max_position_embeddings": 53,
    },
    "distilbert": {
        "vocab_size": VOCAB,
        "dim": 21,
        "n_heads": 3,
        "n_layers": 2,
        "hidden_dim": 37,
        "max_position_embeddings": 53,
        "pad_token_id": 0,
    },
    "gemma": LLAMA,
    "gemma2": LLAMA | {"sliding_window": 7, "query_pre_attn_scalar": 10, "num_hidden_layers": 4},
    "gemma3_text": LLAMA
    | {
        "sliding_window": 7,
        "query_pre_attn_scalar": 10,
        "num_hidden_layers": 3,
        "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
    },
    "gpt2": SHARED | {"n_embd": 21, "n_head": 3, "n_positions": 53},
    "gpt_neox": SHARED
    | {
        "hidden_size": 24,
        "num_attention_heads": 3,
        "intermediate_size": 37,
        "max_position_embeddings": 53,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0, "partial_rotary_factor": 0.5},
    },
    "gpt_oss": LLAMA | {"intermediate_size": 40, "num_local_experts": 5, "num_experts_per_tok": 2, "sliding_window": 7},
    "llama": LLAMA,
    "mistral": LLAMA | {"sliding_window": 7},
    "mixtral": LLAMA | {"num_local_experts": 5, "num_experts_per_tok": 2, "intermediate_size": 40},
    "olmo2": WHOLE_HEADS,
    "phi3": WHOLE_HEADS,
    "qwen2": WHOLE_HEADS,
    "qwen2_moe": WHOLE_HEADS
    | EXPERTS
    | {"num_experts": 5, "shared_expert_intermediate_size": 41, "mlp_only_layers": [0]},
    "qwen3": LLAMA,
    "qwen3_moe": LLAMA | EXPERTS | {"num_experts": 5, "norm_topk_prob": True, "mlp_only_layers": [0]},
    "qwen3_next": LLAMA
    | EXPERTS
    | {
        "head_dim": 24,
        "num_experts": 5,
        "shared_expert_intermediate_size": 41,
        "mlp_only_layers": [0],
        "linear_key_head_dim": 5,
        "linear_value_head_dim": 7,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 6,
        "layer_types": ["linear_attention", "full_attention"],
    },
    "roberta": BERT,
    "smollm3": WHOLE_HEADS | {"no_rope_layers": [0, 1]},
    "starcoder2": WHOLE_HEADS,
    "t5": {
        "vocab_size": VOCAB,
        "d_model": 20,
        "d_kv": 7,
        "d_ff": 37,
        "num_layers": 2,
        "num_heads": 3,
        "pad_token_id": 0,
        "eos_token_id": 1,
        "decoder_start_token_id": 0,
    },
    "vit": {
        "hidden_size": 21,
        "num_hidden_layers": 2,
        "num_attention_heads": 3,
        "intermediate_size": 37,
        "image_size": 11,
        "patch_size": 3,
    },
    "xlm-roberta": BERT,
}
DROPOUTS = {
    **dict.fromkeys(("bert", "roberta", "xlm-roberta", "vit"), ("hidden_dropout_prob", "attention_probs_dropout_prob")),
    "distilbert": ("dropout", "attention_dropout"),
    "gpt2": ("embd_pdrop", "attn_pdrop", "resid_pdrop"),
    "gpt_neox": ("hidden_dropout", "attention_dropout"),
    "phi3": ("embd_pdrop", "attention_dropout", "resid_pdrop"),
    "starcoder2": ("embedding_dropout", "attention_dropout", "residual_dropout"),
    "t5": ("dropout_rate",),
}


def attentions(family):
    return ("eager", "sdpa") if FAMILIES[family].has_sdpa else ("eager",)


def build(family, attention="sdpa", dropout_p=0.0, class_name="AutoModel", **changes):
    """A tiny model with random weights, and the config that describes it."""
    dropouts = dict.fromkeys(DROPOUTS.get(family, ("attention_dropout",)), dropout_p)
    settings = transformers.AutoConfig.for_model(family, **(CONFIGS[family] | dropouts | changes))
    made_by = getattr(transformers, class_name)
    make = made_by.from_config if class_name.startswith("Auto") else made_by._from_config
    model = make(settings, attn_implementation=attention)
    content = json.loads(model.config.to_json_string()) | {"architectures": [type(model).__name__]}
    return model, read_config(content, name=family)


def inputs_of(family, batch, seq):
    if family == "vit":
        return {"pixel_values": torch.randn(batch, 3, 11, 11)}
    ids = {"input_ids": torch.randint(3, VOCAB, (batch, seq))}
    return ids | {"decoder_input_ids": torch.randint(3, VOCAB, (batch, seq))} if family == "t5" else ids


def steps(model, config, family, *, batch=3, seq=11, **workload):
    """Return the predicted and the measured step."""
    seq = 10 if family == "vit" else seq  # nine patches and the class token
    asked = Workload(batch=batch, seq=seq, device="cpu", optimizer="sgd", **workload)
    measured = measure_training_step(model, inputs_of(family, batch, seq), workload=asked)
    return predict_step(config, asked), measured


def test_every_family_is_tried():
    assert set(CONFIGS) == set(FAMILIES) - {"headwise"}


def require_alike(predicted, measured, *, workspace_bytes=0):
    """Saved bytes to the byte; the peak but for single numbers, and what kernels take for themselves."""
    assert predicted.saved_bytes == measured.saved_bytes
    assert predicted.parameter_bytes == measured.parameter_bytes
    missing = measured.peak_bytes - predicted.peak_bytes
    assert abs(missing - workspace_bytes / 2) <= workspace_bytes / 2 + 0.005 * measured.peak_bytes


@pytest.mark.parametrize("dropout_p", [0.0, 0.1])
@pytest.mark.parametrize(("family", "attention"), [(f, a) for f in CONFIGS for a in attentions(f)])
def test_bytes_of_a_step_are_measured_ones(family, attention, dropout_p):
    model, config = build(family, attention, dropout_p)
    require_alike(*steps(model, config, family, attention=attention))


@pytest.mark.parametrize("precision", ["bf16", "amp-bf16"])
@pytest.mark.parametrize(("family", "attention"), [(f, a) for f in CONFIGS for a in attentions(f)])
def test_bytes_of_a_step_with_narrow_numbers_are_measured_ones(family, attention, precision):
    """The workspace that oneDNN takes for a product of narrow numbers while it runs is its own: here, up to 32 KB."""
    model, config = build(family, attention, 0.1)
    found = steps(model, config, family, attention=attention, precision=precision)
    require_alike(*found, workspace_bytes=32_000)


@pytest.mark.parametrize("precision", ["fp16", "amp-fp16"])
@pytest.mark.parametrize("family", ["bert", "llama", "mixtral", "t5"])
def test_bytes_of_a_step_with_float16_are_measured_ones(family, precision):
    model, config = build(family, "eager", 0.1)
    found = steps(model, config, family, attention="eager", precision=precision)
    require_alike(*found, workspace_bytes=32_000)


@pytest.mark.parametrize("family", CONFIGS)
def test_saved_bytes_of_one_text_are_measured_ones_too(family):
    """Batch and heads lie in memory as one dimension then, and what is a copy otherwise is a view."""
    model, config = build(family, attentions(family)[-1], 0.1)
    predicted, measured = steps(model, config, family, batch=1, seq=13, attention=attentions(family)[-1])
    assert predicted.saved_bytes == measured.saved_bytes


@pytest.mark.parametrize(
    ("family", "class_name"),
    [
        ("bert", "BertForMaskedLM"),
        ("bert", "BertForNextSentencePrediction"),
        ("bert", "BertForQuestionAnswering"),
        ("bert", "BertForSequenceClassification"),
        ("bert", "BertForTokenClassification"),
        ("deepseek_v3", "DeepseekV3ForCausalLM"),
        ("distilbert", "DistilBertForMaskedLM"),
        ("distilbert", "DistilBertForQuestionAnswering"),
        ("distilbert", "DistilBertForSequenceClassification"),
        ("gemma2", "Gemma2ForCausalLM"),
        ("gemma3_text", "Gemma3ForCausalLM"),
        ("gpt2", "GPT2ForQuestionAnswering"),
        ("gpt2", "GPT2ForSequenceClassification"),
        ("gpt2", "GPT2ForTokenClassification"),
        ("gpt_neox", "GPTNeoXForCausalLM"),
        ("gpt_oss", "GptOssForCausalLM"),
        ("llama", "LlamaForQuestionAnswering"),
        ("llama", "LlamaForSequenceClassification"),
        ("phi3", "Phi3ForTokenClassification"),
        ("qwen2_moe", "Qwen2MoeForSequenceClassification"),
        ("qwen3_moe", "Qwen3MoeForCausalLM"),
        ("roberta", "RobertaForMaskedLM"),
        ("roberta", "RobertaForSequenceClassification"),
        ("smollm3", "SmolLM3ForTokenClassification"),
        ("starcoder2", "Starcoder2ForCausalLM"),
        ("t5", "T5EncoderModel"),
        ("t5", "T5ForConditionalGeneration"),
        ("vit", "ViTForImageClassification"),
    ],
)
def test_saved_bytes_with_what_stands_on_top_are_measured_ones_to_the_byte(family, class_name):
    attention = attentions(family)[-1]
    num_labels = 2 if class_name.endswith("QuestionAnswering") else 5
    model, config = build(family, attention, 0.1, class_name, num_labels=num_labels)
    inputs_family = "bert" if class_name == "T5EncoderModel" else family
    for precision in ("fp32", "amp-bf16"):
        predicted, measured = steps(model, config, inputs_family, attention=attention, precision=precision)
        assert predicted.saved_bytes == measured.saved_bytes
        assert predicted.parameter_bytes == measured.parameter_bytes


@pytest.mark.parametrize(
    "changes",
    [
        {"use_parallel_residual": False},
        {"attention_bias": False},
        {"rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0, "partial_rotary_factor": 1.0}},
    ],
)
def test_variants_of_gpt_neox_are_measured_ones_to_the_byte(changes):
    model, config = build("gpt_neox", "sdpa", 0.1, **changes)
    predicted, measured = steps(model, config, "gpt_neox")
    assert predicted.saved_bytes == measured.saved_bytes


@pytest.mark.parametrize(
    "activation",
    ["gelu", "gelu_fast", "gelu_new", "gelu_pytorch_tanh", "leaky_relu", "mish", "quick_gelu", "relu", "relu6", "silu"],
)
def test_every_activation_keeps_what_it_is_measured_to_keep(activation):
    model, config = build("gpt_neox", hidden_act=activation)
    for precision in ("fp32", "amp-bf16"):
        predicted, measured = steps(model, config, "gpt_neox", precision=precision)
        assert predicted.saved_bytes == measured.saved_bytes


def test_an_activation_of_which_nothing_is_known_is_refused():
    _, config = build("gpt_neox", hidden_act="laplace")
    with pytest.raises(UnsupportedError, match=r"known of gelu, .*; got 'laplace'"):
        predict_step(config, Workload(batch=1, seq=3))


@pytest.mark.parametrize("changes", [{"q_lora_rank": None}, {"rope_interleave": False}, {"attention_bias": True}])
def test_variants_of_deepseek_are_measured_ones_to_the_byte(changes):
    model, config = build("deepseek_v3", "eager", **changes)
    predicted, measured = steps(model, config, "deepseek_v3", attention="eager")
    assert predicted.saved_bytes == measured.saved_bytes


def test_a_gated_t5_is_measured_one_to_the_byte():
    model, config = build("t5", "sdpa", 0.1, feed_forward_proj="gated-gelu", num_decoder_layers=3)
    predicted, measured = steps(model, config, "t5", precision="bf16")
    assert predicted.saved_bytes == measured.saved_bytes


@pytest.mark.parametrize(("family", "dtypes"), [("llama", {"float32"}), ("bert", {"bfloat16"})])
def test_the_softmax_of_eager_attention_is_as_wide_as_the_model_writes_it(family, dtypes):
    _, config = build(family, "eager")
    workload = Workload(batch=2, seq=7, device="cpu", attention="eager", precision="bf16")
    entries = predict_ledger(config, workload).entries
    assert {entry.dtype for entry in entries if entry.name == "attention weights"} == dtypes


def test_cuda_promotes_softmax_and_norms_under_autocast_and_the_cpu_does_not():
    """BERT asks for no dtype: what its softmax and norms make is autocast's choice alone."""
    _, config = build("bert", "eager")
    found = {}
    for device in ("cpu", "cuda"):
        workload = Workload(batch=2, seq=7, device=device, attention="eager", precision="amp-bf16")
        entries = predict_ledger(config, workload).entries
        found[device] = {entry.dtype for entry in entries if entry.name == "attention weights"}
    assert found == {"cpu": {"bfloat16"}, "cuda": {"float32"}}


def test_autocast_keeps_two_more_bytes_for_each_weight_of_a_product():
    model, config = build("llama", class_name="LlamaForCausalLM")
    workload = Workload(batch=2, seq=7, device="cpu", precision="amp-bf16")
    entries = predict_ledger(config, workload).entries
    made = [entry for entry in entries if not entry.name.startswith("gradient")]
    casts = sum(entry.bytes for entry in made if entry.name.endswith("weight, bfloat16"))
    of_products = [module.weight for module in model.modules() if isinstance(module, torch.nn.Linear)]
    assert casts == 2 * sum(weight.numel() for weight in of_products)


def test_what_a_family_has_not_is_refused_before_anything_is_played():
    _, llama = build("llama")
    _, bert = build("bert")
    _, gemma2 = build("gemma2", "eager")
    block = llama.blocks[0]
    alibi = dataclasses.replace(block, attention=dataclasses.replace(block.attention, position=ALiBi()))
    sink = dataclasses.replace(block, attention=dataclasses.replace(block.attention, sink=True))
    workload = Workload(batch=1, seq=5, device="cpu")
    for config, text in (
        (dataclasses.replace(llama, blocks=(alibi,)), r"got position ALiBi\(\)"),
        (dataclasses.replace(llama, blocks=(sink,)), "got a sink"),
        (dataclasses.replace(llama, blocks=bert.blocks, embed_dim=21), "got position None"),
        (dataclasses.replace(bert, num_token_types=0), "must have num_token_types"),
        (gemma2, "with eager attention only"),
    ):
        with pytest.raises(UnsupportedError, match=text):
            predict_step(config, workload)
