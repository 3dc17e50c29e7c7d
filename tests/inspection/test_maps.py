import struct

import pytest
import torch

from headwise.inspection.maps import LayerMaps, LayerOverviews, LayerTopKeys
from headwise.inspection.statistics.counted import count_block
from headwise.inspection.statistics.kinds import TokenKinds
from headwise.integrations import layer_weights
from headwise.integrations.layer_weights import GivenWeights

HEADS, TOKENS = 3, 23
LENGTH = 19  # of the text that is shown, row 1; row 0 has all tokens


def make_layer(side):
    real = torch.ones(2, TOKENS, dtype=torch.bool)
    real[1, slice(LENGTH, None) if side == "right" else slice(0, TOKENS - LENGTH)] = False
    scores = 2 * torch.randn(2, HEADS, TOKENS, TOKENS, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    visible = real[:, None, None, :] & torch.ones(TOKENS, TOKENS, dtype=torch.bool).tril()
    weights = torch.softmax(scores.masked_fill(~visible, -torch.inf), dim=-1).nan_to_num(0.0)
    own = real[1].nonzero().flatten()
    return GivenWeights(weights=weights, visible=visible), real, weights[1][:, own][..., own]


def kinds_of(real):
    return TokenKinds(real, torch.zeros_like(real))


def show(collector, layer, real):
    for block in layer.blocks():
        collector.add(count_block(block, kinds_of(real)))
    return collector


@pytest.fixture(params=["right", "left"])
def shown(request, monkeypatch):
    monkeypatch.setattr(layer_weights, "BLOCK_ELEMENTS", 5 * 2 * HEADS * TOKENS)  # 5 queries at a time
    return make_layer(request.param)


def read(map_):
    side = torch.tensor(list(map_.weights), dtype=torch.float64).view(map_.num_queries, map_.num_keys)
    return (side / 255) ** 2


# half a step of the square root, at its coarsest: (255^2 - 254^2) / 255^2 / 2, and what float32 sums round
HALF_A_STEP = 0.00393


def test_a_map_covers_the_first_tokens_of_its_text_one_by_one(shown):
    layer, real, expected = shown
    maps = show(LayerMaps(5, row=1, kinds=kinds_of(real), max_tokens=11), layer, real).to_maps()
    assert [(each.layer, each.head, each.num_queries, each.num_keys, each.tile) for each in maps] == [
        (5, head, 11, 11, 1) for head in range(HEADS)
    ]
    for head, each in enumerate(maps):
        torch.testing.assert_close(read(each), expected[head, :11, :11], rtol=0, atol=HALF_A_STEP)


def test_an_overview_is_the_mean_over_the_queries_of_a_square_of_the_weight_on_its_keys(shown):
    layer, real, expected = shown
    maps = show(LayerOverviews(5, HEADS, row=1, kinds=kinds_of(real), max_cells=7), layer, real).to_maps()
    for head, each in enumerate(maps):
        assert (each.tile, each.num_queries, each.num_keys) == (3, 7, 7)  # 6 squares of 3 tokens and one of the last
        for a in range(7):
            for b in range(7):
                queries, keys = range(3 * a, min(3 * a + 3, LENGTH)), range(3 * b, min(3 * b + 3, LENGTH))
                mean = sum(expected[head, i, j].item() for i in queries for j in keys) / len(queries)
                assert read(each)[a, b].item() == pytest.approx(mean, abs=HALF_A_STEP), (a, b)


def test_an_overview_of_a_short_text_is_its_map(shown):
    layer, real, _ = shown
    overviews = show(LayerOverviews(5, HEADS, row=1, kinds=kinds_of(real), max_cells=LENGTH), layer, real).to_maps()
    assert overviews == show(LayerMaps(5, row=1, kinds=kinds_of(real), max_tokens=LENGTH), layer, real).to_maps()


def test_top_keys_are_the_heaviest_of_each_query_exactly(shown):
    layer, real, expected = shown
    found = show(LayerTopKeys(5, row=1, kinds=kinds_of(real), count=4), layer, real).to_top_keys()
    for head, each in enumerate(found):
        assert (each.layer, each.head, each.num_queries, each.num_keys) == (5, head, LENGTH, 4)
        for query in range(LENGTH):
            row = expected[head, query].tolist()
            heaviest = sorted(range(query + 1), key=lambda key, row=row: -row[key])[:4]
            assert [key for key, _ in each.of_query(query)] == heaviest
            # weights are kept in float32: each is off by 2^-24 of itself
            assert [weight for _, weight in each.of_query(query)] == pytest.approx([row[k] for k in heaviest], rel=6e-8)
            rest = sum(row) - sum(row[key] for key in heaviest)
            assert each.remainder(query) == pytest.approx(rest, abs=1e-7)


def test_a_query_that_sees_fewer_keys_than_are_kept_has_fewer(shown):
    layer, real, _ = shown
    each = show(LayerTopKeys(5, row=1, kinds=kinds_of(real), count=97), layer, real).to_top_keys()[0]
    assert each.num_keys == LENGTH
    assert [len(each.of_query(query)) for query in range(LENGTH)] == list(range(1, LENGTH + 1))
    assert struct.unpack(f"<{LENGTH}i", each.keys[: 4 * LENGTH]) == (0, *[-1] * (LENGTH - 1))
    with pytest.raises(IndexError, match="query must be a number from 0 to 18; got 19"):
        each.of_query(LENGTH)
