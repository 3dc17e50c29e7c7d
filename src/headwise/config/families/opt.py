"""OPT's and BLOOM's config.json: decoders of LayerNorm blocks with learned positions, or with ALiBi.

Zhang et al. 2022 (OPT), BigScience Workshop 2022 (BLOOM).
"""

from collections.abc import Mapping

from headwise.config.attention import ALiBi, AttentionConfig
from headwise.config.checks import MAX_SIZE
from headwise.config.families.classes import read_top
from headwise.config.keys import Keys, read_dtype
from headwise.config.model import MAX_LAYERS, BlockConfig, FeedForwardConfig, ModelConfig
from headwise.errors import ConfigError
from headwise.masks.patterns import Causal

POSITION_OFFSET = 2  # rows of the table before the first position, a trace of fairseq's padding token

DEFAULTS: dict[str, dict[str, object]] = {
    "opt": {
        "vocab_size": 50272,
        "hidden_size": 768,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
        "ffn_dim": 3072,
        "max_position_embeddings": 2048,
        "word_embed_proj_dim": None,
        "do_layer_norm_before": True,
        "_remove_final_layer_norm": False,
        "dropout": 0.1,
        "attention_dropout": 0.0,
        "activation_function": "relu",
        "enable_bias": True,
        "layer_norm_elementwise_affine": True,
    },
    "bloom": {
        "vocab_size": 250_880,
        "hidden_size": 64,
        "n_layer": 2,
        "n_head": 8,
        "layer_norm_epsilon": 1e-5,
        "hidden_dropout": 0.0,
        "attention_dropout": 0.0,
        "seq_length": 2048,
    },
}

_BLOOM_ALIASES = {"n_embed": "hidden_size", "num_hidden_layers": "n_layer", "num_attention_heads": "n_head"}


def read_opt(config: Mapping[str, object], *, name: str, head: bool) -> ModelConfig:
    """Read a config.json whose model_type is "opt"; see `read_config`."""
    keys = Keys(config, DEFAULTS["opt"])
    embed_dim, vocab_size = keys.size("hidden_size"), keys.size("vocab_size")
    keys.require_multiple("hidden_size", "num_attention_heads")
    if keys.size_or_none("word_embed_proj_dim") not in (None, embed_dim):
        raise ConfigError(
            "word_embed_proj_dim must equal hidden_size; "
            f"got {keys.size('word_embed_proj_dim')} and {embed_dim}; embeddings of a width of their own cannot be read"
        )
    if not keys.flag("layer_norm_elementwise_affine"):
        raise ConfigError("norms without weights cannot be read; got layer_norm_elementwise_affine false")
    is_pre_norm, has_bias = keys.flag("do_layer_norm_before"), keys.flag("enable_bias")
    dropout_p, positions = keys.probability("dropout"), keys.size("max_position_embeddings", maximum=2**30)
    block = BlockConfig(
        attention=AttentionConfig(
            embed_dim=embed_dim,
            num_heads=keys.size("num_attention_heads"),
            projection_bias=has_bias,
            mask=Causal(),
            dropout_p=keys.probability("attention_dropout"),
        ),
        feed_forward=FeedForwardConfig(
            embed_dim=embed_dim,
            hidden_dim=keys.size("ffn_dim"),
            activation=keys.text("activation_function"),
            bias=has_bias,
        ),
        norm_placement="pre" if is_pre_norm else "post",
        dropout_p=dropout_p,
    )
    return ModelConfig(
        name=name,
        model_type="opt",
        kind="decoder",
        embed_dim=embed_dim,
        vocab_size=vocab_size,
        max_positions=positions,
        position_table_size=positions + POSITION_OFFSET,
        blocks=(block,) * keys.size("num_hidden_layers", maximum=MAX_LAYERS),
        final_norm=is_pre_norm and not keys.flag("_remove_final_layer_norm"),
        head=read_top(config, "opt", vocab_size=vocab_size, with_language_model=head).head,
        dtype=read_dtype(config),
    )


def read_bloom(config: Mapping[str, object], *, name: str, head: bool) -> ModelConfig:
    """Read a config.json whose model_type is "bloom"; see `read_config`."""
    keys = Keys(config, DEFAULTS["bloom"], _BLOOM_ALIASES)
    embed_dim, vocab_size = keys.size("hidden_size", maximum=MAX_SIZE // 4), keys.size("vocab_size")
    keys.require_multiple("hidden_size", "n_head")
    dropout_p = keys.probability("hidden_dropout")
    block = BlockConfig(
        attention=AttentionConfig(
            embed_dim=embed_dim,
            num_heads=keys.size("n_head"),
            position=ALiBi(),
            mask=Causal(),
            dropout_p=keys.probability("attention_dropout"),
        ),
        feed_forward=FeedForwardConfig(embed_dim=embed_dim, hidden_dim=4 * embed_dim, activation="gelu_new"),
        norm_eps=keys.positive("layer_norm_epsilon"),
        dropout_p=dropout_p,
    )
    return ModelConfig(
        name=name,
        model_type="bloom",
        kind="decoder",
        embed_dim=embed_dim,
        vocab_size=vocab_size,
        max_positions=keys.size("seq_length"),
        embedding_norm=True,
        blocks=(block,) * keys.size("n_layer", maximum=MAX_LAYERS),
        final_norm=True,
        head=read_top(
            config, "bloom", vocab_size=vocab_size, with_language_model=head, hidden_dropout_p=dropout_p
        ).head,
        dtype=read_dtype(config),
    )
