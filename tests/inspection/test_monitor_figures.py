"""Figures of the monitor on layers so small that every number can be told by hand."""

import math
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from headwise.inspection.monitoring.callbacks import AttentionLightningCallback
from headwise.inspection.monitoring.drawn_rows import DrawnRows
from headwise.inspection.monitoring.figures import FIGURES, measure_heads
from headwise.inspection.monitoring.head_gradients import find_head_slices, head_gradient_norms
from headwise.inspection.monitoring.heard_passes import HeardPasses
from headwise.inspection.monitoring.layers import HeardLayer, heads_at_step, look_at
from headwise.inspection.monitoring.monitor import AttentionMonitor
from headwise.inspection.monitoring.real_tokens import real_tokens_of
from headwise.inspection.monitoring.results import WEIGHT_EDGES
from headwise.integrations.layer_weights import AttentionCall, GivenWeights, ProjectedWeights
from headwise.nn.multihead import MultiHeadAttention


def one_head(query, key, **settings):
    """Return a layer of one head of size 1: query (B, T) and key (B, S), the scale 1."""
    q, k = (torch.tensor(each)[:, None, :, None] for each in (query, key))
    return ProjectedWeights(query=q, key=k, **{"scale": 1.0, **settings})


def measure(layer, index, weight, real_keys=None):
    drawn = DrawnRows(index=torch.tensor(index), weight=torch.tensor(weight))
    if real_keys is None:
        real_keys = [[True] * layer.shape[3]] * layer.shape[0]
    values = measure_heads(layer.of_rows(drawn.index), drawn, torch.tensor(real_keys))
    return dict(zip(FIGURES, values[:, 0].tolist(), strict=False)), values[len(FIGURES) :, 0].tolist()


def test_a_query_counts_as_many_times_as_it_stands_for():
    layer = one_head([[1.0, 9.0], [9.0, 5.0]], [[2.0, -4.0], [2.0, -4.0]])
    figures, _ = measure(layer, [[0], [1]], [[3.0], [1.0]])
    # |scores| of the first query are 2 and 4, of the second 10 and 20
    assert figures["mean_abs_score"] == pytest.approx((3 * 3.0 + 15.0) / 4)
    assert figures["max_abs_score"] == 20.0
    assert figures["choosers"] == 4.0


@pytest.mark.parametrize("settings", [{"softcap": 0.5}, {"bias": torch.full((1, 1, 1, 2), 100.0)}, {"scale": 0.125}])
def test_a_product_is_told_before_it_is_scaled_capped_or_moved(settings):
    figures, _ = measure(one_head([[3.0]], [[2.0, -4.0]], **settings), [[0]], [[1.0]])
    assert figures["largest_product"] == 12.0


def test_weight_on_padding_that_a_layer_sees_counts_as_that_alone():
    figures, _ = measure(one_head([[0.0, 0.0]], [[0.0, 0.0, 0.0]]), [[0]], [[1.0]], [[True, True, False]])
    assert figures["padding_mass"] == pytest.approx(1 / 3)
    assert figures["entropy"] == pytest.approx(2 / 3 * math.log(3))
    assert figures["normalized_entropy"] == pytest.approx(2 / 3 * math.log(3) / math.log(2))


def test_the_sink_of_a_text_that_is_padded_on_the_left_is_its_first_real_token():
    layer = GivenWeights(weights=torch.tensor([[[[0.0, 0.7, 0.3]]]]), visible=torch.tensor([[[[False, True, True]]]]))
    figures, _ = measure(layer, [[0]], [[1.0]], [[False, True, True]])
    assert figures["sink_mass"] == pytest.approx(0.7)


def test_a_query_that_sees_no_real_key_is_none():
    mask = torch.tensor([[[[True, True], [False, False]]]])
    figures, counts = measure(one_head([[0.0, 0.0]], [[0.0, 0.0]], mask=mask), [[0, 1]], [[1.0, 1.0]])
    assert figures["entropy"] == pytest.approx(math.log(2))
    assert sum(counts) == 2.0


def test_a_weight_on_an_edge_is_in_the_bin_above_it():
    keys = [0.0] * 10
    _, counts = measure(one_head([[0.0]], [keys]), [[0]], [[1.0]])
    assert counts[WEIGHT_EDGES.index(0.1)] == 10.0
    assert sum(counts) == 10.0


def test_every_query_of_cross_attention_is_real_though_its_keys_are_padded():
    weights = one_head([[0.0, 0.0, 0.0]], [[0.0, 0.0, 0.0]], real_tokens=torch.tensor([[True, True, False]]))
    heard = look_at(nn.Identity(), AttentionCall(None, weights, True), None, num_rows=8, seed=0)
    choosers = heard.figures[FIGURES.index("choosers"), 0]
    assert choosers == 3.0


