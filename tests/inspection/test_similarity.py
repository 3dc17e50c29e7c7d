import math

import pytest
import torch

from headwise.errors import TextError
from headwise.inspection.statistics.kinds import TokenKinds
from headwise.inspection.statistics.similarity import ModelDivergence
from headwise.integrations import layer_weights
from headwise.integrations.layer_weights import GivenWeights

TOKENS = 13
REAL = torch.tensor([[True] * 13, [False] * 6 + [True] * 7])


def make_layer(num_heads, seed):
    scores = 3 * torch.randn(2, num_heads, TOKENS, TOKENS, generator=torch.Generator().manual_seed(seed)).double()
    visible = REAL[:, None, None, :] & torch.ones(TOKENS, TOKENS, dtype=torch.bool).tril()
    return GivenWeights(
        weights=torch.softmax(scores.masked_fill(~visible, -torch.inf), dim=-1).nan_to_num(0.0), visible=visible
    )


def loop_divergence(p, q):
    total = 0.0
    for b, i in REAL.nonzero().tolist():
        for x, y in zip(p[b, i].tolist(), q[b, i].tolist(), strict=True):
            mean = (x + y) / 2
            total += sum(w * math.log(w / mean) for w in (x, y) if w > 0) / 2
    return total / int(REAL.sum())


def test_heads_of_all_layers_are_compared_though_layers_differ_in_their_number(monkeypatch):
    layers = [make_layer(3, seed=0), make_layer(2, seed=1)]
    monkeypatch.setattr(layer_weights, "BLOCK_ELEMENTS", 5 * 2 * 5 * TOKENS)  # 5 queries of 5 heads at a time
    sums = ModelDivergence()
    for layer in layers:
        sums.keep(layer)
    sums.finish_batch(TokenKinds(REAL, torch.zeros_like(REAL)))
    assert sums.layers == []
    result = sums.to_result()
    assert result.heads == ((0, 0), (0, 1), (0, 2), (1, 0), (1, 1))
    maps = [layers[layer].weights[:, head] for layer, head in result.heads]
    for a, row in enumerate(result.divergence):
        assert row == pytest.approx([loop_divergence(maps[a], other) for other in maps], rel=1e-11, abs=1e-13)
        assert row[a] == 0


def test_texts_of_more_than_1024_tokens_are_refused():
    long = torch.zeros(1, 1, 1025, 1)
    layer = GivenWeights(weights=long, visible=long.bool())
    with pytest.raises(TextError, match="up to 1024 tokens, padding included; got 1025"):
        ModelDivergence().keep(layer)
