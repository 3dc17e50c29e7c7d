"""Products with a large matrix are those of torch, whichever way they take, and only where nothing else counts."""

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.flop_counter import FlopCounterMode

from headwise.nn.projection import FusedProjection, project
from headwise.ops import products
from headwise.ops.products import find_faster_linear, linear

WAYS = ["onednn", "threads"]
TOLERANCE = 13 * 2**-24 * 13  # sums of 13 terms of at most 1, in another order


@pytest.fixture(autouse=True)
def two_threads(monkeypatch):
    """Let small matrices count as large ones, as on two threads."""
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    monkeypatch.setattr(products, "LEAST_NUMBERS", 1)
    monkeypatch.setattr(products, "LEAST_SHARED", 1)


@pytest.fixture
def take(monkeypatch):
    """Let one way be the faster one; say whether it exists here."""

    def choose(way):
        if way == "onednn" and not products._is_built_with_onednn():
            pytest.skip("measured with oneDNN on a processor with AVX-512 alone")
        monkeypatch.setattr(products, "has_onednn", lambda: way == "onednn")
        monkeypatch.setattr(products, "LEAST_OUTPUTS", 1)

    return choose


def numbers(*shape):
    return 2 * torch.rand(shape) - 1


@torch.no_grad()
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("shape", [(13,), (1, 13), (1, 1, 13), (2, 4, 13), (8, 1, 13)])
@pytest.mark.parametrize("bias", [True, False])
def test_rows_are_multiplied_as_by_torch(shape, bias, way, take):
    take(way)
    tokens, weight, shift = numbers(*shape), numbers(22, 13), numbers(22) if bias else None
    assert find_faster_linear(tokens, weight) is not None
    expected = functional.linear(tokens, weight, shift)
    torch.testing.assert_close(linear(tokens, weight, shift), expected, rtol=0, atol=TOLERANCE)
    module = nn.Linear(13, 22, bias=bias)
    torch.testing.assert_close(project(module, tokens), module(tokens), rtol=0, atol=TOLERANCE)


@torch.no_grad()
@pytest.mark.parametrize("way", WAYS)
def test_the_parts_of_a_stacked_weight_serve_as_well(way, take):
    take(way)
    module, tokens = FusedProjection(13, [6, 2, 2], bias=True), numbers(2, 1, 13)
    query, key, value = module(tokens, tokens.clone(), tokens.clone())
    for found, expected in zip((query, key, value), module(tokens, tokens, tokens), strict=True):
        torch.testing.assert_close(found, expected, rtol=0, atol=TOLERANCE)


@torch.no_grad()
def test_inputs_may_lie_in_any_way(take):
    take("onednn")
    wide = numbers(5, 3, 26)
    for tokens in (wide[..., ::2], wide[:, :, 13:], wide.mT[:, ::2].mT, wide[:, :1, :13].expand(-1, 4, -1)):
        weight = numbers(22, 13)
        expected = functional.linear(tokens, weight)
        torch.testing.assert_close(linear(tokens, weight), expected, rtol=0, atol=TOLERANCE)


@torch.no_grad()
@pytest.mark.parametrize("way", WAYS)
def test_nan_and_infinity_stay_what_they_are(way, take):
    take(way)
    tokens = numbers(2, 13)
    tokens[0, 3], tokens[1, 4] = torch.nan, torch.inf
    weight = numbers(22, 13)
    torch.testing.assert_close(
        linear(tokens, weight), functional.linear(tokens, weight), rtol=0, atol=TOLERANCE, equal_nan=True
    )


def test_all_else_is_left_to_torch(monkeypatch):
    tokens, weight = numbers(2, 13), nn.Parameter(numbers(22, 13))
    assert find_faster_linear(tokens, weight) is None  # gradients
    monkeypatch.setattr(products, "has_onednn", lambda: False)
    with torch.no_grad():
        assert find_faster_linear(tokens, weight) is not None
        assert find_faster_linear(numbers(9, 13), weight) is None
        assert find_faster_linear(tokens[:0], weight) is None
        assert find_faster_linear(tokens.double(), weight) is None
        assert find_faster_linear(tokens, numbers(21, 13)) is None
        assert find_faster_linear(tokens, numbers(13, 22).T) is None
        assert find_faster_linear(tokens.to("meta"), weight) is None
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert find_faster_linear(tokens, weight) is None
        monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
        assert find_faster_linear(tokens, weight) is None


