"""torch's MultiheadAttention and our layer made of it compute the same, both ways."""

import pytest
import torch
from torch import nn

from headwise.config.attention import Rotary
from headwise.convert.surgery import split_qkv
from headwise.convert.torch_attention import from_torch, to_torch
from headwise.errors import UnsupportedError
from headwise.masks.conventions import mask_from_torch
from headwise.masks.patterns import Causal
from headwise.nn.multihead import MultiHeadAttention
from headwise.nn.torch_multihead import TorchMultiheadAttention

BATCH, QUERIES, KEYS = 2, 5, 7
HEADS, EMBED, KEY_DIM, VALUE_DIM = 3, 12, 11, 13
EXACT = {"rtol": 0, "atol": 1e-13}  # float64 sums of under 100 terms of size about 1

SETTINGS = {
    "packed": {},
    "packed, no biases": {"bias": False},
    "separate": {"kdim": KEY_DIM, "vdim": VALUE_DIM},
    "separate, no biases": {"vdim": VALUE_DIM, "bias": False},
}


def randomised(module):
    """Biases start at 0, where a mistake would not show."""
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.dim() == 1:
                parameter.uniform_(0.5, 1.5)
    return module


def module_of(kind=nn.MultiheadAttention, **settings):
    torch.manual_seed(0)
    return randomised(kind(EMBED, HEADS, dtype=torch.float64, **settings))


def inputs_of(settings):
    torch.manual_seed(1)
    widths = EMBED, settings.get("kdim", EMBED), settings.get("vdim", EMBED)
    lengths = QUERIES, KEYS, KEYS
    return [
        torch.randn(BATCH, length, width, dtype=torch.float64) for length, width in zip(lengths, widths, strict=True)
    ]


def assert_same_state(module, other):
    expected = other.state_dict()
    assert list(module.state_dict()) == list(expected)
    assert all(torch.equal(tensor, expected[name]) for name, tensor in module.state_dict().items())


@pytest.mark.parametrize("kind", [nn.MultiheadAttention, TorchMultiheadAttention])
@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
@torch.no_grad()
def test_a_layer_made_of_torchs_module_computes_the_same(settings, kind):
    module = module_of(kind, batch_first=False, dropout=0.25, **settings).eval()
    layer = from_torch(module)
    inputs = inputs_of(settings)
    padding = torch.tensor([[False] * KEYS, [False] * 3 + [True] * 4])
    result = layer.attend(*inputs, mask=mask_from_torch(key_padding_mask=padding).mask, return_weights=True)
    expected = module(*(each.transpose(0, 1) for each in inputs), key_padding_mask=padding, average_attn_weights=False)
    torch.testing.assert_close(result.output, expected[0].transpose(0, 1), **EXACT)
    torch.testing.assert_close(result.weights, expected[1], **EXACT)
    assert (layer.config.dropout_p, layer.training) == (0.25, False)


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
@torch.no_grad()
def test_there_and_back_no_bit_is_lost(settings):
    module = module_of(**settings, dropout=0.25)
    back = to_torch(from_torch(module))
    assert_same_state(back, module)
    assert (back.dropout, back.batch_first, back.training) == (0.25, True, True)
    torch.testing.assert_close(from_torch(back)(*inputs_of(settings)).shape, (BATCH, QUERIES, EMBED))


@pytest.mark.parametrize(
    "settings",
    [{}, {"projection_bias": False}, {"fused_qkv": True}, {"key_dim": KEY_DIM, "value_dim": VALUE_DIM}],
    ids=["packed", "no biases", "fused", "separate"],
)
@torch.no_grad()
def test_torchs_module_made_of_a_layer_computes_the_same(settings):
    torch.manual_seed(0)
    layer = randomised(MultiHeadAttention(EMBED, HEADS, **settings).double()).eval()
    module = to_torch(layer)
    inputs = inputs_of({"kdim": settings.get("key_dim", EMBED), "vdim": settings.get("value_dim", EMBED)})
    torch.testing.assert_close(module(*inputs)[0], layer(*inputs), **EXACT)
    assert_same_state(from_torch(module), split_qkv(layer))
    assert not module.training


def test_weights_are_copies_and_the_random_state_stays():
    module = module_of()
    before = torch.get_rng_state()
    layer = from_torch(module)
    back = to_torch(layer)
    assert torch.equal(torch.get_rng_state(), before)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.zero_()
    assert all(parameter.abs().sum() > 0 for each in (layer, back) for parameter in each.parameters())
    assert all(parameter.requires_grad for each in (layer, back) for parameter in each.parameters())


def test_what_is_frozen_stays_frozen():
    module = module_of(kdim=KEY_DIM)
    module.k_proj_weight.requires_grad_(False)
    module.out_proj.bias.requires_grad_(False)
    with torch.no_grad():  # whatever the mode of the caller
        layer = from_torch(module)
        back = to_torch(layer)
    assert {name for name, one in layer.named_parameters() if not one.requires_grad} == {
        "k_proj.weight",
        "out_proj.bias",
    }
    assert {name for name, one in back.named_parameters() if not one.requires_grad} == {
        "k_proj_weight",
        "out_proj.bias",
    }
    packed = module_of().requires_grad_(False)
    assert not any(one.requires_grad for one in to_torch(from_torch(packed)).parameters())


def test_frozen_weights_beside_others_are_not_packed():
    layer = from_torch(module_of())
    layer.k_proj.weight.requires_grad_(False)
    with pytest.raises(UnsupportedError, match=r"v_proj.weight must all ask for gradients .* for k_proj.weight alone"):
        to_torch(layer)


def test_the_dtype_is_kept():
    module = module_of().bfloat16()
    layer = from_torch(module)
    assert {parameter.dtype for parameter in layer.parameters()} == {torch.bfloat16}
    assert_same_state(to_torch(layer), module)


