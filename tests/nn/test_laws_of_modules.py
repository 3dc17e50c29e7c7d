"""Laws that every module obeys: copies, files, dtypes, devices, modes, rows of a batch, functional calls, graphs."""

import copy
import io
import pickle
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from torch import nn

from headwise.config.attention import ALiBi, AttentionConfig, Rotary, T5Bias
from headwise.config.block import BlockConfig, FeedForwardConfig
from headwise.config.head import OutputHead
from headwise.config.model import ModelConfig
from headwise.config.scaling import DynamicNTKScaling
from headwise.masks.data import KeyPadding
from headwise.masks.patterns import Causal, SlidingWindow
from headwise.masks.tables import Documents
from headwise.nn.block import Block
from headwise.nn.build import build
from headwise.nn.c3tr import C3TR
from headwise.nn.classifier import Classifier
from headwise.nn.language_model import LanguageModel
from headwise.nn.multihead import MultiHeadAttention
from headwise.nn.torch_multihead import TorchMultiheadAttention
from headwise.nn.vision import PatchEncoder

BATCH, LENGTH, WIDTH, HEADS, HIDDEN, VOCAB, PLACES = 3, 7, 12, 3, 19, 29, 17
# float64: one operation rounds by 1.1e-16; sums of some hundred terms of size about 10, a few one after the other
EXACT = {"rtol": 0, "atol": 1e-12}

PLACEMENTS = ("pre", "post", "both", "output")
POSITIONS = {
    "none": None,
    "rotary": Rotary(),
    # reads the length of a text: of 7 tokens other than of up to 5
    "dynamic": Rotary(scaling=DynamicNTKScaling(factor=3.0, original_max_positions=5)),
    "ALiBi": ALiBi(),
    "T5": T5Bias(num_buckets=8, max_distance=9),
}


def block_config(*, position=None, causal=True, **settings):
    attention = AttentionConfig(
        embed_dim=WIDTH, num_heads=HEADS, position=position, **({"mask": Causal()} if causal else {})
    )
    feed_forward = FeedForwardConfig(embed_dim=WIDTH, hidden_dim=HIDDEN)
    return BlockConfig(attention=attention, feed_forward=feed_forward, **settings)


def model_config(*, head=None, places=PLACES, **settings):
    block = block_config(**settings)
    return ModelConfig(
        name="own",
        model_type="headwise",
        kind="decoder",
        embed_dim=WIDTH,
        vocab_size=VOCAB,
        max_positions=PLACES,
        position_table_size=places,
        blocks=(block, block),
        final_norm=True,
        head=head,
    )


LANGUAGE = OutputHead(kind="language_model", num_outputs=VOCAB)
CLASSES = OutputHead(kind="classifier", num_outputs=5, per_token=False, bias=True)


def tokens(dtype=torch.float64):
    return torch.randn(BATCH, LENGTH, WIDTH, generator=torch.Generator().manual_seed(1), dtype=torch.float64).to(dtype)


def ids(_=None):
    return torch.randint(VOCAB, (BATCH, LENGTH), generator=torch.Generator().manual_seed(2))


def images(dtype=torch.float64):
    return torch.randn(BATCH, 5, 6, 9, generator=torch.Generator().manual_seed(3), dtype=torch.float64).to(dtype)


