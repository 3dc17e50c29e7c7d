"""What no module can do is refused by name, with what must hold and what came, never by an error of torch's."""

import math
import re
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
import torch

from headwise.config.attention import ALiBi, AttentionConfig, Rotary, T5Bias
from headwise.config.block import BlockConfig, FeedForwardConfig
from headwise.config.checks import shown
from headwise.config.head import OutputHead
from headwise.config.model import ModelConfig
from headwise.config.scaling import DynamicNTKScaling
from headwise.errors import ConfigError, HeadwiseError, UnsupportedError
from headwise.masks.bigbird import BigBird
from headwise.masks.data import KeyPadding
from headwise.masks.patterns import Causal, Full, SlidingWindow
from headwise.masks.sparse import Dilated, GlobalTokens, LocalWindow, PrefixLM, Strided
from headwise.masks.tables import Documents, Explicit
from headwise.nn.block import Block, FeedForward
from headwise.nn.build import build
from headwise.nn.c3tr import C3TR
from headwise.nn.classifier import Classifier
from headwise.nn.language_model import LanguageModel
from headwise.nn.multihead import MultiHeadAttention
from headwise.nn.torch_multihead import TorchMultiheadAttention
from headwise.nn.transformer import Transformer
from headwise.nn.vision import PatchEncoder, TransformerStage, grid_sinusoids
from headwise.ops.obstacles import IMPLS

pytestmark = pytest.mark.usefixtures("without_type_checks")

BATCH, LENGTH, KEYS, WIDTH, HEADS, VOCAB = 2, 5, 7, 12, 3, 29


def refuses(error, text):
    """Expect an error whose text is exactly this."""
    return pytest.raises(error, match=f"^{re.escape(text)}$")


def block_config(**settings):
    attention = AttentionConfig(embed_dim=WIDTH, num_heads=HEADS, mask=Causal(), **settings)
    return BlockConfig(attention=attention, feed_forward=FeedForwardConfig(embed_dim=WIDTH, hidden_dim=19))


def model_config(head=None, **settings):
    return ModelConfig(
        name="own",
        model_type="headwise",
        kind="decoder",
        embed_dim=WIDTH,
        vocab_size=VOCAB,
        max_positions=LENGTH,
        position_table_size=LENGTH,
        blocks=(block_config(**settings),),
        head=head,
    )


LANGUAGE = OutputHead(kind="language_model", num_outputs=VOCAB)
CLASSES = OutputHead(kind="classifier", num_outputs=4, per_token=False)

# Settings

MAKERS = {
    "attention": (MultiHeadAttention, {"embed_dim": WIDTH, "num_heads": HEADS}),
    "torch's": (TorchMultiheadAttention, {"embed_dim": WIDTH, "num_heads": HEADS}),
    "patches": (PatchEncoder, {"patch_size": 3, "embed_dim": WIDTH, "num_heads": HEADS, "num_layers": 1}),
    "c3tr": (C3TR, {"in_channels": 5, "out_channels": 24, "num_heads": HEADS}),
    "stage": (TransformerStage, {"block": block_config(), "num_layers": 1}),
}
# where a setting may be left out, None asks for the default
SIZES = {
    "attention": ["embed_dim", "num_heads", "num_kv_heads", "head_dim", "v_head_dim", "key_dim", "value_dim"],
    "torch's": ["embed_dim", "num_heads", "kdim", "vdim"],
    "patches": ["patch_size", "embed_dim", "num_heads", "num_layers", "num_channels", "hidden_dim"],
    "c3tr": ["in_channels", "out_channels", "num_layers", "num_heads", "hidden_dim"],
    "stage": ["num_layers"],
}
NUMBERS = {
    "attention": ["qk_norm_eps", "scale", "softcap", "dropout_p"],
    "torch's": ["dropout"],
    "patches": ["dropout_p"],
    "c3tr": ["expansion", "norm_eps"],
}
FLAGS = {
    "attention": ["qk_norm", "sink", "fused_qkv"],
    "torch's": ["add_bias_kv", "add_zero_attn", "batch_first"],
    "c3tr": ["compatible"],
}
NO_SIZE = [True, False, 1.5, 12.0, math.nan, math.inf, -1, 0, 2**31, 10**400, "8", b"8", [8], Fraction(8)]
NO_NUMBER = [True, math.nan, math.inf, -math.inf, 10**400, "0.5", [0.5], 1j, torch.tensor(0.5)]
NO_FLAG = [1, 0, 1.0, "True", [], torch.tensor(True)]


