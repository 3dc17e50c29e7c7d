import math

import pytest
import torch

from headwise.inspection.roles.positional import ROLE_NAMES
from headwise.inspection.statistics.kinds import TokenKinds
from headwise.inspection.statistics.sums import LayerSums
from headwise.integrations import layer_weights
from headwise.integrations.layer_weights import GivenWeights

HEADS = 3
PADDINGS = {
    "none": [[1] * 7, [1] * 7],
    "right": [[1, 1, 1, 1, 1, 0, 0], [1, 1, 0, 0, 0, 0, 0]],
    "left": [[0, 0, 1, 1, 1, 1, 1], [0, 0, 0, 0, 0, 0, 1]],
}
STATISTICS = ("entropy", "normalized_entropy", "sparsity", "distance", "sink_mass", "max_weight")


def make_layer(real, *, causal, seed=0):
    """Weights of a layer that hides padded keys, as models do: padded queries still have weights of their own."""
    real = torch.tensor(real, dtype=torch.bool)
    batch, seq_len = real.shape
    generator = torch.Generator().manual_seed(seed)
    scores = 3 * torch.randn(batch, HEADS, seq_len, seq_len, generator=generator, dtype=torch.float64)
    visible = real[:, None, None, :].expand(batch, 1, seq_len, seq_len)
    if causal:
        visible = visible & torch.ones(seq_len, seq_len, dtype=torch.bool).tril()
    weights = torch.softmax(scores.masked_fill(~visible, -torch.inf), dim=-1).nan_to_num(0.0)
    return GivenWeights(weights=weights, visible=visible), real


def loop_statistics(layer, real, head, separators=None):
    """Every statistic by plain loops over queries and keys, as its documentation words it."""
    values = {name: [] for name in STATISTICS}
    roles = {name: [] for name in ROLE_NAMES}
    for b in range(len(real)):
        tokens = [j for j in range(len(real[b])) if real[b, j]]
        for i in tokens:
            keys = [j for j in tokens if layer.visible[b, 0, i, j]]
            if not keys:
                continue
            weight = {j: layer.weights[b, head, i, j].item() for j in keys}
            entropy = -sum(w * math.log(w) for w in weight.values() if w > 0)
            values["entropy"].append(entropy)
            values["sparsity"].append(sum(w < 0.1 / len(keys) for w in weight.values()) / len(keys))
            values["distance"].append(sum(w * abs(i - j) for j, w in weight.items()))
            values["sink_mass"].append(weight.get(tokens[0], 0.0))
            values["max_weight"].append(max(weight.values()))
            if len(keys) < 2:
                continue
            values["normalized_entropy"].append(entropy / math.log(len(keys)))
            for name, key, applies in (
                ("previous token", i - 1, True),
                ("next token", i + 1, True),
                ("first token", tokens[0], i != tokens[0]),
                ("self", i, True),
            ):
                if applies and key in weight:
                    roles[name].append(weight[key])
            marked = [j for j in keys if separators is not None and separators[b, j]]
            if marked and not separators[b, i]:
                roles["separator"].append(sum(weight[j] for j in marked))
    return (
        {name: sum(found) / len(found) if found else 0.0 for name, found in values.items()},
        {name: sum(found) / len(found) if found else None for name, found in roles.items()},
    )


def add_up(*layers_and_kinds):
    sums = LayerSums(HEADS)
    for layer, kinds in layers_and_kinds:
        sums.add(layer, kinds)
    return sums.to_statistics(layer=5)


def no_separators(real):
    return TokenKinds(real, torch.zeros_like(real))


def assert_same_roles(roles, expected):
    assert [role.name for role in roles] == [role.name for role in expected]
    for role, other in zip(roles, expected, strict=True):
        assert_same_score(role.score, other.score)


def assert_same_score(score, expected):
    assert (score is None) == (expected is None)
    assert score is None or score == pytest.approx(expected, rel=1e-12, abs=1e-14)


