"""Statistics of layers whose keys are of another text, streamed, against plain float64 arithmetic on whole maps."""

import math
from dataclasses import replace

import pytest
import torch
import transformers
from torch import nn

from headwise.errors import ModelError, TextError
from headwise.inspection.detail import Detail
from headwise.inspection.inspect import inspect_inputs, inspect_stacks_of_inputs
from headwise.inspection.maps import LayerMaps, LayerOverviews, LayerTopKeys
from headwise.inspection.relations.relation import Relation
from headwise.inspection.statistics.counted import count_block
from headwise.inspection.statistics.kinds import TokenKinds
from headwise.inspection.statistics.sums import LayerSums
from headwise.integrations import layer_weights
from headwise.integrations.layer_weights import ProjectedWeights

HEADS, KV_HEADS, HEAD_DIM, QUERIES, KEYS = 6, 2, 5, 13, 17
QUERY_LENGTHS, KEY_LENGTHS = (13, 11, 3), (12, 17, 5)
FIRST = 10  # tokens whose maps are compared from text to text
MEANS = (
    *("entropy", "normalized_entropy", "num_effective_keys", "num_keys_for_90_percent", "sparsity", "max_weight"),
    *("sink_mass", "padding_mass", "mean_abs_score", "score_spread"),
)
ALONG_A_TEXT = (
    *("distance", "distance_spread", "diagonal_mass", "uniform_diagonal_mass", "block_mass", "uniform_block_mass"),
    "patch_distance",
)
EXACT = {"rel": 1e-11, "abs": 1e-12}  # float64 sums of at most 13 * 17 terms, in another order
# a direction that is new by less than 1e-6 is dropped from the sketch; first tokens are kept in float32
TOLERANCES = {"stable_rank": {"rel": 1e-5}, "variability": {"rel": 1e-6}}


def real_tokens(lengths, size, side):
    places = torch.arange(size)
    counts = torch.tensor(lengths)[:, None]
    return places < counts if side == "right" else places >= size - counts


def make_layer(real_keys, *, hides_padding=True, seed=0):
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    batch = len(real_keys)
    # odd heads read the middle alone: of the shortest text, on either side, nothing but padding
    middle = (torch.arange(KEYS) >= 5) & (torch.arange(KEYS) < 12)
    odd = (torch.arange(HEADS) % 2 == 0)[:, None, None] | middle
    mask = odd[None] & real_keys[:, None, None] if hides_padding else odd[None]
    return ProjectedWeights(
        query=3 * draw(batch, HEADS, QUERIES, HEAD_DIM),
        key=draw(batch, KV_HEADS, KEYS, HEAD_DIM),
        scale=HEAD_DIM**-0.5,
        mask=mask.expand(batch, HEADS, 1, KEYS),
        bias=draw(1, HEADS, 1, KEYS),
    )