# name -> how the module is made, and what it is called with
MODULES = {
    "attention": (lambda: MultiHeadAttention(WIDTH, HEADS, position=Rotary(), mask=SlidingWindow(3)), tokens),
    "attention, all at once": (
        lambda: MultiHeadAttention(
            WIDTH,
            6,
            num_kv_heads=2,
            head_dim=4,
            v_head_dim=5,
            projection_bias="qkv",
            qk_norm=True,
            position=T5Bias(num_buckets=8, max_distance=9),
            softcap=3.0,
            sink=True,
            fused_qkv=True,
        ),
        tokens,
    ),
    "torch's": (lambda: TorchMultiheadAttention(WIDTH, HEADS, batch_first=True, add_bias_kv=True), tokens),
    **{f"block, {one}": (lambda one=one: Block(block_config(norm_placement=one)), tokens) for one in PLACEMENTS},
    "block, parallel": (
        lambda: Block(block_config(position=ALiBi(), parallel=True, shared_norm=True, norm="rmsnorm")),
        tokens,
    ),
    "block, selective": (lambda: Block(block_config(), checkpoint="selective"), tokens),
    "block, full": (lambda: Block(block_config(), checkpoint="full"), tokens),
    "body": (lambda: build(model_config()), ids),
    "language model": (lambda: LanguageModel(model_config(head=LANGUAGE, position=Rotary(), places=0)), ids),
    "tied language model": (lambda: LanguageModel(model_config(head=replace(LANGUAGE, tied=True))), ids),
    "classifier": (lambda: Classifier(model_config(head=CLASSES, causal=False)), ids),
    "patches": (lambda: PatchEncoder(3, WIDTH, HEADS, 2, num_channels=5, hidden_dim=HIDDEN), images),
    "c3tr": (lambda: C3TR(5, 24, 2, num_heads=HEADS), images),
    "c3tr, compatible": (lambda: C3TR(5, 24, 2, num_heads=HEADS, compatible=True), images),
}
every_module = pytest.mark.parametrize("name", MODULES)


def make(name, *, rough=True):
    """A module in float64 for evaluation, and its input; biases start at 0 and norms at 1, where mistakes hide."""
    torch.manual_seed(0)
    module, read = MODULES[name][0]().double().eval(), MODULES[name][1]
    if rough:
        with torch.no_grad():
            for tensor in module.state_dict().values():
                if tensor.dim() == 1:
                    tensor.uniform_(0.5, 1.5)
    return module, read


def call(module, x):
    """Run a module; torch's own takes three arguments and returns two things."""
    return module(x, x, x)[0] if isinstance(module, TorchMultiheadAttention) else module(x)


def gradients(module, x):
    output = call(module, x)
    factors = torch.arange(output.numel(), dtype=output.dtype).reshape(output.shape).cos()
    return torch.autograd.grad((output * factors).sum(), list(module.parameters()), allow_unused=True)


@every_module
def test_a_copy_is_equal_and_its_own(name):
    module, read = make(name)
    x = read()
    expected = call(module, x).detach()
    for twin in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        assert not twin.training
        assert torch.equal(call(twin, x), expected)
        assert all(map(torch.equal, gradients(twin, x), gradients(module, x)))
        with torch.no_grad():
            for parameter in twin.parameters():
                parameter.zero_()
        assert torch.equal(call(module, x), expected)
        assert not torch.equal(call(twin, x), expected)


@every_module
@torch.no_grad()
def test_a_state_goes_through_a_file_into_a_module_of_the_same_make(name):
    module, read = make(name)
    file = io.BytesIO()
    torch.save(module.state_dict(), file)
    file.seek(0)
    torch.manual_seed(9)
    other = MODULES[name][0]().double().eval()
    assert not torch.equal(call(other, read()), call(module, read()))
    other.load_state_dict(torch.load(file, weights_only=True), strict=True)
    assert torch.equal(call(other, read()), call(module, read()))


@every_module
@torch.no_grad()
def test_a_module_is_made_without_memory_and_filled_later(name):
    module, read = make(name)
    with torch.device("meta"):
        empty = MODULES[name][0]().double().eval()
    assert all(tensor.device.type == "meta" for tensor in empty.state_dict().values())
    shape = call(module, read()).shape
    assert call(empty, read().to("meta")).shape == shape  # sizes alone are computed
    filled = empty.to_empty(device="cpu")
    filled.load_state_dict(module.state_dict(), strict=True)
    assert torch.equal(call(filled, read()), call(module, read()))


@pytest.mark.parametrize("name", [name for name in MODULES if "c3tr" not in name])  # norms over a batch know the mode
def test_training_without_dropout_and_evaluation_are_the_same(name):
    module, read = make(name)
    expected = call(module, read()).detach()
    found = gradients(module, read())
    torch.testing.assert_close(call(module.train(), read()), expected, **EXACT)
    torch.testing.assert_close(gradients(module, read()), found, rtol=1e-10, atol=1e-10)  # sums of a thousand terms
    with torch.inference_mode():
        torch.testing.assert_close(call(module, read()), expected, **EXACT)


