"""A block is attention and a feed-forward network with norms and residual connections where its config puts them."""

import pytest
import torch
from torch import nn

from headwise.config.attention import AttentionConfig, Rotary
from headwise.config.model import BlockConfig, FeedForwardConfig
from headwise.errors import UnsupportedError
from headwise.masks.data import KeyPadding
from headwise.masks.patterns import Causal
from headwise.nn.block import ACTIVATIONS, Block, FeedForward

BATCH, LENGTH, EMBED, HIDDEN, HEADS = 2, 5, 24, 40, 4
EXACT = {"rtol": 0, "atol": 1e-13}  # float64 sums of under 100 terms of size about 1


def block_of(*, gated=False, activation="gelu", bias=True, attention_dropout_p=0.0, **settings):
    torch.manual_seed(0)
    attention = AttentionConfig(embed_dim=EMBED, num_heads=HEADS, mask=Causal(), dropout_p=attention_dropout_p)
    feed_forward = FeedForwardConfig(embed_dim=EMBED, hidden_dim=HIDDEN, gated=gated, activation=activation, bias=bias)
    block = Block(BlockConfig(attention=attention, feed_forward=feed_forward, **settings)).double()
    with torch.no_grad():
        for parameter in block.parameters():
            if parameter.dim() == 1:
                parameter.uniform_(0.5, 1.5)
    return block


def tokens():
    torch.manual_seed(1)
    return torch.randn(BATCH, LENGTH, EMBED, dtype=torch.float64)


def normed(norm, kind, eps, x):
    """The norm by its definition."""
    if kind == "layernorm":
        x = x - x.mean(-1, keepdim=True)
    x = x / (x.square().mean(-1, keepdim=True) + eps).sqrt() * norm.weight
    return x + norm.bias if kind == "layernorm" else x


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("norm", ["layernorm", "rmsnorm"])
@pytest.mark.parametrize("placement", ["pre", "post"])
@torch.no_grad()
def test_a_block_computes_its_equation(placement, norm, gated):
    block = block_of(gated=gated, activation="silu", norm=norm, norm_placement=placement, norm_eps=1e-3)
    feed_forward = block.feed_forward

    def feed(x):
        up = x @ feed_forward.up_proj.weight.T + feed_forward.up_proj.bias
        inner = x @ feed_forward.gate_proj.weight.T + feed_forward.gate_proj.bias if gated else up
        inner = inner / (1 + torch.exp(-inner)) * (up if gated else 1)
        return inner @ feed_forward.down_proj.weight.T + feed_forward.down_proj.bias

    first = lambda x: normed(block.attention_norm, norm, 1e-3, x)  # noqa: E731
    second = lambda x: normed(block.feed_forward_norm, norm, 1e-3, x)  # noqa: E731
    x = tokens()
    if placement == "pre":
        expected = x + block.attention(first(x))
        expected = expected + feed(second(expected))
    else:
        expected = first(x + block.attention(x))
        expected = second(expected + feed(expected))
    torch.testing.assert_close(block(x), expected, **EXACT)


@pytest.mark.parametrize("placement", ["pre", "post"])
@torch.no_grad()
def test_torchs_encoder_layer_agrees_given_the_same_weights(placement):
    block = block_of(norm_placement=placement)
    twin = nn.TransformerEncoderLayer(
        EMBED, HEADS, HIDDEN, 0.0, "gelu", batch_first=True, norm_first=placement == "pre", dtype=torch.float64
    )
    attention = block.attention
    projections = (attention.q_proj, attention.k_proj, attention.v_proj)
    twin.self_attn.in_proj_weight.copy_(torch.cat([projection.weight for projection in projections]))
    twin.self_attn.in_proj_bias.copy_(torch.cat([projection.bias for projection in projections]))
    twin.self_attn.out_proj.load_state_dict(attention.out_proj.state_dict())
    for theirs, ours in (
        (twin.linear1, block.feed_forward.up_proj),
        (twin.linear2, block.feed_forward.down_proj),
        (twin.norm1, block.attention_norm),
        (twin.norm2, block.feed_forward_norm),
    ):
        theirs.load_state_dict(ours.state_dict())
    future = torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(1)
    torch.testing.assert_close(block(tokens()), twin(tokens(), src_mask=future), **EXACT)


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations_are_those_that_the_names_mean_in_transformers(name):
    transformers = pytest.importorskip("transformers.activations")
    x = torch.linspace(-5, 5, 101, dtype=torch.float64)
    torch.testing.assert_close(ACTIVATIONS[name](x), transformers.ACT2FN[name](x), rtol=0, atol=1e-14)


@torch.no_grad()
def test_masks_and_positions_reach_the_attention():
    attention = AttentionConfig(embed_dim=EMBED, num_heads=HEADS, position=Rotary())
    feed_forward = FeedForwardConfig(embed_dim=EMBED, hidden_dim=HIDDEN)
    x = tokens()
    for placement in ("pre", "post"):
        torch.manual_seed(0)
        config = BlockConfig(attention=attention, feed_forward=feed_forward, norm_placement=placement)
        block = Block(config).double()
        together = block(x, mask=KeyPadding(torch.tensor([LENGTH, 3])))
        torch.testing.assert_close(block(x[1:, :3]), together[1:, :3], **EXACT)
        scattered = block(x, positions=torch.tensor([0, 50, 51, 90, 300]))
        assert (scattered - block(x)).abs().max() > 1e-3


@torch.no_grad()
def test_dropout_acts_on_both_additions_in_training_alone():
    block = block_of(dropout_p=0.5)
    x = tokens()
    assert not torch.equal(block(x), block(x))
    block.eval()
    assert torch.equal(block(x), block(x))
    # with everything dropped nothing is added, and only the norms of a post-norm block are left
    pre, post = (block_of(dropout_p=0.999999, norm_placement=placement).train() for placement in ("pre", "post"))
    assert torch.equal(pre(x), x)
    assert torch.equal(post(x), post.feed_forward_norm(post.attention_norm(x)))


def test_an_unbiased_feed_forward_has_no_biases():
    feed_forward = FeedForward(FeedForwardConfig(embed_dim=EMBED, hidden_dim=HIDDEN, gated=True, bias=False))
    assert {name for name, _ in feed_forward.named_parameters()} == {
        "gate_proj.weight",
        "up_proj.weight",
        "down_proj.weight",
    }


def test_what_is_not_built_is_refused_by_name():
    with pytest.raises(UnsupportedError, match="must have one expert to be built here; got num_experts 8"):
        FeedForward(FeedForwardConfig(embed_dim=EMBED, hidden_dim=HIDDEN, num_experts=8, num_active_experts=2))
    with pytest.raises(UnsupportedError, match=r"activation must be one of gelu, .*; got 'snake'"):
        FeedForward(FeedForwardConfig(embed_dim=EMBED, hidden_dim=HIDDEN, activation="snake"))
