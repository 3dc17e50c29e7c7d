import math

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck
from torch.nn import functional

from headwise.masks.data import KeyPadding
from headwise.masks.patterns import Causal, SlidingWindow
from headwise.ops import sdpa
from headwise.ops.attention import attention

# Shapes that broadcast to (3, 6, 5, 7), the sizes of the inputs below.
SHAPES = [(), (1,), (7,), (5, 1), (5, 7), (6, 1, 1), (6, 5, 7), (3, 1, 1, 7), (3, 1, 5, 1), (1, 6, 1, 7), (3, 6, 5, 7)]


class Slanted:
    """A bias of the tests alone, which learns a slope a head and looks at each of its arguments."""

    def __init__(self, slopes):
        self.tensors = (slopes,)

    def __call__(self, batch, head, query_position, key_position, slopes):
        return slopes[head] * (query_position - 2 * key_position).float().sin() + 0.1 * batch


def normal(*shape, dtype=torch.float64, seed=1):
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)).to(dtype)


def lookup(bias, full):
    """Read a bias tensor pair by pair."""
    whole = bias.double().expand(full).tolist()
    return lambda b, h, i, j: whole[b][h][i][j]


@pytest.mark.parametrize("shape", SHAPES)
def test_a_bias_of_any_shape_is_added_to_the_scores(shape, impl, dtype, make_inputs, oracle, rounding):
    query, key, value = make_inputs(5, 7, dtype)
    bias, mask = normal(*shape, dtype=dtype), KeyPadding(torch.tensor([7, 0, 4]))
    expected, _, _ = oracle(query, key, value, mask, bias=lookup(bias, (3, 6, 5, 7)))
    found = attention(query, key, value, mask=mask, bias=bias, impl=impl).output
    torch.testing.assert_close(found.double(), expected, rtol=0, atol=rounding(dtype, 7))


@pytest.mark.parametrize(("query_len", "key_len"), [(3, 7), (7, 3)])
def test_a_bias_goes_with_every_mask(query_len, key_len, impl, make_mask, make_inputs, oracle, rounding):
    query, key, value = make_inputs(query_len, key_len)
    bias, mask = normal(1, 6, query_len, key_len), make_mask(key_len)
    expected, _, _ = oracle(query, key, value, mask, bias=lookup(bias, (3, 6, query_len, key_len)))
    found = attention(query, key, value, mask=mask, bias=bias, impl=impl).output
    torch.testing.assert_close(found, expected, rtol=0, atol=rounding(torch.float64, key_len))


def test_weights_and_logsumexp_are_those_of_the_biased_scores(dtype, make_typical_mask, make_inputs, oracle, rounding):
    query, key, value = make_inputs(5, 7, dtype)
    bias, mask = normal(6, 5, 7, dtype=dtype), make_typical_mask(7)
    _, weights, logsumexp = oracle(query, key, value, mask, bias=lookup(bias, (3, 6, 5, 7)))
    found = attention(query, key, value, mask=mask, bias=bias, return_weights=True, return_logsumexp=True)
    torch.testing.assert_close(found.weights.double(), weights, rtol=0, atol=rounding(dtype, 7))
    torch.testing.assert_close(found.logsumexp.double(), logsumexp, rtol=0, atol=rounding(dtype, 7))


