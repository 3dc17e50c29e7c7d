"""Every statistic of a head, streamed from queries and keys, against plain float64 arithmetic on the whole maps."""

import math
from dataclasses import replace

import pytest
import torch
import transformers
from torch.utils._python_dispatch import TorchDispatchMode

from headwise.inspection.detail import Detail
from headwise.inspection.inspect import inspect_inputs
from headwise.inspection.statistics import stable_rank
from headwise.inspection.statistics.kinds import TokenKinds
from headwise.inspection.statistics.places import BLOCK_TOKENS, DIAGONAL_REACH
from headwise.inspection.statistics.sums import LayerSums
from headwise.inspection.statistics.variability import FIRST_TOKENS
from headwise.integrations import layer_weights
from headwise.integrations.layer_weights import GivenWeights, ProjectedWeights

HEADS, KV_HEADS, HEAD_DIM, TOKENS = 6, 2, 5, 23
LENGTHS = (23, 11, 3)  # two texts of 10 tokens and more, so that they can vary, and one shorter than the sketch is wide
WINDOW = 7
MEANS = (
    *("entropy", "normalized_entropy", "num_effective_keys", "num_keys_for_90_percent", "sparsity", "max_weight"),
    *("distance", "distance_spread", "sink_mass", "diagonal_mass", "uniform_diagonal_mass"),
    *("block_mass", "uniform_block_mass", "padding_mass", "mean_abs_score", "score_spread"),
)
EXACT = {"rel": 1e-11, "abs": 1e-12}  # float64 sums of at most 23 * 23 terms, in another order
# a variance of distances is the difference of two squares below 23^2, each rounded to 23^2 * 2^-53 = 6e-14 and summed
# over 23 keys: an error of up to 2e-12, of which the standard deviation takes the root where it is 0
SPREAD = {"rel": 1e-9, "abs": 2e-6}


def real_tokens(side):
    real = torch.zeros(len(LENGTHS), TOKENS, dtype=torch.bool)
    for row, length in enumerate(LENGTHS):
        real[row, slice(0, length) if side == "right" else slice(TOKENS - length, TOKENS)] = True
    return real