def full_maps(layer):
    keys = layer.key.repeat_interleave(HEADS // KV_HEADS, dim=1)
    scores = torch.einsum("bhqd,bhkd->bhqk", layer.query, keys) * layer.scale + layer.bias
    visible = layer.mask.expand(scores.shape)
    exp = torch.where(visible, scores.exp(), 0.0)
    total = exp.sum(dim=-1, keepdim=True)
    return scores, torch.where(total > 0, exp / total, 0.0), visible


def oracle(layer, real, real_keys, head):
    """Every statistic by loops over queries and keys."""
    scores, weights, visible = (each[:, head].tolist() for each in full_maps(layer))
    values = {name: [] for name in MEANS}
    largest, num_empty, ranks, firsts = 0.0, 0, [], []
    for b in range(len(real)):
        queries, keys = ([n for n, is_real in enumerate(side[b].tolist()) if is_real] for side in (real, real_keys))
        matrix = torch.tensor([[weights[b][i][j] for j in keys] for i in queries], dtype=torch.float64)
        if matrix.any():
            ranks.append((matrix.square().sum() / torch.linalg.matrix_norm(matrix, 2) ** 2).item())
        if min(len(queries), len(keys)) >= FIRST:
            firsts.append(matrix[:FIRST, :FIRST])
        for i in queries:
            if any(visible[b][i]):
                values["padding_mass"].append(sum(w for j, w in enumerate(weights[b][i]) if j not in keys))
            seen = [j for j in keys if visible[b][i][j]]
            if not seen:
                num_empty += 1
                continue
            row, score = [weights[b][i][j] for j in seen], [scores[b][i][j] for j in seen]
            entropy, mean = -sum(w * math.log(w) for w in row if w > 0), sum(score) / len(score)
            heaviest, carried = sorted(row, reverse=True), 0
            while sum(heaviest[:carried]) < 0.9 * sum(row) - 1e-9:
                carried += 1
            largest = max(largest, *map(abs, score))
            if len(seen) >= 2:
                values["normalized_entropy"].append(entropy / math.log(len(seen)))
            for name, value in {
                "entropy": entropy,
                "num_effective_keys": math.exp(entropy),
                "num_keys_for_90_percent": carried,
                "sparsity": sum(w < 0.1 / len(seen) for w in row) / len(seen),
                "max_weight": max(row),
                "sink_mass": weights[b][i][keys[0]] if keys[0] in seen else 0.0,
                "mean_abs_score": sum(map(abs, score)) / len(score),
                "score_spread": math.sqrt(sum((s - mean) ** 2 for s in score) / len(score)),
            }.items():
                values[name].append(value)
    first = torch.stack(firsts)
    return {
        **{name: sum(found) / len(found) for name, found in values.items()},
        "variability": ((first - first.mean(dim=0)).abs().sum() / (2 * first.sum())).item(),
        "stable_rank": sum(ranks) / len(ranks),
        "max_abs_score": largest,
        "num_empty_queries": num_empty,
    }


def kinds_of(real, real_keys):
    return TokenKinds(real, torch.zeros_like(real), None, real_keys)


def statistics(*layers_and_kinds):
    sums = LayerSums(HEADS, detailed=True)
    for layer, kinds in layers_and_kinds:
        sums.add(layer, kinds)
    assert not sums.looks_ahead
    return sums.to_statistics(layer=3), sums.to_divergence(3).divergence


@pytest.fixture(params=[("right", "right"), ("left", "right"), ("right", "left")], ids="-".join)
def padded(request, monkeypatch):
    monkeypatch.setattr(layer_weights, "BLOCK_ELEMENTS", 5 * 3 * HEADS * KEYS)  # 5 queries at a time
    of_queries, of_keys = request.param
    return real_tokens(QUERY_LENGTHS, QUERIES, of_queries), real_tokens(KEY_LENGTHS, KEYS, of_keys)


@pytest.mark.parametrize("hides_padding", [True, False])
def test_every_statistic_equals_plain_float64_arithmetic_on_whole_maps(padded, hides_padding):
    layer = make_layer(padded[1], hides_padding=hides_padding)
    heads, _ = statistics((layer, kinds_of(*padded)))
    for head in heads:
        for name, value in oracle(layer, *padded, head.head).items():
            assert getattr(head, name) == pytest.approx(value, **TOLERANCES.get(name, EXACT)), name
    assert any(head.num_empty_queries for head in heads)


def test_what_is_measured_along_one_text_is_none_across_two(padded):
    for head in statistics((make_layer(padded[1]), kinds_of(*padded)))[0]:
        assert head.roles == ()
        assert [getattr(head, name) for name in ALONG_A_TEXT] == [None] * len(ALONG_A_TEXT)
        assert all(value is None or math.isfinite(value) for name, value in head.to_dict().items() if name != "roles")


def test_a_padded_batch_equals_each_pair_of_texts_alone(padded):
    layer, (real, real_keys) = make_layer(padded[1]), padded
    alone = []
    for b in range(len(real)):
        own, keys = real[b], real_keys[b]
        text = replace(
            layer,
            query=layer.query[b : b + 1, :, own],
            key=layer.key[b : b + 1, :, keys],
            mask=layer.mask[b : b + 1, :, :, keys],
            bias=layer.bias[..., keys],
        )
        alone.append((text, kinds_of(own[own][None], keys[keys][None])))
    (heads, apart), (single_heads, single_apart) = statistics((layer, kinds_of(real, real_keys))), statistics(*alone)
    for head, single in zip(heads, single_heads, strict=True):
        for name, value in head.to_dict().items():
            if name != "roles" and value is not None:
                assert value == pytest.approx(getattr(single, name), **TOLERANCES.get(name, EXACT)), name
    for row, single_row in zip(apart, single_apart, strict=True):
        assert row == pytest.approx(single_row, **EXACT)


def test_what_padding_holds_on_either_side_never_counts(padded):
    layer, (real, real_keys) = make_layer(padded[1]), padded
    query = layer.query.masked_fill(~real[:, None, :, None], 1e3)
    key = layer.key.masked_fill(~real_keys[:, None, :, None], -1e3)
    kinds = kinds_of(real, real_keys)
    assert statistics((replace(layer, query=query, key=key), kinds)) == statistics((layer, kinds))


def test_maps_overviews_and_top_keys_have_a_side_of_queries_and_one_of_keys(padded):
    layer, kinds = make_layer(padded[1]), kinds_of(*padded)
    row, num_queries = 1, QUERY_LENGTHS[1]
    collectors = [
        LayerMaps(0, row=row, kinds=kinds, max_tokens=12),
        LayerOverviews(0, HEADS, row=row, kinds=kinds, max_cells=5),
        LayerTopKeys(0, row=row, kinds=kinds, count=3),
    ]
    for block in layer.blocks():
        for collector in collectors:
            collector.add(count_block(block, kinds))
    maps, overviews, top = collectors[0].to_maps(), collectors[1].to_maps(), collectors[2].to_top_keys()
    expected = full_maps(layer)[1][row][:, padded[0][row]][:, :, padded[1][row]]
    for head in range(HEADS):
        assert (maps[head].num_queries, maps[head].num_keys) == (num_queries, 12)
        shown = (torch.tensor(list(maps[head].weights), dtype=torch.float64).view(num_queries, 12) / 255) ** 2
        # half a step of the square root, at its coarsest: (255^2 - 254^2) / 255^2 / 2
        torch.testing.assert_close(shown, expected[head][:, :12], rtol=0, atol=0.00393)
        over = overviews[head]
        assert (over.tile, over.num_queries, over.num_keys) == (4, 3, 5)  # 17 keys in 5 cells
        cell = expected[head][4:8, 8:12].sum(dim=1).mean().item()
        assert (over.weights[1 * 5 + 2] / 255) ** 2 == pytest.approx(cell, abs=0.00393)
        best = expected[head][7].topk(3)
        found = top[head].of_query(7)
        kept = [key for key, value in zip(best.indices.tolist(), best.values, strict=True) if value > 0]
        assert [key for key, _ in found] == kept


# an encoder-decoder of 3 encoder and 2 decoder layers, read through its inputs
IDS = torch.tensor([[4, 5, 6, 7, 8, 9, 1], [10, 11, 12, 1, 0, 0, 0]])
MASK = IDS.ne(0).long()
TARGET = torch.tensor([[0, 5, 8, 0, 0], [0, 4, 13, 14, 15]])
TARGET_MASK = torch.tensor([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]])
PAIR = {
    "input_ids": IDS,
    "attention_mask": MASK,
    "decoder_input_ids": TARGET,
    "decoder_attention_mask": TARGET_MASK,
}


