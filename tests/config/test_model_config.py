from dataclasses import fields, replace

import pytest

from headwise.config.attention import AttentionConfig, Rotary
from headwise.config.model import MAX_LAYERS, BlockConfig, FeedForwardConfig, ModelConfig, OutputHead
from headwise.errors import ConfigError


def block(embed_dim: int = 6) -> BlockConfig:
    return BlockConfig(
        attention=AttentionConfig(embed_dim=embed_dim, num_heads=2),
        feed_forward=FeedForwardConfig(embed_dim=embed_dim, hidden_dim=7),
    )


def model(**changes) -> ModelConfig:
    settings = {
        "name": "m",
        "model_type": "headwise",
        "kind": "decoder",
        "embed_dim": 6,
        "vocab_size": 11,
        "max_positions": 5,
        "blocks": (block(),),
    }
    return ModelConfig(**{**settings, **changes})


def test_block_groups_count_layers_that_share_one_object():
    first, second = block(), block()
    groups = model(blocks=(first, second, first)).block_groups
    assert [(id(found), count) for found, count in groups] == [(id(first), 2), (id(second), 1)]


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"name": 3}, "name must be of type str; got 3"),
        ({"model_type": None}, "model_type must be of type str; got None"),
        ({"kind": ["decoder"]}, "kind of a model must be"),
        ({"embedding_norm": 1}, "embedding_norm must be True or False; got 1"),
        ({"final_norm": None}, "final_norm must be True or False; got None"),
        ({"pooler": "yes"}, "pooler must be True or False; got 'yes'"),
        ({"head": "lm"}, "head must be of type OutputHead; got 'lm'"),
        ({"blocks": [block()]}, r"blocks must be of type tuple; got \[BlockConfig"),
        ({"blocks": 2}, "blocks must be of type tuple; got 2"),
        ({"blocks": (block(), 2)}, "layer 1 must be of type BlockConfig; got 2"),
        ({"blocks": ()}, "number of layers must be between 1"),
        ({"blocks": (block(),) * (MAX_LAYERS + 1)}, "number of layers must be between 1 and 10000; got 10001"),
        ({"blocks": (block(), block(8))}, "every layer must have the model's embed_dim 6; layer 1 has 8"),
        ({"kind": "both"}, 'kind of a model must be "encoder" or "decoder"; got \'both\''),
        ({"dtype": "float7"}, "dtype must be one of float64.*got 'float7'"),
        ({"dtype": ["float32"]}, "dtype must be one of"),
        ({"vocab_size": 0}, "vocab_size must be between 1"),
        ({"position_table_size": -1}, "position_table_size must be between 0"),
        ({"embedding_dropout_p": 2}, "embedding_dropout_p must be at least 0 and below 1; got 2"),
        ({"head": OutputHead(kind="language_model", num_outputs=13, tied=True)}, "num_outputs must equal vocab_size"),
    ],
)
def test_a_model_that_cannot_be_is_refused(changes, text):
    with pytest.raises(ConfigError, match=text):
        model(**changes)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"attention": 3}, "attention must be of type AttentionConfig; got 3"),
        ({"feed_forward": None}, "feed_forward must be of type FeedForwardConfig; got None"),
        ({"norm_eps": -1}, "norm_eps must be positive; got -1"),
        ({"norm_eps": 0.0}, "norm_eps must be positive; got 0.0"),
        ({"norm": "batchnorm"}, 'norm must be "layernorm" or "rmsnorm"; got \'batchnorm\''),
        ({"norm_placement": "mid"}, 'norm_placement must be "pre" or "post"; got \'mid\''),
        ({"norm_eps": "small"}, "norm_eps must be a finite number"),
        ({"feed_forward": FeedForwardConfig(embed_dim=8, hidden_dim=7)}, "same embed_dim; got 6 and 8"),
    ],
)
def test_a_block_that_cannot_be_is_refused(changes, text):
    with pytest.raises(ConfigError, match=text):
        replace(block(), **changes)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"activation": 5}, "activation must be a string; got 5"),
        ({"activation": ""}, "activation must not be empty"),
        ({"gated": "no"}, "gated must be True or False; got 'no'"),
        ({"bias": 0}, "bias must be True or False; got 0"),
        ({"hidden_dim": 0}, "hidden_dim must be between 1"),
    ],
)
def test_a_feed_forward_that_cannot_be_is_refused(changes, text):
    with pytest.raises(ConfigError, match=text):
        FeedForwardConfig(**{"embed_dim": 6, "hidden_dim": 7, **changes})


@pytest.mark.parametrize("name", ["per_token", "tied", "bias", "transform"])
def test_a_choice_of_a_head_is_true_or_false(name):
    with pytest.raises(ConfigError, match=f"{name} must be True or False; got 1"):
        OutputHead(kind="classifier", num_outputs=2, **{name: 1})


EVERY_CONFIG = (
    Rotary(),
    block().attention,
    block().feed_forward,
    block(),
    OutputHead(kind="classifier", num_outputs=2),
    model(),
)


@pytest.mark.parametrize(
    ("config", "name"), [(config, field.name) for config in EVERY_CONFIG for field in fields(config)]
)
def test_no_field_of_any_config_takes_an_object_of_no_use(config, name):
    with pytest.raises(ConfigError, match=r"\b(must be|must not)\b"):
        replace(config, **{name: object()})


def test_no_more_experts_are_active_than_there_are():
    with pytest.raises(ConfigError, match="num_active_experts must not exceed num_experts; got 3 and 2"):
        FeedForwardConfig(embed_dim=6, hidden_dim=7, num_experts=2, num_active_experts=3)


def test_a_head_is_a_language_model_or_a_classifier():
    with pytest.raises(ConfigError, match="kind of a head"):
        OutputHead(kind="pooler", num_outputs=2)