def make_layer(real, *, kind, hides_padding=True, sink=False, seed=0):
    """A layer of grouped heads in float64."""
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    batch, seq_len = real.shape
    index = torch.arange(seq_len)
    mask = real[:, None, None, :] if hides_padding else None
    apart = index[:, None] - index
    shape = {
        "windowed": (apart < WINDOW).unsqueeze(0),
        # odd heads read tokens at odd distances only: some of their queries see nothing, or padding alone
        "odd": (apart % 2 == 1) | (torch.arange(HEADS) % 2 == 0)[:, None, None],
    }.get(kind)
    if shape is not None:
        mask = shape[None] if mask is None else mask & shape
    # far from 0 on either side, as a constant changes no weight
    level = torch.tensor([40.0, -40.0], dtype=torch.float64).repeat(HEADS // 2)
    return ProjectedWeights(
        query=draw(batch, HEADS, seq_len, HEAD_DIM) * 3,
        key=draw(batch, KV_HEADS, seq_len, HEAD_DIM),
        scale=HEAD_DIM**-0.5,
        mask=mask,
        bias=draw(1, HEADS, 1, seq_len) + level.view(1, HEADS, 1, 1),
        is_causal=kind != "bidirectional",
        sink=draw(HEADS) + level if sink else None,
    )


def full_maps(layer):
    """Scores, weights and visible pairs as whole (B, H, T, T) tensors, in one expression each."""
    batch, num_heads, seq_len, _ = layer.shape
    keys = layer.key.repeat_interleave(num_heads // layer.key.shape[1], dim=1)
    scores = torch.einsum("bhqd,bhkd->bhqk", layer.query, keys) * layer.scale + layer.bias
    visible = torch.ones(batch, num_heads, seq_len, seq_len, dtype=torch.bool)
    if layer.is_causal:
        visible = visible.tril()
    if layer.mask is not None:
        visible = visible & layer.mask
    exp = torch.where(visible, scores.exp(), 0.0)  # all scores are within 60 here
    total = exp.sum(dim=-1, keepdim=True)
    if layer.sink is not None:
        total = total + layer.sink.exp().view(1, -1, 1, 1)
    return scores, torch.where(total > 0, exp / total, 0.0), visible


def oracle(layer, real, head):
    """Every statistic by loops over queries and keys, as HeadStatistics words it."""
    scores, all_weights, visible = (each[:, head].tolist() for each in full_maps(layer))
    values = {name: [] for name in MEANS}
    largest_score, num_empty, ranks, first_maps = 0.0, 0, [], []
    for b in range(len(real)):
        tokens = [j for j in range(TOKENS) if real[b, j]]
        own_map = [[all_weights[b][i][j] for j in tokens] for i in tokens]
        matrix = torch.tensor(own_map, dtype=torch.float64)
        if matrix.any():
            ranks.append((matrix.square().sum() / torch.linalg.matrix_norm(matrix, 2) ** 2).item())
        if len(tokens) >= FIRST_TOKENS:
            first_maps.append(matrix[:FIRST_TOKENS, :FIRST_TOKENS])
        for i in tokens:
            if any(visible[b][i]):
                values["padding_mass"].append(sum(w for j, w in enumerate(all_weights[b][i]) if j not in tokens))
            keys = [j for j in tokens if visible[b][i][j]]
            if not keys:
                num_empty += 1
                continue
            weight = {j: all_weights[b][i][j] for j in keys}
            score = [scores[b][i][j] for j in keys]
            mass, near = sum(weight.values()), [j for j in keys if abs(i - j) <= DIAGONAL_REACH]
            own_block = [j for j in keys if (j - tokens[0]) // BLOCK_TOKENS == (i - tokens[0]) // BLOCK_TOKENS]
            entropy = -sum(w * math.log(w) for w in weight.values() if w > 0)
            distance = sum(w * abs(i - j) for j, w in weight.items())
            mean_distance = distance / mass
            carried, num_carrying = 0.0, 0
            for w in sorted(weight.values(), reverse=True):
                if carried < 0.9 * mass - 1e-9:
                    carried, num_carrying = carried + w, num_carrying + 1
            mean_score = sum(score) / len(score)
            largest_score = max(largest_score, *(abs(s) for s in score))
            for name, value in {
                "entropy": entropy,
                "num_effective_keys": math.exp(entropy),
                "num_keys_for_90_percent": num_carrying,
                "sparsity": sum(w < 0.1 / len(keys) for w in weight.values()) / len(keys),
                "max_weight": max(weight.values()),
                "distance": distance,
                "distance_spread": math.sqrt(
                    sum(w * (abs(i - j) - mean_distance) ** 2 for j, w in weight.items()) / mass
                ),
                "sink_mass": weight.get(tokens[0], 0.0),
                "diagonal_mass": sum(weight[j] for j in near),
                "uniform_diagonal_mass": len(near) / len(keys),
                "block_mass": sum(weight[j] for j in own_block),
                "uniform_block_mass": len(own_block) / len(keys),
                "mean_abs_score": sum(abs(s) for s in score) / len(score),
                "score_spread": math.sqrt(sum((s - mean_score) ** 2 for s in score) / len(score)),
            }.items():
                values[name].append(value)
            if len(keys) >= 2:
                values["normalized_entropy"].append(entropy / math.log(len(keys)))
    expected = {name: sum(found) / len(found) if found else 0.0 for name, found in values.items()}
    first = torch.stack(first_maps)
    expected["variability"] = ((first - first.mean(dim=0)).abs().sum() / (2 * first.sum())).item()
    expected["stable_rank"] = sum(ranks) / len(ranks)
    expected["max_abs_score"] = largest_score
    return expected, num_empty


def kinds_of(real):
    return TokenKinds(real, torch.zeros_like(real))


def add_up(*layers_and_reals):
    sums = LayerSums(HEADS, detailed=True)
    for layer, real in layers_and_reals:
        sums.add(layer, kinds_of(real))
    return sums


def tolerance_of(name):
    if name == "distance_spread":
        return SPREAD
    if name == "stable_rank":
        # a direction that is new by less than DEPENDENT = 1e-6 is dropped, of 4 at most in each pass
        return {"rel": 1e-5}
    if name == "variability":
        return {"rel": 1e-6}  # first tokens are kept in float32
    return EXACT


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("kind", ["causal", "windowed", "odd", "bidirectional"])
@pytest.mark.parametrize("extra", [{}, {"hides_padding": False}, {"sink": True}], ids=["", "padding seen", "sink"])
def test_every_statistic_equals_plain_float64_arithmetic_on_whole_maps(side, kind, extra, monkeypatch):
    real = real_tokens(side)
    layer = make_layer(real, kind=kind, **extra)
    monkeypatch.setattr(layer_weights, "BLOCK_ELEMENTS", 5 * len(real) * HEADS * TOKENS)  # 5 queries at a time
    for head in add_up((layer, real)).to_statistics(layer=0):
        expected, num_empty = oracle(layer, real, head.head)
        for name, value in expected.items():
            assert getattr(head, name) == pytest.approx(value, **tolerance_of(name)), name
        assert head.num_empty_queries == num_empty
        assert head.num_nan_queries == 0


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("kind", ["causal", "bidirectional"])
def test_a_padded_batch_equals_each_text_alone(side, kind):
    real = real_tokens(side)
    layer = make_layer(real, kind=kind)
    alone = []
    for b, own in enumerate(real):
        text = ProjectedWeights(
            query=layer.query[b : b + 1, :, own],
            key=layer.key[b : b + 1, :, own],
            scale=layer.scale,
            bias=layer.bias[..., own],
            is_causal=layer.is_causal,
        )
        alone.append((text, own[own].unsqueeze(0)))
    batched, singles = add_up((layer, real)), add_up(*alone)
    for head, single in zip(batched.to_statistics(0), singles.to_statistics(0), strict=True):
        for name, value in head.to_dict().items():
            if isinstance(value, float):
                assert value == pytest.approx(getattr(single, name), **tolerance_of(name)), name
        assert (head.num_empty_queries, head.num_nan_queries) == (single.num_empty_queries, single.num_nan_queries)
    assert_same_divergence(batched.to_divergence(0), singles.to_divergence(0).divergence)


def assert_same_divergence(result, expected):
    torch.testing.assert_close(
        torch.tensor(result.divergence, dtype=torch.float64),
        torch.as_tensor(expected, dtype=torch.float64),
        rtol=1e-11,
        atol=1e-12,
    )


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("kind", ["causal", "odd"])
def test_divergence_is_the_mean_of_jensen_shannons_over_queries_that_count_for_both(side, kind, monkeypatch):
    real = real_tokens(side)
    layer = make_layer(real, kind=kind)
    monkeypatch.setattr(layer_weights, "BLOCK_ELEMENTS", 5 * len(real) * HEADS * TOKENS)
    _, weights, visible = full_maps(layer)
    rows = weights.transpose(1, 2)[real]  # (queries, H, S)
    counts = visible.any(dim=-1).transpose(1, 2)[real]
    both = counts[:, :, None] & counts[:, None]
    p, q = rows[:, :, None], rows[:, None]
    mean = (p + q) / 2

    def relative(p):
        return torch.where(p > 0, p * (p / mean).log(), 0.0).sum(dim=-1)

    expected = (both * (relative(p) + relative(q)) / 2).sum(dim=0) / both.sum(dim=0)
    result = add_up((layer, real)).to_divergence(3)
    assert result.heads == tuple((3, head) for head in range(HEADS))
    assert_same_divergence(result, expected)


def test_heads_that_share_no_key_are_log_2_apart_and_equal_ones_0():
    weights = torch.zeros(1, HEADS, 3, 3, dtype=torch.float64)
    weights[:, :3, :, 0] = 1
    weights[:, 3:, :, 1:] = 0.5
    layer = GivenWeights(weights=weights, visible=torch.ones(1, 1, 3, 3, dtype=torch.bool))
    divergence = add_up((layer, torch.ones(1, 3, dtype=torch.bool))).to_divergence(0).divergence
    apart = [[0.0 if (a < 3) == (b < 3) else math.log(2) for b in range(HEADS)] for a in range(HEADS)]
    assert_same_divergence_rows(divergence, apart)


def assert_same_divergence_rows(rows, expected):
    for row, other in zip(rows, expected, strict=True):
        assert row == pytest.approx(other, abs=1e-15)


def test_scores_are_none_where_a_layer_gives_its_weights_whole():
    real = real_tokens("right")
    _, weights, visible = full_maps(make_layer(real, kind="causal"))
    head = add_up((GivenWeights(weights=weights, visible=visible), real)).to_statistics(0)[0]
    assert (head.mean_abs_score, head.max_abs_score, head.score_spread) == (None, None, None)
    assert head.entropy > 0


def test_costly_statistics_are_none_unless_asked_for():
    real = real_tokens("right")
    sums = LayerSums(HEADS)
    sums.add(make_layer(real, kind="causal"), kinds_of(real))
    head = sums.to_statistics(0)[0]
    assert (head.num_keys_for_90_percent, head.stable_rank) == (None, None)
    assert head.num_effective_keys > 1


def test_a_nan_is_counted_and_carried_into_the_means_of_its_head_alone():
    real = real_tokens("right")
    _, weights, visible = full_maps(make_layer(real, kind="causal"))
    weights[0, 4, 7] = weights[1, 4, 6] = math.nan  # what a softmax makes of a nan or of two infinities
    weights[2, 5, 5, :] = math.nan  # a query that is padding
    heads = add_up((GivenWeights(weights=weights, visible=visible), real)).to_statistics(0)
    assert [head.num_nan_queries for head in heads] == [0, 0, 0, 0, 2, 0]
    for name in (*MEANS[:10], "block_mass", "stable_rank", "variability"):
        assert math.isnan(getattr(heads[4], name)), name
        assert not math.isnan(getattr(heads[3], name)), name
        assert not math.isnan(getattr(heads[5], name)), name


def test_padding_that_the_model_masks_has_no_mass_and_padding_that_it_sees_has():
    real = real_tokens("right")
    hidden, seen = (
        add_up((make_layer(real, kind="bidirectional", hides_padding=hides), real)).to_statistics(0)
        for hides in (True, False)
    )
    assert [head.padding_mass for head in hidden] == [0.0] * HEADS
    assert all(head.padding_mass > 0.1 for head in seen)


def test_one_text_has_no_variability_and_a_map_of_positions_alone_has_0():
    real = torch.ones(1, TOKENS, dtype=torch.bool)
    layer = make_layer(real, kind="causal")
    assert add_up((layer, real)).to_statistics(0)[0].variability is None
    twice = add_up((layer, real), (layer, real)).to_statistics(0)
    assert [head.variability for head in twice] == [0.0] * HEADS


def test_the_stable_rank_of_a_long_map_is_never_below_the_true_one_and_near_it():
    """A map of 211 tokens has more than the sketch's 24 directions: its Ritz values are below the norm, by little."""
    real = torch.ones(1, 211, dtype=torch.bool)
    layer = make_layer(real, kind="causal")
    _, weights, _ = full_maps(layer)
    true = weights[0].square().sum(dim=(1, 2)) / torch.linalg.matrix_norm(weights[0], 2) ** 2
    ranks = torch.tensor([head.stable_rank for head in add_up((layer, real)).to_statistics(0)], dtype=torch.float64)
    assert (ranks >= true * (1 - 1e-12)).all()
    # seen over 16 kinds of random maps of 512 tokens: at most 0.6 % with half the vectors
    assert (ranks <= true * 1.01).all()


@pytest.mark.parametrize("side", ["right", "left"])
def test_the_sketch_of_a_text_is_the_same_beside_padding(side, monkeypatch):
    """Two passes over 97 tokens are far from exact: the same estimate needs the same vectors, token by token."""
    monkeypatch.setattr(stable_rank, "SKETCH_PASSES", 2)
    real = torch.ones(1, 113, dtype=torch.bool)
    real[0, slice(97, None) if side == "right" else slice(0, 16)] = False
    layer = make_layer(real, kind="causal", hides_padding=False)
    own = real[0]
    alone = replace(layer, query=layer.query[:, :, own], key=layer.key[:, :, own], bias=layer.bias[..., own])
    if side == "left":  # what real queries give to padding is no part of the map
        layer = replace(layer, mask=real[:, None, None])
    padded, single = (
        stable_rank.stable_ranks(each, kinds_of(mask)) for each, mask in ((layer, real), (alone, own[own].unsqueeze(0)))
    )
    torch.testing.assert_close(padded, single, rtol=1e-9, atol=0)


class LargestTensor(TorchDispatchMode):
    """Tells how many elements the largest tensor has that any operation returned."""

    def __init__(self):
        super().__init__()
        self.num_elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for each in result if isinstance(result, tuple | list) else (result,):
            if isinstance(each, torch.Tensor):
                self.num_elements = max(self.num_elements, each.untyped_storage().nbytes() // each.element_size())
        return result


def test_no_tensor_is_as_large_as_the_maps_of_a_layer(monkeypatch):
    seq_len = 211
    real = torch.ones(1, seq_len, dtype=torch.bool)
    real[0, :13] = False
    layer = make_layer(real, kind="causal")
    block = 13 * HEADS * seq_len  # 13 queries at a time
    monkeypatch.setattr(layer_weights, "BLOCK_ELEMENTS", block)
    with LargestTensor() as largest:
        add_up((layer, real)).to_statistics(0)
    basis = HEADS * seq_len * stable_rank.SKETCH_VECTORS * stable_rank.SKETCH_PASSES
    assert block <= largest.num_elements <= max(block, basis) < HEADS * seq_len * seq_len / 6


def test_no_tensor_is_as_large_as_the_maps_of_a_layer_while_a_model_is_inspected(monkeypatch):
    seq_len, num_heads = 211, 5
    config = transformers.LlamaConfig(
        vocab_size=53,
        hidden_size=20,
        intermediate_size=7,
        num_attention_heads=num_heads,
        num_key_value_heads=1,
        num_hidden_layers=2,
    )
    model = transformers.LlamaModel(config)
    inputs = {"input_ids": torch.randint(53, (1, seq_len), generator=torch.Generator().manual_seed(0))}
    monkeypatch.setattr(layer_weights, "BLOCK_ELEMENTS", 13 * num_heads * seq_len)
    detail = Detail(costly=True, top_keys=3, overview_cells=32)
    with LargestTensor() as largest:
        inspection = inspect_inputs(model, inputs, max_map_tokens=0, detail=detail)
    assert len(inspection.overviews) == len(inspection.top_keys) == 2 * num_heads
    assert largest.num_elements < num_heads * seq_len * seq_len / 4