def test_a_sparse_gradient_is_left_out():
    layer = MultiHeadAttention(6, 2)
    slices = find_head_slices(layer, layer, (2, 2, 3))
    for parameter in layer.parameters():
        parameter.grad = torch.ones_like(parameter)
    layer.q_proj.weight.grad = None
    expected = head_gradient_norms(slices)
    layer.q_proj.weight.grad = torch.ones_like(layer.q_proj.weight).to_sparse()
    assert torch.equal(head_gradient_norms(slices), expected)


@pytest.mark.parametrize(("size", "is_dead"), [(1e-7, True), (1e-5, False)])
def test_a_head_is_dead_whose_gradient_is_rounding_beside_the_largest(size, is_dead):
    layer = MultiHeadAttention(6, 2, projection_bias=False)
    slices = find_head_slices(layer, layer, (2, 2, 3))
    scale = torch.tensor([1.0, size]).repeat_interleave(3)
    for projection in (layer.q_proj, layer.k_proj, layer.v_proj):
        projection.weight.grad = scale[:, None].expand(6, 6).clone()
    layer.out_proj.weight.grad = scale.expand(6, 6).clone()
    heard = HeardLayer(
        module=layer,
        is_cross=False,
        figures=torch.zeros(len(FIGURES) + len(WEIGHT_EDGES) - 1, 2),
        num_queries=1,
        dtype=torch.float32,
        slices=slices,
    )
    found = heads_at_step(layer, [heard], grad_scale=1.0, collapse_below=0.01)
    assert [each.head.is_dead for each in found] == [False, is_dead]


def test_a_module_is_heard_after_another_has_failed():
    model = nn.ModuleDict({"bad": nn.Sequential(nn.Linear(3, 5)), "good": nn.Sequential(nn.Linear(3, 5))})
    opened = []
    passes = HeardPasses(model, lambda module, *_: opened.append(module))
    with pytest.raises(RuntimeError):
        model["bad"](torch.ones(2, 7))
    model["good"](torch.ones(2, 3))
    passes.close()
    assert opened == [model["bad"], model["good"]]


class TwoLengths(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.short, self.long = MultiHeadAttention(6, 2), MultiHeadAttention(6, 2)

    def forward(self, x):
        return self.short(x[:, :3]).sum() + self.long(x).sum()


def sample(monitor, model, x, *args):
    with monitor.step(*args):
        model(x).backward()
    assert monitor.error is None
    return monitor.sample


def test_other_queries_are_drawn_in_each_step_and_the_same_in_the_same():
    model, x = TwoLengths(), torch.randn(1, 11, 6, generator=torch.Generator().manual_seed(1))
    monitor = AttentionMonitor(model, every=1, num_rows=2)
    entropies = [[head.entropy for head in sample(monitor, model, x, step).heads[2:]] for step in (0, 1, 0)]
    assert entropies[0] != entropies[1]
    assert entropies[0] == entropies[2]


def test_a_sample_counts_the_queries_of_its_longest_layer():
    model = TwoLengths()
    assert sample(AttentionMonitor(model, every=1), model, torch.ones(1, 11, 6)).num_queries == 11


def test_a_step_without_a_number_follows_the_last_one():
    model = TwoLengths()
    monitor = AttentionMonitor(model, every=7)
    for step in (13, None):
        with monitor.step(step):
            model(torch.ones(1, 5, 6)).backward()
    assert monitor.sample.step == 14


def test_padding_is_what_the_config_of_the_text_part_says():
    model = nn.Identity()
    text = SimpleNamespace(pad_token_id=3, eos_token_id=None)
    model.config = SimpleNamespace(get_text_config=lambda: text, pad_token_id=None)
    arguments = {"input_ids": torch.tensor([[5, 6, 3]])}
    assert real_tokens_of(model, (), arguments, padding_id=None).tolist() == [[True, True, False]]


def test_training_that_begins_again_takes_the_monitor_of_before_off():
    model = TwoLengths()
    callback = AttentionLightningCallback(every=1)
    trainer = SimpleNamespace(global_step=0)
    callback.on_train_start(trainer, model)
    callback.on_train_batch_start(trainer, model, None, 0)
    assert any(part._forward_pre_hooks for part in model.modules())
    callback.on_train_start(trainer, model)
    assert not any(part._forward_pre_hooks or part._forward_hooks for part in model.modules())


def test_a_step_that_is_not_sampled_puts_nothing_on_the_model():
    model = TwoLengths()
    monitor = AttentionMonitor(model, every=7)
    with monitor.step(1):
        assert not any(part._forward_pre_hooks or part._forward_hooks for part in model.modules())
    with monitor.step(7):
        assert any(part._forward_pre_hooks for part in model.modules())
        model(torch.ones(1, 5, 6)).backward()