def assert_same(head, expected, expected_roles):
    for name in STATISTICS:
        assert getattr(head, name) == pytest.approx(expected[name], rel=1e-12, abs=1e-14), name
    assert tuple(role.name for role in head.roles) == ROLE_NAMES
    for role in head.roles:
        assert_same_score(role.score, expected_roles[role.name])


@pytest.mark.parametrize("padding", PADDINGS)
@pytest.mark.parametrize("causal", [True, False])
def test_statistics_and_roles_equal_plain_loops(padding, causal):
    layer, real = make_layer(PADDINGS[padding], causal=causal)
    separators = torch.zeros_like(real)
    separators[:, 4] = True
    separators[0, 6] = True
    heads = add_up((layer, TokenKinds(real, separators)))
    assert [(head.layer, head.head) for head in heads] == [(5, 0), (5, 1), (5, 2)]
    for head in heads:
        assert_same(head, *loop_statistics(layer, real, head.head, separators & real))


def test_a_map_small_enough_for_pencil_and_paper():
    weights = torch.tensor([[1.0, 0.0, 0.0], [0.5, 0.5, 0.0], [0.25, 0.25, 0.5]], dtype=torch.float64)
    visible = torch.ones(3, 3, dtype=torch.bool).tril()
    layer = GivenWeights(weights=weights.expand(1, HEADS, 3, 3), visible=visible.view(1, 1, 3, 3))
    head = add_up((layer, no_separators(torch.ones(1, 3, dtype=torch.bool))))[0]
    assert head.entropy == pytest.approx((0 + math.log(2) + 1.5 * math.log(2)) / 3)
    assert head.normalized_entropy == pytest.approx((1 + 1.5 * math.log(2) / math.log(3)) / 2)
    assert head.sparsity == 0
    assert head.distance == pytest.approx((0 + 0.5 + (0.5 + 0.25)) / 3)
    assert head.sink_mass == pytest.approx((1 + 0.5 + 0.25) / 3)
    assert head.max_weight == pytest.approx((1 + 0.5 + 0.5) / 3)
    assert [role.score for role in head.roles] == [0.375, None, 0.375, 0.5, None]


def test_uniform_heads_have_normalized_entropy_1_and_one_hot_heads_0_in_a_causal_layer():
    visible = torch.ones(1, 1, 13, 13, dtype=torch.bool).tril()
    uniform = visible.double() / visible.sum(dim=-1, keepdim=True)
    one_hot = torch.eye(13, dtype=torch.float64).expand(1, 1, 13, 13)
    layer = GivenWeights(weights=torch.cat([uniform, one_hot, uniform], dim=1), visible=visible)
    heads = add_up((layer, no_separators(torch.ones(1, 13, dtype=torch.bool))))
    assert [head.normalized_entropy for head in heads] == pytest.approx([1, 0, 1])
    assert heads[1].sparsity == pytest.approx(sum(1 - 1 / n for n in range(1, 14)) / 13)


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("causal", [True, False])
def test_a_padded_batch_equals_each_text_alone(side, causal):
    real = torch.tensor(PADDINGS[side], dtype=torch.bool)
    layer, _ = make_layer(PADDINGS[side], causal=causal)
    alone = []
    for b in range(len(real)):
        own = real[b].nonzero().flatten()
        text = GivenWeights(
            weights=layer.weights[b : b + 1][:, :, own][..., own], visible=layer.visible[b : b + 1][:, :, own][..., own]
        )
        alone.append((text, no_separators(torch.ones(1, len(own), dtype=torch.bool))))
    for batched, single in zip(add_up((layer, no_separators(real))), add_up(*alone), strict=True):
        for name in STATISTICS:
            assert getattr(batched, name) == pytest.approx(getattr(single, name), rel=1e-12)
        assert_same_roles(batched.roles, single.roles)


