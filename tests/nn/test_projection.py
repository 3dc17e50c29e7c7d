"""Products of few rows are those of torch, and only where nothing else depends on how they are made."""

import pytest
import torch
from torch import nn

from headwise.nn import projection
from headwise.nn.projection import multiply_thin, project


@pytest.fixture(autouse=True)
def two_threads(monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    monkeypatch.setattr(projection, "LEAST_NUMBERS", 1)


@torch.no_grad()
@pytest.mark.parametrize("shape", [(13,), (1, 13), (1, 1, 13), (2, 4, 13), (8, 1, 13)])
@pytest.mark.parametrize("bias", [True, False])
def test_few_rows_are_multiplied_as_by_torch(shape, bias):
    linear, tokens = nn.Linear(13, 22, bias=bias), torch.randn(shape)
    found = multiply_thin(tokens, linear.weight, linear.bias)
    # float32 sums of 13 terms in another order
    torch.testing.assert_close(found, linear(tokens), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(project(linear, tokens), found, rtol=0, atol=0)


def test_all_else_is_left_to_torch(monkeypatch):
    linear, tokens = nn.Linear(13, 22), torch.randn(2, 13)
    assert multiply_thin(tokens, linear.weight, linear.bias) is None  # gradients
    with torch.no_grad():
        assert multiply_thin(tokens, linear.weight, linear.bias) is not None
        assert multiply_thin(torch.randn(9, 13), linear.weight, None) is None
        assert multiply_thin(tokens[:0], linear.weight, None) is None
        assert multiply_thin(tokens.double(), linear.weight, None) is None
        assert multiply_thin(tokens, nn.Parameter(torch.randn(21, 13)), None) is None
        assert multiply_thin(tokens, nn.Parameter(torch.randn(13, 22).T), None) is None
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert multiply_thin(tokens, linear.weight, None) is None
        monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
        assert multiply_thin(tokens, linear.weight, None) is None


@torch.no_grad()
def test_who_listens_to_a_module_hears_it():
    linear, heard = nn.Linear(13, 22), []
    linear.register_forward_hook(lambda *call: heard.append(1))
    project(linear, torch.randn(1, 13))
    assert heard == [1]