def t5():
    torch.manual_seed(0)
    sizes = {"vocab_size": 23, "d_model": 12, "d_kv": 4, "d_ff": 7, "num_heads": 3}
    config = transformers.T5Config(**sizes, num_layers=3, num_decoder_layers=2)
    return transformers.T5ForConditionalGeneration(config).eval()


def bart():
    torch.manual_seed(0)
    config = transformers.BartConfig(
        vocab_size=23,
        d_model=12,
        encoder_layers=3,
        decoder_layers=2,
        encoder_attention_heads=3,
        decoder_attention_heads=3,
        encoder_ffn_dim=7,
        decoder_ffn_dim=7,
        max_position_embeddings=16,
        init_std=0.5,
    )
    return transformers.BartForConditionalGeneration(config).eval()


@pytest.mark.parametrize("make_model", [t5, bart])
def test_every_stack_of_an_encoder_decoder_is_that_of_the_models_own_eager_weights(make_model):
    model = make_model()
    found = inspect_stacks_of_inputs(model, PAIR, show=1)
    assert list(found) == ["encoder", "decoder", "cross"]
    assert [each.stack for each in found.values()] == list(found)
    assert [each.num_tokens for each in found.values()] == [7 + 4, 3 + 5, 3 + 5]
    assert [each.is_causal for each in found.values()] == [False, True, False]
    cross = found["cross"]
    assert (cross.tokens, cross.key_tokens) == (tuple("01234"), tuple("0123"))
    assert (found["decoder"].key_tokens, found["decoder"].tokens) == (None, tuple("01234"))
    model.set_attn_implementation("eager")
    with torch.no_grad():
        output = model(**PAIR, output_attentions=True)
    weights = {
        "encoder": (output.encoder_attentions, MASK, MASK),
        "decoder": (output.decoder_attentions, TARGET_MASK, TARGET_MASK),
        "cross": (output.cross_attentions, TARGET_MASK, MASK),
    }
    for name, (layers, queries, keys) in weights.items():
        assert len(found[name].heads) == 3 * len(layers)
        for head, map_ in zip(found[name].heads, found[name].maps, strict=True):
            of_head = layers[head.layer][:, head.head].double()
            entropy = torch.special.entr(of_head).sum(dim=-1)[queries.bool()].mean().item()
            assert head.entropy == pytest.approx(entropy, abs=1e-5)
            assert head.sink_mass == pytest.approx(of_head[..., 0][queries.bool()].mean().item(), abs=1e-5)
            assert head.padding_mass == pytest.approx(0, abs=1e-7)
            own = of_head[1][queries[1].bool()][:, keys[1].bool()]
            shown = (torch.tensor(list(map_.weights), dtype=torch.float64).view(own.shape) / 255) ** 2
            torch.testing.assert_close(shown, own, rtol=0, atol=0.004)


