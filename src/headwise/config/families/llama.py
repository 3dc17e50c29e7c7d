"""Llama's config.json and those of its relatives: rotary positions, one attention and one feed-forward a layer."""

import math
from collections.abc import Mapping

from headwise.config.attention import AttentionConfig, Rotary
from headwise.config.families.classes import read_top
from headwise.config.families.decoders import DECODERS, Decoder
from headwise.config.families.layer_kinds import FULL, SLIDING, read_rotary_layers
from headwise.config.families.rotary import read_rotary, read_rotary_by_kind
from headwise.config.keys import Keys, read_dtype
from headwise.config.model import MAX_LAYERS, BlockConfig, FeedForwardConfig, ModelConfig
from headwise.errors import ConfigError
from headwise.masks.patterns import Mask, SlidingWindow


def read_llama(config: Mapping[str, object], *, name: str, head: bool, family: str) -> ModelConfig:
    """Read a config.json whose model_type is a key of `DECODERS`; see `read_config`."""
    decoder = DECODERS[family]
    keys = Keys(config, decoder.defaults, decoder.aliases)
    if keys.has("use_bidirectional_attention") and keys.flag("use_bidirectional_attention", null=False):
        raise ConfigError("a bidirectional Gemma cannot be read; got use_bidirectional_attention true")
    embed_dim, vocab_size = keys.size("hidden_size"), keys.size("vocab_size")
    softcap = keys.positive_or_none("final_logit_softcapping") if keys.has("final_logit_softcapping") else None
    return ModelConfig(
        name=name,
        model_type=family,
        kind="decoder",
        embed_dim=embed_dim,
        vocab_size=vocab_size,
        max_positions=keys.size("max_position_embeddings"),
        embedding_dropout_p=keys.probability("embedding_dropout") if keys.has("embedding_dropout") else 0.0,
        blocks=_read_blocks(keys, embed_dim, decoder),
        final_norm=True,
        head=read_top(config, family, vocab_size=vocab_size, with_language_model=head, softcap=softcap).head,
        dtype=read_dtype(config),
    )


def _read_blocks(keys: Keys, embed_dim: int, decoder: Decoder) -> tuple[BlockConfig, ...]:
    num_layers = keys.size("num_hidden_layers", maximum=MAX_LAYERS)
    masks = decoder.masks(keys, num_layers)
    feed_forwards = decoder.feed_forwards(keys, num_layers)
    head_dim = read_head_dim(keys)
    positions = _read_positions(keys, masks, head_dim)
    settings = read_heads(keys) | {
        "embed_dim": embed_dim,
        "head_dim": head_dim,
        "projection_bias": decoder.projection_bias(keys),
        "qk_norm": decoder.qk_norm is not None,
        "qk_norm_over": decoder.qk_norm or "head",
        "scale": _read_scale(keys),
        "softcap": keys.positive_or_none("attn_logit_softcapping") if keys.has("attn_logit_softcapping") else None,
        "sink": decoder.sink,
    }
    norm_eps = keys.positive("rms_norm_eps" if keys.has("rms_norm_eps") else "norm_epsilon")
    dropout_key = next((key for key in ("resid_pdrop", "residual_dropout") if keys.has(key)), None)
    dropout_p = keys.probability(dropout_key) if dropout_key else 0.0

    def block(mask: Mask, position: Rotary | None, feed_forward: FeedForwardConfig) -> BlockConfig:
        attention = AttentionConfig.from_keywords(**settings, mask=mask, position=position, qk_norm_eps=norm_eps)
        return BlockConfig(
            attention=attention,
            feed_forward=feed_forward,
            norm=decoder.norm,
            norm_placement=decoder.norm_placement,
            norm_eps=norm_eps,
            dropout_p=dropout_p,
        )

    layers = list(zip(masks, positions, feed_forwards, strict=True))
    distinct = {layer: block(*layer) for layer in dict.fromkeys(layers)}
    return tuple(distinct[layer] for layer in layers)


def read_heads(keys: Keys) -> dict[str, object]:
    """Read the numbers of heads, which must divide, and the dropout of the weights."""
    num_kv_heads = keys.size_or_none("num_key_value_heads")
    if num_kv_heads is not None:
        keys.require_multiple("num_attention_heads", "num_key_value_heads")
    return {
        "num_heads": keys.size("num_attention_heads"),
        "num_kv_heads": num_kv_heads,
        "dropout_p": keys.probability("attention_dropout", null=0.0),
    }


def read_head_dim(keys: Keys) -> int:
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


def _read_scale(keys: Keys) -> float | None:
    """Read the factor on the scores where a family has a key for it; None asks for the default."""
    return 1 / math.sqrt(keys.positive("query_pre_attn_scalar")) if keys.has("query_pre_attn_scalar") else None


def _read_positions(keys: Keys, masks: list[Mask], head_dim: int) -> list[Rotary | None]:
    if keys.has("rope_local_base_freq"):
        by_kind = read_rotary_by_kind(keys, head_dim=head_dim)
        return [by_kind[SLIDING if isinstance(mask, SlidingWindow) else FULL] for mask in masks]
    partial_key = "partial_rotary_factor" if keys.has("partial_rotary_factor") else None
    rotary = read_rotary(keys, head_dim=head_dim, partial_key=partial_key)
    return [rotary if has_rotary else None for has_rotary in read_rotary_layers(keys, len(masks))]
