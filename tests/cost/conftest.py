"""Our own modules as a model: the module, and the config that describes it."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from headwise.config.attention import AttentionConfig
from headwise.config.block import BlockConfig, FeedForwardConfig
from headwise.config.model import ModelConfig
from headwise.nn.block import Block

VOCAB, WIDTH, HEADS = 97, 24, 3


class Stack(nn.Module):
    """The model around our blocks that a config of model_type "headwise" stands for."""

    def __init__(self, config, impl):
        super().__init__()
        norm = nn.LayerNorm if config.blocks[0].norm == "layernorm" else nn.RMSNorm
        width = config.embed_dim
        self.tokens = nn.Embedding(config.vocab_size, width)
        self.positions = nn.Embedding(config.position_table_size, width) if config.position_table_size else None
        self.dropout = nn.Dropout(config.embedding_dropout_p)
        self.blocks = nn.ModuleList([Block(block, impl=impl) for block in config.blocks])
        self.norm = norm(width) if config.final_norm else nn.Identity()
        self.head = nn.Linear(width, config.head.num_outputs, bias=False) if config.head else nn.Identity()

    def forward(self, ids):
        x = self.tokens(ids)
        if self.positions is not None:
            x = x + self.positions(torch.arange(ids.shape[1]))
        x = self.dropout(x)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def describe(
    *, dropout_p=0.0, norm="layernorm", placement="pre", feed_forward=None, positions=0, head=None, **attention
):
    attention = {"embed_dim": WIDTH, "num_heads": HEADS, "dropout_p": dropout_p} | attention
    block = BlockConfig(
        attention=AttentionConfig(**attention),
        feed_forward=FeedForwardConfig(embed_dim=WIDTH, hidden_dim=37, **(feed_forward or {})),
        norm=norm,
        norm_placement=placement,
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
    """Give `describe`, which writes a config of our own modules, and `Stack`, the model that it stands for."""
    return SimpleNamespace(describe=describe, Stack=Stack)
