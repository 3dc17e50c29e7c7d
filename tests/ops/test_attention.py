import json
import math
from dataclasses import dataclass
from itertools import product

import jaxtyping
import pytest
import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from headwise.config.position import T5Bias
from headwise.errors import ConfigError, HeadwiseError, UnsupportedError
from headwise.masks.data import KeyPadding
from headwise.masks.patterns import Causal, Mask, SlidingWindow
from headwise.masks.tables import Explicit
from headwise.ops.attention import attention, choose_impl
from headwise.positions.bias import ALiBiBias, T5RelativeBias

IMPLS = ["reference", "sdpa", "flex"]


@pytest.fixture
def unchecked():
    """Switch the shape checks of the tests off, so that our own checks are met, as a user meets them."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


def tokens(*shape, dtype=torch.float64, seed=0):
    return torch.randn(shape, dtype=dtype, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("impl", IMPLS)
def test_the_two_token_example_gives_the_numbers_computed_by_hand(impl):
    query, key, value = (
        torch.tensor(rows, dtype=torch.float64)[None, None]
        for rows in ([[1, 2], [1, 1]], [[1, 2], [0, 1]], [[1, 1], [1, 0]])
    )
    output = attention(query, key, value, impl=impl).output
    # scores / sqrt(2): row 0 is (5, 2), row 1 is (3, 1); the weight of the first key is the sigmoid of the difference
    first, second = (1 / (1 + math.exp(-difference / math.sqrt(2))) for difference in (3, 2))
    expected = torch.tensor([[1.0, first], [1.0, second]], dtype=torch.float64)
    torch.testing.assert_close(output[0, 0], expected, rtol=1e-14, atol=1e-14)
    assert [round(first, 4), round(second, 4)] == [0.8930, 0.8044]


def test_weights_and_logsumexp_of_the_two_token_example():
    query, key = (torch.tensor(rows, dtype=torch.float64)[None, None] for rows in ([[1, 2], [1, 1]], [[1, 2], [0, 1]]))
    found = attention(query, key, key, return_weights=True, return_logsumexp=True)
    assert [[round(x, 4) for x in row] for row in found.weights[0, 0].tolist()] == [[0.8930, 0.1070], [0.8044, 0.1956]]
    by_hand = [math.log(sum(math.exp(score / math.sqrt(2)) for score in row)) for row in ((5, 2), (3, 1))]
    assert found.logsumexp[0, 0].tolist() == pytest.approx(by_hand, rel=1e-14)


def test_what_was_not_asked_for_is_none():
    query = tokens(1, 2, 3, 5)
    assert attention(query, query, query)[1:] == (None, None)
    assert attention(query, query, query, impl="reference")[1:] == (None, None)
    asked = attention(query, query, query, return_logsumexp=True)
    assert asked.weights is None and asked.logsumexp.shape == (1, 2, 3)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_weights_and_logsumexp_stay_float32_for_low_precision(dtype):
    query = tokens(1, 2, 3, 5, dtype=dtype)
    found = attention(query, query, query, return_weights=True, return_logsumexp=True)
    assert (found.output.dtype, found.weights.dtype, found.logsumexp.dtype) == (dtype, torch.float32, torch.float32)
    torch.testing.assert_close(found.weights.sum(-1), torch.ones(1, 2, 3), rtol=0, atol=5 * 2**-24)


@pytest.mark.parametrize("impl", IMPLS)
def test_under_autocast_the_output_has_its_dtype_in_every_impl(impl):
    query, key = tokens(2, 2, 5, 8, dtype=torch.float32), tokens(2, 2, 7, 8, dtype=torch.bfloat16)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output = attention(query, key, key, mask=KeyPadding(torch.tensor([3, 7])), impl=impl).output
    assert output.dtype == torch.bfloat16
    exact = attention(query.bfloat16(), key, key, mask=KeyPadding(torch.tensor([3, 7])), impl=impl).output
    assert torch.equal(output, exact)


@pytest.mark.parametrize("impl", ["reference", "sdpa"])
@pytest.mark.parametrize("num_kv_heads", [1, 2, 6])
def test_dropout_keeps_the_mean_and_comes_after_the_returned_weights(impl, num_kv_heads):
    torch.manual_seed(0)
    query, key = tokens(1, 6, 1, 5).expand(500, -1, -1, -1), tokens(1, num_kv_heads, 7, 5).expand(500, -1, -1, -1)
    value = torch.ones(500, num_kv_heads, 7, 3, dtype=torch.float64)
    draws = attention(query, key, value, dropout_p=0.5, impl=impl).output[..., 0]
    # Each draw is 2 * the sum of the kept weights: mean 1, standard deviation at most 1; five deviations of the mean.
    assert draws.mean().item() == pytest.approx(1.0, abs=5 / math.sqrt(draws.numel()))
    assert draws.std() > 0.1
    weights = attention(query, key, value, dropout_p=0.5, return_weights=True).weights
    torch.testing.assert_close(weights.sum(-1), torch.ones(500, 6, 1, dtype=torch.float64), rtol=1e-14, atol=0)


@pytest.mark.parametrize("mask", [None, Causal(), SlidingWindow(3), KeyPadding(torch.tensor([4, 9]))])
def test_with_dropout_grouped_keys_are_never_copied(mask):
    sizes = []

    class Record(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            result = func(*args, **(kwargs or {}))
            if isinstance(result, torch.Tensor):
                sizes.append(result.untyped_storage().nbytes() // result.element_size())
            return result

    query, key, value = tokens(2, 6, 5, 67), tokens(2, 2, 9, 67), tokens(2, 2, 9, 71)
    with Record():
        attention(query, key, value, mask=mask, dropout_p=0.1, impl="sdpa")
    assert sizes and max(sizes) < 3 * key.numel()


def test_sdpa_cannot_give_weights_and_names_who_can():
    query = tokens(1, 2, 3, 5)
    with pytest.raises(UnsupportedError, match=r'do not return weights and logsumexp; use impl="reference"'):
        attention(query, query, query, return_weights=True, return_logsumexp=True, impl="sdpa")
    with pytest.raises(UnsupportedError, match=r'do not cap scores \(softcap\); use impl="reference" or .*impl="flex"'):
        attention(query, query, query, softcap=2.0, impl="sdpa")
    with pytest.raises(UnsupportedError, match=r'take no dropout_seed; use impl="reference".*, which can, or "auto"'):
        attention(query, query, query, dropout_p=0.5, dropout_seed=1, impl="sdpa")
    with pytest.raises(UnsupportedError, match=r"impl must be one of reference, sdpa, .*and auto; got 'flash'"):
        attention(query, query, query, impl="flash")


def test_the_choice_says_why():
    query, key = tokens(2, 6, 5, 8), tokens(2, 2, 5, 8)
    assert choose_impl(query, query, query, mask=Causal()).to_dict() == {
        "impl": "sdpa",
        "kernel": "flash_cpu",
        "reasons": [],
    }
    asked = choose_impl(query, key, key, return_weights=True)
    assert (asked.impl, asked.kernel) == ("reference", None)
    assert asked.reasons[0] == "sdpa is not taken: torch's fused kernels do not return weights"
    dropped = choose_impl(query, key, key, dropout_p=0.1)
    assert (dropped.kernel, dropped.reasons) == (
        "math",
        ("flash_cpu is not taken: it has no dropout; got dropout_p = 0.1",),
    )


class RecordFused(TorchDispatchMode):
    """Whether torch's fused kernel for CPU ran."""

    def __init__(self):
        super().__init__()
        self.ran = False

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.ran |= func is torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("num_kv_heads", [2, 6])
@pytest.mark.parametrize("v_head_dim", [8, 5])
@pytest.mark.parametrize("learns", [False, True])
@pytest.mark.parametrize(
    "keywords",
    [
        {},
        {"bias": torch.zeros(5)},
        {"bias": torch.zeros(2, 6, 5, 5)},
        {"bias": torch.zeros(5), "mask": Causal(), "sink": torch.zeros(6)},
        {"sink": torch.zeros(6), "mask": Causal()},
        {"sink": torch.zeros(6), "dropout_p": 0.1},
        {"bias": ALiBiBias(6), "mask": KeyPadding(torch.tensor([2, 5]))},
        {"bias": T5RelativeBias(T5Bias(), 6)},
    ],
)
def test_the_kernel_that_is_said_to_run_runs(num_kv_heads, v_head_dim, learns, keywords):
    query, key, value = tokens(2, 6, 5, 8), tokens(2, num_kv_heads, 5, 8), tokens(2, num_kv_heads, 5, v_head_dim)
    if isinstance(keywords.get("bias"), torch.Tensor):
        keywords = keywords | {"bias": keywords["bias"].clone().requires_grad_()}
    with torch.set_grad_enabled(learns), RecordFused() as record:
        choice = choose_impl(query, key, value, **keywords)
        attention(query, key, value, **keywords)
    assert choice.impl == "sdpa" and (choice.kernel == "flash_cpu") == record.ran
    assert record.ran == (choice.reasons == ())


