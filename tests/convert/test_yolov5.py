"""Weights by the names of YOLOv5's checkpoints and the modules made of them compute the same, both ways."""

import math

import pytest
import safetensors.torch
import torch
from torch import nn
from torch.nn import functional

from headwise.convert.yolov5 import (
    c3tr_from_yolov5,
    from_yolov5,
    layer_from_yolov5,
    merge_projections,
    stage_from_yolov5,
    to_yolov5,
)
from headwise.errors import ConfigError, UnsupportedError
from headwise.nn.c3tr import C3TR

BATCH, IN, OUT, INNER, LAYERS, HEADS = 2, 11, 24, 12, 2, 4
PREFIX = "model.9."
# One float64 operation rounds by 1.1e-16. Sums here have at most 24 terms, the last of some 30 in a row; two layers
# without norms let numbers grow to about 100: 100 x 30 x 24 x 1.1e-16 is 8e-12, were all roundings to add up.
CLOSE = {"rtol": 0, "atol": 8e-12}


def layer_weights(width, prefix, random):
    names = ("q.weight", "k.weight", "v.weight", "ma.out_proj.weight", "fc1.weight", "fc2.weight")
    weights = {prefix + name: random(width, width) for name in names}
    return weights | {
        f"{prefix}ma.in_proj_weight": random(3 * width, width),
        f"{prefix}ma.in_proj_bias": random(3 * width),
        f"{prefix}ma.out_proj.bias": random(width),
    }


def checkpoint(prefix=PREFIX, *, dtype=torch.float64, inner=INNER, out=OUT, layers=LAYERS):
    """Weights as a training leaves them, in the order and by the names of the published layout."""
    generator = torch.Generator().manual_seed(0)

    def random(*shape):
        return torch.randn(shape, generator=generator, dtype=torch.float64).div(shape[-1] ** 0.5).to(dtype)

    weights = {}
    for part, (wide, narrow) in {"cv1": (IN, inner), "cv2": (IN, inner), "cv3": (2 * inner, out)}.items():
        weights[f"{prefix}{part}.conv.weight"] = random(narrow, wide)[:, :, None, None]
        weights[f"{prefix}{part}.bn.weight"] = random(narrow) + 1
        weights[f"{prefix}{part}.bn.bias"] = random(narrow)
        weights[f"{prefix}{part}.bn.running_mean"] = random(narrow)
        weights[f"{prefix}{part}.bn.running_var"] = random(narrow).abs() + 0.5
        weights[f"{prefix}{part}.bn.num_batches_tracked"] = torch.tensor(7)
    weights[f"{prefix}m.linear.weight"] = random(inner, inner)
    weights[f"{prefix}m.linear.bias"] = random(inner)
    for index in range(layers):
        weights |= layer_weights(inner, f"{prefix}m.tr.{index}.", random)
    return weights


def whole_model():
    """Two blocks among what else a detector has: a block of the same names without attention, and one that is fused."""
    other = {
        "model.0.conv.weight": torch.zeros(3, 3, 6, 6),
        "model.2.cv1.conv.weight": torch.zeros(3, 5, 1, 1),
        "model.2.cv3.conv.weight": torch.zeros(5, 6, 1, 1),
        "model.2.m.0.cv1.conv.weight": torch.zeros(3, 3, 1, 1),
        "model.5.m.tr.0.ma.in_proj_weight": torch.zeros(6, 2),
    }
    return other | checkpoint() | checkpoint("model.19.", layers=1)


def oracle_attention(weights, prefix, x):
    """Read the weights by name; tokens are (batch, places, width)."""
    second = weights[f"{prefix}ma.in_proj_weight"].chunk(3)
    biases = weights[f"{prefix}ma.in_proj_bias"].chunk(3)
    first = [weights[f"{prefix}{name}.weight"] for name in ("q", "k", "v")]
    q, k, v = (
        (x @ w1.T @ w2.T + bias).unflatten(-1, (HEADS, -1)).transpose(1, 2)
        for w1, w2, bias in zip(first, second, biases, strict=True)
    )
    seen = (q @ k.mT / math.sqrt(q.shape[-1])).softmax(-1) @ v
    return (
        seen.transpose(1, 2).flatten(2) @ weights[f"{prefix}ma.out_proj.weight"].T
        + weights[f"{prefix}ma.out_proj.bias"]
    )


def oracle_layer(weights, prefix, x):
    x = x + oracle_attention(weights, prefix, x)
    return x + x @ weights[f"{prefix}fc1.weight"].T @ weights[f"{prefix}fc2.weight"].T


