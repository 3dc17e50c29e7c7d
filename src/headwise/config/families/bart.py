"""BART's config.json: an encoder and a decoder of post-norm blocks with learned positions (Lewis et al. 2019)."""

from collections.abc import Mapping

from headwise.config.attention import AttentionConfig
from headwise.config.families.classes import read_top
from headwise.config.families.opt import POSITION_OFFSET
from headwise.config.keys import Keys, read_dtype
from headwise.config.model import MAX_LAYERS, BlockConfig, EncoderConfig, FeedForwardConfig, ModelConfig
from headwise.errors import ConfigError
from headwise.masks.patterns import Causal, Full

DEFAULTS: dict[str, object] = {
    "vocab_size": 50265,
    "d_model": 1024,
    "max_position_embeddings": 1024,
    "encoder_layers": 12,
    "encoder_ffn_dim": 4096,
    "encoder_attention_heads": 16,
    "decoder_layers": 12,
    "decoder_ffn_dim": 4096,
    "decoder_attention_heads": 16,
    "activation_function": "gelu",
    "dropout": 0.1,
    "attention_dropout": 0.0,
    "activation_dropout": 0.0,
    "tie_word_embeddings": True,
}

_ALIASES = {
    "hidden_size": "d_model",
    "num_attention_heads": "encoder_attention_heads",
    "num_hidden_layers": "encoder_layers",
}


def read_bart(config: Mapping[str, object], *, name: str, head: bool) -> ModelConfig:
    """Read a config.json whose model_type is "bart"; see `read_config`."""
    keys = Keys(config, DEFAULTS, _ALIASES)
    vocab_size, positions = keys.size("vocab_size"), keys.size("max_position_embeddings", maximum=2**30)
    table_size = positions + POSITION_OFFSET
    if not keys.flag("tie_word_embeddings"):
        raise ConfigError("the token table must be one for encoder, decoder and head; got tie_word_embeddings false")
    stacks = {
        stack: (_read_block(keys, stack),) * keys.size(f"{stack}_layers", maximum=MAX_LAYERS)
        for stack in ("encoder", "decoder")
    }
    return ModelConfig(
        name=name,
        model_type="bart",
        kind="encoder-decoder",
        embed_dim=keys.size("d_model"),
        vocab_size=vocab_size,
        max_positions=positions,
        position_table_size=table_size,
        embedding_norm=True,
        embedding_dropout_p=keys.probability("dropout", null=0.0),
        blocks=stacks["decoder"],
        head=read_top(config, "bart", vocab_size=vocab_size, with_language_model=head).head,
        dtype=read_dtype(config),
        encoder=EncoderConfig(blocks=stacks["encoder"], position_table_size=table_size, embedding_norm=True),
    )


def _read_block(keys: Keys, stack: str) -> BlockConfig:
    keys.require_multiple("d_model", f"{stack}_attention_heads")
    is_decoder = stack == "decoder"

    def attention(mask: Full | Causal) -> AttentionConfig:
        return AttentionConfig(
            embed_dim=keys.size("d_model"),
            num_heads=keys.size(f"{stack}_attention_heads"),
            mask=mask,
            dropout_p=keys.probability("attention_dropout", null=0.0),
        )

    return BlockConfig(
        attention=attention(Causal() if is_decoder else Full()),
        cross_attention=attention(Full()) if is_decoder else None,
        feed_forward=FeedForwardConfig(
            embed_dim=keys.size("d_model"),
            hidden_dim=keys.size(f"{stack}_ffn_dim"),
            activation=keys.text("activation_function"),
            dropout_p=keys.probability("activation_dropout", null=0.0),
        ),
        norm_placement="post",
        dropout_p=keys.probability("dropout", null=0.0),
    )
