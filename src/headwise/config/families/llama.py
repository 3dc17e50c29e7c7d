"""Llama's config.json and those of its relatives: pre-norm decoders with rotary positions and gated feed-forwards.

Touvron et al. 2023 (Llama), Jiang et al. 2023 (Mistral), Jiang et al. 2024 (Mixtral), Yang et al. 2025 (Qwen3),
Gemma Team 2024 (Gemma).
"""

from collections.abc import Mapping

from headwise.config.attention import AttentionConfig, Rotary
from headwise.config.checks import require_positive, shown
from headwise.config.families.classes import read_top
from headwise.config.keys import Keys, read_dtype
from headwise.config.model import MAX_LAYERS, BlockConfig, FeedForwardConfig, ModelConfig
from headwise.errors import ConfigError
from headwise.masks.patterns import Causal, Mask, SlidingWindow

ROPE_TYPES = ("default", "linear", "dynamic", "yarn", "longrope", "llama3")

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

# What each family does where its config.json has no key. A key that is not here is not the family's: it does nothing.
DEFAULTS: dict[str, dict[str, object]] = {
    "llama": _SHARED
    | {
        "intermediate_size": 11008,
        "max_position_embeddings": 2048,
        "attention_bias": False,
        "mlp_bias": False,
    },
    "mistral": _SHARED
    | {
        "num_key_value_heads": 8,
        "max_position_embeddings": 131_072,
        "sliding_window": 4096,
    },
    "mixtral": _SHARED
    | {
        "num_key_value_heads": 8,
        "max_position_embeddings": 131_072,
        "rms_norm_eps": 1e-5,
        "rope_theta": 1_000_000.0,
        "sliding_window": None,
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
    },
    "qwen3": _SHARED
    | {
        "vocab_size": 151_936,
        "intermediate_size": 22016,
        "num_key_value_heads": 32,
        "head_dim": 128,
        "max_position_embeddings": 32_768,
        "attention_bias": False,
        "use_sliding_window": False,
        "sliding_window": 4096,
        "max_window_layers": 28,
        "layer_types": None,
    },
    "gemma": _SHARED
    | {
        "vocab_size": 256_000,
        "hidden_size": 3072,
        "intermediate_size": 24576,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "num_key_value_heads": 16,
        "head_dim": 256,
        "hidden_act": "gelu_pytorch_tanh",
        "max_position_embeddings": 8192,
        "attention_bias": False,
        "use_bidirectional_attention": False,
    },
}


def read_llama(config: Mapping[str, object], *, name: str, head: bool, family: str) -> ModelConfig:
    """Read a config.json whose model_type is a key of `DEFAULTS`; see `read_config`."""
    aliases = {"num_experts": "num_local_experts"} if family == "mixtral" else None
    keys = Keys(config, DEFAULTS[family], aliases)
    if family == "gemma" and keys.flag("use_bidirectional_attention", null=False):
        raise ConfigError("a bidirectional Gemma cannot be read; got use_bidirectional_attention true")
    embed_dim, vocab_size = keys.size("hidden_size"), keys.size("vocab_size")
    return ModelConfig(
        name=name,
        model_type=family,
        kind="decoder",
        embed_dim=embed_dim,
        vocab_size=vocab_size,
        max_positions=keys.size("max_position_embeddings"),
        blocks=_read_blocks(keys, embed_dim, family),
        final_norm=True,
        head=read_top(config, family, vocab_size=vocab_size, with_language_model=head).head,
        dtype=read_dtype(config),
    )


def _read_blocks(keys: Keys, embed_dim: int, family: str) -> tuple[BlockConfig, ...]:
    masks = _read_masks(keys, num_layers=keys.size("num_hidden_layers", maximum=MAX_LAYERS))
    num_heads = keys.size("num_attention_heads")
    num_kv_heads = keys.size_or_none("num_key_value_heads")
    if num_kv_heads is not None:
        keys.require_multiple("num_attention_heads", "num_key_value_heads")
    head_dim = _read_head_dim(keys)
    projection_bias = keys.has("attention_bias") and keys.flag("attention_bias")
    dropout_p = keys.probability("attention_dropout", null=0.0)
    norm_eps = keys.positive("rms_norm_eps")
    position = _read_rotary(keys)
    feed_forward = _read_feed_forward(keys, embed_dim, family)

    def block(mask: Mask) -> BlockConfig:
        attention = AttentionConfig(
            embed_dim=embed_dim,
            num_heads=num_heads,
            num_kv_heads=num_kv_heads,  # type: ignore[arg-type]  # None asks for the default
            head_dim=head_dim,
            projection_bias=projection_bias,
            qk_norm=family == "qwen3",
            qk_norm_eps=norm_eps,
            position=position,
            mask=mask,
            dropout_p=dropout_p,
        )
        return BlockConfig(attention=attention, feed_forward=feed_forward, norm="rmsnorm", norm_eps=norm_eps)

    distinct = {mask: block(mask) for mask in set(masks)}
    return tuple(distinct[mask] for mask in masks)