def oracle_stage(weights, prefix, x):
    tokens = x.flatten(2).mT
    tokens = tokens + tokens @ weights[f"{prefix}linear.weight"].T + weights[f"{prefix}linear.bias"]
    for index in range(LAYERS):
        tokens = oracle_layer(weights, f"{prefix}tr.{index}.", tokens)
    return tokens.mT.reshape(x.shape)


def oracle_convolution(weights, prefix, x, norm_eps):
    y = torch.einsum("bchw,oc->bohw", x, weights[f"{prefix}conv.weight"][:, :, 0, 0])
    mean, variance, weight, bias = (
        weights[f"{prefix}bn.{name}"][:, None, None] for name in ("running_mean", "running_var", "weight", "bias")
    )
    return functional.silu((y - mean) / (variance + norm_eps).sqrt() * weight + bias)


def oracle_c3tr(weights, prefix, x, *, norm_eps=1e-3):
    attended = oracle_stage(weights, f"{prefix}m.", oracle_convolution(weights, f"{prefix}cv1.", x, norm_eps))
    both = torch.cat([attended, oracle_convolution(weights, f"{prefix}cv2.", x, norm_eps)], dim=1)
    return oracle_convolution(weights, f"{prefix}cv3.", both, norm_eps)


def random_map(channels=IN):
    return torch.randn(BATCH, channels, 3, 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def tokens():
    return torch.randn(BATCH, 7, INNER, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


@pytest.mark.parametrize("norm_eps", [1e-3, 0.1])
@torch.no_grad()
def test_a_block_made_of_a_checkpoint_computes_what_its_weights_say(norm_eps):
    weights = checkpoint()
    block = c3tr_from_yolov5(weights, PREFIX, norm_eps=norm_eps)
    assert not block.training
    torch.testing.assert_close(
        block(random_map()), oracle_c3tr(weights, PREFIX, random_map(), norm_eps=norm_eps), **CLOSE
    )


@torch.no_grad()
def test_parts_of_a_block_are_read_by_their_own_prefix():
    weights = checkpoint()
    stage = stage_from_yolov5(weights, f"{PREFIX}m.")
    expected = oracle_stage(weights, f"{PREFIX}m.", random_map(INNER))
    torch.testing.assert_close(stage(random_map(INNER)), expected, **CLOSE)
    layer = layer_from_yolov5(weights, f"{PREFIX}m.tr.1.")
    computed = layer(tokens().transpose(0, 1)).transpose(0, 1)
    torch.testing.assert_close(computed, oracle_layer(weights, f"{PREFIX}m.tr.1.", tokens()), **CLOSE)
    assert not (stage.training or layer.training)


def test_every_block_of_a_checkpoint_is_found_and_nothing_else():
    weights = whole_model()
    blocks = from_yolov5(weights)
    assert {prefix: block.config.num_layers for prefix, block in blocks.items()} == {"model.9.": 2, "model.19.": 1}
    assert torch.equal(blocks["model.19."].cv2.conv.weight, weights["model.19.cv2.conv.weight"])
    assert list(from_yolov5(checkpoint(""))) == [""]


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64])
def test_there_and_back_no_bit_is_lost_and_nothing_is_shared(dtype):
    weights = checkpoint(dtype=dtype)
    before = torch.get_rng_state()
    block = c3tr_from_yolov5(weights, PREFIX)
    assert torch.equal(torch.get_rng_state(), before)
    assert all(parameter.requires_grad and parameter.dtype == dtype for parameter in block.parameters())
    stage, layer = stage_from_yolov5(weights, f"{PREFIX}m."), layer_from_yolov5(weights, f"{PREFIX}m.tr.1.")
    for module, prefix in ((block, PREFIX), (stage, f"{PREFIX}m."), (layer, f"{PREFIX}m.tr.1.")):
        back = to_yolov5(module, prefix)
        assert back.keys() == {name for name in weights if name.startswith(prefix)}
        for name, tensor in back.items():
            assert torch.equal(tensor, weights[name]) and tensor.dtype == weights[name].dtype
            assert tensor.data_ptr() != weights[name].data_ptr()


def test_files_that_run_no_code_are_enough(tmp_path):
    block = c3tr_from_yolov5(checkpoint(), PREFIX)
    safetensors.torch.save_file(to_yolov5(block, PREFIX), tmp_path / "weights.safetensors")
    torch.save(to_yolov5(block, PREFIX), tmp_path / "weights.pt")
    for weights in (
        safetensors.torch.load_file(tmp_path / "weights.safetensors"),
        torch.load(tmp_path / "weights.pt", weights_only=True),
    ):
        [(prefix, again)] = from_yolov5(weights).items()
        assert prefix == PREFIX
        assert all(torch.equal(tensor, block.state_dict()[name]) for name, tensor in again.state_dict().items())


