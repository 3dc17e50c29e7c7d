"""BERT's config.json and those of its relatives: encoders of post-norm blocks with learned positions.

Devlin et al. 2019 (BERT), Liu et al. 2019 (RoBERTa), Conneau et al. 2020 (XLM-RoBERTa), Sanh et al. 2019 (DistilBERT).
"""

from collections.abc import Mapping

from headwise.config.attention import AttentionConfig
from headwise.config.checks import shown
from headwise.config.families.classes import class_of, read_top
from headwise.config.keys import Keys, read_dtype
from headwise.config.model import MAX_LAYERS, BlockConfig, FeedForwardConfig, ModelConfig
from headwise.errors import ConfigError

_BERT = {
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

DEFAULTS: dict[str, dict[str, object]] = {
    "bert": _BERT,
    "roberta": _BERT | {"vocab_size": 50265, "pad_token_id": 1},
    "xlm-roberta": _BERT | {"pad_token_id": 1},
    "distilbert": {
        "vocab_size": 30522,
        "dim": 768,
        "n_layers": 6,
        "n_heads": 12,
        "hidden_dim": 3072,
        "activation": "gelu",
        "dropout": 0.1,
        "attention_dropout": 0.1,
        "seq_classif_dropout": 0.2,
        "max_position_embeddings": 512,
    },
}

_DISTILBERT_ALIASES = {"hidden_size": "dim", "num_attention_heads": "n_heads", "num_hidden_layers": "n_layers"}


def read_bert(config: Mapping[str, object], *, name: str, head: bool, family: str) -> ModelConfig:
    """Read a config.json whose model_type is "bert", "roberta" or "xlm-roberta"; see `read_config`."""
    keys = Keys(config, DEFAULTS[family])
    _refuse_variants(keys)
    positions = keys.size("max_position_embeddings")
    dropout_p = keys.probability("hidden_dropout_prob")
    keys.require_multiple("hidden_size", "num_attention_heads")
    block = _block(
        embed_dim=keys.size("hidden_size"),
        num_heads=keys.size("num_attention_heads"),
        hidden_dim=keys.size("intermediate_size"),
        activation=keys.text("hidden_act"),
        weights_dropout_p=keys.probability("attention_probs_dropout_prob"),
        dropout_p=dropout_p,
        norm_eps=keys.positive("layer_norm_eps"),
    )
    return _model(
        config,
        name=name,
        family=family,
        head=head,
        vocab_size=keys.size("vocab_size"),
        # RoBERTa's positions begin after the padding token's number.
        max_positions=positions - _num_idle_positions(keys, positions),
        position_table_size=positions,
        num_token_types=keys.size("type_vocab_size"),
        blocks=(block,) * keys.size("num_hidden_layers", maximum=MAX_LAYERS),
        classifier_dropout_p=dropout_p,
    )


def read_distilbert(config: Mapping[str, object], *, name: str, head: bool) -> ModelConfig:
    """Read a config.json whose model_type is "distilbert"; see `read_config`."""
    keys = Keys(config, DEFAULTS["distilbert"], _DISTILBERT_ALIASES)
    keys.require_multiple("dim", "n_heads")
    positions = keys.size("max_position_embeddings")
    block = _block(
        embed_dim=keys.size("dim"),
        num_heads=keys.size("n_heads"),
        hidden_dim=keys.size("hidden_dim"),
        activation=keys.text("activation"),
        weights_dropout_p=keys.probability("attention_dropout"),
        dropout_p=keys.probability("dropout"),
        norm_eps=1e-12,
    )
    return _model(
        {key: value for key, value in config.items() if key != "classifier_dropout"},  # not a key of this family
        name=name,
        family="distilbert",
        head=head,
        vocab_size=keys.size("vocab_size"),
        max_positions=positions,
        position_table_size=positions,
        num_token_types=0,
        blocks=(block,) * keys.size("n_layers", maximum=MAX_LAYERS),
        classifier_dropout_p=keys.probability(
            "seq_classif_dropout" if _is_sequence_classifier(config) else "dropout",
        ),
    )


def _block(
    *,
    embed_dim: int,
    num_heads: int,
    hidden_dim: int,
    activation: str,
    weights_dropout_p: float,
    dropout_p: float,
    norm_eps: float,
) -> BlockConfig:
    return BlockConfig(
        attention=AttentionConfig(embed_dim=embed_dim, num_heads=num_heads, dropout_p=weights_dropout_p),
        feed_forward=FeedForwardConfig(embed_dim=embed_dim, hidden_dim=hidden_dim, activation=activation),
        norm="layernorm",
        norm_placement="post",
        norm_eps=norm_eps,
        dropout_p=dropout_p,
    )


def _model(
    config: Mapping[str, object],
    *,
    name: str,
    family: str,
    head: bool,
    vocab_size: int,
    max_positions: int,
    position_table_size: int,
    num_token_types: int,
    blocks: tuple[BlockConfig, ...],
    classifier_dropout_p: float,
) -> ModelConfig:
    top = read_top(
        config, family, vocab_size=vocab_size, with_language_model=head, hidden_dropout_p=classifier_dropout_p
    )
    return ModelConfig(
        name=name,
        model_type=family,
        kind="encoder",
        embed_dim=blocks[0].attention.embed_dim,
        vocab_size=vocab_size,
        max_positions=max_positions,
        position_table_size=position_table_size,
        num_token_types=num_token_types,
        embedding_norm=True,
        embedding_dropout_p=blocks[0].dropout_p,
        blocks=blocks,
        pooler=top.pooler,
        head=top.head,
        dtype=read_dtype(config),
    )


def _is_sequence_classifier(config: Mapping[str, object]) -> bool:
    return class_of(config, "distilbert").endswith("ForSequenceClassification")


def _num_idle_positions(keys: Keys, positions: int) -> int:
    """Return how many first rows of the position table no token reads."""
    return keys.size("pad_token_id", minimum=0, maximum=positions - 2) + 1 if keys.has("pad_token_id") else 0


def _refuse_variants(keys: Keys) -> None:
    for key in ("is_decoder", "add_cross_attention"):
        if keys.flag(key):
            raise ConfigError(f"BERT as a decoder cannot be read, only the encoder; got {key} true")
    if keys.text("position_embedding_type") != "absolute":
        got = shown(keys.text("position_embedding_type"))
        raise ConfigError(f'position_embedding_type must be "absolute", which alone transformers still has; got {got}')