@every_module
@torch.no_grad()
def test_a_row_alone_equals_it_in_the_batch(name):
    module, read = make(name)
    together = call(module, read())
    for row in range(BATCH):
        torch.testing.assert_close(call(module, read()[row : row + 1]), together[row : row + 1], **EXACT)


@every_module
def test_a_functional_call_uses_the_weights_that_it_is_given(name):
    module, read = make(name)
    other, _ = make(name, rough=False)
    weights = {key: tensor.detach() for key, tensor in (*other.named_parameters(), *other.named_buffers())}
    x = read()
    arguments = (x, x, x) if isinstance(module, TorchMultiheadAttention) else (x,)
    found = torch.func.functional_call(module, weights, arguments)
    found = found[0] if isinstance(found, tuple) else found
    # where nothing learns, torch's own layer inside of the compatible C3TR goes another way to the same
    torch.testing.assert_close(found, call(other, x).detach(), **EXACT)


# Low precision

ROUNDED = (nn.Linear, nn.LayerNorm, nn.RMSNorm, nn.Conv2d, nn.BatchNorm2d, nn.Embedding, nn.MultiheadAttention, Block)
ROUNDED += (MultiHeadAttention,)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@every_module
@torch.no_grad()
def test_in_low_precision_the_error_is_that_of_rounding(name, dtype):
    """Against float64 with the same, rounded weights.

    An independent reference of low precision is the float64 module with the output of each layer rounded to the dtype.
    Additions, activations and the steps inside of attention round besides, each at most once for every such output,
    so the budget is twice the reference's error, and one rounding of the largest output. Positions lie far apart, where
    angles of this dtype would be those of other places.
    """
    module, read = make(name)
    truth = copy.deepcopy(module)
    module.to(dtype)
    for rounded, exact in zip(module.state_dict().values(), truth.state_dict().values(), strict=True):
        exact.copy_(rounded)  # what learns alone: a table of angles would show
    x = read(dtype)
    wide = x.double() if x.is_floating_point() else x
    far = {"positions": torch.arange(LENGTH) * 1009} if _has_free_positions(module) else {}
    expected = truth(wide, **far) if far else call(truth, wide)

    for part in truth.modules():
        if isinstance(part, ROUNDED):
            part.register_forward_hook(
                lambda _, __, output: output if isinstance(output, tuple) else output.to(dtype).double()
            )
    reference = truth(wide, **far) if far else call(truth, wide)
    found = module(x, **far) if far else call(module, x)
    assert found.dtype == dtype
    band = float(expected.abs().max()) * torch.finfo(dtype).eps / 2
    budget = 2 * float((reference - expected).abs().max()) + band
    assert float((found.double() - expected).abs().max()) <= budget


def _has_free_positions(module):
    """Whether a module reads positions, and no table ends them."""
    if isinstance(module, MultiHeadAttention):
        return module.config.position is not None
    return isinstance(module, LanguageModel) and module.body.positions is None


# Texts, by every kind of positions


@pytest.mark.parametrize("checkpoint", ["none", "selective", "full"])
@pytest.mark.parametrize("placement", [*PLACEMENTS, "parallel"])
@pytest.mark.parametrize("position", POSITIONS)
@torch.no_grad()
def test_blocks_see_padded_and_packed_texts_as_alone(position, placement, checkpoint):
    settings = {"parallel": True} if placement == "parallel" else {"norm_placement": placement}
    torch.manual_seed(0)
    block = Block(block_config(position=POSITIONS[position], **settings), checkpoint=checkpoint).double()
    x, lengths = tokens(), torch.tensor([7, 4, 1])
    restart = (torch.arange(LENGTH) - (LENGTH - lengths[:, None])).clamp(min=0)
    left = {} if position == "none" else {"positions": restart}
    with torch.set_grad_enabled(checkpoint != "none"):
        together = block(x, mask=KeyPadding(lengths, side="left", padded_len=LENGTH), **left)
        for row, length in enumerate(lengths):
            alone = block(x[row : row + 1, LENGTH - length :])
            torch.testing.assert_close(together[row : row + 1, LENGTH - length :], alone, **EXACT)
        packing = {} if position == "none" else {"positions": torch.tensor([0, 1, 2, 0, 1, 2, 3])}
        packed = block(x, mask=Documents(torch.tensor([3, 4])), **packing)
        torch.testing.assert_close(packed[:, :3], block(x[:, :3]), **EXACT)
        torch.testing.assert_close(packed[:, 3:], block(x[:, 3:]), **EXACT)
        changed = x.clone()
        changed[:, 4:] = 1e3
        assert torch.equal(block(changed)[:, :4], block(x)[:, :4])


