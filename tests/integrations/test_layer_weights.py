import math

import pytest
import torch
from torch.nn.functional import pad

from headwise.integrations import layer_weights
from headwise.integrations.layer_weights import GivenWeights, ProjectedWeights

BATCH, HEADS, KV_HEADS, QUERIES, KEYS, HEAD_DIM = 2, 6, 3, 7, 11, 5
SCALE = 0.3


def loop_softmax(query, key, *, scale, allows, bias=None, softcap=None, sink=None):
    """Weights by plain loops in float64: query head h reads key head h // (H / K); a sink is one more key."""
    batch, num_heads, query_len, _ = query.shape
    group = num_heads // key.shape[1]
    weights = torch.zeros(batch, num_heads, query_len, key.shape[2], dtype=torch.float64)
    for b in range(batch):
        for h in range(num_heads):
            for i in range(query_len):
                powers = {}
                for j in range(key.shape[2]):
                    if allows(b, h, i, j):
                        dot = sum(
                            x * y for x, y in zip(query[b, h, i].tolist(), key[b, h // group, j].tolist(), strict=True)
                        )
                        score = scale * dot if softcap is None else softcap * math.tanh(scale * dot / softcap)
                        powers[j] = math.exp(score + (bias[b, h, i, j].item() if bias is not None else 0.0))
                total = sum(powers.values()) + (0.0 if sink is None else math.exp(sink[h].item()))
                for j, power in powers.items():
                    weights[b, h, i, j] = power / total
    return weights


def on_all_keys(parts, key_len):
    return torch.cat([pad(part, (0, key_len - part.shape[-1])) for part in parts], dim=2)


def all_weights(layer):
    return on_all_keys([block.weights for block in layer.blocks()], layer.shape[3])


def all_visible(layer):
    return on_all_keys([block.visible for block in layer.blocks()], layer.shape[3])


@pytest.fixture
def q_and_k():
    generator = torch.Generator().manual_seed(0)
    query = torch.randn(BATCH, HEADS, QUERIES, HEAD_DIM, generator=generator, dtype=torch.float64)
    key = torch.randn(BATCH, KV_HEADS, KEYS, HEAD_DIM, generator=generator, dtype=torch.float64)
    return query, key


def test_recomputed_weights_equal_plain_loops_with_grouped_heads_mask_and_bias(q_and_k):
    query, key = q_and_k
    generator = torch.Generator().manual_seed(1)
    mask = torch.rand(BATCH, HEADS, QUERIES, KEYS, generator=generator) < 0.7
    bias = torch.randn(BATCH, HEADS, QUERIES, KEYS, generator=generator, dtype=torch.float64)
    layer = ProjectedWeights(query=query, key=key, scale=SCALE, mask=mask, bias=bias)
    expected = loop_softmax(query, key, scale=SCALE, allows=lambda b, h, i, j: mask[b, h, i, j].item(), bias=bias)
    torch.testing.assert_close(all_weights(layer), expected, rtol=1e-12, atol=1e-14)
    assert torch.equal(all_visible(layer), mask)


def test_a_cap_comes_before_the_bias_and_a_sink_takes_its_share(q_and_k):
    query, key = q_and_k
    generator = torch.Generator().manual_seed(3)
    mask = torch.rand(BATCH, HEADS, QUERIES, KEYS, generator=generator) < 0.7
    mask[1, :, 3] = False  # a query that sees nothing but the sink
    bias = 3 * torch.randn(BATCH, HEADS, QUERIES, KEYS, generator=generator, dtype=torch.float64)
    sink = torch.randn(HEADS, generator=generator, dtype=torch.float64)
    layer = ProjectedWeights(query=query, key=key, scale=SCALE, mask=mask, bias=bias, softcap=0.5, sink=sink)
    expected = loop_softmax(
        *(query, key),
        scale=SCALE,
        allows=lambda b, h, i, j: mask[b, h, i, j].item(),
        bias=bias,
        softcap=0.5,
        sink=sink,
    )
    torch.testing.assert_close(all_weights(layer), expected, rtol=1e-12, atol=1e-14)
    assert all_weights(layer).sum(dim=-1).max() < 1
    assert not all_weights(layer)[1, :, 3].any()


def test_masks_and_biases_that_are_functions_are_asked_for_the_rows_of_each_block(q_and_k, monkeypatch):
    query, key = q_and_k
    generator = torch.Generator().manual_seed(4)
    mask = torch.rand(BATCH, HEADS, QUERIES, KEYS, generator=generator) < 0.6
    bias = torch.randn(1, HEADS, QUERIES, KEYS, generator=generator, dtype=torch.float64)
    whole = ProjectedWeights(query=query, key=key, scale=SCALE, mask=mask, bias=bias)
    asked = []

    def mask_rows(index):
        asked.append(index.tolist())
        return mask[:, :, index]

    parts = ProjectedWeights(query=query, key=key, scale=SCALE, mask=mask_rows, bias=lambda index: bias[:, :, index])
    expected = all_weights(whole)
    monkeypatch.setattr(layer_weights, "BLOCK_ELEMENTS", 2 * BATCH * HEADS * KEYS)
    torch.testing.assert_close(all_weights(parts), expected, rtol=1e-12, atol=1e-14)
    assert asked == [[0, 1], [2, 3], [4, 5], [6]]


def test_a_causal_layer_without_mask_shows_no_later_key(q_and_k):
    query, key = q_and_k
    layer = ProjectedWeights(query=query, key=key, scale=SCALE, is_causal=True)
    expected = loop_softmax(query, key, scale=SCALE, allows=lambda b, h, i, j: j <= i)
    torch.testing.assert_close(all_weights(layer), expected, rtol=1e-12, atol=1e-14)


def test_a_query_that_sees_no_key_has_weights_zero(q_and_k):
    query, key = q_and_k
    mask = torch.ones(BATCH, 1, QUERIES, KEYS, dtype=torch.bool)
    mask[1, 0, 3] = False
    weights = all_weights(ProjectedWeights(query=query, key=key, scale=SCALE, mask=mask))
    assert torch.equal(weights[1, :, 3], torch.zeros(HEADS, KEYS, dtype=torch.float64))
    torch.testing.assert_close(weights.sum(dim=-1)[0], torch.ones(HEADS, QUERIES, dtype=torch.float64))


@pytest.mark.parametrize("mask_shape", [(BATCH, 1, QUERIES, KEYS), (1, 1, 1, KEYS), (BATCH, HEADS, QUERIES, KEYS)])
@pytest.mark.parametrize(("is_causal", "starts"), [(True, [0, 4]), (False, [0, 2, 4, 6])])
def test_small_blocks_give_the_same_weights_as_one_block(q_and_k, monkeypatch, mask_shape, is_causal, starts):
    query, key = q_and_k
    mask = torch.rand(mask_shape, generator=torch.Generator().manual_seed(2)) < 0.6
    bias = torch.randn(mask_shape, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    layer = ProjectedWeights(query=query, key=key, scale=SCALE, mask=mask, bias=bias, is_causal=is_causal)
    given = GivenWeights(weights=all_weights(layer), visible=all_visible(layer))
    expected = loop_softmax(
        *(query, key),
        scale=SCALE,
        allows=lambda b, h, i, j: mask.expand(BATCH, HEADS, QUERIES, KEYS)[b, h, i, j] and (j <= i or not is_causal),
        bias=bias.expand(BATCH, HEADS, QUERIES, KEYS),
    )
    monkeypatch.setattr(layer_weights, "BLOCK_ELEMENTS", 2 * BATCH * HEADS * KEYS)
    assert [block.start for block in layer.blocks()] == starts
    assert [block.start for block in given.blocks()] == [0, 2, 4, 6]
    for source in (layer, given):
        torch.testing.assert_close(all_weights(source), expected, rtol=1e-12, atol=1e-14)
        assert torch.equal(all_visible(source), given.visible)


def test_blocks_of_a_causal_layer_leave_off_the_keys_that_none_of_their_queries_sees(q_and_k, monkeypatch):
    query, key = q_and_k
    layer = ProjectedWeights(query=query, key=key, scale=SCALE, is_causal=True)
    monkeypatch.setattr(layer_weights, "BLOCK_ELEMENTS", 2 * BATCH * HEADS * KEYS)
    assert [tuple(block.weights.shape[2:]) for block in layer.blocks()] == [(4, 4), (3, 7)]
    assert [tuple(block.scores.shape[2:]) for block in layer.blocks()] == [(4, 4), (3, 7)]


@pytest.mark.parametrize(
    ("shape", "elements"), [((2, 3, 101, 101), 6 * 500), ((1, 1, 7, 11), 1), ((1, 5, 211, 97), 9973)]
)
def test_blocks_cover_every_query_once_and_hold_no_more_than_they_may(shape, elements, monkeypatch):
    monkeypatch.setattr(layer_weights, "BLOCK_ELEMENTS", elements)
    batch, num_heads, query_len, key_len = shape
    full = list(layer_weights.block_ranges(shape))
    causal = list(layer_weights.block_ranges(shape, is_causal=True))
    for ranges in (full, causal):
        assert [query for start, stop in ranges for query in range(start, stop)] == list(range(query_len))
    for start, stop in causal:
        assert stop - start == 1 or (stop - start) * min(stop, key_len) * batch * num_heads <= elements
        assert stop - start <= 2 * (full[0][1] - full[0][0])
    assert len(causal) < len(full) or elements == 1


def test_the_softmax_of_a_bfloat16_layer_runs_in_float32(q_and_k):
    query, key = (tensor.bfloat16() for tensor in q_and_k)
    weights = all_weights(ProjectedWeights(query=query, key=key, scale=SCALE))
    expected = loop_softmax(query.double(), key.double(), scale=SCALE, allows=lambda *_: True)
    assert weights.dtype == torch.float32
    # a handful of float32 roundings; in bfloat16 the error would be about 2^-9
    torch.testing.assert_close(weights.double(), expected, rtol=1e-5, atol=1e-7)
