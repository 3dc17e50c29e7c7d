"""C3TR computes its equation in both forms; the compatible one loads weights of YOLOv5's layout and agrees with it."""

import pytest
import torch
from torch import nn

from headwise.config.vision import C3TRConfig
from headwise.errors import ConfigError, UnsupportedError
from headwise.inspection.capture.readers import open_reader
from headwise.nn.c3tr import C3TR, PlainTransformerLayer, PlainTransformerStage
from headwise.nn.multihead import MultiHeadAttention

BATCH, IN, OUT, INNER, LAYERS, HEADS = 2, 11, 24, 12, 2, 4
SIZES = [(1, 1), (1, 7), (5, 3), (11, 13)]
FORMS = pytest.mark.parametrize("compatible", [False, True])
# One float64 operation rounds by 1.1e-16. Sums here have at most 143 terms; two layers without norms let numbers grow
# to about 100: 100 x 143 x 1.1e-16 is 1.6e-12, were all roundings to add up.
CLOSE = {"rtol": 0, "atol": 2e-12}


class PlainConv(nn.Module):
    """Convolution without bias, batch norm, SiLU."""

    def __init__(self, channels_in, channels_out):
        super().__init__()
        self.conv = nn.Conv2d(channels_in, channels_out, kernel_size=1, bias=False)
        self.bn = nn.BatchNorm2d(channels_out, eps=1e-3, momentum=0.03)

    def forward(self, x):
        y = self.bn(self.conv(x))
        return y * torch.sigmoid(y)


class PlainLayer(nn.Module):
    """Two projections in a row, attention with a map of weights, two linear maps in a row; nothing else but sums."""

    def __init__(self, width, heads):
        super().__init__()
        for name in ("q", "k", "v", "fc1", "fc2"):
            setattr(self, name, nn.Linear(width, width, bias=False))
        self.ma = nn.MultiheadAttention(width, heads)

    def forward(self, x):
        output, weights = self.ma(self.q(x), self.k(x), self.v(x))
        assert weights is not None
        x = output + x
        return self.fc2(self.fc1(x)) + x


class PlainStage(nn.Module):
    """Places to (length, batch, width), the same linear map added to each, layers, and back."""

    def __init__(self, width, heads, layers):
        super().__init__()
        self.linear = nn.Linear(width, width)
        self.tr = nn.Sequential(*[PlainLayer(width, heads) for _ in range(layers)])

    def forward(self, x):
        rows = [x[:, :, r, c] for r in range(x.shape[2]) for c in range(x.shape[3])]
        p = torch.stack(rows)
        p = self.tr(p + self.linear(p))
        return torch.stack(list(p), dim=2).reshape(x.shape)


class PlainC3TR(nn.Module):
    """The published block, as its description reads: the oracle of the compatible form."""

    def __init__(self, channels_in, channels_out, layers):
        super().__init__()
        inner = int(channels_out * 0.5)
        self.cv1 = PlainConv(channels_in, inner)
        self.cv2 = PlainConv(channels_in, inner)
        self.cv3 = PlainConv(2 * inner, channels_out)
        self.m = PlainStage(inner, 4, layers)

    def forward(self, x):
        return self.cv3(torch.cat([self.m(self.cv1(x)), self.cv2(x)], dim=1))