@torch.no_grad()
@pytest.mark.parametrize("num_rows", [1, 8, 9, 31, 255, 256, 300, 523])
def test_any_number_of_rows_is_multiplied_by_few_programs(num_rows, take, monkeypatch):
    take("onednn")
    asked = []
    ask = products.onednn_linear
    monkeypatch.setattr(products, "onednn_linear", lambda rows, *rest: asked.append(len(rows)) or ask(rows, *rest))
    tokens, weight, bias = numbers(num_rows, 13), numbers(22, 13), numbers(22)
    expected = functional.linear(tokens, weight, bias)
    torch.testing.assert_close(linear(tokens, weight, bias), expected, rtol=0, atol=TOLERANCE)
    assert sum(asked) == num_rows
    assert all(rows <= 8 or rows in (16, 32, 64, 128) or rows % 256 == 0 for rows in asked)


@torch.no_grad()
@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support")
@pytest.mark.parametrize("way", WAYS)
def test_tensors_of_other_kinds_go_torchs_way(way, take):
    take(way)
    tokens, weight = numbers(2, 13), numbers(22, 13)
    assert find_faster_linear(tokens, weight, numbers(22)) is not None
    assert find_faster_linear(tokens, weight.to_sparse_csr()) is None
    assert find_faster_linear(tokens, weight, numbers(1)) is None
    assert find_faster_linear(tokens, weight, numbers(22).double()) is None
    assert find_faster_linear(tokens.to(torch.bfloat16), weight) is None
    assert find_faster_linear(tokens, weight.double()) is None
    assert find_faster_linear(tokens[:, :12], weight) is None
    assert find_faster_linear(torch.nn.Parameter(tokens), weight) is not None

    class Kept(torch.Tensor):
        pass

    assert find_faster_linear(tokens.as_subclass(Kept), weight) is None
    assert find_faster_linear(tokens, weight.as_subclass(Kept)) is None
    with torch.autograd.forward_ad.dual_level():
        assert find_faster_linear(tokens, weight) is None


@torch.no_grad()
def test_small_matrices_and_one_row_of_few_outputs_are_not_asked_for(monkeypatch):
    monkeypatch.setattr(products, "LEAST_NUMBERS", 22 * 13)
    assert find_faster_linear(numbers(2, 13), numbers(22, 13)) is not None
    assert find_faster_linear(numbers(2, 12), numbers(22, 12)) is None
    assert find_faster_linear(numbers(1, 12), numbers(22, 12)) is products._linear_on_all_threads
    monkeypatch.setattr(products, "LEAST_SHARED", 22 * 13)
    assert find_faster_linear(numbers(1, 12), numbers(22, 12)) is None
    monkeypatch.setattr(products, "has_onednn", lambda: True)
    assert find_faster_linear(numbers(1, 13), numbers(22, 13)) is products._linear_on_all_threads
    monkeypatch.setattr(products, "LEAST_OUTPUTS", 22)
    assert find_faster_linear(numbers(1, 13), numbers(22, 13)) is products._linear_by_onednn


@torch.no_grad()
def test_who_turns_onednn_off_has_it_off():
    torch._C._set_mkldnn_enabled(False)  # `torch.backends.mkldnn.flags` warns of GPUs that are not there
    try:
        assert not products.has_onednn()
    finally:
        torch._C._set_mkldnn_enabled(True)


@torch.no_grad()
def test_flops_are_counted_as_ever():
    with FlopCounterMode(display=False) as counter:
        linear(numbers(2, 13), numbers(22, 13))
    assert counter.get_total_flops() == 2 * 2 * 13 * 22


@torch.no_grad()
def test_who_listens_to_a_module_hears_it():
    module, heard = nn.Linear(13, 22), []
    hook = module.register_forward_hook(lambda *call: heard.append("hook"))
    project(module, numbers(1, 13))
    hook.remove()
    everywhere = nn.modules.module.register_module_forward_hook(lambda *call: heard.append("all"))
    project(module, numbers(1, 13))
    everywhere.remove()
    hook = module.register_forward_pre_hook(lambda *call: heard.append("before"))
    project(module, numbers(1, 13))
    hook.remove()
    module.forward = lambda tokens: heard.append("forward") or tokens
    project(module, numbers(1, 13))

    class Loud(nn.Linear):
        def forward(self, tokens):
            heard.append("class")
            return super().forward(tokens)

    project(Loud(13, 22), numbers(1, 13))
    assert heard == ["hook", "all", "before", "forward", "class"]