def test_under_autocast_bias_and_sink_stay_float32():
    seen = []

    class Seeing(ALiBiBias):
        def forward(self, *arguments):
            result = super().forward(*arguments)
            seen.append((torch.is_autocast_enabled("cpu"), result.dtype))
            return result

    query = tokens(1, 2, 3, 8, dtype=torch.float32)
    for impl in IMPLS:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            found = attention(
                query, query, query, bias=Seeing(2), sink=torch.zeros(2), return_logsumexp=impl != "sdpa", impl=impl
            )
        assert found.output.dtype == torch.bfloat16
        assert found.logsumexp is None or found.logsumexp.dtype == torch.float32
    assert seen and set(seen) == {(False, torch.float32)}


def test_learned_tensors_of_another_dtype_get_gradients_of_their_own():
    query = tokens(1, 2, 3, 8, dtype=torch.float32).bfloat16()
    bias, sink = torch.zeros(3, dtype=torch.float64), torch.zeros(2, dtype=torch.bfloat16)
    for impl in ("reference", "sdpa"):
        bias, sink = bias.detach().requires_grad_(), sink.detach().requires_grad_()
        attention(query, query, query, bias=bias, sink=sink, impl=impl).output.float().square().sum().backward()
        assert (bias.grad.dtype, sink.grad.dtype) == (torch.float64, torch.bfloat16)
        assert bias.grad.any() and sink.grad.all()