def cases(table):
    return [(maker, name) for maker, names in table.items() for name in names]


@pytest.mark.parametrize(("maker", "name"), cases(SIZES))
def test_a_size_that_is_none_is_refused(maker, name):
    make, settings = MAKERS[maker]
    for value in NO_SIZE:
        with pytest.raises(ConfigError, match=r"must be (a whole number|between 1 and \d+); got "):
            make(**{**settings, name: value})


@pytest.mark.parametrize(("maker", "name"), cases(NUMBERS))
def test_a_number_that_is_none_is_refused(maker, name):
    make, settings = MAKERS[maker]
    for value in NO_NUMBER:
        with pytest.raises(ConfigError, match="must be a finite number; got "):
            make(**{**settings, name: value})


@pytest.mark.parametrize(("maker", "name"), cases(FLAGS))
def test_a_flag_is_true_or_false_and_no_number(maker, name):
    make, settings = MAKERS[maker]
    for value in NO_FLAG:
        with pytest.raises(ConfigError, match=f"{name} must be True or False; got "):
            make(**{**settings, name: value})


LAYER_MASK = "mask of a layer must be a structural mask (Full, Causal, SlidingWindow and their combinations)"


@pytest.mark.parametrize(
    ("settings", "error", "text"),
    [
        ({"dropout_p": -0.1}, ConfigError, "dropout_p must be at least 0 and below 1; got -0.1"),
        ({"softcap": 0.0}, ConfigError, "softcap must be positive; got 0.0"),
        ({"projection_bias": "q"}, ConfigError, "projection_bias must be True, False or \"qkv\"; got 'q'"),
        ({"position": Rotary}, ConfigError, f"position must be Rotary, ALiBi, T5Bias or None; got {shown(Rotary)}"),
        (
            {"head_dim": 6, "position": Rotary(rotary_dim=8)},
            ConfigError,
            "rotary_dim must not exceed head_dim; got 8 and 6",
        ),
        (
            {"position": T5Bias(num_buckets=3)},
            ConfigError,
            "num_buckets must be at least 4, and max_distance above the number of distances that have a bucket each, "
            "0; got 3 and 128",
        ),
        (
            {"value_dim": 7, "fused_qkv": True},
            ConfigError,
            "queries, keys and values must come from tokens of one width for fused_qkv, and for positions, which are "
            "those of one text; "
            "got 12, 12 and 7",
        ),
        (
            {"mask": KeyPadding(torch.tensor([2, 3]))},
            ConfigError,
            f"{LAYER_MASK}; got {shown(KeyPadding(torch.tensor([2, 3])))}; give data masks to the call",
        ),
        (
            {"mask": torch.ones(3, 3) > 0},
            ConfigError,
            f"{LAYER_MASK}; got {shown(torch.ones(3, 3) > 0)}; give data masks to the call",
        ),
        ({"impl": None}, UnsupportedError, f"impl must be one of {', '.join(IMPLS)} and auto; got None"),
        ({"impl": 1}, UnsupportedError, f"impl must be one of {', '.join(IMPLS)} and auto; got 1"),
    ],
    ids=str,
)
def test_settings_that_contradict_each_other_are_refused(settings, error, text):
    with refuses(error, text):
        MultiHeadAttention(WIDTH, HEADS, **settings)


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.complex64, "float32", 32])
def test_the_dtype_of_a_drop_in_is_a_floating_point_one(dtype):
    with pytest.raises(ConfigError, match=r"^dtype must be a floating-point dtype of torch, or None; got "):
        TorchMultiheadAttention(WIDTH, HEADS, dtype=dtype)


