"""Qwen3-Next's config.json: three gated delta nets, then one attention with a gate, over and over (Qwen Team 2025)."""

from collections.abc import Mapping

from headwise.config.attention import AttentionConfig
from headwise.config.block import AnyAttention
from headwise.config.families.classes import read_top
from headwise.config.families.feed_forwards import sparse_by_step
from headwise.config.families.layer_kinds import FULL, LINEAR, read_kinds
from headwise.config.families.llama import read_head_dim, read_heads
from headwise.config.families.rotary import read_rotary
from headwise.config.keys import Keys, read_dtype
from headwise.config.linear import LinearAttentionConfig
from headwise.config.model import MAX_LAYERS, BlockConfig, FeedForwardConfig, ModelConfig
from headwise.masks.patterns import Causal

DEFAULTS: dict[str, object] = {
    "vocab_size": 151_936,
    "hidden_size": 2048,
    "intermediate_size": 5632,
    "num_hidden_layers": 48,
    "num_attention_heads": 16,
    "num_key_value_heads": 2,
    "head_dim": 256,
    "hidden_act": "silu",
    "max_position_embeddings": 32_768,
    "rms_norm_eps": 1e-6,
    "rope_parameters": None,
    "rope_scaling": None,
    "rope_theta": 10_000.0,
    "partial_rotary_factor": 0.25,
    "attention_bias": False,
    "attention_dropout": 0.0,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "decoder_sparse_step": 1,
    "moe_intermediate_size": 512,
    "norm_topk_prob": True,
    "shared_expert_intermediate_size": 512,
    "num_experts_per_tok": 10,
    "num_experts": 512,
    "mlp_only_layers": None,
    "layer_types": None,
    "full_attention_interval": 4,
}


def read_qwen3_next(config: Mapping[str, object], *, name: str, head: bool) -> ModelConfig:
    """Read a config.json whose model_type is "qwen3_next"; see `read_config`."""
    keys = Keys(config, DEFAULTS)
    vocab_size = keys.size("vocab_size")
    return ModelConfig(
        name=name,
        model_type="qwen3_next",
        kind="decoder",
        embed_dim=keys.size("hidden_size"),
        vocab_size=vocab_size,
        max_positions=keys.size("max_position_embeddings"),
        blocks=_read_blocks(keys),
        final_norm=True,
        head=read_top(config, "qwen3_next", vocab_size=vocab_size, with_language_model=head).head,
        dtype=read_dtype(config),
    )


def _read_blocks(keys: Keys) -> tuple[BlockConfig, ...]:
    num_layers = keys.size("num_hidden_layers", maximum=MAX_LAYERS)
    interval = keys.size("full_attention_interval")
    default = [LINEAR if (index + 1) % interval else FULL for index in range(num_layers)]
    kinds = read_kinds(keys, num_layers=num_layers, default=default, allowed=(FULL, LINEAR))
    mixers: dict[str, AnyAttention] = {FULL: _read_attention(keys), LINEAR: _read_linear(keys)}
    norm_eps = keys.positive("rms_norm_eps")

    def block(kind: str, feed_forward: FeedForwardConfig) -> BlockConfig:
        return BlockConfig(attention=mixers[kind], feed_forward=feed_forward, norm="rmsnorm", norm_eps=norm_eps)

    layers = list(zip(kinds, sparse_by_step(keys, num_layers), strict=True))
    distinct = {layer: block(*layer) for layer in dict.fromkeys(layers)}
    return tuple(distinct[layer] for layer in layers)


def _read_attention(keys: Keys) -> AttentionConfig:
    head_dim = read_head_dim(keys)
    return AttentionConfig.from_keywords(
        **read_heads(keys),
        embed_dim=keys.size("hidden_size"),
        head_dim=head_dim,
        projection_bias=keys.flag("attention_bias"),
        qk_norm=True,
        qk_norm_eps=keys.positive("rms_norm_eps"),
        position=read_rotary(keys, head_dim=head_dim, partial_key="partial_rotary_factor"),
        mask=Causal(),
        output_gate=True,
    )


def _read_linear(keys: Keys) -> LinearAttentionConfig:
    keys.require_multiple("linear_num_value_heads", "linear_num_key_heads")
    return LinearAttentionConfig(
        embed_dim=keys.size("hidden_size"),
        num_key_heads=keys.size("linear_num_key_heads"),
        num_value_heads=keys.size("linear_num_value_heads"),
        key_head_dim=keys.size("linear_key_head_dim"),
        value_head_dim=keys.size("linear_value_head_dim"),
        conv_kernel_size=keys.size("linear_conv_kernel_dim"),
        activation=keys.text("hidden_act"),
        norm_eps=keys.positive("rms_norm_eps"),
    )
