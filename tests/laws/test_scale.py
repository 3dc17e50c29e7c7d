"""What 1/sqrt(head_dim) does: scores have one size whatever the head's, and the softmax keeps its gradient."""

import functools
import math

import pytest
import torch

from headwise.ops.attention import attention

HEAD_DIMS = pytest.mark.parametrize("head_dim", [8, 16, 32, 64, 128, 256])
QUERIES = KEYS = 1009
PAIRS = 4001


def variance_of_scores(head_dim, scale):
    """Read the scores of normally distributed queries and keys off what attention returns; their mean is 0."""
    torch.manual_seed(head_dim)
    query = torch.randn(1, 1, QUERIES, head_dim, dtype=torch.float64)
    key = torch.randn(1, 1, KEYS, head_dim, dtype=torch.float64)
    found = attention(query, key, key, scale=scale, return_weights=True, return_logsumexp=True)
    return float((found.weights.log() + found.logsumexp.unsqueeze(-1)).square().mean())


@HEAD_DIMS
def test_scores_of_unit_queries_and_keys_have_the_variance_head_dim_and_1_with_the_scale(head_dim):
    """The mean of (q.k)^2 over all pairs has a relative variance of 2/NM + 2/(ND) + 2/(MD) and smaller terms.

    Pairs that share a query vary together by Var(|q|^2) = 2 D, as do those that share a key.
    """
    five_deviations = 5 * math.sqrt(2 / (QUERIES * KEYS) + 2 / (QUERIES * head_dim) + 2 / (KEYS * head_dim))
    assert variance_of_scores(head_dim, 1.0) == pytest.approx(head_dim, rel=five_deviations)
    assert variance_of_scores(head_dim, None) == pytest.approx(1.0, rel=five_deviations)


@functools.cache
def mean_gradient(head_dim, scale):
    """The oracle: E[p (1 - p)] of two keys by quadrature, p = sigmoid(z), z normal of variance 2 |q|^2 scale^2.

    |q|^2 is chi-squared with head_dim degrees of freedom. Trapezoids of smooth functions that vanish at both ends.
    """
    squares = torch.linspace(1e-9, head_dim + 14 * math.sqrt(2 * head_dim) + 40, 401, dtype=torch.float64)
    log_density = (head_dim / 2 - 1) * squares.log() - squares / 2 - head_dim / 2 * math.log(2)
    density = (log_density - math.lgamma(head_dim / 2)).exp()
    normal = torch.linspace(-9, 9, 1001, dtype=torch.float64)
    normal_density = (-normal.square() / 2).exp() / math.sqrt(2 * math.pi)
    p = torch.sigmoid(scale * (2 * squares).sqrt().unsqueeze(-1) * normal)
    inner = torch.trapezoid(p * (1 - p) * normal_density, normal)
    assert torch.trapezoid(density, squares) == pytest.approx(1, abs=1e-6)
    return float(torch.trapezoid(inner * density, squares))


def measured_gradients(head_dim, scale):
    """The slope of the first of two weights in its own score, by autograd, for each of many pairs of keys."""
    torch.manual_seed(head_dim)
    query = torch.randn(PAIRS, 1, 1, head_dim, dtype=torch.float64)
    key = torch.randn(PAIRS, 1, 2, head_dim, dtype=torch.float64)
    bias = torch.zeros(PAIRS, 1, 1, 2, dtype=torch.float64, requires_grad=True)  # added to the scores
    attention(query, key, key, bias=bias, scale=scale, return_weights=True).weights[..., 0].sum().backward()
    return bias.grad[..., 0].flatten()


@HEAD_DIMS
def test_the_gradient_of_the_softmax_is_the_same_for_every_head_size_with_the_scale_alone(head_dim):
    """Without it, z has a deviation of sqrt(2 D), nearly flat where p (1 - p), of integral 1, is not 0."""
    for scale, default in ((1.0, 1.0), (head_dim**-0.5, None)):
        found = measured_gradients(head_dim, default)
        five_errors = 5 * float(found.std()) / math.sqrt(PAIRS)
        assert float(found.mean()) == pytest.approx(mean_gradient(head_dim, scale), abs=five_errors)
    with_scale, without = mean_gradient(head_dim, head_dim**-0.5), mean_gradient(head_dim, 1.0)
    assert 0.181 < with_scale < 0.186
    assert without == pytest.approx(1 / math.sqrt(4 * math.pi * head_dim), rel=1 / head_dim)


def test_without_the_scale_four_times_the_head_size_halves_the_gradient():
    gradients = [mean_gradient(head_dim, 1.0) for head_dim in (16, 64, 256)]
    assert gradients[1] / gradients[0] == pytest.approx(0.5, rel=0.02)
    assert gradients[2] / gradients[1] == pytest.approx(0.5, rel=0.005)
