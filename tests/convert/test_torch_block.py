"""torch's TransformerEncoderLayer and our block made of it compute the same, both ways."""

import copy
import functools

import pytest
import torch
from torch import nn
from torch.nn import functional

from headwise.config.attention import AttentionConfig
from headwise.config.model import BlockConfig, FeedForwardConfig
from headwise.convert.torch_block import block_from_torch, block_to_torch
from headwise.errors import UnsupportedError
from headwise.masks.conventions import mask_from_torch
from headwise.nn.block import ACTIVATIONS, Block
from headwise.nn.torch_multihead import TorchMultiheadAttention

BATCH, LENGTH, EMBED, HIDDEN, HEADS = 2, 5, 12, 17, 3
EXACT = {"rtol": 0, "atol": 1e-13}  # float64 sums of under 100 terms of size about 1


def layer_of(**settings):
    torch.manual_seed(0)
    settings = {"dropout": 0.0, "batch_first": True, "dtype": torch.float64, **settings}
    layer = nn.TransformerEncoderLayer(EMBED, HEADS, HIDDEN, **settings)
    with torch.no_grad():
        for parameter in layer.parameters():
            if parameter.dim() == 1:
                parameter.uniform_(0.5, 1.5)
    return layer


def tokens():
    return torch.randn(BATCH, LENGTH, EMBED, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


@pytest.mark.parametrize(
    "activation", ["relu", "gelu", functional.silu, torch.relu, nn.ReLU(), nn.GELU("tanh"), nn.SiLU()]
)
@pytest.mark.parametrize("norm_first", [True, False])
@torch.no_grad()
def test_a_block_made_of_torchs_layer_computes_the_same_and_goes_back(norm_first, activation):
    layer = layer_of(norm_first=norm_first, activation=activation, layer_norm_eps=1e-3, batch_first=False)
    before = torch.get_rng_state()
    block = block_from_torch(layer)
    back = block_to_torch(block)
    assert torch.equal(torch.get_rng_state(), before)
    x = tokens()
    padding = torch.tensor([[False] * LENGTH, [False] * 3 + [True] * 2])
    later = torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(1)
    masks = {"src_mask": later, "src_key_padding_mask": padding}
    expected = layer(x.transpose(0, 1), **masks).transpose(0, 1)
    mask = mask_from_torch(key_padding_mask=padding, attn_mask=later).mask
    torch.testing.assert_close(block(x, mask=mask), expected, **EXACT)
    torch.testing.assert_close(back(x, **masks), expected, **EXACT)
    assert all(torch.equal(tensor, back.state_dict()[name]) for name, tensor in layer.state_dict().items())


@pytest.mark.parametrize("activation", ACTIVATIONS)
@torch.no_grad()
def test_torchs_layer_made_of_a_block_computes_the_same_and_goes_back(activation):
    torch.manual_seed(0)
    attention = AttentionConfig(embed_dim=EMBED, num_heads=HEADS, projection_bias=False)
    feed_forward = FeedForwardConfig(embed_dim=EMBED, hidden_dim=HIDDEN, activation=activation)
    block = Block(BlockConfig(attention=attention, feed_forward=feed_forward, norm_eps=1e-3)).double().eval()
    layer = copy.deepcopy(block_to_torch(block))  # as nn.TransformerEncoder copies it
    torch.testing.assert_close(layer(tokens()), block(tokens()), **EXACT)
    back = block_from_torch(layer)
    assert ACTIVATIONS[back.config.feed_forward.activation] in (ACTIVATIONS[activation], ACTIVATIONS["gelu_new"])
    torch.testing.assert_close(back(tokens()), block(tokens()), **EXACT)
    assert not layer.training and not back.training


def test_every_dropout_is_carried_to_its_place():
    layer = layer_of(dropout=0.25)
    layer.self_attn.dropout, layer.dropout.p = 0.125, 0.5
    block = block_from_torch(layer)
    config = block.config
    assert (config.attention.dropout_p, config.feed_forward.dropout_p, config.dropout_p) == (0.125, 0.5, 0.25)
    back = block_to_torch(block)
    assert (back.self_attn.dropout, back.dropout.p, back.dropout1.p, back.dropout2.p) == (0.125, 0.5, 0.25, 0.25)


def test_what_is_frozen_stays_frozen_both_ways():
    layer = layer_of()
    layer.linear1.weight.requires_grad_(False)
    layer.norm2.bias.requires_grad_(False)
    layer.self_attn.requires_grad_(False)
    block = block_from_torch(layer)
    back = block_to_torch(block)
    assert {name for name, one in block.named_parameters() if not one.requires_grad} == {
        "feed_forward.up_proj.weight",
        "feed_forward_norm.bias",
        *(f"attention.{name}" for name, _ in block.attention.named_parameters()),
    }
    for (_, one), (name, other) in zip(layer.named_parameters(), back.named_parameters(), strict=True):
        assert one.requires_grad == other.requires_grad, name


def test_an_attention_in_evaluation_stays_so_in_a_layer_in_training():
    layer = layer_of().train()
    layer.self_attn.eval()
    block = block_from_torch(layer)
    assert (block.training, block.dropout.training, block.attention.training) == (True, True, False)
    back = block_to_torch(block)
    assert (back.training, back.dropout1.training, back.self_attn.training) == (True, True, False)
    layer.dropout1.eval()
    with pytest.raises(UnsupportedError, match=r"modes of dropout1 and the layer must be equal .*got False and True"):
        block_from_torch(layer)
    block.feed_forward.dropout.eval()
    with pytest.raises(UnsupportedError, match=r"modes of feed_forward.dropout and the block .*got False and True"):
        block_to_torch(block)


@torch.no_grad()
def test_a_layer_with_our_own_attention_inside_is_converted_too():
    layer = layer_of()
    attention = TorchMultiheadAttention(EMBED, HEADS, batch_first=True, dtype=torch.float64)
    attention.load_state_dict(layer.self_attn.state_dict())
    layer.self_attn = attention
    torch.testing.assert_close(block_from_torch(layer)(tokens()), layer(tokens()), **EXACT)


def test_what_a_block_has_not_is_refused_by_name():
    with pytest.raises(UnsupportedError, match=r"norm1 must have a bias to convert the layer; got none \(bias=False\)"):
        block_from_torch(layer_of(bias=False))
    with pytest.raises(UnsupportedError, match=r"activation must be one of .*gelu.*; got tanh"):
        block_from_torch(layer_of(activation=torch.tanh))
    with pytest.raises(UnsupportedError, match=r"activation must be one of .*; got ELU\("):
        block_from_torch(layer_of(activation=nn.ELU()))
    bound = functools.partial(functional.gelu, torch.ones(1), approximate="tanh")
    with pytest.raises(UnsupportedError, match=r"activation must be one of .*; got functools.partial"):
        block_from_torch(layer_of(activation=bound))

    def relu(x):
        return x

    with pytest.raises(
        UnsupportedError, match=r"activation must be one of .*, of torch's, .*; got .*test_torch_block.relu"
    ):
        block_from_torch(layer_of(activation=relu))
    for kind in (nn.GELU, nn.ReLU, nn.SiLU):
        with pytest.raises(UnsupportedError, match=r"activation must be one of .*; got Other\("):
            block_from_torch(layer_of(activation=type("Other", (kind,), {})()))
    layer = layer_of()
    layer.norm2.eps = 1e-3
    with pytest.raises(UnsupportedError, match=r"eps of norm1 and norm2 must be equal .*got 1e-05 and 0.001"):
        block_from_torch(layer)
    layer = layer_of()
    layer.dropout2.p = 0.5
    with pytest.raises(UnsupportedError, match=r"p of dropout1 and dropout2 must be equal .*got 0.0 and 0.5"):
        block_from_torch(layer)


@pytest.mark.parametrize(
    ("settings", "feed_forward", "attention", "text"),
    [
        ({"norm": "rmsnorm"}, {}, {}, "norm must be 'layernorm' for torch's encoder layer; got 'rmsnorm'"),
        ({}, {"gated": True}, {}, "gated must be False for torch's encoder layer; got True"),
        ({}, {"bias": False}, {}, "bias must be True for torch's encoder layer; got False"),
        ({}, {}, {"num_kv_heads": 1}, "num_kv_heads must be 3 for torch's module; got 1"),
    ],
)
def test_what_torchs_layer_has_not_is_refused_by_name(settings, feed_forward, attention, text):
    config = BlockConfig(
        attention=AttentionConfig(embed_dim=EMBED, num_heads=HEADS, **attention),
        feed_forward=FeedForwardConfig(embed_dim=EMBED, hidden_dim=HIDDEN, **feed_forward),
        **settings,
    )
    with pytest.raises(UnsupportedError, match=text):
        block_to_torch(Block(config))


class Subclass(nn.TransformerEncoderLayer):
    pass


def changed(**parts):
    layer = layer_of()
    for name, part in parts.items():
        setattr(layer, name, part)
    return layer


class Doubled(nn.Module):
    def forward(self, weight):
        return 2 * weight


def parametrized():
    layer = layer_of()
    nn.utils.parametrize.register_parametrization(layer.linear2, "weight", Doubled())
    return layer


@pytest.mark.parametrize(
    ("layer", "text"),
    [
        (
            nn.TransformerDecoderLayer(EMBED, HEADS, HIDDEN),
            "layer must be a Trans.*, not a .* got a TransformerDecoderLayer",
        ),
        (Subclass(EMBED, HEADS, HIDDEN), "layer must be a TransformerEncoderLayer, not a subclass, .* got a Subclass"),
        (changed(norm1=nn.RMSNorm(EMBED)), "norm1 must be a plain LayerNorm to convert a Trans.*; got a RMSNorm"),
        (changed(linear1=nn.Sequential()), "linear1 must be a plain Linear to convert a Trans.*; got a Sequential"),
        (changed(dropout1=nn.AlphaDropout(0.1)), "dropout1 must be a plain Dropout to convert .*; got a AlphaDropout"),
        (changed(gate=nn.Linear(EMBED, EMBED)), r"must have torch's own parts alone .*; got \['gate'\], too"),
        (changed(gamma=nn.Parameter(torch.ones(3))), r"must have torch's own parts alone .*; got \['gamma'\], too"),
        (changed(norm2=nn.LayerNorm(EMBED)), "one dtype .* in torch.float64 and norm2.weight in torch.float32"),
        (parametrized(), "linear2 must be a plain Linear to convert .*; got a ParametrizedLinear"),
        (layer_of().to("meta"), "must be in memory to be converted; got a tensor on meta"),
    ],
)
@pytest.mark.usefixtures("without_type_checks")
def test_a_layer_that_is_no_plain_one_is_refused(layer, text):
    with pytest.raises(UnsupportedError, match=text):
        block_from_torch(layer)


def block_of(**parts):
    block = block_from_torch(layer_of())
    for name, part in parts.items():
        setattr(block, name, part)
    return block


@pytest.mark.parametrize(
    ("block", "text"),
    [
        (nn.Linear(3, 3), "block must be a Block, not a subclass, to convert it; got a Linear"),
        (block_of(attention_norm=nn.RMSNorm(EMBED)), "attention_norm must be a plain LayerNorm .*; got a RMSNorm"),
        (block_of(feed_forward_norm=nn.LayerNorm(EMBED)), "one dtype .*feed_forward_norm.weight in torch.float32"),
        (block_of(dropout=nn.Identity()), "dropout must be a plain Dropout to convert a Block; got a Identity"),
        (block_of().to("meta"), "must be in memory to be converted; got a tensor on meta"),
    ],
)
@pytest.mark.usefixtures("without_type_checks")
def test_a_block_that_is_no_plain_one_is_refused(block, text):
    with pytest.raises(UnsupportedError, match=text):
        block_to_torch(block)


def test_another_class_of_the_same_name_is_named_by_where_it_is_defined():
    layer = layer_of()
    layer.linear1 = type("Linear", (nn.Module,), {"__module__": "quantised"})()
    with pytest.raises(
        UnsupportedError, match=r"linear1 must be a plain Linear to convert .*; got a quantised\.Linear"
    ):
        block_from_torch(layer)