@pytest.mark.parametrize(
    ("make", "kind"),
    [
        (MultiHeadAttention.from_config, "AttentionConfig"),
        (Block, "BlockConfig"),
        (FeedForward, "FeedForwardConfig"),
        (Transformer, "ModelConfig"),
        (LanguageModel, "ModelConfig"),
        (Classifier, "ModelConfig"),
        (build, "ModelConfig"),
        (PatchEncoder.from_config, "PatchEncoderConfig"),
        (C3TR.from_config, "C3TRConfig"),
        (lambda config: TransformerStage(config, 1), "BlockConfig"),
    ],
)
def test_another_description_is_refused(make, kind):
    for config in (None, {"embed_dim": 8}, Rotary(), "bert-base"):
        with refuses(ConfigError, f"config must be of type {kind}; got {shown(config)}"):
            make(config)


def test_a_grid_of_no_number_is_refused():
    with refuses(ConfigError, "num_rows must be a whole number; got 2.0"):
        grid_sinusoids(2.0, 3, 8)
    with refuses(ConfigError, "num_columns must be between 0 and 2147483647; got -3"):
        grid_sinusoids(2, -3, 8)
    assert grid_sinusoids(0, 3, 8).shape == (0, 8)


# Calls

POSITIONS = [None, Rotary(), Rotary(scaling=DynamicNTKScaling(factor=2.0, original_max_positions=3)), ALiBi(), T5Bias()]


def tokens(length=LENGTH, width=WIDTH, batch=BATCH):
    return torch.randn(batch, length, width)


def jagged():
    return torch.nested.as_nested_tensor([tokens()[0], tokens()[0, :2]], layout=torch.jagged)


SHAPES = [(), (WIDTH,), (LENGTH, WIDTH), (1, BATCH, LENGTH, WIDTH), (BATCH, LENGTH, 0), (BATCH, LENGTH, WIDTH - 1)]
CAST = "(cast one of the two, or use torch.autocast)"
UNCAST = "(cast one of the two, autocast casts floats alone, and no float64)"
WEIGHTS = "must have the dtype and device of the weights, torch.float32 on cpu; got"


def calls():
    """Each module that reads vectors of tokens: its name of them, of their width, and how to call it with them."""
    for position in POSITIONS:
        yield "query", MultiHeadAttention(WIDTH, HEADS, position=position)
    yield "query", MultiHeadAttention(WIDTH, HEADS, fused_qkv=True)
    for checkpoint in ("none", "selective", "full"):
        yield "tokens", Block(block_config(), checkpoint=checkpoint)
    drop_in = TorchMultiheadAttention(WIDTH, HEADS, batch_first=True)
    yield "query", lambda x: drop_in(x, x, x)


@pytest.mark.parametrize("value", [None, "x", 3, [[[0.0] * WIDTH]], np.zeros((BATCH, LENGTH, WIDTH))], ids=type)
def test_what_is_no_tensor_is_refused(value):
    for name, call in calls():
        with pytest.raises(ConfigError, match=f"^{name} must be a tensor; got "):
            call(value)


@pytest.mark.parametrize("shape", SHAPES)
def test_a_shape_that_does_not_fit_is_refused(shape):
    for name, call in calls():
        if callable(call) and not isinstance(call, torch.nn.Module):
            continue  # torch's own layer takes one text without its batch size: its tests say more
        with refuses(ConfigError, f"{name} must have shape (batch, seq_len, embed_dim = 12); got {shape}"):
            call(torch.zeros(shape))


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
def test_nested_and_sparse_tensors_are_refused():
    for name, call in calls():
        for made, got in (
            (
                jagged(),
                "nested one (torch's nn.TransformerEncoder makes it so, unless its use_nested_tensor is set to False)",
            ),
            (tokens().to_sparse(), "sparse one (to_dense() makes it plain)"),
        ):
            text = f"{name} must be a plain tensor, padded where texts differ in length; got a {got}"
            with refuses(UnsupportedError, text):
                call(made)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.int64, torch.uint8, torch.bool, torch.complex64])
def test_another_dtype_than_that_of_the_weights_is_refused(dtype):
    for name, call in calls():
        # torch's norm lets half numbers pass: then it is the attention inside of a block that is asked for them
        told = "query" if name == "tokens" and dtype == torch.float16 else name
        with refuses(ConfigError, f"{told} {WEIGHTS} {dtype} on cpu {CAST}"):
            call(tokens().to(dtype))


def test_another_device_than_that_of_the_weights_is_refused():
    for name, call in calls():
        with refuses(ConfigError, f"{name} {WEIGHTS} torch.float32 on meta {CAST}"):
            call(tokens().to("meta"))


