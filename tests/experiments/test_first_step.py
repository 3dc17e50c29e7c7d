"""What is told of a model's first step is what its weights and gradients are."""

import math

import pytest
import torch

from headwise.experiments.asking import loss_of, make_model
from headwise.experiments.first_step import first_step
from headwise.experiments.models import transformer_for
from headwise.experiments.sequence_tasks import MultiOffsetCopy

TASK = MultiOffsetCopy(vocab_size=7, seq_len=11, offsets=(1, 3))


def model(**settings):
    return transformer_for(TASK, embed_dim=12, num_heads=3, **settings)


def test_scores_that_are_all_alike_give_uniform_weights():
    seen = first_step(model(scale=1e-13), TASK, num_examples=5)
    counts = range(2, 12)  # keys that a query sees, the first query's one key left out
    assert seen.score_deviation < 1e-12
    assert seen.entropy == pytest.approx(sum(map(math.log, counts)) / 10, abs=1e-9)
    assert seen.largest_weight == pytest.approx(sum(1 / count for count in counts) / 10, abs=1e-9)


def test_scores_grow_in_proportion_to_the_scale_and_weights_sharpen():
    one, three = (first_step(model(scale=scale), TASK) for scale in (1.0, 3.0))
    assert three.score_deviation == pytest.approx(3 * one.score_deviation, rel=1e-9)
    assert three.entropy < one.entropy and three.largest_weight > one.largest_weight


def test_loss_and_gradients_are_those_of_the_batch():
    config = model(num_layers=2)
    seen = first_step(config, TASK, num_examples=5, seed=3)
    torch.manual_seed(3)
    module = make_model(config).double()
    total, count = loss_of(module, TASK.draw(5, seed=3), TASK)
    (total / count).backward()
    grads = {name: one.grad for name, one in module.named_parameters()}
    assert seen.loss == pytest.approx(float(total.detach()) / count, rel=1e-12)
    assert seen.gradient_norm == pytest.approx(math.sqrt(sum(float((g**2).sum()) for g in grads.values())), rel=1e-9)
    scored = [grad for name, grad in grads.items() if ".q_proj." in name or ".k_proj." in name]
    assert len(scored) == 8  # weight and bias of two projections in two layers
    assert seen.score_gradient_norm == pytest.approx(math.sqrt(sum(float((g**2).sum()) for g in scored)), rel=1e-9)


def test_torchs_stream_of_random_numbers_is_left_as_it_was():
    before = torch.get_rng_state()
    first_step(model(), TASK, num_examples=2)
    assert torch.equal(torch.get_rng_state(), before)