def test_weights_that_padding_holds_never_count():
    layer, real = make_layer(PADDINGS["right"], causal=False)
    spoilt = layer.weights.clone()
    spoilt[0, :, 5:, :] = torch.nan  # padded queries
    spoilt[0, :, :, 5:] = 7.0  # padded keys
    clean, dirty = (
        add_up((GivenWeights(weights=weights, visible=layer.visible), no_separators(real)))
        for weights in (layer.weights, spoilt)
    )
    assert clean == dirty


def test_padding_is_left_out_even_where_the_model_lets_it_be_seen():
    layer, real = make_layer(PADDINGS["none"], causal=False)
    real = torch.tensor(PADDINGS["right"], dtype=torch.bool)
    for head in add_up((layer, no_separators(real))):
        assert_same(head, *loop_statistics(layer, real, head.head))


def test_a_query_that_sees_nothing_is_no_query():
    layer, real = make_layer(PADDINGS["none"], causal=False)
    visible = layer.visible.clone()
    visible[0, 0, 2] = False
    layer = GivenWeights(weights=layer.weights, visible=visible)
    for head in add_up((layer, no_separators(real))):
        assert_same(head, *loop_statistics(layer, real, head.head))


def test_blocks_and_batches_add_up_to_the_whole(monkeypatch):
    layer, real = make_layer(PADDINGS["left"], causal=True)
    other, other_real = make_layer(PADDINGS["right"], causal=True, seed=1)
    whole = add_up((layer, no_separators(real)), (other, no_separators(other_real)))
    both = GivenWeights(
        weights=torch.cat([layer.weights, other.weights]), visible=torch.cat([layer.visible, other.visible])
    )
    monkeypatch.setattr(layer_weights, "BLOCK_ELEMENTS", 2 * both.weights[:, :, 0].numel())
    in_blocks = add_up((both, no_separators(torch.cat([real, other_real]))))
    for expected, head in zip(whole, in_blocks, strict=True):
        for name in STATISTICS:
            assert getattr(head, name) == pytest.approx(getattr(expected, name), rel=1e-12)
        assert_same_roles(head.roles, expected.roles)


@pytest.mark.parametrize("causal", [True, False])
def test_a_layer_looks_ahead_only_if_a_real_query_may_read_a_later_key(causal):
    layer, real = make_layer(PADDINGS["left"], causal=causal)
    sums = LayerSums(HEADS)
    sums.add(layer, no_separators(real))
    assert sums.looks_ahead is not causal


def test_sums_are_float64_however_coarse_the_weights():
    layer, real = make_layer(PADDINGS["none"], causal=False)
    coarse = GivenWeights(weights=layer.weights.float(), visible=layer.visible)
    exact = GivenWeights(weights=coarse.weights.double(), visible=layer.visible)
    sums = LayerSums(HEADS)
    sums.add(coarse, no_separators(real))
    assert {each.dtype for each in (*sums.sums.values(), sums.role_sums)} == {torch.float64}
    # a query's statistic is a sum of 7 terms, each rounded two or three times
    rounding = 10 * torch.finfo(torch.float32).eps
    for head, expected in zip(sums.to_statistics(layer=5), add_up((exact, no_separators(real))), strict=True):
        for name in STATISTICS:
            assert getattr(head, name) == pytest.approx(getattr(expected, name), rel=rounding)
        assert head.distance == pytest.approx(expected.distance, rel=1e-12)


def test_of_coarse_weights_the_spread_of_far_keys_is_no_rounding():
    tokens = 1009
    weights = torch.zeros(1, HEADS, tokens, tokens)
    weights[..., :2] = 0.5
    layer = GivenWeights(weights=weights, visible=torch.ones(1, 1, tokens, tokens, dtype=torch.bool))
    # |i - 0| and |i - 1| differ by one, so their spread is 1/2; of query 1 they are 1 and 0, of query 0 0 and 1
    for head in add_up((layer, no_separators(torch.ones(1, tokens, dtype=torch.bool)))):
        assert head.distance_spread == pytest.approx(0.5, rel=1e-9)  # squares of 10^6, each off by 10^-10