def test_which_of_the_three_it_is_is_said():
    layer, x, y = MultiHeadAttention(WIDTH, HEADS), tokens(), tokens(KEYS)
    with refuses(ConfigError, f"key {WEIGHTS} torch.float64 on cpu {CAST}"):
        layer(x, y.double(), y)
    with refuses(ConfigError, f"value {WEIGHTS} torch.int64 on cpu {CAST}"):
        layer(x, y, y.long())
    with refuses(ConfigError, "key must be a tensor; got 'y'"):
        layer(x, "y")
    with refuses(ConfigError, "value must be a tensor; got 0"):
        layer(x, y, 0)
    for other in (tokens(KEYS, batch=1), tokens(KEYS, batch=3)):
        with refuses(ConfigError, f"key must have the batch size of the query, 2; got {other.shape[0]}"):
            layer(x, other)
        with refuses(
            ConfigError, f"value must have the batch size and length of the key, (2, 7); got {(*other.shape[:2],)}"
        ):
            layer(x, y, other)
    with refuses(ConfigError, "value must have the batch size and length of the key, (2, 7); got (2, 5)"):
        layer(x, y, x)
    with refuses(ConfigError, "key must have shape (batch, seq_len, key_dim = 7); got (2, 5, 12)"):
        MultiHeadAttention(WIDTH, HEADS, key_dim=7)(x)
    with refuses(ConfigError, "value must have shape (batch, seq_len, value_dim = 7); got (2, 7, 12)"):
        MultiHeadAttention(WIDTH, HEADS, value_dim=7)(x, y)


def test_under_autocast_other_floats_are_cast_and_other_kinds_refused():
    layer, x = MultiHeadAttention(WIDTH, HEADS), tokens()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert layer(x.half()).dtype == torch.bfloat16
        for name, call in calls():
            for dtype in (torch.int64, torch.float64):
                with refuses(ConfigError, f"{name} {WEIGHTS} {dtype} on cpu {UNCAST}"):
                    call(tokens().to(dtype))
        assert layer.double()(x.double()).dtype == torch.float64
        with refuses(
            ConfigError,
            "query must have the dtype and device of the weights, torch.float64 on cpu; got torch.float32 on cpu "
            f"{UNCAST}",
        ):
            layer(x)


def test_an_error_that_is_no_matter_of_dtypes_stays_what_it_is():
    layer = MultiHeadAttention(WIDTH, HEADS)
    layer.v_proj.register_forward_hook(lambda *_: torch.ones(2) @ torch.ones(3))
    with pytest.raises(RuntimeError, match="inconsistent tensor size"):
        layer(tokens())


class Refusing(torch.nn.Module):
    """A linear map whose product fails, with its weight kept as whole numbers, as 4 bits are, or in another dtype."""

    def __init__(self, error, dtype):
        super().__init__()
        self.error = error
        self.weight = torch.nn.Parameter(torch.zeros(3, dtype=dtype), requires_grad=False)

    def forward(self, *_):
        raise self.error


def modules_of(make):
    """Each kind of module that explains torch's refusals, with all linear maps replaced, and what it takes."""
    stage, encoder = C3TR(5, 24, num_heads=HEADS), PatchEncoder(3, WIDTH, HEADS, 1, num_channels=5)
    block, layer = Block(block_config()), MultiHeadAttention(WIDTH, HEADS)
    for module in (stage, encoder, block, layer):
        for path, part in list(module.named_modules()):
            if isinstance(part, torch.nn.Linear | torch.nn.Conv2d):
                owner, _, name = path.rpartition(".")
                setattr(module.get_submodule(owner), name, make())
    yield stage, torch.randn(BATCH, 5, 7, 8)
    yield encoder, torch.randn(BATCH, 5, 7, 8)
    yield block, tokens()
    yield layer, tokens()


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("no memory"), RuntimeError("the kernel of 4 bits")], ids=type)
def test_an_error_of_weights_that_are_stored_in_another_way_stays_what_it_is(error):
    for module, x in modules_of(lambda: Refusing(error, torch.uint8)):
        with pytest.raises(type(error), match=str(error)):
            module(x.half())  # torch's norm lets half numbers pass, and its own weights are no half numbers


