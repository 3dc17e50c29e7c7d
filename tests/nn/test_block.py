"""A block is attention and a feed-forward network with norms and residual connections where its config puts them."""

from functools import partial

import pytest
import torch
from torch import nn
from torch.nn import functional

from headwise.config.attention import AttentionConfig, Rotary
from headwise.config.model import BlockConfig, FeedForwardConfig
from headwise.cost.running.measure import measure_training_step
from headwise.errors import ConfigError, UnsupportedError
from headwise.masks.data import KeyPadding
from headwise.masks.patterns import Causal
from headwise.nn.block import ACTIVATIONS, Block, FeedForward

BATCH, LENGTH, EMBED, HIDDEN, HEADS = 2, 5, 24, 40, 4
EXACT = {"rtol": 0, "atol": 1e-13}  # float64 sums of under 100 terms of size about 1


PLACEMENTS = ("pre", "post", "both", "output")
BUILT = ("checkpoint", "fused_qkv", "impl")  # arguments of the module, the others being its config's


def block_of(*, gated=False, activation="gelu", bias=True, attention_dropout_p=0.0, **settings):
    torch.manual_seed(0)
    attention = AttentionConfig(embed_dim=EMBED, num_heads=HEADS, mask=Causal(), dropout_p=attention_dropout_p)
    feed_forward = FeedForwardConfig(embed_dim=EMBED, hidden_dim=HIDDEN, gated=gated, activation=activation, bias=bias)
    built = {name: settings.pop(name) for name in BUILT if name in settings}
    block = Block(BlockConfig(attention=attention, feed_forward=feed_forward, **settings), **built).double()
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
@pytest.mark.parametrize("placement", PLACEMENTS)
@torch.no_grad()
def test_a_block_computes_its_equation(placement, norm, gated):
    block = block_of(gated=gated, activation="silu", norm=norm, norm_placement=placement, norm_eps=1e-3)
    feed_forward = block.feed_forward

    def feed(x):
        up = x @ feed_forward.up_proj.weight.T + feed_forward.up_proj.bias
        inner = x @ feed_forward.gate_proj.weight.T + feed_forward.gate_proj.bias if gated else up
        inner = inner / (1 + torch.exp(-inner)) * (up if gated else 1)
        return inner @ feed_forward.down_proj.weight.T + feed_forward.down_proj.bias

    expected = tokens()
    for part, computes in (("attention", block.attention), ("feed_forward", feed)):
        names = f"{part}_norm", f"{part}_output_norm"
        before, after = (partial(normed, getattr(block, name), norm, 1e-3) for name in names)
        match placement:
            case "pre":
                expected = expected + computes(before(expected))
            case "post":
                expected = before(expected + computes(expected))
            case "both":
                expected = expected + after(computes(before(expected)))
            case "output":
                expected = expected + after(computes(expected))
    torch.testing.assert_close(block(tokens()), expected, **EXACT)


@pytest.mark.parametrize("settings", [*({"norm_placement": one} for one in PLACEMENTS), {"parallel": True}], ids=str)
def test_a_block_has_as_many_norms_as_its_config_says(settings):
    block = block_of(norm="rmsnorm", **settings)
    norms = [name for name, _ in block.named_parameters() if "norm" in name]
    assert len(norms) == block.config.num_norms


@pytest.mark.parametrize("shared_norm", [False, True])
@torch.no_grad()
def test_a_parallel_block_adds_what_both_make_of_the_same(shared_norm):
    block = block_of(parallel=True, shared_norm=shared_norm)
    x = tokens()
    first, second = (normed(norm, "layernorm", 1e-5, x) for norm in (block.attention_norm, block.feed_forward_norm))
    expected = x + block.attention(first) + block.feed_forward(second)
    torch.testing.assert_close(block(x), expected, **EXACT)
    assert torch.equal(first, second) == shared_norm
    norms = {name.split(".")[0] for name, _ in block.named_parameters() if "norm" in name}
    assert norms == ({"attention_norm"} if shared_norm else {"attention_norm", "feed_forward_norm"})


CHECKPOINTS = ("none", "selective", "full")


def gradients_of(block, x):
    torch.manual_seed(2)  # the same dropout
    output = block(x)
    return output.detach(), torch.autograd.grad(output.square().sum(), [x, *block.parameters()])


@pytest.mark.parametrize(
    "settings", [*({"norm_placement": placement} for placement in PLACEMENTS), {"parallel": True}], ids=str
)
def test_checkpoints_change_neither_output_nor_gradient(settings):
    results = []
    for checkpoint in CHECKPOINTS:
        block = block_of(attention_dropout_p=0.3, dropout_p=0.2, checkpoint=checkpoint, **settings)
        results.append(gradients_of(block, tokens().requires_grad_()))
    for output, gradients in results[1:]:
        assert torch.equal(output, results[0][0])
        assert all(map(torch.equal, gradients, results[0][1]))


@pytest.mark.parametrize("impl", ["reference", "sdpa"])
def test_checkpoints_keep_less(impl):
    """Selective: no scores, of which a fused kernel keeps none anyway; full: the input alone, which is given."""
    none, selective, full = (
        measure_training_step(block_of(checkpoint=checkpoint, impl=impl), (tokens(),)).saved_bytes
        for checkpoint in CHECKPOINTS
    )
    assert full == 0 < selective < none


@pytest.mark.usefixtures("without_type_checks")
def test_another_checkpoint_is_refused():
    with pytest.raises(ConfigError, match='checkpoint must be "none" or "selective" or "full"; got'):
        block_of(checkpoint="some")


@torch.no_grad()
def test_one_projection_for_all_reaches_the_attention():
    assert block_of(fused_qkv=True).attention.qkv_proj is not None


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
    for placement in PLACEMENTS:
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
    blocks = {placement: block_of(dropout_p=0.999999, norm_placement=placement).train() for placement in PLACEMENTS}
    post = blocks.pop("post")
    assert all(torch.equal(other(x), x) for other in blocks.values())
    assert torch.equal(post(x), post.feed_forward_norm(post.attention_norm(x)))
    for shared_norm in (True, False):
        parallel = block_of(dropout_p=0.999999, parallel=True, shared_norm=shared_norm).train()
        assert torch.equal(parallel(x), x)


@torch.no_grad()
def test_dropout_inside_the_feed_forward_acts_on_what_goes_into_the_last_product():
    config = FeedForwardConfig(embed_dim=EMBED, hidden_dim=HIDDEN, dropout_p=0.999999)
    feed_forward, x = FeedForward(config).double(), tokens()
    feed_forward.down_proj.bias.uniform_(0.5, 1.5)
    assert torch.equal(feed_forward(x), feed_forward.down_proj.bias.expand(x.shape))
    feed_forward.eval()
    inner = functional.gelu(feed_forward.up_proj(x))
    assert torch.equal(feed_forward(x), feed_forward.down_proj(inner))


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
