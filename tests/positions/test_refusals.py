"""What no module of positions can do is refused by name, with what must hold and what came."""

import math
import re

import jaxtyping
import pytest
import torch

from headwise.config.attention import ALiBi, Rotary, T5Bias
from headwise.config.checks import shown
from headwise.config.scaling import (
    DynamicNTKScaling,
    LinearScaling,
    Llama3Scaling,
    LongRoPEScaling,
    NTKScaling,
    ProportionalScaling,
    YaRNScaling,
)
from headwise.errors import ConfigError
from headwise.masks.patterns import Full
from headwise.ops.attention import attention
from headwise.positions.absolute import LearnedPositions, SinusoidalPositions
from headwise.positions.bias import ALiBiBias, T5RelativeBias
from headwise.positions.grid import GridRotaryPositions, grid_positions
from headwise.positions.rotary import RotaryPositions

BATCH, HEADS, LENGTH, HEAD_DIM = 2, 3, 5, 8


@pytest.fixture(autouse=True)
def without_type_checks():
    """Let wrong types through to the code, as they come for users, whose calls nothing checks."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


def refuses(text):
    """Expect an error whose text is exactly this."""
    return pytest.raises(ConfigError, match=f"^{re.escape(text)}$")


NO_SIZE = [None, True, 1.5, math.nan, "8", [8], -1, 0, 2**31]
NO_POSITIVE = [None, True, math.nan, math.inf, 10**400, "1", -1.0, 0]
MODULES = {
    "sinusoids": (SinusoidalPositions, {"embed_dim": HEAD_DIM}),
    "learned": (LearnedPositions, {"max_positions": 11, "embed_dim": HEAD_DIM}),
    "rotary": (RotaryPositions, {"config": Rotary(), "head_dim": HEAD_DIM}),
    "grid": (GridRotaryPositions, {"config": Rotary(), "head_dim": HEAD_DIM}),
    "ALiBi": (ALiBiBias, {"num_heads": HEADS}),
    "T5": (T5RelativeBias, {"config": T5Bias(), "num_heads": HEADS}),
    "stretched": (LearnedPositions(11, HEAD_DIM).extend, {"max_positions": 13}),
}


@pytest.mark.parametrize(
    ("module", "name"),
    [(module, name) for module, (_, settings) in MODULES.items() for name in settings if name != "config"],
)
def test_a_size_that_is_none_is_refused(module, name):
    make, settings = MODULES[module]
    for value in NO_SIZE:
        with pytest.raises(ConfigError, match=rf"^{name} must be (a whole number|between 1 and \d+); got "):
            make(**{**settings, name: value})


@pytest.mark.parametrize(
    ("make", "names"),
    [
        (lambda **wrong: SinusoidalPositions(HEAD_DIM, **wrong), ["theta"]),
        (Rotary, ["theta"]),
        (LinearScaling, ["factor"]),
        (NTKScaling, ["factor"]),
        (lambda **wrong: DynamicNTKScaling(**{"factor": 2.0, "original_max_positions": 5, **wrong}), ["factor"]),
        (
            lambda **wrong: YaRNScaling(**{"factor": 2.0, "original_max_positions": 5, **wrong}),
            ["factor", "beta_fast", "beta_slow"],
        ),
        (
            lambda **wrong: Llama3Scaling(**{"factor": 2.0, "original_max_positions": 5, **wrong}),
            ["factor", "low_freq_factor", "high_freq_factor"],
        ),
        (
            lambda **wrong: LongRoPEScaling(
                **{"short_factors": (1.0,), "long_factors": (2.0,), "original_max_positions": 5, **wrong}
            ),
            ["factor"],
        ),
    ],
)
def test_a_number_that_must_be_positive_is(make, names):
    for name in names:
        for value in NO_POSITIVE:
            with pytest.raises(ConfigError, match=f"^{name} must be (a finite number|positive); got "):
                make(**{name: value})


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: Rotary(pairing=None), 'pairing must be "half" or "interleaved"; got None'),
        (lambda: Rotary(rotary_dim=3), "rotary_dim must be even, since pairs are turned; got 3"),
        (lambda: Rotary(rotary_dim=0), "rotary_dim must be between 1 and 2147483647; got 0"),
        (
            lambda: Rotary(scaling="yarn"),
            "scaling must be None or one of LinearScaling, NTKScaling, DynamicNTKScaling, YaRNScaling, Llama3Scaling, "
            "LongRoPEScaling, ProportionalScaling; got 'yarn'",
        ),
        (
            lambda: Rotary(theta=1.0, scaling=YaRNScaling(factor=2.0, original_max_positions=5)),
            "theta must be above 1 for YaRN, which counts turns in its powers; got 1.0",
        ),
        (
            lambda: YaRNScaling(factor=2.0, original_max_positions=5, beta_fast=1.0, beta_slow=2.0),
            "beta_fast must be at least beta_slow; got 1.0 and 2.0",
        ),
        (
            lambda: Llama3Scaling(factor=2.0, original_max_positions=5, low_freq_factor=4.0),
            "high_freq_factor must be above low_freq_factor; got 4.0 and 4.0",
        ),
        (
            lambda: LongRoPEScaling(short_factors=[1.0], long_factors=(1.0,), original_max_positions=5),
            "short_factors must be a tuple of one number a pair; got [1.0]",
        ),
        (
            lambda: LongRoPEScaling(short_factors=(1.0,), long_factors=(1.0, 2.0), original_max_positions=5),
            "short_factors and long_factors must hold one number a pair each; got 1 and 2",
        ),
        (lambda: ProportionalScaling(share=1.5), "share must be above 0 and at most 1; got 1.5"),
        (lambda: T5Bias(num_buckets=2.0), "num_buckets must be a whole number; got 2.0"),
        (lambda: T5Bias(is_bidirectional=1), "is_bidirectional must be True or False; got 1"),
        (lambda: T5Bias(owns_table=None), "owns_table must be True or False; got None"),
    ],
)
def test_a_description_that_contradicts_itself_is_refused(make, text):
    with refuses(text):
        make()


@pytest.mark.parametrize(("module", "kind"), [("rotary", "Rotary"), ("grid", "Rotary"), ("T5", "T5Bias")])
def test_another_description_is_refused(module, kind):
    make, settings = MODULES[module]
    for config in (None, "rope", ALiBi(), 10_000.0):
        with refuses(f"config must be of type {kind}; got {shown(config)}"):
            make(**{**settings, "config": config})


PLACES = torch.arange(LENGTH)
NO_PLACES = [
    (None, "None"),
    (3, "3"),
    ([0, 1, 2, 3, 4], "[0, 1, 2, 3, 4]"),
    (PLACES.float(), "torch.float32 of shape (5,)"),
    (PLACES > 1, "torch.bool of shape (5,)"),
    (PLACES.to(torch.complex64), "torch.complex64 of shape (5,)"),
]


@pytest.mark.parametrize(("wrong", "came"), NO_PLACES, ids=[came for _, came in NO_PLACES])
def test_positions_that_are_no_whole_numbers_are_refused(wrong, came):
    for module in (SinusoidalPositions(HEAD_DIM), LearnedPositions(11, HEAD_DIM)):
        with refuses(f"positions must be a tensor of whole numbers; got {came}"):
            module(wrong)
    vectors = torch.randn(BATCH, HEADS, LENGTH, HEAD_DIM)
    with refuses(f"positions must hold one whole number a token, shape (5,) or (2, 5); got {came}"):
        RotaryPositions(Rotary(), HEAD_DIM)(vectors, wrong)
    text = "positions must hold row and column of each patch, whole numbers of shape (5, 2) or (2, 5, 2)"
    with refuses(f"{text}; got {came}"):
        GridRotaryPositions(Rotary(), HEAD_DIM)(vectors, wrong)


def test_positions_on_another_device_are_refused():
    vectors = torch.randn(BATCH, HEADS, LENGTH, HEAD_DIM)
    with refuses("positions must be on the device of the table, cpu; got meta"):
        LearnedPositions(11, HEAD_DIM)(PLACES.to("meta"))
    with refuses("positions must be on the device of the tokens, cpu; got meta"):
        RotaryPositions(Rotary(), HEAD_DIM)(vectors, PLACES.to("meta"))
    with refuses("positions must be on the device of the tokens, cpu; got meta"):
        GridRotaryPositions(Rotary(), HEAD_DIM)(vectors, grid_positions(1, LENGTH).to("meta"))
    # with everything there, sizes alone are computed
    assert LearnedPositions(11, HEAD_DIM).to("meta")(PLACES.to("meta")).shape == (LENGTH, HEAD_DIM)
    assert RotaryPositions(Rotary(), HEAD_DIM)(vectors.to("meta"), PLACES.to("meta")).shape == vectors.shape


@pytest.mark.parametrize("make", [RotaryPositions, GridRotaryPositions])
def test_vectors_of_other_heads_are_refused(make):
    rotary, vectors = make(Rotary(), HEAD_DIM), torch.randn(BATCH, HEADS, LENGTH, HEAD_DIM)
    positions = PLACES if make is RotaryPositions else grid_positions(1, LENGTH)
    for wrong, came in (
        (None, "None"),
        (vectors[0], "torch.float32 of shape (3, 5, 8)"),
        (vectors[..., :6], "torch.float32 of shape (2, 3, 5, 6)"),
        (torch.randn(BATCH, HEADS, LENGTH, 12), "torch.float32 of shape (2, 3, 5, 12)"),
        (vectors.int(), "torch.int32 of shape (2, 3, 5, 8)"),
    ):
        text = "vectors must be floating-point numbers of shape (batch, num_heads, seq_len, head_dim = 8)"
        with refuses(f"{text}; got {came}"):
            rotary(wrong, positions)


def test_the_dtype_of_sinusoids_is_a_floating_point_one():
    for dtype in (None, "float32", torch.int64, torch.complex64, torch.bool):
        with refuses(f"dtype must be a floating-point dtype of torch; got {shown(dtype)}"):
            SinusoidalPositions(HEAD_DIM)(PLACES, dtype=dtype)


def test_the_length_of_a_text_is_a_whole_number_of_tokens():
    dynamic = DynamicNTKScaling(factor=2.0, original_max_positions=3)
    vectors = torch.randn(BATCH, HEADS, LENGTH, HEAD_DIM)
    for wrong, text in (
        (-1, "between 1 and 2147483647; got -1"),
        (0, "between 1 and 2147483647; got 0"),
        (True, "a whole number; got True"),
        (4.0, "a whole number; got 4.0"),
        ([5], "a whole number; got [5]"),
        ("long", "a whole number; got 'long'"),
    ):
        for scaling in (dynamic, None):  # whether it is read or not
            with refuses(f"text_len must be {text}"):
                RotaryPositions(Rotary(scaling=scaling), HEAD_DIM)(vectors, PLACES, text_len=wrong)


def test_a_grid_has_whole_numbers_of_rows_and_columns():
    for wrong, came in (
        (2.0, "a whole number; got 2.0"),
        (True, "a whole number; got True"),
        (None, "a whole number; got None"),
    ):
        with refuses(f"num_rows must be {came}"):
            grid_positions(wrong, 3)
        with refuses(f"num_columns must be {came}"):
            grid_positions(3, wrong)
    with refuses("num_rows must be between 0 and 2147483647; got -1"):
        grid_positions(-1, 3)
    assert grid_positions(0, 3).shape == (0, 2)


DTYPES = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.uint16]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_any_whole_dtype_gives_the_same_positions(dtype):
    """In a narrow dtype distances below 0, and lengths above 127, would wrap around."""
    places = torch.tensor([127, 3, 0, 1, 2])
    narrow = places.to(dtype)
    for module in (SinusoidalPositions(HEAD_DIM), LearnedPositions(128, HEAD_DIM)):
        assert torch.equal(module(narrow), module(places))
    q, k, v = torch.randn(3, BATCH, HEADS, LENGTH, HEAD_DIM)
    for scaling in (None, DynamicNTKScaling(factor=2.0, original_max_positions=100)):
        rotary = RotaryPositions(Rotary(scaling=scaling), HEAD_DIM)
        assert torch.equal(rotary(q, narrow), rotary(q, places))
    for bias in (ALiBiBias(HEADS), T5RelativeBias(T5Bias(), HEADS)):
        for impl in ("reference", "sdpa"):
            outputs = [
                attention(q, k, v, mask=Full(), bias=bias, query_positions=one, key_positions=one, impl=impl).output
                for one in (narrow, places)
            ]
            assert torch.equal(*outputs)
