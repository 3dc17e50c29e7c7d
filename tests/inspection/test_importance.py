"""Importances against the explicit formula, by autograd, one text at a time."""

import pytest
import torch
from torch import nn

from headwise.errors import ModelError
from headwise.inspection.ablation.importance import head_importance
from headwise.inspection.ablation.results import HeadImportance, Importance
from headwise.nn.multihead import MultiHeadAttention

transformers = pytest.importorskip("transformers")

VOCAB, TOKENS, HEADS, SIZE = 53, 7, 3, 4
IDS = torch.randint(1, VOCAB, (3, TOKENS), generator=torch.Generator().manual_seed(0))
PADDED = torch.tensor([[1] * 7, [1, 1, 1, 1, 0, 0, 0], [1, 1, 1, 1, 1, 0, 0]])
INPUTS = {"input_ids": IDS, "attention_mask": PADDED, "labels": IDS.masked_fill(PADDED == 0, -100)}


def build(**settings):
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=12,
        num_attention_heads=HEADS,
        num_key_value_heads=1,
        num_hidden_layers=2,
        intermediate_size=13,
        initializer_range=0.5,
        **settings,
    )
    return transformers.LlamaForCausalLM(config).double()


def row(inputs, number):
    return {name: value[number : number + 1] for name, value in inputs.items()}


def text_losses(output, inputs):
    """Return the mean cross-entropy of each text's next tokens."""
    labels = inputs["labels"][:, 1:]
    losses = nn.functional.cross_entropy(output.logits[:, :-1].transpose(1, 2), labels, reduction="none")
    return losses.sum(dim=1) / (labels != -100).sum(dim=1)


def explicit(model, inputs):
    """Return |sum of Att_h * dL / dAtt_h| of one text, (layers, heads), Att_h what a head puts out."""
    outputs = []
    handles = [
        layer.self_attn.o_proj.register_forward_pre_hook(lambda _, args: outputs.append(args[0]))
        for layer in model.model.layers
    ]
    loss = model(**inputs).loss
    for handle in handles:
        handle.remove()
    gradients = torch.autograd.grad(loss, outputs)
    products = [
        (output * gradient).unflatten(-1, (HEADS, SIZE)) for output, gradient in zip(outputs, gradients, strict=True)
    ]
    return torch.stack([product.sum(dim=(0, 1, 3)).abs() for product in products])


def table(result, field):
    return torch.tensor([getattr(head, field) for head in result.heads], dtype=torch.float64).view(-1, HEADS)


def test_the_importance_is_the_mean_over_texts_of_the_explicit_formula():
    model = build().eval()
    expected = torch.stack([explicit(model, row(INPUTS, number)) for number in range(3)]).mean(dim=0)
    result = head_importance(model, INPUTS, loss=text_losses)
    # transformers computes softmax and norms in float32: 2^-24 each, in sums of some hundred terms of size up to 1
    torch.testing.assert_close(table(result, "importance"), expected, rtol=1e-4, atol=1e-6)
    normalized = expected / expected.square().sum(dim=1, keepdim=True).sqrt()
    torch.testing.assert_close(table(result, "normalized"), normalized, rtol=1e-4, atol=1e-6)
    assert [(head.layer, head.head) for head in result.heads] == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)]


def test_texts_that_pull_apart_do_not_cancel():
    layer = MultiHeadAttention(12, HEADS).double()
    tokens = torch.randn(1, TOKENS, 12, dtype=torch.float64).expand(2, -1, -1)
    sign = torch.tensor([1.0, -1.0], dtype=torch.float64)
    result = head_importance(layer, (tokens,), loss=lambda output, _: output.sum(dim=(1, 2)) * sign)
    alone = head_importance(layer, (tokens[:1],), loss=lambda output, _: output.sum(dim=(1, 2)))
    torch.testing.assert_close(table(result, "importance"), table(alone, "importance"))
    assert table(result, "importance").min() > 0


def test_one_loss_for_a_batch_weighs_texts_as_it_does_itself():
    model = build().eval()
    counts = torch.tensor([6, 3, 4], dtype=torch.float64)  # next tokens of each text
    each = torch.stack([explicit(model, row(INPUTS, number)) for number in range(3)])
    expected = (each * (counts / counts.sum())[:, None, None]).sum(dim=0)
    torch.testing.assert_close(table(head_importance(model, INPUTS), "importance"), expected, rtol=1e-4, atol=1e-6)


def test_batches_are_averaged_over_their_texts():
    model = build().eval()
    parts = [{name: value[rows] for name, value in INPUTS.items()} for rows in (slice(2), slice(2, 3))]
    together = head_importance(model, INPUTS, loss=text_losses)
    apart = head_importance(model, parts, loss=text_losses)
    torch.testing.assert_close(table(apart, "importance"), table(together, "importance"), rtol=1e-4, atol=1e-6)