@pytest.mark.parametrize("mask", [None, SlidingWindow(3)])
@pytest.mark.parametrize("query_len", [1, 4])
@pytest.mark.parametrize("keywords", ["", "positions", "index", "rows of both"])
def test_a_function_is_the_tensor_of_its_values(mask, query_len, keywords, impl, make_inputs, rounding):
    query, key, value = make_inputs(query_len, 9)
    generator = torch.Generator().manual_seed(2)
    query_index, key_index = torch.arange(9 - query_len, 9), torch.arange(9)
    query_places, key_places = query_index, key_index  # what the function is to see
    given = {}
    if keywords == "positions":
        query_places, key_places = query_index * 3 - 4, key_index.flip(0)
        given = {"query_positions": query_places, "key_positions": key_places}
    elif keywords == "index":
        query_places, key_places = query_index + 3, (key_index + 3).flip(0)
        given = {"query_index": query_places, "key_index": key_places}
    elif keywords == "rows of both":
        query_places = torch.randint(99, (3, query_len), generator=generator)
        key_places = torch.randint(99, (3, 9), generator=generator)
        given = {"query_index": query_index.expand(3, -1), "query_positions": query_places, "key_positions": key_places}
    function = Slanted(normal(6, dtype=torch.float32))
    values = torch.tensor(
        [
            [
                [[slope * math.sin(i - 2 * j) + 0.1 * b for j in keys] for i in queries]
                for slope in function.tensors[0].tolist()
            ]
            for b, queries, keys in zip(
                range(3), query_places.expand(3, -1).tolist(), key_places.expand(3, -1).tolist(), strict=True
            )
        ],
        dtype=torch.float64,
    )
    indices = {name: places for name, places in given.items() if name.endswith("index")}
    expected = attention(query, key, value, mask=mask, bias=values, **indices, impl="reference").output
    found = attention(query, key, value, mask=mask, bias=function, **given, impl=impl).output
    # the function itself is float32: a sine of at most 1, and a product
    atol = 2 * rounding(torch.float64, 9) + 64 * torch.finfo(torch.float32).eps
    torch.testing.assert_close(found, expected, rtol=0, atol=atol)


def test_the_bias_of_a_masked_pair_can_be_anything(impl, make_mask, make_inputs, can):
    query, key, value = make_inputs(5, 7, torch.float32)
    mask = make_mask(7)
    places = (torch.arange(3), torch.arange(6), torch.arange(2, 7), torch.arange(7))
    at = [place.view([-1 if dim == axis else 1 for dim in range(4)]) for axis, place in enumerate(places)]
    allowed = torch.ones(3, 6, 5, 7, dtype=torch.bool) & (True if mask is None else mask.allows(*at))
    clean = normal(3, 6, 5, 7, dtype=torch.float32)
    results = []
    for poison in (0.0, torch.nan, torch.inf, 1e38, -torch.inf):
        bias = clean.masked_fill(~allowed, poison)
        inputs = [tensor.clone().requires_grad_(can(impl, "gradients")) for tensor in (query, key, value, bias)]
        output = attention(*inputs[:3], mask=mask, bias=inputs[3], impl=impl).output
        results.append([output])
        if can(impl, "gradients"):
            (output * torch.arange(output.numel()).view(output.shape)).sum().backward()
            results[-1] += [tensor.grad for tensor in inputs]
            assert not inputs[3].grad[~allowed].any()
    assert all(tensor.isfinite().all() for tensor in results[0])
    for poisoned in results[1:]:
        assert all(torch.equal(before, after) for before, after in zip(results[0], poisoned, strict=True))


@pytest.mark.parametrize("mask", [None, Causal()])
def test_a_bias_of_minus_infinity_takes_the_weight_and_leaves_an_empty_row_zero(
    mask, impl, dtype, make_inputs, oracle, rounding, can
):
    query, key, value = make_inputs(5, 5, dtype)
    bias = torch.zeros(6, 5, 5, dtype=dtype)
    bias[0, :, 0] = bias[1, 2] = bias[2, 4, 1:] = -torch.inf
    expected, _, _ = oracle(query, key, value, mask, bias=lookup(bias, (3, 6, 5, 5)))
    inputs = [tensor.requires_grad_(can(impl, "gradients")) for tensor in (query, key, value, bias)]
    output = attention(*inputs[:3], mask=mask, bias=bias, impl=impl).output
    torch.testing.assert_close(output.detach().double(), expected, rtol=0, atol=rounding(dtype, 5))
    assert not output[:, 1, 2].any()
    if can(impl, "gradients"):
        output.square().sum().backward()
        assert all(tensor.grad.isfinite().all() for tensor in inputs)
        assert not bias.grad[bias.isneginf()].any() and not query.grad[:, 1, 2].any()


