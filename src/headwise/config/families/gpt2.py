"""GPT-2's config.json: a decoder of pre-norm blocks with learned positions (Radford et al. 2019)."""

from collections.abc import Mapping

from headwise.config.attention import AttentionConfig
from headwise.config.checks import MAX_SIZE
from headwise.config.families.classes import read_top
from headwise.config.keys import Keys, read_dtype
from headwise.config.model import MAX_LAYERS, BlockConfig, FeedForwardConfig, ModelConfig
from headwise.errors import ConfigError
from headwise.masks.patterns import Causal

DEFAULTS: dict[str, object] = {
    "vocab_size": 50257,
    "n_positions": 1024,
    "n_embd": 768,
    "n_layer": 12,
    "n_head": 12,
    "n_inner": None,
    "activation_function": "gelu_new",
    "resid_pdrop": 0.1,
    "embd_pdrop": 0.1,
    "attn_pdrop": 0.1,
    "layer_norm_epsilon": 1e-5,
    "scale_attn_weights": True,
    "scale_attn_by_inverse_layer_idx": False,
    "add_cross_attention": False,
}

_ALIASES = {
    "hidden_size": "n_embd",
    "max_position_embeddings": "n_positions",
    "num_attention_heads": "n_head",
    "num_hidden_layers": "n_layer",
}


def read_gpt2(config: Mapping[str, object], *, name: str, head: bool) -> ModelConfig:
    """Read a config.json whose model_type is "gpt2"; see `read_config`."""
    keys = Keys(config, DEFAULTS, _ALIASES)
    if keys.flag("add_cross_attention"):
        raise ConfigError("GPT-2 with cross-attention cannot be read; got add_cross_attention true")
    embed_dim, vocab_size = keys.size("n_embd"), keys.size("vocab_size")
    positions = keys.size("n_positions")
    return ModelConfig(
        name=name,
        model_type="gpt2",
        kind="decoder",
        embed_dim=embed_dim,
        vocab_size=vocab_size,
        max_positions=positions,
        position_table_size=positions,
        embedding_dropout_p=keys.probability("embd_pdrop"),
        blocks=_read_blocks(keys, embed_dim),
        final_norm=True,
        head=read_top(config, "gpt2", vocab_size=vocab_size, with_language_model=head).head,
        dtype=read_dtype(config),
    )


def _read_blocks(keys: Keys, embed_dim: int) -> tuple[BlockConfig, ...]:
    num_layers = keys.size("n_layer", maximum=MAX_LAYERS)
    num_heads, attention_dropout_p = keys.size("n_head"), keys.probability("attn_pdrop")
    dropout_p, norm_eps = keys.probability("resid_pdrop"), keys.positive("layer_norm_epsilon")
    keys.require_multiple("n_embd", "n_head")
    feed_forward = FeedForwardConfig(
        embed_dim=embed_dim,
        hidden_dim=keys.size_or_none("n_inner") or 4 * keys.size("n_embd", maximum=MAX_SIZE // 4),
        activation=keys.text("activation_function"),
    )

    def block(scale: float) -> BlockConfig:
        attention = AttentionConfig(
            embed_dim=embed_dim, num_heads=num_heads, mask=Causal(), scale=scale, dropout_p=attention_dropout_p
        )
        return BlockConfig(attention=attention, feed_forward=feed_forward, norm_eps=norm_eps, dropout_p=dropout_p)

    scale = (embed_dim // num_heads) ** -0.5 if keys.flag("scale_attn_weights") else 1.0
    if not keys.flag("scale_attn_by_inverse_layer_idx"):
        return (block(scale),) * num_layers
    return tuple(block(scale / (index + 1)) for index in range(num_layers))