@pytest.mark.parametrize("places", [0, PLACES], ids=["no table", "table"])
@pytest.mark.parametrize("position", POSITIONS)
@torch.no_grad()
def test_models_see_padded_and_packed_texts_as_alone(position, places):
    torch.manual_seed(0)
    config = model_config(head=LANGUAGE, position=POSITIONS[position], places=places)
    model = LanguageModel(config).double().eval()
    x, lengths, has_positions = ids(), torch.tensor([7, 4, 1]), position != "none" or places
    restart = (torch.arange(LENGTH) - (LENGTH - lengths[:, None])).clamp(min=0)
    left = {"positions": restart} if has_positions else {}
    together = model(x, mask=KeyPadding(lengths, side="left", padded_len=LENGTH), **left)
    for row, length in enumerate(lengths):
        alone = model(x[row : row + 1, LENGTH - length :])
        torch.testing.assert_close(together[row : row + 1, LENGTH - length :], alone, **EXACT)
    packing = {"positions": torch.tensor([0, 1, 2, 0, 1, 2, 3])} if has_positions else {}
    packed = {"mask": Documents(torch.tensor([3, 4])), **packing}
    torch.testing.assert_close(model(x, **packed)[:, :3], model(x[:, :3]), **EXACT)
    torch.testing.assert_close(model(x, **packed)[:, 3:], model(x[:, 3:]), **EXACT)
    # the first token of the second text is foretold by no one
    labels = x.clone()
    labels[:, 3] = -100
    losses = [model.loss(x[:, part]) for part in (slice(0, 3), slice(3, 7))]
    # the mean over 2 and 3 tokens; a loss is float32, which rounds numbers below 8 by 2.4e-7, some ten times
    expected = (2 * losses[0] + 3 * losses[1]) / 5
    torch.testing.assert_close(model.loss(x, labels=labels, **packed), expected, rtol=0, atol=5e-6)


@pytest.mark.parametrize("per_token", [False, True])
@torch.no_grad()
def test_a_classifier_sees_padded_texts_as_alone(per_token):
    torch.manual_seed(0)
    config = model_config(head=replace(CLASSES, per_token=per_token), position=T5Bias(), causal=False)
    model, x, lengths = Classifier(config).double().eval(), ids(), torch.tensor([7, 4, 1])
    together = model(x, lengths=lengths)
    for row, length in enumerate(lengths):
        found = together[row : row + 1, :length] if per_token else together[row : row + 1]
        torch.testing.assert_close(found, model(x[row : row + 1, :length]), **EXACT)


@pytest.mark.parametrize("kind", ["c3tr", "patches"])
@torch.no_grad()
def test_configs_go_through_pickle(kind):
    config = make(kind)[0].config
    assert pickle.loads(pickle.dumps(config)) == config
    assert hash(pickle.loads(pickle.dumps(config))) == hash(config)


def test_configs_of_texts_go_through_pickle_with_their_masks():
    for config in (model_config(head=LANGUAGE, position=Rotary()), block_config(position=T5Bias())):
        twin = pickle.loads(pickle.dumps(config))
        assert twin == config and hash(twin) == hash(config)
    masked = replace(block_config().attention, mask=Causal() & ~SlidingWindow(2) | SlidingWindow(1))
    twin = pickle.loads(pickle.dumps(masked))
    assert twin == masked and hash(twin) == hash(masked)