def test_memory_that_ran_out_is_told_of_though_the_dtype_is_another():
    error = torch.OutOfMemoryError("no memory")
    for module, x in modules_of(lambda: Refusing(error, torch.float32)):
        with pytest.raises(torch.OutOfMemoryError, match="no memory"):
            module(x.half())


def test_a_module_without_weights_explains_nothing():
    layer = MultiHeadAttention(WIDTH, HEADS, projection_bias=False)
    for name in ("q_proj", "k_proj", "v_proj", "out_proj"):
        part = Refusing(RuntimeError("packed weights"), torch.uint8)
        del part.weight
        setattr(layer, name, part)
    with pytest.raises(RuntimeError, match="packed weights"):
        layer(tokens())


@pytest.mark.parametrize("position", POSITIONS[1:], ids=lambda one: type(one).__name__)
def test_positions_that_do_not_fit_are_refused_alike_by_every_kind(position):
    layer, x, places = MultiHeadAttention(WIDTH, HEADS, position=position), tokens(), torch.arange(LENGTH)
    for wrong, came in (
        ([0, 1, 2, 3, 4], "[0, 1, 2, 3, 4]"),
        (3, "3"),
        (torch.tensor(3), "torch.int64 of shape ()"),
        (places[:4], "torch.int64 of shape (4,)"),
        (places[:1], "torch.int64 of shape (1,)"),
        (places[None], "torch.int64 of shape (1, 5)"),
        (places[None].expand(3, -1), "torch.int64 of shape (3, 5)"),
        (places[None, None], "torch.int64 of shape (1, 1, 5)"),
        (places.float(), "torch.float32 of shape (5,)"),
        (places > 1, "torch.bool of shape (5,)"),
        (places.to(torch.complex64), "torch.complex64 of shape (5,)"),
    ):
        with refuses(ConfigError, f"positions must hold one whole number a token, shape (5,) or (2, 5); got {came}"):
            layer(x, positions=wrong)
    with refuses(ConfigError, "positions must be on the device of the tokens, cpu; got meta"):
        layer(x, positions=places.to("meta"))
    across = (
        "a layer with positions must attend within one text, since they encode distances there; got a key of its own; "
        "leave key and value out, or build the layer with position=None"
    )
    with refuses(UnsupportedError, across):
        layer(x, tokens(KEYS))


@pytest.mark.parametrize("position", POSITIONS[1:], ids=lambda one: type(one).__name__)
@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.int32, torch.uint16], ids=str)
@torch.no_grad()
def test_positions_of_any_whole_dtype_mean_the_same(position, dtype):
    """In a narrow dtype distances of -1, and lengths of 128, would wrap around."""
    layer, x = MultiHeadAttention(WIDTH, HEADS, position=position), tokens()
    places = torch.tensor([127, 3, 0, 1, 2])
    assert torch.equal(layer(x, positions=places.to(dtype)), layer(x, positions=places))


def test_a_mask_that_is_none_is_refused_with_the_reason():
    layer, x = MultiHeadAttention(WIDTH, HEADS), tokens()
    for wrong, kind in (
        (torch.ones(LENGTH, LENGTH) > 0, "torch.bool Tensor"),
        (torch.zeros(LENGTH, LENGTH), "torch.float32 Tensor"),
        ("causal", "str"),
        (True, "bool"),
        (Causal, "type"),
    ):
        with pytest.raises(ConfigError, match=f"mask must be a headwise Mask, .*; got a {kind} "):
            layer(x, mask=wrong)
    for lengths in ([5], [5, 3, 1]):
        with pytest.raises(ConfigError, match=r"must have as many rows as the batch; got .* for a batch of 2$"):
            layer(x, mask=KeyPadding(torch.tensor(lengths)))
    with pytest.raises(HeadwiseError, match=r"a mask must be on the device of the call, cpu; got .* on meta$"):
        layer(x, mask=KeyPadding(torch.tensor([5, 3], device="meta")))