@pytest.mark.parametrize("shape", [(), (3,), (2, 1, 3), (2, 2, 3), (3, 2, 2, 3)])
def test_a_bias_learns(shape, impl_with_gradients, make_typical_mask, make_inputs):
    inputs = make_inputs(2, 3, num_heads=2, num_kv_heads=1, head_dim=2, v_head_dim=2)
    inputs = [tensor.requires_grad_() for tensor in (*inputs, normal(*shape))]
    mask = make_typical_mask(3)

    def output(query, key, value, bias):
        return attention(query, key, value, mask=mask, bias=bias, impl=impl_with_gradients).output

    assert gradcheck(output, inputs, fast_mode=True)


def test_what_a_function_holds_learns_twice(impl_with_gradients_and_second, make_typical_mask, make_inputs):
    inputs = make_inputs(3, 4, num_heads=2, num_kv_heads=1, head_dim=2, v_head_dim=2)
    inputs = [tensor.requires_grad_() for tensor in (*inputs, normal(2))]
    mask = make_typical_mask(4)

    def output(query, key, value, slopes):
        impl = impl_with_gradients_and_second
        return attention(query, key, value, mask=mask, bias=Slanted(slopes), impl=impl).output

    assert gradcheck(output, inputs, fast_mode=True)
    assert gradgradcheck(output, inputs, fast_mode=True)


def test_adding_a_number_to_the_bias_of_a_row_changes_nothing(impl, dtype, make_typical_mask, make_inputs, rounding):
    query, key, value = make_inputs(5, 7, dtype)
    bias, mask = normal(6, 5, 7, dtype=dtype), make_typical_mask(7)
    before = attention(query, key, value, mask=mask, bias=bias, impl=impl).output
    after = attention(query, key, value, mask=mask, bias=bias + normal(5, 1, dtype=dtype, seed=3), impl=impl).output
    torch.testing.assert_close(after, before, rtol=0, atol=4 * rounding(dtype, 7))


def test_a_bias_is_added_in_float32_to_scores_of_half_precision(impl, make_inputs):
    """Under autocast too: 301 is no number of bfloat16, whose next ones are 300 and 302."""
    query, key, value = make_inputs(3, 7, torch.float32)
    bias = 295.0 + torch.arange(7.0)
    expected = (bias - bias.logsumexp(0)).exp() @ value.bfloat16().double()[0, 0].float()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = attention(query * 0, key, value, bias=bias, impl=impl).output[0, 0, 0]
    assert found.dtype == torch.bfloat16
    # the kernel rounds a weight once and the output once, to 8 bits
    torch.testing.assert_close(found.float(), expected, rtol=2**-8, atol=2**-8 * value.abs().max().item())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_devices_that_demand_the_querys_dtype_get_it(dtype, make_inputs, monkeypatch):
    """And a row of -inf there gives zero, too."""
    query, key, value = make_inputs(5, 7, dtype)
    bias = torch.arange(7.0).expand(5, 7).clone()
    bias[2] = -torch.inf
    expected = attention(query, key, value, bias=bias, impl="sdpa").output
    monkeypatch.setattr(sdpa, "TAKES_WIDE_BIAS", ())
    monkeypatch.setattr(sdpa, "ZERO_WITHOUT_A_KEY", ())
    masks = []
    torch_attention = functional.scaled_dot_product_attention
    monkeypatch.setattr(
        functional,
        "scaled_dot_product_attention",
        lambda *args, **keywords: masks.append(keywords["attn_mask"]) or torch_attention(*args, **keywords),
    )
    found = attention(query, key, value, bias=bias, impl="sdpa").output
    assert masks[0].dtype == dtype and not masks[0].isneginf().any()
    assert torch.equal(found, expected)  # these numbers are some of bfloat16's
    assert not found[:, :, 2].any()
