"""A Vision Transformer's fused attention and our layer made of it compute the same, both ways."""

import pytest
import torch
from torch import nn

from headwise.convert.timm import from_timm, to_timm
from headwise.errors import UnsupportedError
from headwise.nn.multihead import MultiHeadAttention

BATCH, LENGTH, EMBED, HEADS = 2, 5, 12, 3
EXACT = {"rtol": 0, "atol": 1e-13}  # float64 sums of under 100 terms of size about 1


class Attention(nn.Module):
    """The layout by its definition: of the 3E outputs the first E are queries, and of those each D are one head's."""

    def __init__(self, *, qkv_bias=True, proj_bias=True, attn_drop=0.25, scale=None):
        super().__init__()
        self.num_heads = HEADS
        self.scale = (EMBED // HEADS) ** -0.5 if scale is None else scale
        self.qkv = nn.Linear(EMBED, 3 * EMBED, bias=qkv_bias)
        self.q_norm, self.k_norm = nn.Identity(), nn.Identity()
        self.attn_drop = nn.Dropout(attn_drop)
        self.proj = nn.Linear(EMBED, EMBED, bias=proj_bias)

    def forward(self, x):
        batch_size, seq_len, width = x.shape
        q, k, v = self.qkv(x).view(batch_size, seq_len, 3, HEADS, width // HEADS).permute(2, 0, 3, 1, 4)
        weights = (self.scale * q @ k.mT).softmax(-1)
        return self.proj((self.attn_drop(weights) @ v).transpose(1, 2).flatten(2))


def attention_of(**settings):
    torch.manual_seed(0)
    return Attention(**settings).double().eval()


def tokens():
    return torch.randn(BATCH, LENGTH, EMBED, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


@pytest.mark.parametrize(
    "settings",
    [{}, {"qkv_bias": False, "proj_bias": False}, {"proj_bias": False}, {"scale": 0.7}],
    ids=["biases", "no biases", "biases but the last", "own scale"],
)
@torch.no_grad()
def test_a_layer_made_of_it_computes_the_same_and_goes_back(settings):
    attention = attention_of(**settings)
    layer = from_timm(attention)
    torch.testing.assert_close(layer(tokens()), attention(tokens()), **EXACT)
    assert (layer.config.dropout_p, layer.training) == (0.25, False)
    torch.manual_seed(7)
    other = Attention(**settings).double()
    to_timm(layer, other)
    assert all(torch.equal(tensor, other.state_dict()[name]) for name, tensor in attention.state_dict().items())


@torch.no_grad()
def test_what_it_computes_after_the_way_in_is_the_layers():
    torch.manual_seed(0)
    layer = MultiHeadAttention(EMBED, HEADS, dropout_p=0.25).double().eval()
    attention = attention_of()
    to_timm(layer, attention)
    torch.testing.assert_close(attention(tokens()), layer(tokens()), **EXACT)


def changed(**parts):
    attention = attention_of()
    for name, part in parts.items():
        setattr(attention, name, part)
    return attention


@pytest.mark.parametrize(
    ("attention", "text"),
    [
        (nn.Linear(EMBED, EMBED), "qkv must be a plain Linear to convert a Linear; got None"),
        (changed(proj=nn.Identity()), "proj must be a plain Linear to convert a Attention; got a Identity"),
        (changed(q_norm=nn.LayerNorm(4)), "q_norm must be Identity or Dropout to convert Attention; got a LayerNorm"),
        (changed(k_norm=nn.LayerNorm(4)), "k_norm must be Identity or Dropout to convert Attention; got a LayerNorm"),
        (changed(norm=nn.LayerNorm(EMBED)), "norm must be Identity or Dropout to convert Attention; got a LayerNorm"),
        (changed(gate=nn.Linear(EMBED, EMBED)), "gate must be Identity or Dropout to convert Attention; got a Linear"),
        (changed(rope=nn.Module()), "rope must be Identity or Dropout to convert Attention; got a Module"),
        (changed(attn_drop=nn.AlphaDropout()), "attn_drop must be Identity or Dropout .*; got a AlphaDropout"),
        (changed(q_bias=nn.Parameter(torch.ones(EMBED))), "every parameter of a Attention must be .*; got q_bias"),
        (
            changed(relative=torch.nn.Buffer(torch.ones(3))),
            "there must be no buffers to convert Attention; got relative",
        ),
        (changed(scale=torch.tensor(0.3)), r"scale must be a number to convert Attention; got tensor\(0.3"),
        (changed(num_heads=0), "num_heads must divide the width 12 to convert Attention; got 0"),
        (changed(num_heads=True), "num_heads must divide the width 12 to convert Attention; got True"),
        (changed(qkv=nn.Sequential()), "qkv must be a plain Linear to convert a Attention; got a Sequential"),
        (
            changed(proj=nn.Linear(EMBED, EMBED)),
            "weights must have one dtype to be converted; got q_proj.weight in torch",
        ),
        (changed(num_heads=5), "num_heads must divide the width 12 to convert Attention; got 5"),
        (changed(qkv=nn.Linear(EMBED, 24)), "qkv must map 12 features to 36 to convert Attention; got 12 to 24"),
        (changed(proj=nn.Linear(EMBED, 10)), "proj must map 12 features to 12 to convert Attention; got 12 to 10"),
        (changed(qkv=nn.Linear(EMBED, 36, bias=False)), "qkv must have a bias where proj has one .*; got none"),
    ],
)
def test_other_parts_are_refused_by_name(attention, text):
    with pytest.raises(UnsupportedError, match=text):
        from_timm(attention)


def test_a_layer_with_other_settings_is_not_written():
    attention = attention_of()
    before = attention.qkv.weight.clone()
    for settings, text in (
        ({"scale": 0.3}, "scale must be 0.5 for this Attention; got 0.3"),
        ({"num_kv_heads": 1}, "num_kv_heads must be 3 for this Attention; got 1"),
    ):
        with pytest.raises(UnsupportedError, match=text):
            to_timm(MultiHeadAttention(EMBED, HEADS, dropout_p=0.25, **settings), attention)
    assert torch.equal(attention.qkv.weight, before)


@pytest.mark.parametrize(("drop", "dropout_p"), [(nn.Identity(), 0.0), (0.125, 0.125), (nn.Dropout(0.5), 0.5)])
def test_dropout_is_a_module_or_a_probability(drop, dropout_p):
    attention = attention_of()
    del attention.attn_drop
    attention.attn_drop = drop
    assert from_timm(attention).config.dropout_p == dropout_p


def test_what_is_frozen_stays_frozen():
    attention = attention_of()
    attention.qkv.weight.requires_grad_(False)
    frozen = {name for name, one in from_timm(attention).named_parameters() if not one.requires_grad}
    assert frozen == {"q_proj.weight", "k_proj.weight", "v_proj.weight"}


def test_weights_that_are_not_in_memory_are_not_written():
    layer = from_timm(attention_of())
    with pytest.raises(UnsupportedError, match=r"q_proj.weight must be in memory to be converted; got .* on meta"):
        to_timm(layer, attention_of().to("meta"))


@pytest.mark.usefixtures("without_type_checks")
def test_another_module_is_not_written_from():
    with pytest.raises(UnsupportedError, match=r"layer must be a MultiHeadAttention, not a subclass, .* got a Linear"):
        to_timm(nn.Linear(3, 3), attention_of())