@pytest.mark.parametrize("position", POSITIONS, ids=lambda one: type(one).__name__)
@torch.no_grad()
def test_no_texts_no_tokens_and_one_token_are_no_matter(position):
    layer = MultiHeadAttention(WIDTH, HEADS, position=position)
    for batch, length in ((0, LENGTH), (BATCH, 0), (0, 0)):
        assert layer(tokens(length, batch=batch)).shape == (batch, length, WIDTH)
    one = layer.attend(tokens(1), return_weights=True)
    assert torch.equal(one.weights, torch.ones(BATCH, HEADS, 1, 1))
    if position is None:  # nobody to look at: the bias of out_proj
        torch.nn.init.uniform_(layer.out_proj.bias)
        assert torch.equal(layer(tokens(), tokens(0)), layer.out_proj.bias.expand(BATCH, LENGTH, WIDTH))


# torch's layer


def test_masks_of_a_drop_in_are_tensors():
    layer, x = TorchMultiheadAttention(WIDTH, HEADS, batch_first=True), tokens()
    for name in ("key_padding_mask", "attn_mask"):
        text = (
            f"{name} must be a tensor, True = drop or floats to add; got Causal() (masks of headwise are for "
            "headwise.MultiHeadAttention)"
        )
        with refuses(ConfigError, text):
            layer(x, x, x, **{name: Causal()})
    with pytest.raises(
        ConfigError, match=r"^key_padding_mask must be bools, True = drop, or floats .* got torch.int64"
    ):
        layer(x, x, x, key_padding_mask=torch.ones(BATCH, LENGTH, dtype=torch.int64))
    with pytest.raises(HeadwiseError, match=r"a mask must be on the device of the call, cpu; got .* on meta"):
        layer(x, x, x, key_padding_mask=torch.zeros(BATCH, LENGTH, dtype=torch.bool, device="meta"))


# Whole models


def models():
    for make in (
        lambda: Transformer(model_config()),
        lambda: LanguageModel(model_config(LANGUAGE)),
        lambda: Classifier(model_config(CLASSES)),
    ):
        model = make()
        yield model
    model = LanguageModel(model_config(LANGUAGE))
    yield model.loss
    yield model.score


def ids(length=LENGTH):
    return torch.arange(length).expand(BATCH, length)


def test_ids_are_one_whole_number_a_token():
    for wrong, came in (
        (None, "None"),
        ([[1, 2]], "[[1, 2]]"),
        (ids().float(), "torch.float32 of shape (2, 5)"),
        (ids() > 1, "torch.bool of shape (2, 5)"),
        (ids()[0], "torch.int64 of shape (5,)"),
        (ids()[None], "torch.int64 of shape (1, 2, 5)"),
    ):
        for call in models():
            with refuses(ConfigError, f"ids must hold one whole number a token, shape (batch, seq_len); got {came}"):
                call(wrong)


def test_ids_that_the_vocabulary_lacks_are_refused():
    for wrong in (-1, VOCAB, 2**40):
        for call in models():
            with refuses(ConfigError, f"ids must be from 0 to vocab_size - 1 = 28; got {wrong}"):
                call(ids().masked_fill(ids() == 3, wrong))


def test_ids_on_another_device_than_the_table_are_refused():
    model = LanguageModel(model_config(LANGUAGE)).to("meta")
    assert model(ids().to("meta")).shape == (BATCH, LENGTH, VOCAB)

    def refuse(*_):
        raise RuntimeError("as torch does where one of the two is on a GPU")

    model.body.token_table.register_forward_pre_hook(refuse)
    for call in (model, model.body, model.loss, model.score):
        with refuses(ConfigError, "ids must be on the device of the table, meta; got cpu"):
            call(ids())
    with pytest.raises(RuntimeError, match="as torch does"):
        model(ids().to("meta"))


@pytest.mark.parametrize("places", [0, LENGTH], ids=["without a position table", "with one"])
@torch.no_grad()
def test_ids_without_numbers_are_refused_though_torchs_table_looks_them_up(places):
    for head in (None, LANGUAGE, CLASSES):
        model = build(replace(model_config(head), position_table_size=places))
        with refuses(ConfigError, "ids must be on the device of the table, cpu; got meta"):
            model(ids().to("meta"))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.int32], ids=str)
