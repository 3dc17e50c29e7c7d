"""Models of our own modules, and the configs that describe them."""

from types import SimpleNamespace

import pytest

from headwise.config.attention import AttentionConfig
from headwise.config.block import BlockConfig, FeedForwardConfig
from headwise.config.model import ModelConfig
from headwise.nn.build import build

VOCAB, WIDTH, HEADS = 97, 24, 3


def describe(
    *,
    dropout_p=0.0,
    norm="layernorm",
    placement="pre",
    parallel=False,
    shared_norm=False,
    feed_forward=None,
    positions=0,
    head=None,
    **attention,
):
    attention = {"embed_dim": WIDTH, "num_heads": HEADS, "dropout_p": dropout_p} | attention
    block = BlockConfig(
        attention=AttentionConfig(**attention),
        feed_forward=FeedForwardConfig(embed_dim=WIDTH, hidden_dim=37, **(feed_forward or {})),
        norm=norm,
        norm_placement=placement,
        parallel=parallel,
        shared_norm=shared_norm,
        dropout_p=dropout_p,
    )
    return ModelConfig(
        name="own",
        model_type="headwise",
        kind="decoder",
        embed_dim=WIDTH,
        vocab_size=VOCAB,
        max_positions=53,
        position_table_size=positions,
        embedding_dropout_p=dropout_p,
        blocks=(block, block),
        final_norm=placement == "pre",
        head=head,
    )


@pytest.fixture(scope="session")
def own_models():
    """Give `describe`, which writes a config of our own modules, and `make`, which builds what it stands for."""
    return SimpleNamespace(describe=describe, make=lambda config, impl: build(config, impl=impl))
