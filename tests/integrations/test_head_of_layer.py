"""One head of one text, taken out of a layer, weighs as it does in the layer; and the scores that a block shows."""

import pytest
import torch

from headwise.integrations.layer_weights import GivenWeights, ProjectedWeights, take_rows

BATCH, HEADS, KV_HEADS, TOKENS, HEAD_DIM = 2, 6, 3, 7, 5


def draw(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def layer(**settings):
    return ProjectedWeights(
        query=draw(BATCH, HEADS, TOKENS, HEAD_DIM), key=draw(BATCH, KV_HEADS, TOKENS, HEAD_DIM), scale=0.7, **settings
    )


def mask_of(*shape):
    return draw(*shape, seed=1) < 0.5


LAYERS = {
    "causal": layer(is_causal=True),
    "mask of each head": layer(mask=mask_of(BATCH, HEADS, TOKENS, TOKENS)),
    "mask of each text": layer(mask=mask_of(BATCH, 1, 1, TOKENS), is_causal=True),
    "bias of each head": layer(bias=draw(1, HEADS, TOKENS, TOKENS, seed=2)),
    "rows made on demand": layer(
        mask=lambda rows: take_rows(mask_of(BATCH, HEADS, TOKENS, TOKENS), rows),
        bias=lambda rows: take_rows(draw(BATCH, HEADS, TOKENS, TOKENS, seed=2), rows),
    ),
    "sink and softcap": layer(sink=draw(HEADS, seed=3), softcap=2.0, real_tokens=mask_of(BATCH, TOKENS)),
    "given": GivenWeights(
        weights=draw(BATCH, HEADS, TOKENS, TOKENS).softmax(dim=-1), visible=mask_of(BATCH, 1, TOKENS, TOKENS)
    ),
}


@pytest.mark.parametrize("name", LAYERS)
def test_a_head_alone_weighs_as_in_its_layer(name):
    whole = LAYERS[name]
    (block,) = whole.blocks()
    for text in range(BATCH):
        for head in range(HEADS):
            alone = whole.of_head(text, head)
            assert alone.shape == (1, 1, TOKENS, TOKENS)
            rows = alone.block(2, 5)
            assert rows.start == 2
            chosen = alone.of_rows(torch.tensor([[4, 1]])).block(0, 2)
            torch.testing.assert_close(chosen.weights[0, 0], block.weights[text, head, [4, 1]], rtol=1e-13, atol=1e-15)
            # a product of fewer rows may be summed in another order
            torch.testing.assert_close(rows.weights[0, 0], block.weights[text, head, 2:5], rtol=1e-13, atol=1e-15)
            of_mask_head = 0 if block.visible.shape[1] == 1 else head
            assert torch.equal(rows.visible[0, 0], block.visible[text, of_mask_head, 2:5])
            real = whole.real_tokens
            assert real is None or torch.equal(alone.real_tokens, real[text : text + 1])


@pytest.mark.parametrize("name", [name for name in LAYERS if name != "given"])
def test_scores_are_what_the_softmax_reads_and_hidden_ones_are_minus_infinity(name):
    (block,) = LAYERS[name].blocks()
    sink = LAYERS[name].sink
    scores = block.scores
    assert torch.equal(scores == -torch.inf, (~block.visible).expand_as(scores))
    if sink is not None:
        scores = torch.cat([scores, sink.view(1, -1, 1, 1).expand(BATCH, -1, TOKENS, 1)], dim=-1)
    weights = scores.softmax(dim=-1)[..., :TOKENS].nan_to_num(0.0)
    torch.testing.assert_close(block.weights, weights, rtol=1e-13, atol=0)


def test_a_layer_that_gives_its_weights_whole_has_no_scores():
    (block,) = LAYERS["given"].blocks()
    assert block.scores is None