@pytest.mark.parametrize("name", ["add_bias_kv", "add_zero_attn"])
def test_keys_of_the_modules_own_are_refused_by_name(name):
    with pytest.raises(
        UnsupportedError, match=rf"{name} must be False .*got True \(TorchMultiheadAttention has them\)"
    ):
        from_torch(module_of(**{name: True}))


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"num_kv_heads": 1}, "num_kv_heads must be 3 for torch's module; got 1"),
        ({"head_dim": 6}, "head_dim must be embed_dim / num_heads for torch's module; got 6, with 3 heads in a width"),
        ({"v_head_dim": 5}, "v_head_dim must be 4 for torch's module; got 5"),
        ({"projection_bias": "qkv"}, "projection_bias must be True for torch's module; got 'qkv'"),
        ({"qk_norm": True}, "qk_norm must be False for torch's module; got True"),
        ({"position": Rotary()}, r"position must be None for torch's module; got Rotary\("),
        ({"mask": Causal()}, r"mask must be Full\(\) for torch's module; got Causal\(\)"),
        ({"scale": 0.3}, "scale must be 0.5 for torch's module; got 0.3"),
        ({"softcap": 3.0}, "softcap must be None for torch's module; got 3.0"),
        ({"sink": True}, "sink must be False for torch's module; got True"),
    ],
)
def test_what_torchs_module_has_not_is_refused_by_name(settings, text):
    with pytest.raises(UnsupportedError, match=text):
        to_torch(MultiHeadAttention(EMBED, HEADS, **settings))


# Refusals of what would be lost


class Adapted(nn.Linear):
    """A projection that adds something of its own, with the weights of the plain one in sight."""

    def forward(self, tokens):
        return super().forward(tokens) + 1


class Wrapped(nn.Module):
    def __init__(self, base):
        super().__init__()
        self.base = base


def with_part(module, name, part):
    setattr(module, name, part)
    return module


class Doubled(nn.Module):
    def forward(self, weight):
        return 2 * weight


def parametrized(module, name):
    nn.utils.parametrize.register_parametrization(module, name, Doubled())
    return module


class Subclass(nn.MultiheadAttention):
    pass


@pytest.mark.parametrize(
    ("module", "text"),
    [
        (
            nn.Linear(3, 3),
            "a MultiheadAttention or TorchMultiheadAttention, .* to convert it; got a Linear",
        ),
        (None, "module must be a MultiheadAttention or .*; got None"),
        (Subclass(EMBED, HEADS), "module must be .* not a subclass, to convert it; got a Subclass"),
        (
            with_part(module_of(), "out_proj", Adapted(EMBED, EMBED)),
            "out_proj must be a plain Linear or NonDynamicallyQuantizableLinear to convert a Multi.*; got a Ada",
        ),
        (
            with_part(module_of(), "out_proj", Wrapped(nn.Linear(EMBED, EMBED))),
            "out_proj must be a plain .*; got a Wrapped",
        ),
        (parametrized(module_of(), "in_proj_weight"), "module must be a .*; got a ParametrizedMultiheadAttention"),
        (parametrized(nn.Linear(3, 3), "weight"), "got a ParametrizedLinear"),
        (module_of().to("meta"), "q_proj.weight must be in memory to be converted; got a tensor on meta"),
        (module_of().to(torch.float8_e4m3fn), "q_proj.weight must be in one of float64, .* got torch.float8_e4m3fn"),
        (
            with_part(module_of(), "out_proj", nn.Linear(EMBED, EMBED)),
            "one dtype to be converted; got q_proj.weight in torch.float64 and out_proj.weight in torch.float32",
        ),
    ],
)
@pytest.mark.usefixtures("without_type_checks")
def test_a_module_that_is_no_plain_one_is_refused(module, text):
    with pytest.raises(UnsupportedError, match=text):
        from_torch(module)


class Laid(torch.Tensor):
    """A tensor that is laid out in a way of its own, as quantised and sharded ones are."""


def test_a_tensor_of_another_class_is_refused():
    module = module_of()
    module.in_proj_weight = nn.Parameter(module.in_proj_weight.detach().as_subclass(Laid))
    with pytest.raises(UnsupportedError, match=r"q_proj.weight must be a plain tensor to be converted; got a Laid"):
        from_torch(module)


@pytest.mark.filterwarnings("ignore:.*weight_norm:FutureWarning")
def test_a_weight_that_is_computed_for_each_call_is_refused():
    module = nn.utils.weight_norm(module_of(), "in_proj_weight")
    with pytest.raises(UnsupportedError, match=r"in_proj_weight must be a parameter to convert .*weight norm"):
        from_torch(module)
    module = module_of()
    nn.utils.weight_norm(module.out_proj)
    with pytest.raises(UnsupportedError, match=r"out_proj.weight must be a parameter to convert a MultiheadAttention"):
        from_torch(module)


def test_a_layer_that_is_no_plain_one_is_refused():
    class Other(MultiHeadAttention):
        pass

    with pytest.raises(UnsupportedError, match=r"layer must be a MultiHeadAttention, not a subclass, .* got a Other"):
        to_torch(Other(EMBED, HEADS))
    layer = MultiHeadAttention(EMBED, HEADS)
    layer.v_proj = Adapted(EMBED, EMBED)
    with pytest.raises(
        UnsupportedError, match=r"v_proj must be a plain Linear to convert a MultiHeadAtt.*got a Adapted"
    ):
        to_torch(layer)
    layer = MultiHeadAttention(EMBED, HEADS)
    layer.v_proj.bfloat16()
    with pytest.raises(
        UnsupportedError, match=r"must have one dtype to be converted; got q_proj.weight in torch.float32"
    ):
        to_torch(layer)
