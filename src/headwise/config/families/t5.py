"""T5's config.json: an encoder and a decoder with relative position biases (Raffel et al. 2019)."""

from collections.abc import Mapping
from dataclasses import replace

from headwise.config.attention import AttentionConfig, T5Bias
from headwise.config.checks import shown
from headwise.config.families.classes import class_of, read_top
from headwise.config.keys import Keys, read_dtype
from headwise.config.model import MAX_LAYERS, BlockConfig, EncoderConfig, FeedForwardConfig, ModelConfig
from headwise.errors import ConfigError
from headwise.masks.patterns import Causal

DEFAULTS: dict[str, object] = {
    "vocab_size": 32128,
    "d_model": 512,
    "d_kv": 64,
    "d_ff": 2048,
    "num_layers": 6,
    "num_decoder_layers": None,
    "num_heads": 8,
    "relative_attention_num_buckets": 32,
    "relative_attention_max_distance": 128,
    "dropout_rate": 0.1,
    "layer_norm_epsilon": 1e-6,
    "feed_forward_proj": "relu",
    "n_positions": 512,
}

_ALIASES = {
    "hidden_size": "d_model",
    "num_attention_heads": "num_heads",
    "num_hidden_layers": "num_layers",
    "head_dim": "d_kv",
}


def read_t5(config: Mapping[str, object], *, name: str, head: bool) -> ModelConfig:
    """Read a config.json whose model_type is "t5"; see `read_config`."""
    keys = Keys(config, DEFAULTS, _ALIASES)
    vocab_size = keys.size("vocab_size")
    num_layers = keys.size("num_layers", maximum=MAX_LAYERS)
    has_own_depth = keys.size_or_none("num_decoder_layers") is not None
    num_decoder_layers = keys.size("num_decoder_layers", maximum=MAX_LAYERS) if has_own_depth else num_layers
    encoder_blocks, decoder_blocks = _read_encoder_block(keys), _read_decoder_block(keys)
    is_encoder = class_of(config, "t5").endswith("EncoderModel")
    encoder = EncoderConfig(blocks=_stack(encoder_blocks, num_layers), final_norm=True)
    return ModelConfig(
        name=name,
        model_type="t5",
        kind="encoder" if is_encoder else "encoder-decoder",
        embed_dim=keys.size("d_model"),
        vocab_size=vocab_size,
        max_positions=keys.size("n_positions"),
        embedding_dropout_p=keys.probability("dropout_rate"),
        blocks=encoder.blocks if is_encoder else _stack(decoder_blocks, num_decoder_layers),
        final_norm=True,
        head=read_top(config, "t5", vocab_size=vocab_size, with_language_model=head).head,
        dtype=read_dtype(config),
        encoder=None if is_encoder else encoder,
    )


def _stack(first: BlockConfig, num_layers: int) -> tuple[BlockConfig, ...]:
    """Repeat a block; the first one alone owns the table of biases."""
    assert isinstance(first.attention, AttentionConfig) and isinstance(first.attention.position, T5Bias)
    position = replace(first.attention.position, owns_table=False)
    other = replace(first, attention=replace(first.attention, position=position))
    return (first, *(other,) * (num_layers - 1))


def _read_encoder_block(keys: Keys) -> BlockConfig:
    return _read_block(keys, _read_attention(keys, position=_read_bias(keys, is_bidirectional=True)))


def _read_decoder_block(keys: Keys) -> BlockConfig:
    attention = replace(_read_attention(keys, position=_read_bias(keys, is_bidirectional=False)), mask=Causal())
    return replace(_read_block(keys, attention), cross_attention=_read_attention(keys, position=None))


def _read_attention(keys: Keys, *, position: T5Bias | None) -> AttentionConfig:
    return AttentionConfig(
        embed_dim=keys.size("d_model"),
        num_heads=keys.size("num_heads"),
        head_dim=keys.size("d_kv"),
        projection_bias=False,
        position=position,
        scale=1.0,
        dropout_p=keys.probability("dropout_rate"),
    )


def _read_bias(keys: Keys, *, is_bidirectional: bool) -> T5Bias:
    return T5Bias(
        num_buckets=keys.size("relative_attention_num_buckets"),
        max_distance=keys.size("relative_attention_max_distance"),
        is_bidirectional=is_bidirectional,
    )


def _read_block(keys: Keys, attention: AttentionConfig) -> BlockConfig:
    dropout_p = keys.probability("dropout_rate")
    *gate, activation = keys.text("feed_forward_proj").split("-")
    if gate not in ([], ["gated"]) or not activation:
        got = shown(keys.text("feed_forward_proj"))
        raise ConfigError(f'feed_forward_proj must be an activation, with "gated-" before it or not; got {got}')
    feed_forward = FeedForwardConfig(
        embed_dim=attention.embed_dim,
        hidden_dim=keys.size("d_ff"),
        activation="gelu_new" if gate and activation == "gelu" else activation,
        gated=bool(gate),
        bias=False,
        dropout_p=dropout_p,
    )
    return BlockConfig(
        attention=attention,
        feed_forward=feed_forward,
        norm="rmsnorm",
        norm_eps=keys.positive("layer_norm_epsilon"),
        dropout_p=dropout_p,
    )