def rough(module):
    """Give a module weights as a training leaves them: nothing at 0, nothing at 1, norms that have seen numbers."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for tensor in (*module.parameters(), *module.buffers()):
            if tensor.dim() == 1:
                tensor.uniform_(0.5, 1.5, generator=generator)
    return module.double().eval()


def block_of(**settings):
    torch.manual_seed(0)
    return rough(C3TR(IN, OUT, LAYERS, **settings))


def maps(height, width, batch=BATCH, channels=IN):
    torch.manual_seed(height * width)
    return torch.randn(batch, channels, height, width, dtype=torch.float64)


def twins():
    """The oracle, and the compatible form with its weights."""
    torch.manual_seed(1)
    oracle = rough(PlainC3TR(IN, OUT, LAYERS))
    block = C3TR(IN, OUT, LAYERS, compatible=True).double().eval()
    block.load_state_dict(oracle.state_dict(), strict=True)
    return oracle, block


@pytest.mark.parametrize(("height", "width"), SIZES)
def test_weights_of_the_published_layout_give_the_same_outputs_and_gradients(height, width):
    oracle, block = twins()
    theirs = maps(height, width).requires_grad_()
    ours = theirs.detach().clone().requires_grad_()
    expected, output = oracle(theirs), block(ours)
    torch.testing.assert_close(output, expected, **CLOSE)
    slope = maps(height, width, channels=OUT)
    (expected * slope).sum().backward()
    (output * slope).sum().backward()
    grads = {name: parameter.grad for name, parameter in oracle.named_parameters()}
    # outputs are of size 1 or so, for which the budget above was made; roundings grow as the numbers do
    budget = {"rtol": 0, "atol": CLOSE["atol"] * max(1.0, *(float(grad.abs().max()) for grad in grads.values()))}
    torch.testing.assert_close(ours.grad, theirs.grad, **budget)
    torch.testing.assert_close({name: parameter.grad for name, parameter in block.named_parameters()}, grads, **budget)


@torch.no_grad()
def test_in_training_both_norm_by_the_batch_and_remember_the_same_of_it():
    oracle, block = twins()
    oracle.train()
    block.train()
    torch.testing.assert_close(block(maps(5, 3)), oracle(maps(5, 3)), **CLOSE)
    torch.testing.assert_close(dict(block.named_buffers()), dict(oracle.named_buffers()), **CLOSE)


def test_the_compatible_form_has_the_published_names_and_no_others():
    convolution = (
        *("conv.weight", "bn.weight", "bn.bias", "bn.running_mean", "bn.running_var", "bn.num_batches_tracked"),
    )
    layer = (
        *("q.weight", "k.weight", "v.weight", "ma.in_proj_weight", "ma.in_proj_bias"),
        *("ma.out_proj.weight", "ma.out_proj.bias", "fc1.weight", "fc2.weight"),
    )
    expected = {f"{part}.{name}" for part in ("cv1", "cv2", "cv3") for name in convolution}
    expected |= {"m.linear.weight", "m.linear.bias"}
    expected |= {f"m.tr.{index}.{name}" for index in range(LAYERS) for name in layer}
    assert set(C3TR(IN, OUT, LAYERS, compatible=True).state_dict()) == expected


@torch.no_grad()
def test_the_two_projections_of_a_plain_layer_are_one():
    torch.manual_seed(2)
    layer = rough(PlainTransformerLayer(INNER, HEADS))
    attention = MultiHeadAttention(INNER, HEADS).double()
    stacked = layer.ma.in_proj_weight.chunk(3), layer.ma.in_proj_bias.chunk(3), (layer.q, layer.k, layer.v)
    for projection, second, bias, first in zip(
        (attention.q_proj, attention.k_proj, attention.v_proj), *stacked, strict=True
    ):
        projection.weight.copy_(second @ first.weight)
        projection.bias.copy_(bias)
    attention.out_proj.load_state_dict(layer.ma.out_proj.state_dict())
    x = torch.randn(BATCH, 7, INNER, dtype=torch.float64)
    seen = x + attention(x)
    expected = seen + seen @ (layer.fc2.weight @ layer.fc1.weight).T
    torch.testing.assert_close(layer(x.transpose(0, 1)).transpose(0, 1), expected, **CLOSE)


@torch.no_grad()
def test_the_plain_stage_does_not_know_where_a_place_is_and_the_default_one_does():
    torch.manual_seed(3)
    order = torch.randperm(35)
    x = maps(5, 7)

    def moved(tensor):
        return tensor.flatten(2)[:, :, order].unflatten(2, (5, 7))

    plain = block_of(compatible=True)
    torch.testing.assert_close(plain(moved(x)), moved(plain(x)), **CLOSE)
    block = block_of()
    assert (block(moved(x)) - moved(block(x))).abs().max() > 1e-3


@pytest.mark.parametrize(("height", "width"), SIZES)
@torch.no_grad()
def test_the_default_form_is_the_same_block_around_a_stage_that_knows_its_places(height, width):
    block, x = block_of(), maps(height, width)

    def convolution(part, y):
        mean, variance = part.bn.running_mean, part.bn.running_var
        y = torch.einsum("bchw,oc->bhwo", y, part.conv.weight[:, :, 0, 0])
        y = (y - mean) / (variance + 1e-3).sqrt() * part.bn.weight + part.bn.bias
        return (y / (1 + torch.exp(-y))).permute(0, 3, 1, 2)

    both = torch.cat([block.m(convolution(block.cv1, x)), convolution(block.cv2, x)], dim=1)
    torch.testing.assert_close(block(x), convolution(block.cv3, both), **CLOSE)
    assert block(x).shape == (BATCH, OUT, height, width)


@FORMS
@torch.no_grad()
def test_a_map_alone_equals_it_in_the_batch(compatible):
    block, x = block_of(compatible=compatible), maps(5, 3)
    torch.testing.assert_close(block(x[1:]), block(x)[1:], **CLOSE)


@FORMS
@pytest.mark.parametrize("training", [False, True])
def test_a_batch_of_no_maps_runs_and_leaves_the_norms_as_they_are(compatible, training):
    block = block_of(compatible=compatible).train(training)
    means = [part.bn.running_mean.clone() for part in (block.cv1, block.cv2, block.cv3)]
    output = block(maps(5, 3, batch=0))
    assert output.shape == (0, OUT, 5, 3)
    output.sum().backward()
    assert all(parameter.grad.isfinite().all() for parameter in block.parameters())
    for part, mean in zip((block.cv1, block.cv2, block.cv3), means, strict=True):
        assert torch.equal(part.bn.running_mean, mean)


def largest_saved(block, x):
    """Numbers in the largest tensor that is kept for backward, weights of the module aside."""
    sizes = []
    weights = {parameter.data_ptr() for parameter in block.parameters()}

    def keep(tensor):
        if tensor.data_ptr() not in weights:
            sizes.append(tensor.numel())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        block(x)
    return max(sizes)


@FORMS
def test_no_form_keeps_a_map_of_weights(compatible):
    x = maps(17, 19, batch=1).float()
    places = 17 * 19
    block = block_of(compatible=compatible).float().train()
    # the widest tensors are a feed-forward's inside
    assert largest_saved(block, x) <= places * 4 * INNER < places * places
    assert largest_saved(twins()[0].float().train(), x) >= HEADS * places * places


@FORMS
@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("batch", [1, 2])
def test_gradients_are_those_of_the_slope(compatible, training, batch):
    # a single map has a case of its own: see the test of norms around a stage
    block, x = block_of(compatible=compatible).train(training), maps(2, 3, batch=batch).requires_grad_()
    assert torch.autograd.gradcheck(block, (x,), fast_mode=True)


def test_what_the_heads_of_the_default_form_see_can_be_read():
    block, x = block_of(), maps(5, 3)
    shapes = []
    open_reader(block, (x,)).read((x,), lambda _, layer: shapes.extend(b.weights.shape for b in layer.blocks()))
    assert shapes == [(BATCH, HEADS, 15, 15)] * LAYERS


@torch.no_grad()
def test_every_implementation_agrees():
    x = maps(5, 3)
    for impl in ("reference", "sdpa", "blocked"):
        torch.testing.assert_close(block_of(impl=impl)(x), block_of()(x), **CLOSE)


@FORMS
def test_the_config_holds_every_setting(compatible):
    config = C3TR(IN, OUT, compatible=compatible).config
    assert config == C3TRConfig(
        in_channels=IN,
        out_channels=OUT,
        num_layers=1,
        num_heads=4,
        expansion=0.5,
        hidden_dim=INNER if compatible else 4 * INNER,
        norm_eps=1e-3,
        compatible=compatible,
    )
    twin = C3TR.from_config(config)
    assert twin.config == config
    assert hash(twin.config) == hash(config)
    assert isinstance(twin.m, PlainTransformerStage) == compatible


def test_settings_reach_their_parts():
    block = C3TR(IN, OUT, 3, num_heads=2, expansion=0.7, hidden_dim=7, norm_eps=0.1)
    assert [part.feed_forward.up_proj.weight.shape for part in block.m.blocks] == [(7, 16)] * 3
    assert block.m.blocks[0].attention.config.num_heads == 2
    assert [part.bn.eps for part in (block.cv1, block.cv2, block.cv3)] == [0.1] * 3
    plain = C3TR(IN, OUT, 3, num_heads=2, expansion=0.75, compatible=True)
    assert [(part.ma.num_heads, part.ma.embed_dim) for part in plain.m.tr] == [(2, 18)] * 3


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"num_heads": 5}, r"int\(out_channels \* expansion\), the inner width, must be a multiple of num.*24 and 5"),
        ({"out_channels": 53}, "must be a multiple of num_heads, so that the heads share it evenly; got 26 and 4"),
        ({"out_channels": 53, "compatible": True}, "must be a multiple of num_heads.*got 26 and 4"),
        ({"out_channels": 12, "num_heads": 3}, r"the inner width, must be a multiple of 4, .*got 6"),
        ({"out_channels": 1}, "the inner width, must be at least 1; got 1 and 0.5"),
        ({"in_channels": 0}, "in_channels must be between 1 and"),
        ({"num_layers": 0}, "num_layers must be between 1 and 10000; got 0"),
        ({"num_heads": True}, "num_heads must be a whole number; got True"),
        ({"expansion": 0}, "expansion must be positive; got 0"),
        ({"norm_eps": "small"}, "norm_eps must be a finite number; got 'small'"),
        ({"hidden_dim": 0}, "hidden_dim must be between 1 and"),
        ({"compatible": 1}, "compatible must be True or False; got 1"),
        ({"compatible": True, "hidden_dim": 96}, "hidden_dim must be left out where compatible is True.*24; got 96"),
    ],
)
def test_a_block_that_cannot_be_is_refused_by_name(changes, text):
    with pytest.raises(ConfigError, match=text):
        C3TRConfig(**{"in_channels": 48, "out_channels": 48, **changes})


def test_a_choice_of_implementation_where_torchs_layer_attends_is_refused():
    with pytest.raises(UnsupportedError, match=r"impl must be .auto. where compatible is True.*got 'sdpa'"):
        C3TR(IN, OUT, compatible=True, impl="sdpa")


def test_a_plain_stage_with_six_channels_needs_no_sines():
    assert C3TR(IN, 12, num_heads=3, compatible=True)(maps(2, 3).float()).shape == (BATCH, 12, 2, 3)


@pytest.mark.usefixtures("without_type_checks")
@FORMS
@pytest.mark.parametrize("shape", [(2, 3, 5, 7), (2, IN, 7)])
def test_a_map_that_does_not_fit_is_refused_by_name(compatible, shape):
    text = r"feature_map must have shape \(batch, in_channels = 11, height, width\); got"
    with pytest.raises(ConfigError, match=text):
        block_of(compatible=compatible)(torch.zeros(shape, dtype=torch.float64))