def test_sdpa_and_eager_give_the_same():
    models = [build(attn_implementation=name) for name in ("eager", "sdpa")]
    eager, sdpa = (table(head_importance(model, INPUTS), "importance") for model in models)
    torch.testing.assert_close(sdpa, eager, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("time_first", [False, True])
def test_torchs_own_attention_has_importances_whichever_way_its_tokens_lie(time_first):
    torch.manual_seed(0)
    layer = nn.MultiheadAttention(12, HEADS, batch_first=not time_first, dtype=torch.float64)
    tokens = torch.randn(5, TOKENS, 12, dtype=torch.float64)
    given = tokens.transpose(0, 1) if time_first else tokens

    def losses(output, _):
        output = output[0].transpose(0, 1) if time_first else output[0]
        return output.pow(3).mean(dim=(1, 2))

    ours = MultiHeadAttention(12, HEADS).double()
    for name, weight in zip(("q_proj", "k_proj", "v_proj"), layer.in_proj_weight.chunk(3), strict=True):
        getattr(ours, name).weight.data = weight.detach()
    ours.out_proj.weight.data = layer.out_proj.weight.detach()
    expected = head_importance(ours, (tokens,), loss=lambda output, _: output.pow(3).mean(dim=(1, 2)))
    found = head_importance(layer, (given, given, given), loss=losses)
    torch.testing.assert_close(table(found, "importance"), table(expected, "importance"))


def test_rows_of_one_image_are_one_text():
    """Swin attends in windows, each a row of its projection's input."""
    torch.manual_seed(0)
    config = transformers.SwinConfig(
        image_size=8, patch_size=2, embed_dim=12, depths=[2], num_heads=[3], window_size=2, hidden_size=12
    )
    model = transformers.SwinModel(config).double().eval()
    images = torch.rand(2, 3, 8, 8, dtype=torch.float64)

    def losses(output, _):
        # of opposite signs, so that a window that is taken for the other image's shows
        values = output.last_hidden_state.pow(3).mean(dim=(1, 2))
        return values * torch.tensor([1.0, -1.0], dtype=torch.float64)[: len(values)]

    both = head_importance(model, {"pixel_values": images}, loss=losses)
    each = [table(head_importance(model, {"pixel_values": image[None]}, loss=losses), "importance") for image in images]
    torch.testing.assert_close(table(both, "importance"), sum(each) / 2, rtol=1e-6, atol=1e-9)


def test_a_head_that_the_output_does_not_read_has_importance_0_and_comes_first():
    layer = MultiHeadAttention(12, HEADS)
    with torch.no_grad():
        layer.out_proj.weight[:, 4:8] = 0.0
    result = head_importance(layer, (torch.randn(2, TOKENS, 12),), loss=lambda output, _: output.square().mean())
    assert result.heads[1].importance == 0.0
    assert result.ranked()[0] == (0, 1)


def test_a_model_is_as_it_was_and_its_parameters_have_no_gradients():
    model = build().train()
    with torch.no_grad():  # a caller's own
        head_importance(model, INPUTS)
    assert all(part.training and not part._forward_pre_hooks for part in model.modules())
    assert all(parameter.grad is None and parameter.requires_grad for parameter in model.parameters())


def test_frozen_parameters_do_not_matter():
    model = build()
    expected = head_importance(model, INPUTS)
    assert head_importance(model.requires_grad_(False), INPUTS) == expected


@pytest.mark.parametrize(
    ("loss", "fault"),
    [
        (None, "there must be a loss to tell what heads are for, and the output of LlamaModel holds none: give labels"),
        (lambda output, _: output.last_hidden_state.detach().sum(), "loss must depend on what the heads of LlamaModel"),
        (lambda output, _: torch.zeros((), requires_grad=True) * 1.0, "its gradient by every head is 0 or missing$"),
        (lambda output, _: output.last_hidden_state, r"loss must be a tensor of one number, .*; got \(3, 7, 12\)$"),
        (lambda output, _: 1.5, "loss must be a tensor of one number, .*; got float$"),
        (lambda output, _: output.last_hidden_state.sum(dim=(0, 2)), "one for each of the texts; got 7 for 3 texts$"),
    ],
)
def test_a_loss_that_says_nothing_of_heads_is_refused_in_a_line(loss, fault, without_type_checks):
    with pytest.raises(ModelError, match=fault) as caught:
        head_importance(build().model, {"input_ids": IDS}, loss=loss)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("inputs", [[], 3, [IDS], (), {}, None])
def test_inputs_that_are_none_are_refused_in_a_line(inputs, without_type_checks):
    with pytest.raises(ModelError, match="inputs must be what the model is called with"):
        head_importance(build(), inputs)


def test_a_result_ranks_by_what_is_normalised_and_prints_a_line_a_layer():
    heads = [(0, 0, 9.0, 0.9), (0, 1, 4.0, 0.4), (1, 0, 0.1, 0.8), (1, 1, 0.05, 0.4)]
    result = Importance(
        heads=tuple(
            HeadImportance(layer=layer, head=head, importance=importance, normalized=normalized)
            for layer, head, importance, normalized in heads
        )
    )
    assert result.ranked() == ((0, 1), (1, 1), (1, 0), (0, 0))
    assert result.to_text().splitlines()[1].split() == ["layer", "0", "0.9", "0.4"]
    assert result.to_dict()["heads"][0]["importance"] == 9.0
