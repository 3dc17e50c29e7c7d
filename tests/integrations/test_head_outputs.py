"""Editing heads: with no change nothing changes, and afterwards nothing is left of it."""

import pytest
import torch
from torch import nn

from headwise.errors import ModelError
from headwise.integrations.head_outputs import edit_heads
from headwise.integrations.output_projection import find_attention_parts, find_output_projections
from headwise.nn.latent import LatentAttention
from headwise.nn.multihead import MultiHeadAttention
from headwise.nn.torch_multihead import TorchMultiheadAttention

BATCH, LENGTH, WIDTH = 5, 7, 12
LAYERS = {
    "own": lambda: MultiHeadAttention(WIDTH, 3),
    "latent": lambda: LatentAttention(
        WIDTH, 3, q_lora_rank=None, kv_lora_rank=7, qk_nope_head_dim=3, qk_rope_head_dim=2, v_head_dim=5
    ),
    "torch": lambda: nn.MultiheadAttention(WIDTH, 3, batch_first=True),
    "torch, tokens first": lambda: nn.MultiheadAttention(WIDTH, 3),
    "torch, no bias": lambda: nn.MultiheadAttention(WIDTH, 3, bias=False, batch_first=True),
    "like torch": lambda: TorchMultiheadAttention(WIDTH, 2, batch_first=True),
    "like torch, tokens first": lambda: TorchMultiheadAttention(WIDTH, 2),
}


def projections_of(model):
    return find_output_projections(model, find_attention_parts(model))


def run(layer, tokens):
    if isinstance(layer, nn.MultiheadAttention):
        return layer(tokens, tokens, tokens)[0]
    return layer(tokens)


def state_of(model):
    """Return everything of a model that an edit could leave changed."""
    return [
        (path, part.training, [*part._modules.items()], [*part._parameters.items()], "forward" in vars(part))
        for path, part in model.named_modules()
    ] + [(path, len(part._forward_pre_hooks), len(part._forward_hooks)) for path, part in model.named_modules()]


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("kind", LAYERS)
def test_heads_are_shown_texts_first_and_an_edit_that_changes_nothing_changes_nothing(kind, training):
    torch.manual_seed(0)
    layer = LAYERS[kind]().double().train(training)
    tokens = torch.randn(BATCH, LENGTH, WIDTH, dtype=torch.float64)
    given = tokens.transpose(0, 1) if "tokens first" in kind else tokens
    expected = run(layer, given)
    (projection,) = projections_of(layer)
    shown = []
    before = state_of(layer)
    with edit_heads(layer, [projection], lambda _, heads: shown.append(heads) or heads) as passes:
        output = run(layer, given)
    # the same sums, in another order at most: products of float64 numbers of size about 1 and 12 terms
    torch.testing.assert_close(output, expected, rtol=0, atol=1e-14)
    assert (passes.passes, passes.calls) == (1, {0: 1})
    assert state_of(layer) == before
    (heads,) = shown
    assert heads.shape == (BATCH, LENGTH, projection.num_heads, projection.head_dim)
    joined = nn.functional.linear(heads.flatten(2), layer.out_proj.weight, layer.out_proj.bias)
    expected = expected.transpose(0, 1) if "tokens first" in kind else expected
    torch.testing.assert_close(joined, expected, rtol=0, atol=1e-14)


def test_one_text_without_a_batch_is_shown_as_a_batch_of_one():
    layer = nn.MultiheadAttention(WIDTH, 3)
    shapes = []
    with edit_heads(layer, projections_of(layer), lambda _, heads: shapes.append(tuple(heads.shape)) or heads):
        assert run(layer, torch.randn(LENGTH, WIDTH)).shape == (LENGTH, WIDTH)
    assert shapes == [(1, LENGTH, 3, 4)]


