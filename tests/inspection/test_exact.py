import pytest
import torch
import transformers

from headwise.errors import ModelError, TextError
from headwise.inspection.capture.readers import open_reader
from headwise.inspection.exact import read_weights, weights_of_heads
from headwise.integrations import layer_weights
from headwise.masks.data import KeyPadding
from headwise.nn.multihead import MultiHeadAttention

VOCAB, HEADS, TOKENS = 53, 3, 11
IDS = torch.randint(1, VOCAB, (2, TOKENS), generator=torch.Generator().manual_seed(0))
PADDED = torch.tensor([[1] * TOKENS, [0] * 4 + [1] * 7])
INPUTS = {"input_ids": IDS, "attention_mask": PADDED}


@pytest.fixture(scope="module")
def llama():
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=12,
        intermediate_size=7,
        num_attention_heads=HEADS,
        num_key_value_heads=1,
        num_hidden_layers=2,
        max_position_embeddings=16,
        initializer_range=0.5,
    )
    return transformers.LlamaModel(config).eval()


@pytest.fixture(scope="module")
def attentions(llama):
    llama.set_attn_implementation("eager")
    with torch.no_grad():
        found = llama(**INPUTS, output_attentions=True).attentions
    llama.set_attn_implementation("sdpa")
    return found


def test_the_weights_of_a_head_are_those_of_the_models_own_eager_attention(llama, attentions):
    for layer in range(2):
        for head in range(HEADS):
            weights = read_weights(llama, INPUTS, layer=layer, head=head)
            torch.testing.assert_close(weights, attentions[layer][0, head])


def test_rows_are_tokens_of_the_text_without_its_padding_in_the_order_asked_for(llama, attentions):
    expected = attentions[1][1, 2, 4:, 4:]
    whole = read_weights(llama, INPUTS, layer=1, head=2, text=1)
    torch.testing.assert_close(whole, expected)
    rows = [5, 0, 1, 2, 6]
    torch.testing.assert_close(read_weights(llama, INPUTS, layer=1, head=2, text=1, rows=rows), expected[rows])
    assert read_weights(llama, INPUTS, layer=1, head=2, rows=[]).shape == (0, TOKENS)


def test_several_heads_are_read_in_one_pass(llama, attentions):
    reader = open_reader(llama, INPUTS)
    found = weights_of_heads(reader, INPUTS, [(1, 0), (0, 2)], rows=[3])
    assert list(found) == [(1, 0), (0, 2)]
    for (layer, head), weights in found.items():
        torch.testing.assert_close(weights, attentions[layer][0, head, 3:4])


def test_only_the_rows_asked_for_are_computed(llama, monkeypatch):
    computed = []
    block = layer_weights.ProjectedWeights.block

    def count(self, start, stop):
        found = block(self, start, stop)
        computed.append(found.weights.numel())
        return found

    reader = open_reader(llama, INPUTS)
    monkeypatch.setattr(layer_weights.ProjectedWeights, "block", count)
    weights_of_heads(reader, INPUTS, [(1, 2)], rows=[2, 3, 7])
    assert computed == [3 * TOKENS]


def test_padding_that_our_own_layer_is_told_of_is_left_out():
    torch.manual_seed(0)
    layer = MultiHeadAttention(12, HEADS).eval()
    x = torch.randn(2, TOKENS, 12)
    inputs = {"query": x, "mask": KeyPadding(torch.tensor([TOKENS, 7]))}
    with torch.no_grad():
        expected = layer.attend(x[1:, :7], return_weights=True).weights
    torch.testing.assert_close(read_weights(layer, inputs, layer=0, head=1, text=1), expected[0, 1])


@pytest.mark.parametrize(
    ("error", "message", "wrong"),
    [
        (ModelError, "layer must be a number from 0 to 1; got 2", {"layer": 2}),
        (ModelError, "layer must be a number from 0 to 1; got '0'", {"layer": "0"}),
        (ModelError, "head must be a number from 0 to 2; got 1.0", {"head": 1.0}),
        (TextError, "text must be a row of the batch, from 0 to 1; got True", {"text": True}),
        (TextError, "rows must be numbers of tokens of the text, from 0 to 10; got 3", {"rows": 3}),
        (TextError, r"rows must be numbers .*; got \[1.5\]", {"rows": [1.5]}),
        (TextError, r"of each token whether it is real, a tensor of \(2, 11\); got \[1\]", {"real_tokens": [1]}),
        (TextError, r"\(2, 11\); got \(1, 11\)", {"real_tokens": torch.ones(1, TOKENS, dtype=torch.bool)}),
        (ModelError, "head must be a number from 0 to 2; got 3", {"head": 3}),
        (TextError, "text must be a row of the batch, from 0 to 1; got 2", {"text": 2}),
        (
            TextError,
            "rows must be numbers of tokens of the text, from 0 to 6; got \\[0, 7\\]",
            {"text": 1, "rows": [0, 7]},
        ),
    ],
)
def test_what_is_not_there_is_refused(llama, error, message, wrong, without_type_checks):
    with pytest.raises(error, match=message):
        read_weights(llama, INPUTS, **{"layer": 0, "head": 0, **wrong})