# Names of weights are a promise to those who have saved some


def shapes(module):
    return {name: tuple(tensor.shape) for name, tensor in module.state_dict().items()}


def test_names_and_shapes_of_an_attentions_weights():
    projections = {f"{part}_proj.weight": (12, 12) for part in ("q", "k", "v", "out")}
    biases = {f"{part}_proj.bias": (12,) for part in ("q", "k", "v", "out")}
    assert shapes(MultiHeadAttention(WIDTH, HEADS)) == projections | biases
    assert list(shapes(MultiHeadAttention(WIDTH, HEADS, projection_bias=False))) == list(projections)
    for position in (Rotary(), ALiBi()):
        assert shapes(MultiHeadAttention(WIDTH, HEADS, position=position)) == projections | biases
    assert shapes(make("attention, all at once")[0]) == {
        "sink": (6,),
        "qkv_proj.weight": (6 * 4 + 2 * 4 + 2 * 5, 12),
        "qkv_proj.bias": (6 * 4 + 2 * 4 + 2 * 5,),
        "out_proj.weight": (12, 6 * 5),
        "q_norm.weight": (4,),
        "k_norm.weight": (4,),
        "relative_bias.table": (8, 6),
    }
    cross = MultiHeadAttention(WIDTH, HEADS, key_dim=5, value_dim=7, v_head_dim=2, projection_bias=False)
    assert shapes(cross) == {
        "q_proj.weight": (12, 12),
        "k_proj.weight": (12, 5),
        "v_proj.weight": (6, 7),
        "out_proj.weight": (12, 6),
    }


NORMS = {
    "pre": ["attention_norm", "feed_forward_norm"],
    "post": ["attention_norm", "feed_forward_norm"],
    "both": ["attention_norm", "attention_output_norm", "feed_forward_norm", "feed_forward_output_norm"],
    "output": ["attention_output_norm", "feed_forward_output_norm"],
}


def shapes_of_block(norms, *, gated=False):
    attention = {f"attention.{part}_proj.weight": (12, 12) for part in ("q", "k", "v", "out")}
    attention |= {f"attention.{part}_proj.bias": (12,) for part in ("q", "k", "v", "out")}
    inner = {f"feed_forward.{part}_proj.weight": (19, 12) for part in (("gate", "up") if gated else ("up",))}
    inner |= {f"feed_forward.{part}_proj.bias": (19,) for part in (("gate", "up") if gated else ("up",))}
    outer = {"feed_forward.down_proj.weight": (12, 19), "feed_forward.down_proj.bias": (12,)}
    return attention | inner | outer | {f"{norm}.{kind}": (12,) for norm in norms for kind in ("weight", "bias")}


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_names_and_shapes_of_a_blocks_weights(placement):
    for checkpoint in ("none", "selective", "full"):
        block = Block(block_config(norm_placement=placement), checkpoint=checkpoint)
        assert shapes(block) == shapes_of_block(NORMS[placement])
    shared = shapes(Block(block_config(parallel=True, shared_norm=True)))
    assert shared == shapes_of_block(NORMS["pre"])  # one norm by two names
    gated = replace(block_config(), feed_forward=FeedForwardConfig(embed_dim=WIDTH, hidden_dim=HIDDEN, gated=True))
    assert shapes(Block(gated)) == shapes_of_block(NORMS["pre"], gated=True)


def test_names_and_shapes_of_a_models_weights():
    block = shapes_of_block(NORMS["pre"])
    body = {"token_table.weight": (29, 12), "positions.table": (17, 12), "norm.weight": (12,), "norm.bias": (12,)}
    body |= {f"blocks.{index}.{name}": shape for index in range(2) for name, shape in block.items()}
    assert shapes(build(model_config())) == body
    model = {f"body.{name}": shape for name, shape in body.items()}
    assert shapes(build(model_config(head=LANGUAGE))) == model | {"projection.weight": (29, 12)}
    assert shapes(build(model_config(head=replace(LANGUAGE, tied=True)))) == model
    classes = {"projection.weight": (5, 12), "projection.bias": (5,)}
    assert shapes(build(model_config(head=CLASSES))) == model | classes


