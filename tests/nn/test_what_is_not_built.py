"""A config may describe more than the modules here can do; then they refuse, and name the part."""

from dataclasses import replace

import pytest

from headwise.config.attention import AttentionConfig
from headwise.config.linear import LinearAttentionConfig
from headwise.config.model import BlockConfig, FeedForwardConfig
from headwise.errors import UnsupportedError
from headwise.nn.block import Block
from headwise.nn.multihead import MultiHeadAttention

ATTENTION = AttentionConfig(embed_dim=8, num_heads=2)
BLOCK = BlockConfig(attention=ATTENTION, feed_forward=FeedForwardConfig(embed_dim=8, hidden_dim=5))


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"output_gate": True}, "output_gate must be False"),
        ({"kv_layer": 0}, "kv_layer must be None"),
        ({"qk_norm": True, "qk_norm_over": "projection"}, "qk_norm_over must be 'head'"),
    ],
)
def test_a_part_that_the_layer_has_not_is_refused_by_name(changes, text):
    with pytest.raises(UnsupportedError, match=text):
        MultiHeadAttention.from_config(replace(ATTENTION, **changes))


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"cross_attention": ATTENTION}, "got a cross_attention"),
        (
            {
                "attention": LinearAttentionConfig(
                    embed_dim=8, num_key_heads=1, num_value_heads=1, key_head_dim=2, value_head_dim=2
                )
            },
            "got LinearAttentionConfig",
        ),
    ],
)
def test_a_block_that_is_built_otherwise_is_refused(changes, text):
    with pytest.raises(UnsupportedError, match=f"a block must be one multi-head attention.*{text}"):
        Block(replace(BLOCK, **changes))
