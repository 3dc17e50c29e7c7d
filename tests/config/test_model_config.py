from dataclasses import replace

import pytest

from headwise.config.attention import AttentionConfig
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
        ({"norm": "batchnorm"}, 'norm must be "layernorm" or "rmsnorm"; got \'batchnorm\''),
        ({"norm_placement": "mid"}, 'norm_placement must be "pre" or "post"; got \'mid\''),
        ({"norm_eps": "small"}, "norm_eps must be a finite number"),
        ({"feed_forward": FeedForwardConfig(embed_dim=8, hidden_dim=7)}, "same embed_dim; got 6 and 8"),
    ],
)
def test_a_block_that_cannot_be_is_refused(changes, text):
    with pytest.raises(ConfigError, match=text):
        replace(block(), **changes)


def test_no_more_experts_are_active_than_there_are():
    with pytest.raises(ConfigError, match="num_active_experts must not exceed num_experts; got 3 and 2"):
        FeedForwardConfig(embed_dim=6, hidden_dim=7, num_experts=2, num_active_experts=3)


def test_a_head_is_a_language_model_or_a_classifier():
    with pytest.raises(ConfigError, match="kind of a head"):
        OutputHead(kind="pooler", num_outputs=2)