def test_a_single_query_of_grouped_heads_is_packed_and_longer_ones_only_where_a_fused_kernel_then_runs():
    calls = []

    class Record(TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            if func is functional.scaled_dot_product_attention:
                calls.append((args[0].shape[1:3], kwargs["enable_gqa"]))
            return func(*args, **(kwargs or {}))

    key = tokens(2, 2, 5, 8)
    with Record():
        attention(tokens(2, 6, 1, 8), key, key, mask=Causal())
        attention(tokens(2, 6, 5, 8), key, key, mask=Causal())
        attention(tokens(2, 6, 5, 8), key, key, mask=Causal(), dropout_p=0.1)
    assert calls == [((2, 3), False), ((6, 5), True), ((2, 15), False)]


@pytest.mark.parametrize(
    ("shapes", "fact"),
    [
        (((2, 8, 5, 64), (2, 3, 11, 64), (2, 3, 11, 64)), "num_heads must be a multiple of num_kv_heads.*got 8 and 3"),
        (((2, 4, 5, 8), (2, 4, 11, 6), (2, 4, 11, 6)), "the same head_dim.*got 8 and 6"),
        (((2, 4, 5, 8), (3, 4, 11, 8), (3, 4, 11, 8)), "the same batch size; got 2 and 3"),
        (((2, 4, 5, 8), (2, 4, 11, 8), (2, 4, 7, 8)), "each key must have one value"),
        (((4, 5, 8), (2, 4, 11, 8), (2, 4, 11, 8)), "got 3, 4 and 4 dimensions"),
        (((2, 4, 5, 8), (2, 0, 11, 8), (2, 0, 11, 8)), "got 4 and 0"),
        (((2, 4, 5, 0), (2, 4, 11, 0), (2, 4, 11, 0)), "at least 1.*got 0 and 0"),
    ],
)
def test_shapes_that_do_not_fit_are_named_with_the_call(unchecked, shapes, fact):
    query, key, value = (torch.zeros(shape) for shape in shapes)
    for function in (attention, choose_impl):
        with pytest.raises(HeadwiseError, match=fact) as caught:
            function(query, key, value)
        assert str(caught.value).startswith(f"attention(query {shapes[0]}, key {shapes[1]}, value {shapes[2]}):\n  ")


def test_wrong_dtypes_are_refused(unchecked):
    floats = torch.zeros(1, 2, 3, 5)
    with pytest.raises(HeadwiseError, match=r"one floating-point dtype; got torch.float32, torch.float64"):
        attention(floats, floats.double(), floats)
    with pytest.raises(HeadwiseError, match=r"one floating-point dtype; got torch.int64"):
        attention(*[floats.long()] * 3)


@pytest.mark.parametrize(
    ("keywords", "fact"),
    [
        ({"mask": torch.ones(3, 3, dtype=torch.int64)}, "mask must be a headwise Mask.*got a torch.int64 Tensor"),
        ({"mask": torch.ones(3, 3, dtype=torch.bool)}, "mask must be a headwise Mask.*got a torch.bool Tensor"),
        ({"mask": "causal"}, "mask must be a headwise Mask.*got a str"),
        ({"mask": KeyPadding(torch.tensor([1, 2]))}, "as many rows as the batch.*for a batch of 1"),
        (
            {"mask": Explicit(torch.ones(1, 3, 3, 3, dtype=torch.bool))},
            "as many as there are query heads.*3 heads for 2",
        ),
        (
            {"mask": Causal() & Explicit(torch.ones(3, 3, dtype=torch.bool, device="meta"))},
            "mask must be on the device of the call, cpu; got .* on meta",
        ),
        ({"scale": math.nan}, "scale must be a finite number; got nan"),
        ({"dropout_p": 1.0}, "dropout_p must be at least 0 and below 1; got 1.0"),
        ({"query_index": torch.zeros(4, dtype=torch.int64)}, r"query_index must hold one whole number a token.*\(4,\)"),
        ({"key_index": torch.zeros(3)}, "key_index must hold one whole number a token.*got torch.float32"),
        ({"query_positions": torch.zeros(2, 3, dtype=torch.int64)}, r"query_positions must hold.*\(3,\) or \(1, 3\)"),
        ({"key_positions": torch.zeros(3, dtype=torch.bool)}, "key_positions must hold.*got torch.bool"),
        (
            {"key_index": torch.zeros(3, dtype=torch.int64, device="meta")},
            "key_index must be on the device.*cpu; got meta",
        ),
        ({"bias": torch.zeros(3, 3, dtype=torch.bool)}, "bias must be a floating-point tensor.*torch.bool.*Explicit"),
        ({"bias": torch.zeros(3, 3, dtype=torch.int64)}, "bias must be a floating-point tensor.*torch.int64"),
        ({"bias": torch.zeros(2, 1)}, r"bias must broadcast to .* = \(1, 2, 3, 3\); got \(2, 1\)"),
        ({"bias": torch.zeros(1, 1, 2, 3, 3)}, r"bias must broadcast to .*got \(1, 1, 2, 3, 3\)"),
        ({"bias": torch.zeros(3, device="meta")}, "bias must be on the device of the call, cpu; got meta"),
        ({"bias": "alibi"}, "bias must be a tensor, or a function.*got a str"),
        (
            {"sink": torch.zeros(3)},
            r"sink must be one.* a query head, a tensor of shape \(2,\); got torch.float32.*\(3,\)",
        ),
        ({"sink": torch.zeros(2, dtype=torch.int64)}, "sink must be one.*got torch.int64"),
        ({"sink": 1.0}, "sink must be one.*got float"),
        ({"sink": torch.zeros(2, device="meta")}, "sink must be on the device of the call, cpu; got meta"),
        ({"softcap": 0.0}, "softcap must be a finite number above 0, or None for no cap; got 0.0"),
        ({"softcap": -1}, "softcap must be a finite number above 0.*got -1"),
        ({"softcap": math.inf}, "softcap must be a finite number above 0.*got inf"),
        ({"softcap": math.nan}, "softcap must be a finite number above 0.*got nan"),
        ({"dropout_seed": -1}, r"dropout_seed must be a whole number from 0 to 2\^63 - 1, or None; got -1"),
        ({"dropout_seed": 2**63}, "dropout_seed must be a whole number.*got 9223372036854775808"),
        ({"dropout_seed": 1.0}, "dropout_seed must be a whole number.*got 1.0"),
        ({"dropout_seed": True}, "dropout_seed must be a whole number.*got True"),
    ],
)
def test_arguments_that_make_no_sense_are_refused_by_name(unchecked, keywords, fact):
    query = torch.zeros(1, 2, 3, 5)
    for function, impl in product((attention, choose_impl), ("auto", "reference", "sdpa", "blocked", "flex")):
        with pytest.raises(HeadwiseError, match=fact):
            function(query, query, query, **keywords, impl=impl)


def test_a_mask_error_keeps_its_kind(unchecked):
    query = torch.zeros(1, 2, 3, 5)
    with pytest.raises(ConfigError):
        attention(query, query, query, mask=torch.ones(3, 3))
    with pytest.raises(ConfigError):
        Causal() & torch.ones(3, 3, dtype=torch.bool)
    with pytest.raises(ConfigError):
        torch.ones(3, 3, dtype=torch.bool) & Causal()


def test_a_window_that_stands_off_the_end_leaves_nothing():
    """A mask that no pair can satisfy at these lengths: every output is 0."""
    query = tokens(1, 2, 3, 5)
    output = attention(query, query, query, mask=~(SlidingWindow(9) | ~Causal())).output
    assert torch.equal(output, torch.zeros_like(query))


def test_the_simplest_call_is_torch_s_own():
    query, key = tokens(2, 6, 5, 8), tokens(2, 6, 7, 8)
    assert torch.equal(attention(query, key, key).output, functional.scaled_dot_product_attention(query, key, key))
    square = functional.scaled_dot_product_attention(query, query, query, is_causal=True)
    assert torch.equal(attention(query, query, query, mask=Causal()).output, square)


def test_the_choice_is_json():
    query = tokens(1, 2, 3, 5)
    assert json.loads(json.dumps(choose_impl(query, query, query).to_dict()))["impl"] == "sdpa"


@pytest.mark.parametrize("impl", ["auto", "reference", "sdpa", "blocked", "flex"])
@pytest.mark.parametrize("mask", [None, Causal()])
@torch.no_grad()
def test_a_scale_of_0_weighs_all_alike(mask, impl):
    query, key, value = torch.randn(3, 1, 2, 5, 8).unbind()
    output = attention(query, key, value, mask=mask, scale=0, impl=impl).output
    means = (
        value.cumsum(2) / torch.arange(1, 6).view(5, 1)
        if mask is not None
        else value.mean(2, keepdim=True).expand_as(value)
    )
    torch.testing.assert_close(output, means, rtol=0, atol=1e-6)  # means of five terms of size 1


def test_what_cannot_be_looked_up_is_refused_by_name(unchecked):
    query = torch.zeros(1, 2, 3, 5)
    with pytest.raises(UnsupportedError, match="impl must be one of"):
        attention(query, query, query, impl=["auto"])

    @dataclass
    class Changing(Mask):
        is_structural = True
        width: int = 3

    with pytest.raises(ConfigError, match=r"a structural mask must be a value that can be hashed.*Changing"):
        attention(query, query, query, mask=Changing())
