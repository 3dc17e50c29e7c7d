"""Adapters: a user says how a class of layers is read, and every door to weights reads it."""

import doctest

import pytest
import torch
import transformers
from torch import nn

from headwise.errors import ModelError
from headwise.inspection.capture import adapters
from headwise.inspection.capture.adapters import register_adapter
from headwise.inspection.capture.readers import open_reader, open_stacks
from headwise.integrations.layer_weights import GivenWeights, ProjectedWeights

BATCH, TOKENS, WIDTH, HEADS = 2, 7, 12, 3


class Stranger(nn.Module):
    """Attention that nobody here knows."""

    def __init__(self):
        super().__init__()
        self.q, self.kv = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 2 * WIDTH)

    def forward(self, x, memory=None):
        q = self.q(x).unflatten(-1, (HEADS, -1)).transpose(1, 2)
        k, v = self.kv(x if memory is None else memory).unflatten(-1, (2, HEADS, -1)).permute(2, 0, 3, 1, 4)
        return (q @ k.mT).softmax(-1) @ v, q, k


class Holder(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([Stranger(), Stranger()])

    def forward(self, x, memory=None):
        for number, layer in enumerate(self.layers):
            x = x + layer(x, memory if number else None)[0].transpose(1, 2).flatten(2)
        return x


def read_stranger(module, args, keywords, output):
    _, q, k = output
    return ProjectedWeights(query=q, key=k, scale=1.0)


@pytest.fixture
def registered():
    register_adapter(Stranger, read_stranger)
    yield
    register_adapter(Stranger, None)


def weights_of(model, inputs, stack=None):
    shown = []
    open_reader(model, inputs, stack=stack).read(
        inputs, lambda number, layer: shown.append(torch.cat([block.weights for block in layer.blocks()], dim=2))
    )
    return shown


def test_the_example_of_the_docstring_runs():
    names = {"torch": torch, "nn": nn, "open_reader": open_reader, **vars(adapters)}
    names["ProjectedWeights"] = ProjectedWeights
    (example,) = doctest.DocTestFinder(recurse=False).find(register_adapter, "register_adapter", globs=names)
    assert len(example.examples) == 6
    assert doctest.DocTestRunner().run(example).failed == 0


def test_a_layer_is_read_as_its_adapter_says(registered):
    model, x = Holder(), torch.randn(BATCH, TOKENS, WIDTH)
    shown = weights_of(model, (x,))
    with torch.no_grad():
        _, q, k = model.layers[0](x)
    assert len(shown) == 2
    torch.testing.assert_close(shown[0], (q @ k.mT).softmax(-1))


def test_without_an_adapter_the_refusal_names_it():
    with pytest.raises(ModelError, match="Holder is and runs none of them: register_adapter says how to read others"):
        open_reader(Holder(), (torch.randn(BATCH, TOKENS, WIDTH),))


def test_it_holds_for_subclasses_and_a_nearer_class_comes_first(registered):
    class Heir(Stranger):
        pass

    x = torch.randn(BATCH, TOKENS, WIDTH)
    assert len(weights_of(Heir(), (x,))) == 1
    uniform = torch.full((BATCH, 1, TOKENS, TOKENS), 1 / TOKENS)
    register_adapter(Heir, lambda *_: GivenWeights(weights=uniform, visible=uniform > 0))
    try:
        (shown,) = weights_of(Heir(), (x,))
    finally:
        register_adapter(Heir, None)
    assert torch.equal(shown, uniform)


def test_cross_attention_is_told_by_the_lengths_or_by_the_user(registered):
    x = torch.randn(BATCH, TOKENS, WIDTH)
    inputs = (x, torch.randn(BATCH, 5, WIDTH))
    assert [(stack.name, stack.num_layers) for stack in open_stacks(Holder(), inputs).stacks] == [
        ("self", 1),
        ("cross", 1),
    ]
    assert [tuple(each.shape[2:]) for each in weights_of(Holder(), inputs, stack="cross")] == [(TOKENS, 5)]
    register_adapter(Stranger, read_stranger, is_cross=True)
    assert [stack.name for stack in open_stacks(Stranger(), (x,)).stacks] == ["cross"]


def test_an_adapter_comes_before_what_is_known_of_a_class():
    """Falcon's attention bypasses transformers' interface; with an adapter it is read on its own path."""
    from transformers.models.falcon.modeling_falcon import FalconAttention

    torch.manual_seed(0)
    config = transformers.FalconConfig(vocab_size=53, hidden_size=8, num_attention_heads=2, num_hidden_layers=2)
    model = transformers.FalconModel(config).eval()
    layer = nn.MultiheadAttention(8, 2, batch_first=True)
    uniform = torch.full((BATCH, 2, TOKENS, TOKENS), 1 / TOKENS)

    def read(module, args, keywords, output):
        rows = output[0].shape[0]
        return GivenWeights(weights=uniform[:rows], visible=uniform[:rows] > 0)

    inputs = {"input_ids": torch.randint(1, 53, (BATCH, TOKENS))}
    x = torch.randn(BATCH, TOKENS, 8)
    for cls in (FalconAttention, nn.MultiheadAttention):
        register_adapter(cls, read)
    try:
        reader = open_reader(model, inputs)
        assert reader.notes == ()
        assert torch.equal(torch.stack(weights_of(model, inputs)), torch.stack([uniform, uniform]))
        assert torch.equal(weights_of(layer, (x, x, x))[0], uniform)
    finally:
        for cls in (FalconAttention, nn.MultiheadAttention):
            register_adapter(cls, None)
    assert "eager" in open_reader(model, inputs).notes[0]


def test_hooks_are_gone_after_a_failure_of_the_adapter():
    def fail(*_):
        raise RuntimeError("adapter")

    model, x = Holder(), torch.randn(BATCH, TOKENS, WIDTH)
    register_adapter(Stranger, fail)
    try:
        with pytest.raises(RuntimeError, match="adapter"):
            open_reader(model, (x,))
    finally:
        register_adapter(Stranger, None)
    assert not any(part._forward_hooks for part in model.modules())