def test_one_stack_by_name_is_what_it_is_among_all():
    model = t5()
    found = inspect_stacks_of_inputs(model, PAIR)
    for name, expected in found.items():
        assert inspect_inputs(model, PAIR, stack=name) == expected
    words = inspect_inputs(model, PAIR, stack="cross", tokens=list("abc"), key_tokens=list("ABCDEFG"))
    assert (words.tokens, words.key_tokens) == (tuple("abc"), tuple("ABCDEFG"))


def test_padding_that_the_caller_names_counts_before_all_else():
    inputs = {"input_ids": IDS, "decoder_input_ids": TARGET}  # no mask: the model reads padding, too
    named = inspect_inputs(
        t5(), inputs, stack="cross", real_tokens=TARGET_MASK.bool(), real_keys=MASK.bool(), max_map_tokens=0
    )
    assert named.num_tokens == 8
    assert all(head.padding_mass > 0 for head in named.heads)
    assert inspect_inputs(t5(), inputs, stack="cross", max_map_tokens=0).num_tokens == 10


def test_a_model_of_sounds_is_read_through_its_inputs():
    torch.manual_seed(0)
    config = transformers.WhisperConfig(
        vocab_size=31,
        d_model=12,
        num_mel_bins=5,
        encoder_layers=1,
        decoder_layers=2,
        encoder_attention_heads=3,
        decoder_attention_heads=3,
        encoder_ffn_dim=7,
        decoder_ffn_dim=7,
        max_source_positions=11,
        max_target_positions=13,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=3,
        suppress_tokens=None,
        begin_suppress_tokens=None,
    )
    model = transformers.WhisperForConditionalGeneration(config).eval()
    inputs = {"input_features": torch.randn(1, 5, 22), "decoder_input_ids": torch.tensor([[3, 7, 8, 9]])}
    found = inspect_stacks_of_inputs(model, inputs)
    assert {name: (each.num_tokens, len(each.heads)) for name, each in found.items()} == {
        "encoder": (11, 3),
        "decoder": (4, 6),
        "cross": (4, 6),
    }
    assert found["cross"].key_tokens == tuple(map(str, range(11)))