def test_gradients_of_parameters_pass_an_edit():
    torch.manual_seed(0)
    layer = nn.MultiheadAttention(WIDTH, 3, batch_first=True, dtype=torch.float64)
    tokens = torch.randn(BATCH, LENGTH, WIDTH, dtype=torch.float64)
    expected = torch.autograd.grad(run(layer, tokens).square().sum(), list(layer.parameters()))
    with edit_heads(layer, projections_of(layer), lambda _, heads: heads):
        found = torch.autograd.grad(run(layer, tokens).square().sum(), list(layer.parameters()))
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs)


def test_torchs_fused_encoder_path_does_not_pass_an_edit_by_and_is_on_again_afterwards():
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(WIDTH, 2, 13, batch_first=True).eval()
    tokens = torch.randn(BATCH, LENGTH, WIDTH)
    with torch.no_grad():
        plain = layer(tokens)
        with edit_heads(layer, projections_of(layer), lambda _, heads: torch.zeros_like(heads)) as passes:
            assert not torch.backends.mha.get_fastpath_enabled()
            assert not torch.allclose(layer(tokens), plain)
        assert passes.calls == {0: 1}
        assert torch.backends.mha.get_fastpath_enabled()
        assert torch.equal(layer(tokens), plain)


class MidwayError(Exception):
    pass


@pytest.mark.parametrize("where", ["edit", "model"])
@pytest.mark.parametrize("kind", LAYERS)
def test_a_model_is_as_it_was_after_a_failure(kind, where):
    layer = LAYERS[kind]()
    tokens = torch.randn(BATCH, LENGTH, WIDTH)
    before = state_of(layer)

    def fail(*_):
        raise MidwayError

    handle = layer.register_forward_pre_hook(fail) if where == "model" else None
    with pytest.raises(MidwayError), edit_heads(layer, projections_of(layer), fail):
        run(layer, tokens)
    if handle is not None:
        handle.remove()
    assert state_of(layer) == before
    assert torch.backends.mha.get_fastpath_enabled()


def test_a_call_that_fails_inside_torchs_attention_gives_its_projection_back_at_once():
    layer = nn.MultiheadAttention(WIDTH, 3)
    projection = layer.out_proj
    with edit_heads(layer, projections_of(layer), lambda _, heads: heads):
        with pytest.raises(AssertionError):
            run(layer, torch.randn(BATCH, LENGTH, WIDTH + 1))
        assert layer.out_proj is projection


def test_an_interrupt_inside_torchs_attention_leaves_nothing_behind(monkeypatch):
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    layer = nn.MultiheadAttention(WIDTH, 3)
    before = state_of(layer)
    monkeypatch.setattr(nn.functional, "multi_head_attention_forward", interrupt)
    with pytest.raises(KeyboardInterrupt), edit_heads(layer, projections_of(layer), lambda _, heads: heads):
        run(layer, torch.randn(BATCH, LENGTH, WIDTH))
    assert state_of(layer) == before


def test_layers_that_share_a_module_are_told_apart_pass_by_pass():
    layer = MultiHeadAttention(WIDTH, 3)

    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList([layer, layer])

        def forward(self, tokens, num_layers=2):
            for each in self.layers[:num_layers]:
                tokens = each(tokens)
            return tokens

    model = Twice()
    seen = []
    tokens = torch.randn(BATCH, LENGTH, WIDTH)
    with edit_heads(model, projections_of(model), lambda each, heads: seen.append(each.layer) or heads):
        model(tokens)
        model(tokens, num_layers=1)  # leaves a pass half way
        model(tokens)
    assert seen == [0, 1, 0, 0, 1]


def test_a_projection_that_a_pass_never_called_is_named():
    layer = MultiHeadAttention(WIDTH, 3)
    layer.forward = lambda tokens: tokens
    found = projections_of(layer)
    with edit_heads(layer, found, lambda _, heads: heads) as passes:
        passes.require_called(layer, found)  # no pass yet
        layer(torch.randn(BATCH, LENGTH, WIDTH))
    with pytest.raises(ModelError, match=r"a pass of MultiHeadAttention must call out_proj .* layer 0 .* none of 1$"):
        passes.require_called(layer, found)
