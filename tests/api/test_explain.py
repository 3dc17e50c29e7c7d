"""`headwise.explain` of a real model: what it is asked about, on texts, on vectors, in any stack."""

import math

import pytest
import torch
import transformers
from torch import nn

import headwise
from headwise.config.attention import AttentionConfig, Rotary
from headwise.errors import ConfigError, HeadwiseError, ModelError, OutputError, TextError
from headwise.inspection.walkthrough.results import HeadExplanation
from headwise.masks.patterns import Causal
from headwise.nn.multihead import MultiHeadAttention


def test_without_a_model_an_example_is_walked_through():
    assert [step.name for step in headwise.explain().steps][:2] == ["x", "w_q"]
    assert len(headwise.explain(example="two-heads").variants) == 3
    assert not isinstance(headwise.explain(), HeadExplanation)


def test_a_module_of_ones_own_is_explained_on_random_vectors_with_its_rotation_pairs():
    config = AttentionConfig(
        embed_dim=24, num_heads=2, position=Rotary(theta=100.0, pairing="interleaved", rotary_dim=8), mask=Causal()
    )
    told = headwise.explain(nn.Sequential(MultiHeadAttention.from_config(config)), head=1)
    assert told.query == 10 and told.tokens == tuple(map(str, range(11)))
    waves = {part.dimensions: part.wavelength for part in told.scores[0].parts}
    assert waves[0, 1] == pytest.approx(2 * math.pi) and waves[2, 3] == pytest.approx(2 * math.pi * 100**0.25)
    assert waves[8,] is None and (4, 5) in waves
    assert (
        any("no tokenizer" in note for note in told.notes) and "Token 10 was chosen here, the last one." in told.notes
    )
    assert not any("predicted" in note for note in told.notes)
    assert any(note.startswith("Chosen here: layer 0, where") for note in told.notes)


class Holding(nn.Module):
    """A module of one's own around a Hugging Face model."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, input_ids):
        return self.inner(input_ids=input_ids)


def test_a_hugging_face_config_tells_the_rotation_pairs_of_each_layer():
    config = transformers.LlamaConfig(
        vocab_size=53, hidden_size=20, intermediate_size=7, num_attention_heads=2, num_hidden_layers=2
    )
    ids = torch.arange(1, 8)[None]
    told = headwise.explain(transformers.LlamaModel(config), inputs={"input_ids": ids}, layer=1, head=0, query=3)
    assert {part.dimensions for part in told.scores[0].parts} == {(pair, pair + 5) for pair in range(5)}
    longest = max(part.wavelength for part in told.scores[0].parts)
    assert longest == pytest.approx(2 * math.pi * 10000 ** (4 / 5))
    assert told["pair_products"].shape == (3, 5)
    inside = Holding(transformers.LlamaModel(config))
    told = headwise.explain(inside, inputs={"input_ids": ids}, layer=1, head=0, query=3)
    assert {part.dimensions for part in told.scores[0].parts} == {(pair, pair + 5) for pair in range(5)}
    bert = transformers.BertModel(
        transformers.BertConfig(
            vocab_size=53, hidden_size=20, intermediate_size=7, num_attention_heads=2, num_hidden_layers=2
        )
    )
    told = headwise.explain(bert, inputs={"input_ids": ids}, layer=1, head=0, keys=2)
    assert {len(part.dimensions) for part in told.scores[0].parts} == {1} and len(told.scores) == 2
    assert "pair_products" not in [step.name for step in told.steps]


def test_torchs_layers_are_explained_in_either_stack():
    model = nn.Transformer(12, 4, num_encoder_layers=1, num_decoder_layers=1, dim_feedforward=7, batch_first=True)
    inputs = {"src": torch.randn(1, 7, 12), "tgt": torch.randn(1, 5, 12)}
    told = headwise.explain(model, inputs=inputs, stack="encoder", head=2, query=3, against=1)
    assert len(told.keys) == 7 and told.contrast.against == 1
    crossing = headwise.explain(model, inputs=inputs, stack="cross", head=2, query=3)
    assert len(crossing.tokens) == 5 and len(crossing.keys) == len(crossing.key_tokens) == 7
    with pytest.raises(ModelError, match="give stack"):
        headwise.explain(model, inputs=inputs)


@pytest.mark.parametrize(
    ("asked", "error", "text"),
    [
        ({"example": "two-heads", "layer": 0}, ConfigError, "without a model"),
        ({"text": "a.txt", "sentence": "a"}, TextError, "one of text, sentence and inputs"),
        ({"keys": 0}, ConfigError, "keys must be between 1"),
        ({"sentence": "a"}, TextError, "a text needs a tokenizer"),
        ({"query": "it"}, TextError, "a word is found in a text"),
        ({"query": True}, TextError, "by its number or by its word; got True"),
        ({"against": False}, TextError, "by its number or by its word; got False"),
        ({"layer": True}, ConfigError, "layer must be a whole number; got True"),
        ({"head": -1}, ConfigError, "head must be between 0"),
        ({"query": 99}, TextError, "from 0 to 10; got 99"),
        ({"model": "bert-base", "layer": 0}, ModelError, "bert-base has none"),
        ({"out": "missing/page.html"}, HeadwiseError, "missing"),
        ({"model": nn.Linear(3, 3)}, ModelError, "attention"),
        ({"text": 3}, TextError, "text must be the path of a file; got 3"),
        ({"sentence": 3}, TextError, "sentence must be a str; got 3"),
        ({"sentence": "\udce9 a"}, TextError, "half of a surrogate pair"),
        ({"inputs": [1]}, ModelError, "a mapping; got list"),
        ({"out": 3}, TextError, "out must be the path of a file; got 3"),
        ({"out": "page.txt"}, OutputError, "ends in .html or .htm; got 'page.txt'"),
        ({"model": None, "example": []}, ConfigError, r"example must be one of two-tokens, two-heads; got \[\]"),
    ],
)
def test_a_bad_request_says_what_must_hold(asked, error, text, without_type_checks):
    with pytest.raises(error, match=text):
        headwise.explain(**{"model": MultiHeadAttention(12, 3), **asked})