def test_names_and_shapes_of_the_weights_of_modules_that_look_at_images():
    stage = {
        f"blocks.{index}.{name}": shape for index in range(2) for name, shape in shapes_of_block(NORMS["pre"]).items()
    }
    stage |= {"final_norm.weight": (12,), "final_norm.bias": (12,)}
    patches = {"patch_proj.weight": (12, 5, 3, 3), "patch_proj.bias": (12,)}
    assert shapes(make("patches")[0]) == patches | {f"stage.{name}": shape for name, shape in stage.items()}
    around = {}
    for part, (inner, outer) in {"cv1": (5, 12), "cv2": (5, 12), "cv3": (24, 24)}.items():
        around |= {f"{part}.conv.weight": (outer, inner, 1, 1), f"{part}.bn.num_batches_tracked": ()}
        around |= {f"{part}.bn.{name}": (outer,) for name in ("weight", "bias", "running_mean", "running_var")}
    inside = {f"m.{name}": shape for name, shape in stage.items()}
    assert shapes(C3TR(5, 24, 2, num_heads=HEADS, hidden_dim=HIDDEN)) == around | inside


# Graphs

GRAPHS = """
import torch
from torch._dynamo.testing import CompileCounterWithBackend
from headwise.config.attention import AttentionConfig, Rotary, T5Bias
from headwise.config.block import BlockConfig, FeedForwardConfig
from headwise.masks.data import KeyPadding
from headwise.masks.patterns import Causal, SlidingWindow
from headwise.nn.block import Block
from headwise.nn.multihead import MultiHeadAttention
from headwise.nn.vision import PatchEncoder

torch.set_num_threads(1)


def block(checkpoint="none", **settings):
    attention = AttentionConfig(embed_dim=12, num_heads=3, mask=Causal(), position=Rotary())
    feed_forward = FeedForwardConfig(embed_dim=12, hidden_dim=19, gated=True, activation="silu")
    config = BlockConfig(attention=attention, feed_forward=feed_forward, norm="rmsnorm", **settings)
    return Block(config, checkpoint=checkpoint)


cases = [
    ("aot_eager", MultiHeadAttention(12, 6, num_kv_heads=2, head_dim=4, mask=Causal(), position=Rotary()), {}),
    ("eager", MultiHeadAttention(12, 3, mask=SlidingWindow(2), sink=True, position=T5Bias(), fused_qkv=True), {}),
    ("eager", MultiHeadAttention(12, 3), {"mask": KeyPadding(torch.tensor([5, 3]))}),
    ("eager", block("full", norm_placement="both"), {}),
    ("eager", PatchEncoder(2, 12, 3, 1, num_channels=3), {}),
]
for backend, module, call in cases:
    counter = CompileCounterWithBackend(backend)
    compiled = torch.compile(module, backend=counter, fullgraph=True)
    shape = (2, 3, 4, 6) if isinstance(module, PatchEncoder) else (2, 5, 12)
    for seed in range(3):
        x = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
        results = []
        for run in (compiled, module):
            leaf = x.clone().requires_grad_()
            output = run(leaf, **call)
            results.append((output.detach(), *torch.autograd.grad(output.square().sum(), [leaf, *module.parameters()])))
        # a graph runs the same operations, in the same order or in one that rounds float32 sums otherwise
        torch.testing.assert_close(results[0], results[1], rtol=1e-4, atol=1e-4)
    assert counter.frame_count == 1, (module, counter.frame_count)  # one graph, and none anew for more of the same
    if not call and not isinstance(module, PatchEncoder):
        for length in (7, 11, 9):
            x = torch.randn(2, length, 12)
            torch.testing.assert_close(compiled(x), module(x), rtol=1e-4, atol=1e-4)
        assert counter.frame_count == 2, (module, counter.frame_count)  # one more, for any length
    torch._dynamo.reset()
"""


def test_modules_compile_in_one_graph_and_once():
    """In an interpreter of its own: the type checks that the other tests run with cannot be compiled."""
    result = subprocess.run([sys.executable, "-c", GRAPHS], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