def test_torchs_own_transformer_tells_its_padding_by_its_masks():
    torch.manual_seed(0)
    model = nn.Transformer(12, 2, 1, 2, dim_feedforward=5, dropout=0.0, batch_first=True).eval()
    source, target = torch.randn(2, 7, 12), torch.randn(2, 5, 12)
    inputs = {
        "src": source,
        "tgt": target,
        "src_key_padding_mask": MASK == 0,
        "memory_key_padding_mask": MASK == 0,
        "tgt_key_padding_mask": TARGET_MASK == 0,
    }
    cross = inspect_inputs(model, inputs, stack="cross")
    assert (cross.num_tokens, cross.tokens, cross.key_tokens) == (8, tuple("012"), tuple("0123456"))
    pairs = [(7, 3), (4, 5)]
    alone = [
        inspect_inputs(model, {"src": source[b : b + 1, :n], "tgt": target[b : b + 1, :m]}, stack="cross")
        for b, (n, m) in enumerate(pairs)
    ]
    for number, head in enumerate(cross.heads):
        expected = sum(m * each.heads[number].entropy for (_, m), each in zip(pairs, alone, strict=True)) / 8
        assert head.entropy == pytest.approx(expected, abs=1e-6)


def test_bad_requests_are_refused():
    model = t5()
    known = r"'encoder' \(3 layers\), 'decoder' \(2 layers\), 'cross' \(2 layers\)"
    for read in (inspect_inputs, inspect_stacks_of_inputs):
        with pytest.raises(ModelError, match=f"must be one of T5ForConditionalGeneration's: {known}; got 'middle'"):
            read(model, PAIR, stack="middle")
    with pytest.raises(ModelError, match="one stack of attention layers at a time"):
        inspect_inputs(model, PAIR)
    with pytest.raises(TextError, match="of cross-attention: give the name of its stack"):
        inspect_inputs(model, PAIR, key_tokens=["a"])
    with pytest.raises(TextError, match="show must be the number of a text, from 0 to 1; got 2"):
        inspect_inputs(model, PAIR, stack="cross", show=2)
    with pytest.raises(TextError, match="a word for each of the 7 tokens that are shown; got 1"):
        inspect_inputs(model, PAIR, stack="cross", key_tokens=["a"])
    detail = Detail(relations=(Relation(name="neighbours", pairs=((0, 1, 2),)),))
    with pytest.raises(TextError, match="a relation is between tokens of one text"):
        inspect_inputs(model, PAIR, stack="cross", detail=detail)
    assert inspect_inputs(model, PAIR, stack="decoder", detail=detail).relations[0].num_pairs == 1
    hidden = torch.zeros(2, 7, dtype=torch.bool)
    with pytest.raises(TextError, match="text 1 of 2 is all padding"):
        inspect_inputs(model, PAIR, stack="cross", real_keys=hidden)
