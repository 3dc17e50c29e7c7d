"""What sets apart the families of decoders that are built like Llama, each as transformers 5.24 reads its config.json.

Touvron et al. 2023 (Llama), Jiang et al. 2023 (Mistral), Jiang et al. 2024 (Mixtral), Yang et al. 2024 (Qwen2), Yang et
al. 2025 (Qwen3), Gemma Team 2024 (Gemma, Gemma 2), Gemma Team 2025 (Gemma 3), OpenAI 2025 (gpt-oss), OLMo Team 2025
(OLMo 2), Abdin et al. 2024 (Phi-3), Lozhkov et al. 2024 (StarCoder2).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from headwise.config.families import feed_forwards, layer_kinds
from headwise.config.keys import Keys
from headwise.config.model import FeedForwardConfig
from headwise.masks.patterns import Mask

Bias = bool | Literal["qkv"]


def _bias_by_key(keys: Keys) -> Bias:
    return keys.flag("attention_bias")


@dataclass(frozen=True, kw_only=True)
class Decoder:
    """What a family does where others do something else.

    Args:
        defaults: what it does where its config.json has no key. A key that is not here is not the family's.
        aliases: other spellings of keys.
        masks: (keys, number of layers) -> the mask of each layer.
        feed_forwards: (keys, number of layers) -> the feed-forward of each layer.
        projection_bias: which of the attention's projections have a bias.
        qk_norm: what queries and keys are normed over, or None.
        norm: the kind of norm.
        norm_placement: where the norms stand.
        sink: whether each head has a learned extra logit.
    """

    defaults: Mapping[str, object]
    aliases: Mapping[str, str] = field(default_factory=dict)
    masks: Callable[[Keys, int], list[Mask]] = layer_kinds.every_layer_causal
    feed_forwards: Callable[[Keys, int], list[FeedForwardConfig]] = feed_forwards.same_everywhere
    projection_bias: Callable[[Keys], Bias] = _bias_by_key
    qk_norm: Literal["head", "projection"] | None = None
    norm: Literal["rmsnorm", "layernorm"] = "rmsnorm"
    norm_placement: Literal["pre", "both", "output"] = "pre"
    sink: bool = False


_SHARED: dict[str, object] = {
    "vocab_size": 32000,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": None,
    "head_dim": None,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "rope_parameters": None,
    "rope_scaling": None,
    "rope_theta": 10_000.0,
    "attention_dropout": 0.0,
}
_QWEN = _SHARED | {
    "vocab_size": 151_936,
    "num_key_value_heads": 32,
    "intermediate_size": 22016,
    "max_position_embeddings": 32_768,
    "use_sliding_window": False,
    "sliding_window": 4096,
    "max_window_layers": 28,
    "layer_types": None,
}
_QWEN_EXPERTS = {
    "hidden_size": 2048,
    "num_hidden_layers": 24,
    "decoder_sparse_step": 1,
    "mlp_only_layers": None,
}
_GEMMA = _SHARED | {
    "vocab_size": 256_000,
    "head_dim": 256,
    "max_position_embeddings": 8192,
    "attention_bias": False,
    "use_bidirectional_attention": False,
}
_GEMMA_2 = {key: value for key, value in _GEMMA.items() if key != "hidden_act"} | {
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "hidden_activation": "gelu_pytorch_tanh",
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
    "layer_types": None,
    "final_logit_softcapping": 30.0,
    "attn_logit_softcapping": 50.0,
}

DECODERS: dict[str, Decoder] = {
    "llama": Decoder(
        defaults=_SHARED
        | {
            "intermediate_size": 11008,
            "max_position_embeddings": 2048,
            "attention_bias": False,
            "mlp_bias": False,
        },
    ),
    "mistral": Decoder(
        defaults=_SHARED | {"num_key_value_heads": 8, "max_position_embeddings": 131_072, "sliding_window": 4096},
        masks=layer_kinds.every_layer_windowed,
        projection_bias=lambda keys: False,
    ),
    "mixtral": Decoder(
        defaults=_SHARED
        | {
            "num_key_value_heads": 8,
            "max_position_embeddings": 131_072,
            "rms_norm_eps": 1e-5,
            "rope_theta": 1_000_000.0,
            "sliding_window": None,
            "num_local_experts": 8,
            "num_experts_per_tok": 2,
        },
        aliases={"num_experts": "num_local_experts"},
        masks=layer_kinds.every_layer_windowed,
        projection_bias=lambda keys: False,
    ),
    "qwen2": Decoder(
        defaults=_QWEN,
        masks=layer_kinds.windowed_from_a_layer_on,
        projection_bias=lambda keys: "qkv",
    ),
    "qwen2_moe": Decoder(
        defaults=_QWEN
        | _QWEN_EXPERTS
        | {
            "intermediate_size": 5632,
            "num_attention_heads": 16,
            "num_key_value_heads": 16,
            "num_experts": 60,
            "num_experts_per_tok": 4,
            "moe_intermediate_size": 1408,
            "norm_topk_prob": False,
            "shared_expert_intermediate_size": 5632,
            "qkv_bias": True,
        },
        masks=layer_kinds.windowed_alternately_up_to_a_layer,
        feed_forwards=feed_forwards.sparse_by_step,
        projection_bias=lambda keys: "qkv" if keys.flag("qkv_bias") else False,
    ),
    "qwen3": Decoder(
        defaults=_QWEN | {"head_dim": 128, "attention_bias": False},
        masks=layer_kinds.windowed_from_a_layer_on,
        qk_norm="head",
    ),
    "qwen3_moe": Decoder(
        defaults={key: value for key, value in _QWEN.items() if key not in ("max_window_layers", "layer_types")}
        | _QWEN_EXPERTS
        | {
            "intermediate_size": 6144,
            "num_key_value_heads": 4,
            "attention_bias": False,
            "num_experts": 128,
            "num_experts_per_tok": 8,
            "moe_intermediate_size": 768,
            "norm_topk_prob": False,
        },
        aliases={"num_local_experts": "num_experts"},
        masks=layer_kinds.windowed_if_used,
        feed_forwards=feed_forwards.sparse_by_step,
        qk_norm="head",
    ),
    "gemma": Decoder(
        defaults=_GEMMA
        | {
            "hidden_size": 3072,
            "intermediate_size": 24576,
            "num_hidden_layers": 28,
            "num_attention_heads": 16,
            "num_key_value_heads": 16,
            "hidden_act": "gelu_pytorch_tanh",
        },
    ),
    "gemma2": Decoder(
        defaults=_GEMMA_2,
        masks=layer_kinds.windowed_but_every_nth,
        norm_placement="both",
    ),
    "gemma3_text": Decoder(
        # its attention has a cap of scores as a setting, and does not apply it
        defaults={key: value for key, value in _GEMMA_2.items() if key != "attn_logit_softcapping"}
        | {
            "vocab_size": 262_208,
            "max_position_embeddings": 131_072,
            "rope_theta": 1_000_000.0,
            "rope_local_base_freq": 10_000.0,
            "sliding_window_pattern": 6,
            "final_logit_softcapping": None,
        },
        masks=layer_kinds.windowed_but_every_nth,
        qk_norm="head",
        norm_placement="both",
    ),
    "gpt_oss": Decoder(
        defaults=_SHARED
        | {
            "vocab_size": 201_088,
            "hidden_size": 2880,
            "intermediate_size": 2880,
            "num_hidden_layers": 36,
            "num_attention_heads": 64,
            "num_key_value_heads": 8,
            "head_dim": 64,
            "max_position_embeddings": 131_072,
            "rms_norm_eps": 1e-5,
            "rope_theta": 150_000.0,
            "rope_parameters": {
                "rope_type": "yarn",
                "factor": 32.0,
                "beta_fast": 32.0,
                "beta_slow": 1.0,
                "truncate": False,
                "original_max_position_embeddings": 4096,
            },
            "attention_bias": True,
            "sliding_window": 128,
            "layer_types": None,
            "num_local_experts": 128,
            "num_experts_per_tok": 4,
        },
        aliases={"num_experts": "num_local_experts"},
        masks=layer_kinds.windowed_but_every_nth,
        feed_forwards=feed_forwards.biased_experts,
        sink=True,
    ),
    "olmo2": Decoder(
        defaults=_SHARED
        | {
            "vocab_size": 50304,
            "intermediate_size": 11008,
            "max_position_embeddings": 2048,
            "rms_norm_eps": 1e-5,
            "attention_bias": False,
        },
        qk_norm="projection",
        norm_placement="output",
    ),
    "phi3": Decoder(
        defaults=_SHARED
        | {
            "vocab_size": 32064,
            "hidden_size": 3072,
            "intermediate_size": 8192,
            "max_position_embeddings": 4096,
            "original_max_position_embeddings": 4096,
            "rms_norm_eps": 1e-5,
            "partial_rotary_factor": 1.0,
            "resid_pdrop": 0.0,
            "sliding_window": None,
        },
        masks=layer_kinds.every_layer_windowed,
        projection_bias=lambda keys: False,
    ),
    "smollm3": Decoder(
        defaults=_SHARED
        | {
            "vocab_size": 128_256,
            "hidden_size": 2048,
            "intermediate_size": 11008,
            "num_hidden_layers": 36,
            "num_attention_heads": 16,
            "num_key_value_heads": 4,
            "max_position_embeddings": 32_768,
            "rope_theta": 2_000_000.0,
            "attention_bias": False,
            "mlp_bias": False,
            "use_sliding_window": False,
            "sliding_window": None,
            "layer_types": None,
            "no_rope_layers": None,
            "no_rope_layer_interval": 4,
        },
        masks=layer_kinds.windowed_without_positions,
    ),
    "starcoder2": Decoder(
        defaults={key: value for key, value in _SHARED.items() if key != "rms_norm_eps"}
        | {
            "vocab_size": 49152,
            "hidden_size": 3072,
            "intermediate_size": 12288,
            "num_hidden_layers": 30,
            "num_attention_heads": 24,
            "num_key_value_heads": 2,
            "hidden_act": "gelu_pytorch_tanh",
            "max_position_embeddings": 4096,
            "norm_epsilon": 1e-5,
            "sliding_window": None,
            "residual_dropout": 0.0,
            "embedding_dropout": 0.0,
            "use_bias": True,
        },
        masks=layer_kinds.every_layer_windowed,
        feed_forwards=feed_forwards.plain_everywhere,
        projection_bias=lambda keys: keys.flag("use_bias"),
        norm="layernorm",
    ),
}
"""The families, by `model_type`."""

DEFAULTS: dict[str, Mapping[str, object]] = {family: decoder.defaults for family, decoder in DECODERS.items()}
