"""DeepSeek's config.json: latent attention, and experts with shared ones (DeepSeek-AI 2024, V2 and V3)."""

from collections.abc import Mapping
from dataclasses import replace

from headwise.config.checks import require_number
from headwise.config.families.classes import read_top
from headwise.config.families.feed_forwards import dense_first
from headwise.config.families.rotary import read_rotary
from headwise.config.families.rotary_scaling import read_stretch_weight
from headwise.config.keys import Keys, read_dtype
from headwise.config.latent import LatentAttentionConfig
from headwise.config.model import MAX_LAYERS, BlockConfig, FeedForwardConfig, ModelConfig
from headwise.config.scaling import stretch_factor
from headwise.errors import ConfigError

_SHARED: dict[str, object] = {
    "num_key_value_heads": None,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "rope_parameters": None,
    "rope_scaling": None,
    "rope_theta": 10_000.0,
    "attention_bias": False,
    "attention_dropout": 0.0,
    "kv_lora_rank": 512,
    "q_lora_rank": 1536,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
}

DEFAULTS: dict[str, dict[str, object]] = {
    "deepseek_v2": _SHARED
    | {
        "vocab_size": 102_400,
        "hidden_size": 4096,
        "intermediate_size": 11008,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "max_position_embeddings": 2048,
        "mlp_bias": False,
        "first_k_dense_replace": 0,
        "n_routed_experts": 64,
        "n_shared_experts": 2,
        "num_experts_per_tok": None,
        "moe_intermediate_size": 1407,
        "norm_topk_prob": False,
    },
    "deepseek_v3": _SHARED
    | {
        "vocab_size": 129_280,
        "hidden_size": 7168,
        "intermediate_size": 18432,
        "num_hidden_layers": 61,
        "num_attention_heads": 128,
        "num_key_value_heads": 128,
        "max_position_embeddings": 4096,
        "first_k_dense_replace": 3,
        "n_routed_experts": 256,
        "n_shared_experts": 1,
        "num_experts_per_tok": 8,
        "moe_intermediate_size": 2048,
        "norm_topk_prob": True,
        "rope_interleave": True,
    },
}

_ALIASES = {
    "deepseek_v2": {"num_experts": "n_routed_experts"},
    "deepseek_v3": {"num_local_experts": "n_routed_experts"},
}


def read_deepseek(config: Mapping[str, object], *, name: str, head: bool, family: str) -> ModelConfig:
    """Read a config.json whose model_type is a key of `DEFAULTS`; see `read_config`."""
    keys = Keys(config, DEFAULTS[family], _ALIASES[family])
    vocab_size = keys.size("vocab_size")
    return ModelConfig(
        name=name,
        model_type=family,
        kind="decoder",
        embed_dim=keys.size("hidden_size"),
        vocab_size=vocab_size,
        max_positions=keys.size("max_position_embeddings"),
        blocks=_read_blocks(keys),
        final_norm=True,
        head=read_top(config, family, vocab_size=vocab_size, with_language_model=head).head,
        dtype=read_dtype(config),
    )


def _read_blocks(keys: Keys) -> tuple[BlockConfig, ...]:
    feed_forwards = dense_first(keys, keys.size("num_hidden_layers", maximum=MAX_LAYERS))
    attention, norm_eps = _read_attention(keys), keys.positive("rms_norm_eps")

    def block(feed_forward: FeedForwardConfig) -> BlockConfig:
        return BlockConfig(attention=attention, feed_forward=feed_forward, norm="rmsnorm", norm_eps=norm_eps)

    distinct = {feed_forward: block(feed_forward) for feed_forward in dict.fromkeys(feed_forwards)}
    return tuple(distinct[feed_forward] for feed_forward in feed_forwards)


def _read_attention(keys: Keys) -> LatentAttentionConfig:
    num_heads = keys.size("num_attention_heads")
    num_kv_heads = keys.size_or_none("num_key_value_heads")
    if num_kv_heads not in (None, num_heads):
        raise ConfigError(
            "num_key_value_heads must equal num_attention_heads, since every head has keys of its own; "
            f"got {num_kv_heads} and {num_heads}"
        )
    rotary_dim = keys.size("qk_rope_head_dim")
    if rotary_dim % 2:
        raise ConfigError(f"qk_rope_head_dim must be even, since pairs are turned; got {rotary_dim}")
    rotary = read_rotary(keys, head_dim=rotary_dim)
    is_interleaved = not keys.has("rope_interleave") or keys.flag("rope_interleave", null=False)
    nope_dim = keys.size("qk_nope_head_dim")
    return LatentAttentionConfig(
        embed_dim=keys.size("hidden_size"),
        num_heads=num_heads,
        q_lora_rank=keys.size_or_none("q_lora_rank"),
        kv_lora_rank=keys.size("kv_lora_rank"),
        qk_nope_head_dim=nope_dim,
        qk_rope_head_dim=rotary_dim,
        v_head_dim=keys.size("v_head_dim"),
        projection_bias=keys.flag("attention_bias"),
        position=replace(rotary, pairing="interleaved" if is_interleaved else "half"),
        scale=(nope_dim + rotary_dim) ** -0.5 * _read_stretch(keys) ** 2,
        dropout_p=keys.probability("attention_dropout", null=0.0),
    )


def _read_stretch(keys: Keys) -> float:
    """Return the factor on queries and keys that goes with a stretched length (`mscale` of YaRN)."""
    settings = keys.mapping("rope_scaling") or keys.mapping("rope_parameters")
    if settings.get("rope_type", settings.get("type", "default")) == "default":
        return 1.0
    weight, factor = read_stretch_weight(settings, "mscale_all_dim"), settings.get("factor", 1)
    require_number("factor", factor)
    assert isinstance(factor, int | float)
    return stretch_factor(float(factor), weight) if weight else 1.0