def _read_head_dim(keys: Keys) -> int:
    """Read the width of a head: its own key, or an even share of the width; rotary positions turn pairs of it."""
    head_dim = keys.size_or_none("head_dim") or keys.default("head_dim")
    if isinstance(head_dim, int):
        source = f"got {head_dim}"
    else:
        keys.require_multiple("hidden_size", "num_attention_heads", advice=" (or give head_dim)")
        embed_dim, num_heads = keys.size("hidden_size"), keys.size("num_attention_heads")
        head_dim = embed_dim // num_heads
        source = f"it is missing, and hidden_size / num_attention_heads is {embed_dim} / {num_heads} = {head_dim}"
    if head_dim % 2:
        raise ConfigError(f"head_dim must be even for rotary positions, which turn pairs; {source}")
    return head_dim


def _read_feed_forward(keys: Keys, embed_dim: int, family: str) -> FeedForwardConfig:
    activation = keys.text("hidden_act")
    if family == "gemma" and activation == "gelu":
        activation = "gelu_pytorch_tanh"  # Gemma's first files name the exact form and mean this one
    has_experts = keys.has("num_local_experts")
    num_experts = keys.size("num_local_experts", minimum=2) if has_experts else 1
    return FeedForwardConfig(
        embed_dim=embed_dim,
        hidden_dim=keys.size("intermediate_size"),
        activation=activation,
        gated=True,
        bias=keys.has("mlp_bias") and keys.flag("mlp_bias"),
        num_experts=num_experts,
        num_active_experts=keys.size("num_experts_per_tok", maximum=num_experts) if has_experts else 1,
    )


def _read_rotary(keys: Keys) -> Rotary:
    """Read the rotary positions: one object of settings, or the older `rope_theta` beside `rope_scaling`."""
    key = "rope_scaling" if keys.mapping("rope_scaling") else "rope_parameters"
    settings = keys.mapping(key)
    if any(isinstance(value, Mapping) for value in settings.values()):
        raise ConfigError(f"{key} must be one set of values for all layers; got one per layer type")
    kind_key = "rope_type" if "rope_type" in settings or "type" not in settings else "type"
    kind = settings.get(kind_key, "default")
    if not isinstance(kind, str) or kind not in ROPE_TYPES:
        raise ConfigError(f"{kind_key} in {key} must be one of {', '.join(ROPE_TYPES)}; got {shown(kind)}")
    theta = settings.get("rope_theta")
    if theta is None:
        theta = keys.positive("rope_theta")
    require_positive("rope_theta", theta)
    return Rotary(theta=theta, scaling=None if kind == "default" else kind)  # type: ignore[arg-type]


def _read_masks(keys: Keys, *, num_layers: int) -> list[Mask]:
    """Read which keys each layer sees: all earlier ones, or a window of them."""
    if not keys.has("sliding_window"):
        return [Causal()] * num_layers
    if not keys.has("layer_types"):
        return [_window(keys)] * num_layers
    window = _window(keys) if keys.flag("use_sliding_window") else Causal()
    kinds = keys.texts("layer_types")
    if kinds is None:
        first_windowed = keys.size("max_window_layers", minimum=0)
        return [Causal() if index < first_windowed else window for index in range(num_layers)]
    if len(kinds) != num_layers:
        raise ConfigError(f"layer_types must name each of the {num_layers} layers; got {len(kinds)}")
    for kind in kinds:
        if kind not in ("full_attention", "sliding_attention"):
            raise ConfigError(f"layer_types must hold full_attention or sliding_attention; got {shown(kind)}")
        if kind == "sliding_attention" and not isinstance(window, SlidingWindow):
            raise ConfigError(
                "layer_types asks for sliding_attention, so use_sliding_window must be true and sliding_window given"
            )
    return [Causal() if kind == "full_attention" else window for kind in kinds]


def _window(keys: Keys) -> Mask:
    window_size = keys.size_or_none("sliding_window")
    return Causal() if window_size is None else SlidingWindow(window_size)