# int(47 * (12 / 47)) is 11, and int(49 * (4 / 49)) is 3
@pytest.mark.parametrize(("inner", "out"), [(4, 7), (12, 47), (4, 49), (4, 4), (20, 12)])
def test_an_inner_width_of_any_share_is_read_off(inner, out):
    block = c3tr_from_yolov5(checkpoint(inner=inner, out=out), PREFIX)
    assert (block.config.inner_channels, block.config.out_channels, block.config.in_channels) == (inner, out, IN)


@torch.no_grad()
def test_one_projection_in_place_of_two_computes_the_same():
    weights, prefix = checkpoint(), f"{PREFIX}m.tr.0."
    layer = layer_from_yolov5(weights, prefix)
    attention = merge_projections(layer)
    torch.testing.assert_close(attention(tokens()), oracle_attention(weights, prefix, tokens()), **CLOSE)
    assert sum(p.numel() for p in attention.parameters()) == 4 * (INNER * INNER + INNER)
    assert (attention.config.num_heads, attention.training) == (HEADS, False)
    assert torch.equal(layer.ma.in_proj_weight, weights[f"{prefix}ma.in_proj_weight"])
    assert all(parameter.requires_grad for parameter in attention.parameters())


@torch.no_grad()
def test_a_merged_projection_is_rounded_once():
    weights, prefix = checkpoint(dtype=torch.float32), f"{PREFIX}m.tr.0."
    attention = merge_projections(layer_from_yolov5(weights, prefix))
    second = weights[f"{prefix}ma.in_proj_weight"].double().chunk(3)[1]
    exact = second @ weights[f"{prefix}k.weight"].double()
    assert torch.equal(attention.k_proj.weight, exact.float())


# Refusals


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda w: w.pop("model.9.cv1.conv.weight"), r"^model\.9\.cv1\.conv\.weight must be among the weights; it is"),
        (lambda w: w.pop("model.9.cv2.bn.bias"), r"weights of model\.9\. must be .* got cv2\.bn\.bias missing \(batch"),
        (
            lambda w: w.update(
                {"model.9.cv1.conv.bias": torch.zeros(INNER), "model.9.m.conv.conv.weight": torch.zeros(1)}
            ),
            r"got cv1\.conv\.bias, m\.conv\.conv\.weight too many \(batch norms that were fused",
        ),
        (
            lambda w: [w.pop(name) for name in list(w) if name.startswith("model.9.m.tr.")],
            r"^model\.9\.m\.tr\.0\.ma\.in_proj_weight must be among the weights",
        ),
        (
            lambda w: w.update({"model.9.m.tr.5000000000.fc1.weight": torch.zeros(INNER, INNER)}),
            r"got m\.tr\.2\.fc1\.weight, m\.tr\.2\.fc2.*missing; m\.tr\.5000000000\.fc1\.weight too many",
        ),
        (
            lambda w: w.update({"model.9.cv1.conv.weight": torch.zeros(INNER, IN)}),
            r"^model\.9\.cv1\.conv\.weight must have 4 axes; got shape \(12, 11\)",
        ),
        (
            lambda w: w.update({"model.9.m.tr.1.fc2.weight": torch.zeros(INNER, 5)}),
            r"^model\.9\.m\.tr\.1\.fc2\.weight must have shape \(12, 12\); got \(12, 5\)",
        ),
        (
            lambda w: w.update({"model.9.m.linear.bias": torch.zeros(INNER)}),
            r"^model\.9\.m\.linear\.bias must be torch\.float64; got torch\.float32",
        ),
        (
            lambda w: w.update({"model.9.cv1.conv.weight": torch.zeros(INNER, IN, 1, 1, dtype=torch.int8)}),
            r"^model\.9\.cv1\.conv\.weight must be in one of float64, .*; got torch\.int8",
        ),
    ],
)
def test_weights_that_are_no_block_are_refused_by_name(change, text):
    weights = checkpoint()
    change(weights)
    with pytest.raises(UnsupportedError, match=text):
        c3tr_from_yolov5(weights, PREFIX)


def test_a_checkpoint_without_a_block_is_refused():
    weights = {name: tensor for name, tensor in whole_model().items() if not name.startswith(("model.9.", "model.19."))}
    with pytest.raises(UnsupportedError, match=r"weights must hold a C3TR, .*in_proj_weight; got 5 other names"):
        from_yolov5(weights)


