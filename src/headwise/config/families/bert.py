"""BERT's config.json: an encoder of post-norm blocks (Devlin et al. 2019)."""

from collections.abc import Mapping

from headwise.config.attention import AttentionConfig
from headwise.config.checks import shown
from headwise.config.families.classes import read_top
from headwise.config.keys import Keys, read_dtype
from headwise.config.model import MAX_LAYERS, BlockConfig, FeedForwardConfig, ModelConfig
from headwise.errors import ConfigError

_DEFAULTS = {
    "vocab_size": 30522,
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1,
    "attention_probs_dropout_prob": 0.1,
    "max_position_embeddings": 512,
    "type_vocab_size": 2,
    "layer_norm_eps": 1e-12,
    "is_decoder": False,
    "add_cross_attention": False,
    "position_embedding_type": "absolute",
}


def read_bert(config: Mapping[str, object], *, name: str, head: bool) -> ModelConfig:
    """Read a config.json whose model_type is "bert"; see `read_config`."""
    keys = Keys(config, _DEFAULTS)
    _refuse_variants(keys)
    num_layers = keys.size("num_hidden_layers", maximum=MAX_LAYERS)
    embed_dim, vocab_size = keys.size("hidden_size"), keys.size("vocab_size")
    positions = keys.size("max_position_embeddings")
    dropout_p = keys.probability("hidden_dropout_prob")
    keys.require_multiple("hidden_size", "num_attention_heads")
    block = BlockConfig(
        attention=AttentionConfig(
            embed_dim=embed_dim,
            num_heads=keys.size("num_attention_heads"),
            dropout_p=keys.probability("attention_probs_dropout_prob"),
        ),
        feed_forward=FeedForwardConfig(
            embed_dim=embed_dim, hidden_dim=keys.size("intermediate_size"), activation=keys.text("hidden_act")
        ),
        norm="layernorm",
        norm_placement="post",
        norm_eps=keys.positive("layer_norm_eps"),
        dropout_p=dropout_p,
    )
    top = read_top(config, "bert", vocab_size=vocab_size, with_language_model=head, hidden_dropout_p=dropout_p)
    return ModelConfig(
        name=name,
        model_type="bert",
        kind="encoder",
        embed_dim=embed_dim,
        vocab_size=vocab_size,
        max_positions=positions,
        position_table_size=positions,
        num_token_types=keys.size("type_vocab_size"),
        embedding_norm=True,
        embedding_dropout_p=dropout_p,
        blocks=(block,) * num_layers,
        pooler=top.pooler,
        head=top.head,
        dtype=read_dtype(config),
    )


def _refuse_variants(keys: Keys) -> None:
    for key in ("is_decoder", "add_cross_attention"):
        if keys.flag(key):
            raise ConfigError(f"BERT as a decoder cannot be read, only the encoder; got {key} true")
    if keys.text("position_embedding_type") != "absolute":
        got = shown(keys.text("position_embedding_type"))
        raise ConfigError(f'position_embedding_type must be "absolute", which alone transformers still has; got {got}')