@torch.no_grad()
def test_ids_and_labels_of_any_whole_dtype_mean_the_same(dtype):
    torch.manual_seed(0)
    model = LanguageModel(model_config(LANGUAGE))
    narrow = ids().to(dtype)
    assert torch.equal(model(narrow), model(ids()))
    assert torch.equal(model.score(narrow), model.score(ids()))
    assert torch.equal(model.loss(narrow, labels=narrow), model.loss(ids()))


def test_labels_are_like_ids_and_of_the_vocabulary():
    model = LanguageModel(model_config(LANGUAGE))
    with refuses(ConfigError, "labels must have the shape and device of ids, (2, 5) on cpu; got (2, 3) on cpu"):
        model.loss(ids(), labels=ids(3))
    with refuses(ConfigError, "labels must have the shape and device of ids, (2, 5) on cpu; got (2, 5) on meta"):
        model.loss(ids(), labels=ids().to("meta"))
    with refuses(
        ConfigError,
        "labels must hold one whole number a token, shape (batch, seq_len); got torch.float32 of shape (2, 5)",
    ):
        model.loss(ids(), labels=ids().float())
    for wrong in (VOCAB, -1):
        with refuses(ConfigError, f"labels must be from 0 to num_outputs - 1 = 28; got {wrong}"):
            model.loss(ids(), labels=ids().masked_fill(ids() == 3, wrong).masked_fill(ids() == 1, -100))
    # what counts is what there is a score of, not what can be read
    narrow, wide = (LanguageModel(model_config(replace(LANGUAGE, num_outputs=number))) for number in (4, VOCAB + 2))
    assert wide.loss(ids(), labels=ids() + VOCAB + 1 - LENGTH).isfinite()
    assert narrow.score(ids(4)).isfinite().all()
    with refuses(ConfigError, "labels must be from 0 to num_outputs - 1 = 3; got 4"):
        narrow.loss(ids())
    with refuses(ConfigError, "ids must be from 0 to num_outputs - 1 = 3; got 4"):
        narrow.score(ids())
    for length in (0, 1):
        text = f"ids must hold at least 2 tokens a text, of which the last is foretold; got {length}"
        with refuses(ConfigError, text):
            model.loss(ids(length))


def with_masks(*masks):
    config = model_config(LANGUAGE)
    block = config.blocks[0]
    blocks = tuple(replace(block, attention=replace(block.attention, mask=mask)) for mask in masks)
    return LanguageModel(replace(config, blocks=blocks))


LATER = [
    Full(),
    ~Causal(),
    LocalWindow(2, 1),
    LocalWindow(2, 1) | GlobalTokens(1),
    Causal() | GlobalTokens(1),
    PrefixLM(2),
    BigBird(3, 2),
    PrefixLM(2) & GlobalTokens(1),
]
NOT_LATER = [
    Causal(),
    SlidingWindow(3),
    LocalWindow(2, 1) & Causal(),
    (LocalWindow(2, 1) | GlobalTokens(1)) & Causal(),
    SlidingWindow(2) | Strided(3),
    Dilated(2, 40),
    PrefixLM(0),
    BigBird(3, 2, causal=True),
    ~Full(),
    ~PrefixLM(2) & SlidingWindow(2),
]


@pytest.mark.parametrize("mask", LATER, ids=repr)
def test_a_model_whose_tokens_read_the_next_one_foretells_nothing(mask):
    model = with_masks(Causal(), mask)
    table = torch.tensor([[bool(mask.allows(0, 0, i, j)) for j in range(LENGTH)] for i in range(LENGTH)])
    assert table.triu(1).any()  # by the mask's own words
    start = (
        "no token may read later ones, where each is foretold from those before it; layer 1 has the mask "
        f"{mask!r}: build layers with mask=Causal(), or give it to the call"
    )
    padding = KeyPadding(torch.tensor([3, 5]))
    lower = Explicit(torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril())  # no table is looked at
    for called in (None, padding, Documents(torch.tensor([2, 3])), Full(), lower):
        with refuses(ConfigError, start):
            model.score(ids(), mask=called)
        with refuses(ConfigError, f"{start}; or give labels, of tokens that ids hide"):
            model.loss(ids(), mask=called)
    assert model.loss(ids(), labels=ids().masked_fill(ids() < 3, -100)).isfinite()
    with refuses(ConfigError, start.replace("layer 1", "layer 0")):
        with_masks(mask, Causal()).score(ids())
    with pytest.raises(ConfigError, match=r"^mask must be a headwise Mask, .*; got a str "):
        model.score(ids(), mask="causal")
    assert model.score(ids(), mask=Causal()).isfinite().all()
    assert model.loss(ids(), mask=padding & Causal()).isfinite()


