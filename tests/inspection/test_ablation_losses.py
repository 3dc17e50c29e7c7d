"""Losses without heads against losses taken by hand, and the check that what was found are heads."""

import pytest
import torch
from torch import nn

from headwise.errors import ConfigError, ModelError
from headwise.inspection.ablation.ablate import ablated
from headwise.inspection.ablation.importance import head_importance
from headwise.inspection.ablation.losses import ablation_losses, pruning_curve
from headwise.inspection.ablation.results import CurvePoint, PruningCurve
from headwise.nn.multihead import MultiHeadAttention

transformers = pytest.importorskip("transformers")

VOCAB, TOKENS = 53, 7
IDS = torch.randint(1, VOCAB, (3, TOKENS), generator=torch.Generator().manual_seed(0))
PADDED = torch.tensor([[1] * 7, [1, 1, 1, 1, 0, 0, 0], [1, 1, 1, 1, 1, 0, 0]])
INPUTS = {"input_ids": IDS, "attention_mask": PADDED, "labels": IDS.masked_fill(PADDED == 0, -100)}
EVERY = [(layer, head) for layer in range(2) for head in range(3)]


def build():
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=VOCAB,
        hidden_size=12,
        num_attention_heads=3,
        num_hidden_layers=2,
        intermediate_size=13,
        initializer_range=0.5,
    )
    return transformers.BertForMaskedLM(config)


@torch.no_grad()
def loss_of(model, inputs=INPUTS):
    return model(**inputs).loss.item()


@pytest.mark.parametrize("mode", ["zero", "mean", "resample"])
def test_each_head_is_ablated_by_itself_with_the_inputs_as_reference(mode):
    model = build().train()  # with dropout of 0.1, which must be off
    result = ablation_losses(model, INPUTS, mode=mode, seed=1)
    assert model.training
    model.eval()
    assert result.loss == loss_of(model)
    assert [(head.layer, head.head) for head in result.heads] == EVERY
    for head in result.heads:
        reference = None if mode == "zero" else INPUTS
        with ablated(model, [(head.layer, head.head)], mode, reference=reference, seed=1):
            assert head.loss == loss_of(model)
        assert head.difference == head.loss - result.loss
    assert result.mode == mode


def test_only_the_heads_asked_for_are_tried_and_ranked_by_what_the_loss_misses_least():
    found = ablation_losses(build(), INPUTS, heads=[(1, 2), (0, 1), (1, 0)])
    assert [(head.layer, head.head) for head in found.heads] == [(0, 1), (1, 0), (1, 2)]
    differences = {(head.layer, head.head): head.difference for head in found.heads}
    assert list(found.ranked()) == sorted(differences, key=differences.get)
    assert found.to_text().splitlines()[2].split()[:2] == ["layer", "1"]


def test_losses_of_texts_are_averaged_over_all_texts_and_those_of_batches_over_batches():
    model = build().eval()
    parts = [{name: value[rows] for name, value in INPUTS.items()} for rows in (slice(2), slice(2, 3))]
    by_batch = ablation_losses(model, parts, heads=[])
    assert by_batch.loss == pytest.approx((loss_of(model, parts[0]) + loss_of(model, parts[1])) / 2, rel=1e-6)

    def of_each(output, inputs):
        return output.logits.float().mean(dim=(1, 2))

    by_text = ablation_losses(model, parts, loss=of_each, heads=[])
    with torch.no_grad():
        each = torch.cat([of_each(model(**part), part) for part in parts])
    assert len(each) == 3
    assert by_text.loss == pytest.approx(each.double().mean().item(), rel=1e-6)


def test_a_model_whose_output_does_not_hang_on_what_was_found_is_refused():
    """A tool that relies on a mask of heads which the model ignores finds all heads useless."""

    class Ignores(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention = MultiHeadAttention(12, 3)

        def forward(self, tokens):
            self.attention(tokens)
            return tokens

    def loss(output, _):
        return output.mean()

    fault = r"Ignores must put out something else with all heads at 0, .* it puts out the same \(attention.out_proj"
    with pytest.raises(ModelError, match=fault) as caught:
        ablation_losses(Ignores(), (torch.randn(2, TOKENS, 12),), loss=loss)
    assert "\n" not in str(caught.value)


def test_an_output_of_a_class_of_the_users_is_told_by_its_loss():
    class Held:
        def __init__(self, tokens):
            self.tokens = tokens

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention = MultiHeadAttention(12, 3)

        def forward(self, tokens):
            return Held(self.attention(tokens))

    inputs = (torch.randn(2, TOKENS, 12),)
    result = ablation_losses(Model(), inputs, loss=lambda output, _: output.tokens.square().mean())
    assert all(head.difference for head in result.heads)


def test_a_curve_ablates_more_and_more_heads():
    model = build().eval()
    order = head_importance(model, INPUTS).ranked()
    curve = pruning_curve(model, INPUTS, order, every=4)
    assert [point.num_removed for point in curve.points] == [0, 4, 6]
    assert curve.order == order
    for point in curve.points:
        with ablated(model, order[: point.num_removed]):
            assert point.loss == loss_of(model)
        assert point.difference == point.loss - curve.points[0].loss
    assert len(pruning_curve(model, INPUTS, order[:2]).points) == 3
    assert len(pruning_curve(model, INPUTS, order[:2], every=2).points) == 2
    assert len(curve.to_text().splitlines()) == 4


def test_so_many_heads_can_go_as_come_before_the_first_rise():
    points = [(0, 0.0), (2, -0.1), (4, 0.2), (6, 0.1), (8, 0.9)]
    curve = PruningCurve(
        points=tuple(CurvePoint(num_removed=count, loss=1 + rise, difference=rise) for count, rise in points),
        order=(),
        mode="zero",
    )
    assert [curve.largest_within(rise) for rise in (0.0, 0.15, 0.2, 1.0)] == [2, 2, 6, 8]


@pytest.mark.parametrize(
    ("settings", "error", "fault"),
    [
        ({"order": [(0, 1), (0, 1)]}, ConfigError, r"order must name each head once; got \[\(0, 1\), \(0, 1\)\]$"),
        ({"order": [(0, 5)]}, ConfigError, "heads of layer 0 must be from 0 to 2"),
        ({"order": EVERY, "every": 0}, ConfigError, "every must be a whole number of heads, at least 1; got 0$"),
        ({"order": EVERY, "mode": "none"}, ConfigError, 'mode must be "zero" or "mean" or "resample"'),
        ({"order": EVERY, "inputs": {"input_ids": IDS}}, ModelError, "there must be a loss to tell what heads are for"),
        (
            {"order": EVERY, "loss": lambda output, _: output.loss * torch.nan},
            ModelError,
            r"loss must be finite to be compared; got nan without heads \[\]$",
        ),
    ],
)
def test_what_makes_no_curve_is_refused_in_a_line(settings, error, fault, without_type_checks):
    settings = {"inputs": INPUTS} | settings
    with pytest.raises(error, match=fault) as caught:
        pruning_curve(build(), **settings)
    assert "\n" not in str(caught.value)