@pytest.mark.usefixtures("without_type_checks")
def test_a_prefix_without_its_point_and_heads_that_do_not_divide_are_refused():
    weights = checkpoint()
    with pytest.raises(ConfigError, match=r"prefix must be empty or end with a point, as .* got 'model\.9'"):
        c3tr_from_yolov5(weights, "model.9")
    for number, text in (
        (2.0, "a whole number; got 2.0"),
        (True, "a whole number; got True"),
        (0, "between 1 and .*got 0"),
    ):
        with pytest.raises(ConfigError, match=f"num_heads must be {text}"):
            stage_from_yolov5(weights, f"{PREFIX}m.", num_heads=number)
    with pytest.raises(ConfigError, match=r"the inner width, must be a multiple of num_heads.*got 12 and 5"):
        c3tr_from_yolov5(weights, PREFIX, num_heads=5)
    for make, prefix in ((stage_from_yolov5, f"{PREFIX}m."), (layer_from_yolov5, f"{PREFIX}m.tr.0.")):
        with pytest.raises(ConfigError, match="num_heads must divide the width of the weights, 12; got 5"):
            make(weights, prefix, num_heads=5)


def test_the_default_form_has_no_place_in_a_checkpoint():
    with pytest.raises(UnsupportedError, match="compatible must be True for a C3TR to have names in YOLOv5's checkpo"):
        to_yolov5(C3TR(IN, OUT), PREFIX)
    with pytest.raises(ConfigError, match="prefix must be empty or end with a point"):
        to_yolov5(C3TR(IN, OUT, compatible=True), "model.9")


@pytest.mark.usefixtures("without_type_checks")
def test_what_is_no_checkpoint_or_no_part_of_a_block_is_refused():
    for weights in (C3TR(IN, OUT, compatible=True), list(checkpoint())):
        for make in (from_yolov5, lambda given: c3tr_from_yolov5(given, PREFIX)):
            kind = type(weights).__name__
            with pytest.raises(ConfigError, match=rf"weights must be tensors by name, as model.state.*got a {kind}"):
                make(weights)
    with pytest.raises(ConfigError, match="prefix must be a string; got None"):
        c3tr_from_yolov5(checkpoint(), None)
    with pytest.raises(UnsupportedError, match=r"model.9.cv1.conv.weight must be a tensor; got a str"):
        c3tr_from_yolov5(checkpoint() | {"model.9.cv1.conv.weight": "x"}, PREFIX)
    with pytest.raises(UnsupportedError, match=r"module must be a C3TR or Plain.*, not a subclass, .* got a Linear"):
        to_yolov5(nn.Linear(3, 3))
    with pytest.raises(UnsupportedError, match=r"layer must be a PlainTransformerLayer, not a .* got a Linear"):
        merge_projections(nn.Linear(3, 3))


def test_weights_that_are_not_there_or_have_scales_elsewhere_are_refused():
    whole = {name: tensor.to("meta") for name, tensor in checkpoint().items()}
    with pytest.raises(UnsupportedError, match=r"model.9.cv1.conv.weight must be in memory .*got a tensor on meta"):
        c3tr_from_yolov5(whole, PREFIX)
    one = checkpoint() | {"model.9.m.linear.bias": whole["model.9.m.linear.bias"]}
    with pytest.raises(UnsupportedError, match=r"model.9.m.linear.bias must be on cpu, as others are; got meta"):
        c3tr_from_yolov5(one, PREFIX)
    with pytest.raises(UnsupportedError, match=r"model.9.cv1.conv.weight must be in one of .*got torch.float8_e5m2"):
        c3tr_from_yolov5({name: tensor.to(torch.float8_e5m2) for name, tensor in checkpoint().items()}, PREFIX)
    without = checkpoint() | {"model.9.cv3.conv.weight": torch.zeros(0, 24, 1, 1, dtype=torch.float64)}
    with pytest.raises(UnsupportedError, match=r"model.9.cv1 and model.9.cv3 must have channels; got 12 and 0"):
        c3tr_from_yolov5(without, PREFIX)


def test_a_merged_projection_is_frozen_where_both_are():
    layer = layer_from_yolov5(checkpoint(), f"{PREFIX}m.tr.0.").requires_grad_(False)
    layer.k.weight.requires_grad_(True)
    merged = merge_projections(layer)
    assert [name for name, one in merged.named_parameters() if one.requires_grad] == ["k_proj.weight"]
    layer.requires_grad_(False).ma.in_proj_weight.requires_grad_(True)
    merged = merge_projections(layer)
    names = ["q_proj.weight", "k_proj.weight", "v_proj.weight"]
    assert [name for name, one in merged.named_parameters() if one.requires_grad] == names
    layer.q = nn.Sequential(layer.q)
    with pytest.raises(
        UnsupportedError, match="q must be a plain Linear to convert a PlainTransformerLayer; got a Seq"
    ):
        merge_projections(layer)


def test_norms_have_the_epsilon_that_yolov5_gives_its_models():
    """A checkpoint does not hold it: 1e-3, where torch's own default is 1e-5 (ultralytics/yolov5 issue 3766)."""
    from headwise.convert import yolov5

    assert yolov5.NORM_EPS == 1e-3