@pytest.mark.parametrize("mask", NOT_LATER, ids=repr)
@torch.no_grad()
def test_a_model_whose_tokens_read_no_later_one_foretells(mask):
    assert with_masks(mask, Causal()).score(ids()).isfinite().all()
    assert with_masks(mask).loss(ids(), mask=KeyPadding(torch.tensor([3, 5]))).isfinite()
    for call in (with_masks(mask).loss, with_masks(mask).score):
        with pytest.raises(ConfigError, match=r"^mask must be a headwise Mask, .*; got a str "):
            call(ids(), mask="causal")


def test_positions_of_a_model_are_one_whole_number_a_token():
    places = torch.arange(LENGTH)
    for call in models():
        for wrong, came in (
            (places[:1], "torch.int64 of shape (1,)"),
            (places[None], "torch.int64 of shape (1, 5)"),
            (places.float(), "torch.float32 of shape (5,)"),
            ([0], "[0]"),
        ):
            text = f"positions must hold one whole number a token, shape (5,) or (2, 5); got {came}"
            with refuses(ConfigError, text):
                call(ids(), positions=wrong)
        with refuses(ConfigError, "positions must be on the device of the tokens, cpu; got meta"):
            call(ids(), positions=places.to("meta"))


@torch.no_grad()
def test_lengths_of_a_classifier_are_those_of_its_texts():
    model = Classifier(model_config(CLASSES))
    with pytest.raises(ConfigError, match=r"^lengths must be at most padded_len.*got \[9, 2\] and padded_len 5$"):
        model(ids(), lengths=torch.tensor([9, 2]))
    with refuses(ConfigError, "lengths must be a tensor of shape (batch,); got list: [3, 2]"):
        model(ids(), lengths=[3, 2])
    with pytest.raises(ConfigError, match="as many rows as the batch"):
        model(ids(), lengths=torch.tensor([3, 2, 1]))
    nothing = model(ids(0))
    assert torch.equal(nothing, model.projection(torch.zeros(BATCH, WIDTH)))


# Images


@pytest.mark.parametrize("compatible", [False, True])
def test_one_place_in_all_cannot_be_normed_over(compatible):
    block = C3TR(5, 24, num_heads=HEADS, compatible=compatible)
    text = (
        "feature_map must have more than 1 place over the whole batch in training, since batch norms norm over them; "
        "got shape (1, 5, 1, 1) (eval() norms by what was remembered)"
    )
    with refuses(ConfigError, text):
        block(torch.randn(1, 5, 1, 1))
    assert block(torch.randn(2, 5, 1, 1)).shape == (2, 24, 1, 1)
    assert block.eval()(torch.randn(1, 5, 1, 1)).shape == (1, 24, 1, 1)


@pytest.mark.parametrize("name", ["patches", "c3tr", "compatible"])
def test_an_image_that_cannot_be_is_refused(name):
    make, settings = MAKERS["patches" if name == "patches" else "c3tr"]
    module = make(**settings, **({"num_channels": 5} if name == "patches" else {"compatible": name == "compatible"}))
    what, image = "image" if name == "patches" else "feature_map", torch.randn(BATCH, 5, 7, 8)
    for wrong in (None, image.numpy(), [0.0]):
        with pytest.raises(ConfigError, match=f"^{what} must be a tensor; got "):
            module(wrong)
    for dtype in (torch.uint8, torch.float64, torch.float16):
        with refuses(ConfigError, f"{what} {WEIGHTS} {dtype} on cpu {CAST}"):
            module(image.to(dtype))
    told = "tokens" if name == "patches" else what  # torch's convolution lets them pass, and the first block is asked
    with refuses(ConfigError, f"{told} {WEIGHTS} torch.float32 on meta {CAST}"):
        module(image.to("meta"))
    with pytest.raises(
        ConfigError, match=r"(at least patch_size = 3 pixels|at least 1 place) on each side; got 0 by 8$"
    ):
        module(image[:, :, :0])
