"""Every class of every family that can be read: parameters, FLOPs and cache are those of transformers' own module."""

import re
from collections import Counter
from typing import Any

import pytest
import torch
import transformers
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode, conv_flop_count

from headwise.config.families.classes import CLASSES
from headwise.config.huggingface import FAMILIES, read_config
from headwise.config.model import ModelConfig
from headwise.cost.flops import forward_flops
from headwise.cost.kv import kv_cache_bytes, kv_layers
from headwise.cost.parameters import count_parameters
from headwise.cost.running.parameters import count_module_parameters
from headwise.cost.step_flops import step_flops
from headwise.cost.workload import Workload

EVERY_CLASS = [(family, name) for family, names in CLASSES.items() for name in names]
VOCAB, LABELS = 37, 5

# Tiny sizes, all different where a family allows it, so that no part can stand for another.
_ENCODER: dict[str, Any] = {
    "hidden_size": 24,
    "num_attention_heads": 3,
    "num_hidden_layers": 2,
    "intermediate_size": 13,
    "max_position_embeddings": 19,
}
_DECODER = _ENCODER | {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "num_hidden_layers": 3}
_EXPERTS = {"num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 7}
_LATENT = {
    "hidden_size": 24,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "num_hidden_layers": 3,
    "intermediate_size": 13,
    "moe_intermediate_size": 7,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "n_shared_experts": 2,
    "first_k_dense_replace": 1,
    "q_lora_rank": 9,
    "kv_lora_rank": 10,
    "qk_nope_head_dim": 6,
    "qk_rope_head_dim": 4,
    "v_head_dim": 5,
}
TINY: dict[str, dict[str, Any]] = {
    "bert": _ENCODER,
    "roberta": _ENCODER | {"pad_token_id": 1},
    "xlm-roberta": _ENCODER | {"pad_token_id": 1},
    "distilbert": {"dim": 24, "n_heads": 3, "n_layers": 2, "hidden_dim": 13, "max_position_embeddings": 19},
    "gpt2": {"n_embd": 24, "n_head": 3, "n_layer": 2, "n_inner": 13, "n_positions": 19},
    "llama": _DECODER | {"attention_bias": True, "mlp_bias": True},
    "mistral": _DECODER | {"sliding_window": 3},
    "mixtral": _DECODER | {"num_local_experts": 5, "num_experts_per_tok": 2},
    "qwen2": _DECODER,
    "qwen2_moe": _DECODER | _EXPERTS | {"shared_expert_intermediate_size": 11, "mlp_only_layers": [1]},
    "qwen3": _DECODER | {"use_sliding_window": True, "sliding_window": 3, "max_window_layers": 1},
    "qwen3_moe": _DECODER | _EXPERTS | {"decoder_sparse_step": 2},
    "gemma": _DECODER,
    "gemma2": _DECODER | {"sliding_window": 3, "query_pre_attn_scalar": 5},
    "gemma3_text": _DECODER | {"sliding_window": 3, "query_pre_attn_scalar": 5, "sliding_window_pattern": 2},
    "gpt_oss": _DECODER | {"sliding_window": 3, "num_local_experts": 5, "num_experts_per_tok": 2},
    "olmo2": _DECODER,
    "phi3": _DECODER,
    "smollm3": _DECODER,
    "starcoder2": _DECODER,
    "deepseek_v2": _LATENT,
    "deepseek_v3": _LATENT | {"n_group": 2, "topk_group": 1},
    "qwen3_next": _DECODER
    | _EXPERTS
    | {
        "num_hidden_layers": 4,
        "shared_expert_intermediate_size": 11,
        "mlp_only_layers": [1],
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 6,
        "linear_value_head_dim": 5,
    },
    "gpt_neox": _ENCODER,
    "falcon": {"hidden_size": 24, "num_attention_heads": 4, "num_hidden_layers": 2},
    "opt": {**{k: v for k, v in _ENCODER.items() if k != "intermediate_size"}, "ffn_dim": 13, "pad_token_id": 1},
    "bloom": {"hidden_size": 24, "n_head": 3, "n_layer": 2},
    "t5": {"d_model": 24, "d_kv": 7, "d_ff": 13, "num_layers": 3, "num_decoder_layers": 2, "num_heads": 3},
    "bart": {
        "d_model": 24,
        "encoder_layers": 3,
        "decoder_layers": 2,
        "encoder_ffn_dim": 13,
        "decoder_ffn_dim": 11,
        "encoder_attention_heads": 3,
        "decoder_attention_heads": 4,
        "max_position_embeddings": 19,
        "pad_token_id": 1,
    },
    "vit": {
        "hidden_size": 24,
        "num_attention_heads": 3,
        "num_hidden_layers": 2,
        "intermediate_size": 13,
        "image_size": 13,
        "patch_size": 4,
        "num_channels": 2,
    },
}


def described(family: str, class_name: str, **changes: Any) -> dict[str, Any]:
    """Return a tiny config.json of a class."""
    config = {"model_type": family, "architectures": [class_name], "vocab_size": VOCAB, "pad_token_id": 0}
    if not class_name.endswith("ForQuestionAnswering"):  # which has two outputs, a start and an end
        config["num_labels"] = LABELS
    return {**config, **TINY[family], **changes}


def build(config: dict[str, Any], **implementations: str) -> nn.Module:
    model_class = getattr(transformers, config["architectures"][0])
    return model_class(model_class.config_class(**config, **implementations))


def inputs_of(config: ModelConfig, *, batch: int, seq: int) -> dict[str, Tensor]:
    if config.patches:
        side = config.patches.image_size
        return {"pixel_values": torch.zeros(batch, config.patches.num_channels, side, side)}
    tokens = torch.full((batch, seq), 3)
    return {"input_ids": tokens, **({"decoder_input_ids": tokens} if config.encoder else {})}


def seq_of(config: ModelConfig, seq: int) -> int:
    return config.patches.num_tokens if config.patches else seq


def test_every_family_is_tried():
    assert set(TINY) == set(FAMILIES) == set(CLASSES)


# The oracle tells a weight's part by its name in transformers' modules; the first line that matches decides.
PART_OF_NAME = (
    ("other", r"lm_head\.dense|vocab_transform"),
    ("norm", r"norm|LayerNorm|\bln_"),
    ("output_head", r"^lm_head\.|predictions\.decoder|predictions\.bias|vocab_projector"),
    ("other", r"pooler|predictions\.transform|classifier|score|qa_outputs|seq_relationship"),
    ("embedding", r"embed|\bwte\b|\bwpe\b|\bshared\.|relative_attention_bias"),
    ("attention", r"attention\.|attn\.|Attention\.|attention_"),
    ("feed_forward", r"mlp\.|intermediate\.|output\.|ffn\.|DenseReluDense|\bfc\d"),
)


def counted_by_name(model: nn.Module) -> Counter[str]:
    found: dict[nn.Parameter, set[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        part = next(part for part, pattern in PART_OF_NAME if re.search(pattern, name))
        found.setdefault(parameter, set()).add(part)
    parts: Counter[str] = Counter()
    for parameter, names in found.items():
        assert len(names) == 1 or "embedding" in names  # what is tied is tied to an embedding
        parts["embedding" if "embedding" in names else names.pop()] += parameter.numel()
    return parts


def assert_equal_by_part(config: dict[str, Any]) -> None:
    ours = count_parameters(read_config(config, name="m"))
    with torch.device("meta"):
        model = build(config)
    theirs = counted_by_name(model)
    assert ours.attention == theirs["attention"]
    assert ours.feed_forward == theirs["feed_forward"]
    assert ours.norm == theirs["norm"]
    assert ours.output_head == theirs["output_head"]
    assert ours.embedding == theirs["embedding"] + theirs["output_head"]
    assert ours.other == theirs["other"]
    assert ours.total == sum(parameter.numel() for parameter in set(model.parameters()))


SMALL = st.integers(1, 5)


@st.composite
def changes_of(draw: st.DrawFn, family: str) -> dict[str, Any]:
    """Draw values for every setting of a family that changes its parameters."""
    depth_key = {"gpt2": "n_layer", "bloom": "n_layer", "distilbert": "n_layers", "t5": "num_layers"}.get(
        family, "encoder_layers" if family == "bart" else "num_hidden_layers"
    )
    changes: dict[str, Any] = {depth_key: draw(SMALL), "vocab_size": draw(st.integers(7, 41))}
    sizes = ("intermediate_size", "ffn_dim", "d_ff", "n_inner", "hidden_dim", "encoder_ffn_dim", "decoder_ffn_dim")
    sizes += ("moe_intermediate_size", "shared_expert_intermediate_size", "n_shared_experts", "first_k_dense_replace")
    sizes += ("kv_lora_rank", "v_head_dim", "qk_nope_head_dim", "linear_key_head_dim", "linear_value_head_dim")
    sizes += ("max_position_embeddings", "type_vocab_size", "num_decoder_layers", "decoder_layers", "num_channels")
    sizes += ("linear_conv_kernel_dim", "decoder_sparse_step", "relative_attention_num_buckets", "n_positions")
    flags = ("attention_bias", "mlp_bias", "qkv_bias", "use_bias", "enable_bias", "bias", "tie_word_embeddings")
    flags += ("use_parallel_residual", "multi_query", "new_decoder_architecture", "parallel_attn", "alibi")
    flags += ("do_layer_norm_before", "rope_interleave", "use_sliding_window", "add_final_layer_norm")
    known = CONFIG_KEYS[family]
    changes |= {key: draw(SMALL) + 2 for key in sizes if key in known}
    changes |= {key: draw(st.booleans()) for key in flags if key in known}
    if family in ("bert", "roberta", "xlm-roberta", "distilbert", "bart"):
        changes["tie_word_embeddings"] = True  # the only form that can be read
    if family == "vit":
        changes["qkv_bias"] = True  # here too
    if "head_dim" in TINY[family]:
        changes["head_dim"] = draw(st.sampled_from([8, 16]))
        changes["num_key_value_heads"] = draw(st.sampled_from([1, 2, 4]))
    if "n_routed_experts" in known:
        changes["q_lora_rank"] = draw(st.none() | SMALL)
    if "num_experts" in known or "num_local_experts" in known:
        key = "num_experts" if "num_experts" in TINY[family] else "num_local_experts"
        changes |= {key: draw(st.integers(2, 6))} if key in TINY[family] else {}
    if family == "t5":
        changes["feed_forward_proj"] = draw(st.sampled_from(["relu", "gated-gelu", "gated-silu"]))
    return changes


CONFIG_KEYS = {
    family: set(getattr(transformers, names[0]).config_class().to_dict()) | set(TINY[family])
    for family, names in CLASSES.items()
}


@pytest.mark.parametrize(("family", "class_name"), EVERY_CLASS)
def test_a_module_holds_what_is_counted_part_by_part(family, class_name):
    assert_equal_by_part(described(family, class_name))


@pytest.mark.parametrize(("family", "class_name"), EVERY_CLASS)
def test_the_module_is_counted_as_its_config_is(family, class_name):
    config = described(family, class_name)
    with torch.device("meta"):
        module = build(config)
    assert count_module_parameters(module) == count_parameters(read_config(config, name="m"))


@pytest.mark.parametrize("family", FAMILIES)
@settings(max_examples=4, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_whatever_the_settings_a_module_holds_what_is_counted_part_by_part(family, data):
    class_name = data.draw(st.sampled_from(CLASSES[family]))
    assert_equal_by_part(described(family, class_name, **data.draw(changes_of(family))))


def convolution_backward(grad: Any, x: Any, weight: Any, *settings: Any, **_: Any) -> int:
    """Count a product for each gradient asked for; torch's own formula takes a depthwise convolution for a full one."""
    is_input_wanted, is_weight_wanted, _ = settings[-1]
    return conv_flop_count(x, weight, grad) * (is_input_wanted + is_weight_wanted)


def count_products() -> FlopCounterMode:
    return FlopCounterMode(display=False, custom_mapping={torch.ops.aten.convolution_backward: convolution_backward})


@pytest.mark.parametrize(("family", "class_name"), [(f, name) for f, names in CLASSES.items() for name in names[:2]])
def test_a_step_multiplies_what_torch_counts_on_the_module_that_writes_every_product_out(family, class_name):
    config = described(family, class_name)
    ours = read_config(config, name="m")
    batch, seq = 2, seq_of(ours, 7)
    model = build(config, attn_implementation="eager", experts_implementation="eager").eval()
    with count_products() as counter:
        output = model(**inputs_of(ours, batch=batch, seq=seq))
        forward = counter.get_total_flops()
        output[0].sum().backward()
    counted = step_flops(ours, Workload(batch=batch, seq=seq, attention="eager", dropout=False))
    assert forward_flops(ours, batch=batch, seq=seq).dense == counted.forward.dense == forward
    assert counted.hardware.dense == counter.get_total_flops()


GENERATORS = [family for family in FAMILIES if family not in ("vit", "bert", "roberta", "xlm-roberta", "distilbert")]


def held_by(cache: Any) -> list[int]:
    """Return the bytes that each layer of a cache of transformers holds."""
    parts = ("self_attention_cache", "cross_attention_cache")
    caches = [getattr(cache, part) for part in parts] if hasattr(cache, parts[0]) else [cache]
    held = []
    for layer in (layer for cache in caches for layer in cache.layers):
        tensors = [getattr(layer, name, None) for name in ("keys", "values")]
        for name in ("conv_states", "recurrent_states"):
            tensors += getattr(layer, name, {}).values()
        held.append(sum(tensor.nbytes for tensor in tensors if tensor is not None))
    return held


@pytest.mark.parametrize("family", GENERATORS)
@pytest.mark.parametrize("seq", [2, 7])
def test_a_cache_holds_what_transformers_leaves_in_it(family, seq):
    config = described(family, CLASSES[family][1])
    ours = read_config(config, name="m")
    model = build(config, attn_implementation="eager", experts_implementation="eager").eval()
    with torch.no_grad():
        output = model(**inputs_of(ours, batch=5, seq=seq), use_cache=True)
    layers = kv_layers(ours, batch=5, seq=seq, dtype="float32")
    # Between calls transformers keeps one token less of a full window: the one that the next token pushes out.
    expected = [
        layer.bytes - is_full(layer, seq) * 5 * layer.bytes_per_token for layer in layers if layer.kind != "cross"
    ]
    expected += [layer.bytes for layer in layers if layer.kind == "cross"]
    assert held_by(getattr(output, "cache", None) or output.past_key_values) == expected
    assert kv_cache_bytes(ours, batch=5, seq=seq, dtype="float32") == sum(layer.bytes for layer in layers)


def is_full(layer: Any, seq: int) -> bool:
    return layer.kind == "window" and layer.tokens < seq
