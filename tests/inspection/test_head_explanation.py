"""One query of one head, explained: every number held against another path to it."""

import json
import math

import pytest
import torch
import transformers
from rich.cells import cell_len
from torch import nn
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

from headwise.config.attention import ALiBi, AttentionConfig, Rotary
from headwise.errors import ModelError, TextError
from headwise.inspection.exact import read_weights
from headwise.inspection.walkthrough.head_reading import read_head
from headwise.inspection.walkthrough.head_steps import CHANGED_AFTER, NOT_TOLD, explain_reading
from headwise.inspection.walkthrough.pairs import RotationPairs
from headwise.masks.patterns import Causal
from headwise.nn.multihead import MultiHeadAttention
from headwise.ops.attention import attention

EPS = torch.finfo(torch.float32).eps
VOCAB, TOKENS = 53, 13
IDS = torch.randint(1, VOCAB, (1, TOKENS), generator=torch.Generator().manual_seed(0))
SIZES = {"vocab_size": VOCAB, "num_hidden_layers": 2, "max_position_embeddings": 64, "initializer_range": 0.3}


def make_llama():
    return transformers.LlamaModel(
        transformers.LlamaConfig(
            **SIZES, hidden_size=30, intermediate_size=7, num_attention_heads=6, num_key_value_heads=2, head_dim=10
        )
    )


def make_bert():
    return transformers.BertModel(
        transformers.BertConfig(**SIZES, hidden_size=21, intermediate_size=11, num_attention_heads=3)
    )


def make_gemma2():
    return transformers.Gemma2Model(
        transformers.Gemma2Config(
            **SIZES,
            hidden_size=20,
            intermediate_size=7,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=6,
            attn_logit_softcapping=1.5,
            sliding_window=5,
        )
    )


def make_gpt_oss():
    return transformers.GptOssModel(
        transformers.GptOssConfig(
            **SIZES,
            hidden_size=32,
            intermediate_size=8,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=6,
            num_local_experts=2,
            num_experts_per_tok=1,
            sliding_window=4,
            rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
        )
    )


def make_t5():
    config = transformers.T5Config(
        vocab_size=VOCAB, d_model=20, d_kv=6, d_ff=7, num_layers=2, num_heads=4, initializer_factor=3.0
    )
    return transformers.T5EncoderModel(config)


def make_gpt2():  # its projections are Conv1D
    return transformers.GPT2Model(
        transformers.GPT2Config(vocab_size=VOCAB, n_embd=21, n_head=3, n_layer=2, n_positions=64, initializer_range=0.3)
    )


# maker, path of the attention's output projection in layer 1, layer 1's head to look at, its kv head
FAMILIES = {
    "bert": (make_bert, "encoder.layer.1.attention.output.dense", 1, 1),
    "llama": (make_llama, "layers.1.self_attn.o_proj", 4, 1),
    "gemma2": (make_gemma2, "layers.1.self_attn.o_proj", 3, 1),
    "gpt-oss": (make_gpt_oss, "layers.1.self_attn.o_proj", 2, 1),
    "t5": (make_t5, "encoder.block.1.layer.0.SelfAttention.o", 3, 3),
    "gpt2": (make_gpt2, "h.1.attn.c_proj", 2, 2),
}


@pytest.fixture(scope="module", params=FAMILIES)
def family(request):
    """Return (model, path of the output projection, head, kv head)."""
    make, *rest = FAMILIES[request.param]
    torch.manual_seed(1)
    return make().eval(), *rest


def explain(model, inputs, *, names=None, pairs=None, num_scores=3, against=None, **asked):
    reading = read_head(model, inputs, **asked)
    tokens = names or [str(number) for number in range(reading.num_queries)]
    return explain_reading(reading, model="m", tokens=tokens, pairs=pairs, num_scores=num_scores, against=against)


def budget(told, reading):
    """How far a sum over keys in float32 may be from the one in float64: as of a score, and a term for each key."""
    reach = float(reading.query_vector.norm() * reading.keys.norm(dim=-1).amax() * abs(reading.scale))
    extra = max((abs(key.bias or 0.0) for key in told.keys), default=0.0)
    return EPS * (8 * (2 + reach + extra) + len(reading.keys))


def values_of(told, name):
    return torch.tensor(told[name].values, dtype=torch.float64)


def test_dimensions_times_the_scale_and_the_bias_make_the_score(family):
    model, _, head, _ = family
    told = explain(model, {"input_ids": IDS}, layer=1, head=head, query=9, num_scores=TOKENS)
    keys = {key.index: key for key in told.keys}
    assert len(told.scores) == len(told.keys) > 3
    for score in told.scores:
        key = keys[score.index]
        # float64 throughout: as many roundings as terms, each of the largest
        slack = 4 * len(score.parts) * torch.finfo(torch.float64).eps * max(abs(part.score) for part in score.parts)
        assert sum(part.score for part in score.parts) == pytest.approx(told.scale * key.product, abs=slack)
        assert sum(part.score for part in score.parts) == pytest.approx(score.scaled, abs=slack)
        capped = 1.5 * math.tanh(score.scaled / 1.5) if isinstance(model, transformers.Gemma2Model) else score.scaled
        assert key.score == pytest.approx(capped + (key.bias or 0.0), abs=slack + 1e-12)
        sizes = [abs(part.score) for part in score.parts]
        assert sizes == sorted(sizes, reverse=True)
        assert sorted(sum((part.dimensions for part in score.parts), ())) == list(range(len(told["query"].values)))


def test_the_softmax_of_the_scores_is_what_read_weights_gives_and_what_the_model_returns_in_eager_mode(family):
    model, _, head, _ = family
    inputs = {"input_ids": IDS}
    reading = read_head(model, inputs, layer=1, head=head, query=9)
    told = explain(model, inputs, layer=1, head=head, query=9)
    expected = read_weights(model, inputs, layer=1, head=head, rows=[9])[0].double()
    model.set_attn_implementation("eager")
    try:
        with torch.no_grad():
            eager = model(**inputs, output_attentions=True).attentions[1][0, head, 9].double()
    finally:
        model.set_attn_implementation("sdpa" if model._supports_sdpa else "eager")
    for truth in (expected, eager):
        got = torch.zeros(TOKENS, dtype=torch.float64)
        for key in told.keys:
            got[key.index] = key.weight
        torch.testing.assert_close(got, truth[:TOKENS], rtol=0, atol=budget(told, reading))
    assert not expected[list(told.hidden)].any()
    assert sorted([*told.hidden, *(key.index for key in told.keys)]) == list(range(TOKENS))


def test_contributions_sum_to_what_the_output_projection_reads_and_writes(family):
    model, path, head, kv_head = family
    caught = []
    projection = model.get_submodule(path)
    handle = projection.register_forward_pre_hook(lambda _, args: caught.append(args[0]))
    with torch.no_grad():
        model(input_ids=IDS)
    handle.remove()
    reading = read_head(model, {"input_ids": IDS}, layer=1, head=head, query=9)
    told = explain(model, {"input_ids": IDS}, layer=1, head=head, query=9)
    size = reading.values.shape[1]
    expected = caught[0][0, 9].double()[head * size : (head + 1) * size]
    tolerance = budget(told, reading) * float(reading.values.abs().amax())
    torch.testing.assert_close(values_of(told, "output"), expected, rtol=0, atol=tolerance)
    assert told.kv_head == kv_head and told.notes == ()
    weight = projection.weight.detach().double()
    rows = weight[head * size : (head + 1) * size] if "c_proj" in path else weight.T[head * size : (head + 1) * size]
    torch.testing.assert_close(told.written_norm, float((expected @ rows).norm()), rtol=0, atol=tolerance * 30)
    brought = {key.index: key for key in told.keys}
    heaviest = told.scores[0].index
    value = reading.values[heaviest].double()
    assert brought[heaviest].value_norm == pytest.approx(float(value.norm()))
    assert brought[heaviest].contribution == pytest.approx(brought[heaviest].weight * float(value.norm()))
    assert brought[heaviest].written == pytest.approx(brought[heaviest].weight * float((value @ rows).norm()))
    assert sum(key.share for key in told.keys) == pytest.approx(1.0, abs=1e-9)


def test_q_and_k_are_the_models_projections_after_rotation_and_a_query_head_reads_its_groups_key_head():
    torch.manual_seed(1)
    model = make_llama().eval()
    attention = model.layers[1].self_attn
    caught = {}
    for name in ("q_proj", "k_proj"):
        part = getattr(attention, name)
        part.register_forward_hook(lambda _, args, out, name=name: caught.setdefault(name, out))
    with torch.no_grad():
        model(input_ids=IDS)
        cos, sin = model.rotary_emb(caught["q_proj"], torch.arange(TOKENS)[None])
    q = caught["q_proj"].view(1, TOKENS, 6, 10).transpose(1, 2)
    k = caught["k_proj"].view(1, TOKENS, 2, 10).transpose(1, 2)
    q, k = apply_rotary_pos_emb(q, k, cos, sin)
    for head in (0, 1, 5):
        told = explain(model, {"input_ids": IDS}, layer=1, head=head, query=9)
        expected = (q[0, head, 9].double() * k[0, head // 3, :10].double()).sum(-1)
        assert [key.index for key in told.keys] == list(range(10))
        torch.testing.assert_close(values_of(told, "scores_before_scale"), expected, rtol=1e-12, atol=1e-12)
        assert told.kv_head == head // 3


def pairs_of_llama(size=10, theta=10000.0):
    frequencies = tuple(theta ** (-2 * pair / size) for pair in range(size // 2))
    return RotationPairs(frequencies=frequencies, pairing="half")


def test_sums_over_rotation_pairs_depend_on_distances_alone_and_single_products_do_not():
    torch.manual_seed(1)
    model = make_llama().eval()
    pairs = pairs_of_llama()
    found = []
    for shift in (0, 17):
        inputs = {"input_ids": IDS, "position_ids": torch.arange(TOKENS)[None] + shift}
        found.append(explain(model, inputs, layer=0, head=4, query=9, pairs=pairs, num_scores=3))
    here, there = found
    scale = float(values_of(here, "products").abs().max())
    moved = (values_of(here, "products") - values_of(there, "products")).abs().max()
    kept = (values_of(here, "pair_products") - values_of(there, "pair_products")).abs().max()
    # an angle of p radians is off by p eps of float32, and so is a product, relative to its size
    assert float(kept) <= 8 * (TOKENS + 17) * EPS * scale < 0.01 * float(moved)
    parts = {part.dimensions: part for part in here.scores[0].parts}
    assert set(parts) == {(pair, pair + 5) for pair in range(5)}
    products = values_of(here, "products")[0]
    assert parts[2, 7].score == pytest.approx(here.scale * float(products[2] + products[7]))
    assert parts[0, 5].wavelength == pytest.approx(2 * math.pi)
    assert parts[1, 6].wavelength == pytest.approx(2 * math.pi * 10000 ** (1 / 5))


def test_pairs_that_are_interleaved_and_dimensions_that_are_not_turned():
    torch.manual_seed(0)
    config = AttentionConfig(
        embed_dim=24, num_heads=2, position=Rotary(pairing="interleaved", rotary_dim=8), mask=Causal()
    )
    layer = MultiHeadAttention.from_config(config)
    x = torch.randn(1, TOKENS, 24)
    pairs = RotationPairs(frequencies=tuple(10000 ** (-pair / 4) for pair in range(4)), pairing="interleaved")
    found = []
    for shift in (0, 17):
        inputs = {"query": x, "positions": torch.arange(TOKENS) + shift}
        found.append(explain(layer, inputs, head=1, query=9, pairs=pairs))
    here, there = (values_of(told, "pair_products") for told in found)
    size = float(values_of(found[0], "products").abs().max())
    torch.testing.assert_close(here, there, rtol=0, atol=8 * (TOKENS + 17) * EPS * size)
    dimensions = {part.dimensions for part in found[0].scores[0].parts}
    assert dimensions == {(0, 1), (2, 3), (4, 5), (6, 7), (8,), (9,), (10,), (11,)}
    assert "not turned" in found[0].to_text()


def test_a_sink_takes_its_share_and_is_no_key():
    torch.manual_seed(1)
    model = make_gpt_oss().eval()
    with torch.no_grad():
        model.layers[0].self_attn.sinks.copy_(torch.tensor([1.0, -2.0, 3.0, 0.5]))
    told = explain(model, {"input_ids": IDS}, layer=0, head=2, query=9)
    total = sum(key.weight for key in told.keys) + told.sink_weight
    assert total == pytest.approx(1.0, abs=1e-12) and 0 < told.sink_weight < 1
    # against the strongest key: exp(sink - score) times its weight
    strongest = max(told.keys, key=lambda key: key.weight)
    assert told.sink_weight == pytest.approx(strongest.weight * math.exp(3.0 - strongest.score))
    assert "sink, no key" in told.to_text()


def test_hidden_keys_are_listed_and_have_no_score():
    torch.manual_seed(1)
    model = make_llama().eval()
    told = explain(model, {"input_ids": IDS}, layer=0, head=0, query=4)
    assert told.hidden == tuple(range(5, TOKENS))
    assert told["mask"].values == (1.0,) * 5 + (0.0,) * 8
    assert told["scores"].shape == (5,) and "hidden by the mask: tokens 5 to 12 (8 in all)" in told.to_text()


def test_padding_is_hidden_and_tokens_count_without_it():
    torch.manual_seed(1)
    model = make_llama().eval()
    alone = explain(model, {"input_ids": IDS}, layer=1, head=4, query=9)
    ids = torch.cat([torch.full((1, 4), 7), IDS], dim=1)
    mask = torch.tensor([[0] * 4 + [1] * TOKENS])
    padded = explain(model, {"input_ids": ids, "attention_mask": mask}, layer=1, head=4, query=9)
    assert [key.index for key in padded.keys] == [key.index for key in alone.keys] == list(range(10))
    torch.testing.assert_close(
        torch.tensor([key.weight for key in padded.keys]), torch.tensor([key.weight for key in alone.keys])
    )
    assert padded.hidden == tuple(range(10, TOKENS + 4)) and len(padded.tokens) == TOKENS


def test_contrast_takes_the_difference_of_two_scores_apart():
    torch.manual_seed(1)
    model = make_t5().eval()
    told = explain(model, {"input_ids": IDS}, layer=0, head=3, query=9, against=2)
    keys = {key.index: key for key in told.keys}
    contrast = told.contrast
    best = max((key for key in told.keys if key.index != 2), key=lambda key: key.weight)
    assert (contrast.index, contrast.against) == (best.index, 2)
    assert contrast.score == pytest.approx(best.score - keys[2].score)
    assert contrast.ratio == pytest.approx(best.weight / keys[2].weight)
    assert sum(part.score for part in contrast.parts) + contrast.bias == pytest.approx(contrast.score, abs=1e-9)
    assert contrast.bias == pytest.approx(best.bias - keys[2].bias) and contrast.bias != 0
    first = contrast.parts[0]
    reading = read_head(model, {"input_ids": IDS}, layer=0, head=3, query=9)
    (dimension,) = first.dimensions
    expected = reading.query_vector[dimension] * (reading.keys[best.index] - reading.keys[2])[dimension]
    assert first.products[0] == pytest.approx(float(expected), rel=1e-5)
    assert "rather than 2" in told.to_text()


@pytest.mark.parametrize(
    ("against", "text"),
    [(10, "token 4 may not read token 10"), (99, "must be a key, from 0 to 12; got 99"), (-1, "must be a key")],
)
def test_what_cannot_be_held_against_is_refused(against, text):
    model = make_llama().eval()
    with pytest.raises(TextError, match=text):
        explain(model, {"input_ids": IDS}, layer=0, head=0, query=4, against=against)
    with pytest.raises(TextError, match="there is no other"):
        explain(model, {"input_ids": IDS}, layer=0, head=0, query=0, against=0)


def test_a_layer_that_only_returns_its_weights_shows_those_and_says_what_is_missing():
    torch.manual_seed(1)
    config = transformers.DebertaV2Config(
        **SIZES, hidden_size=20, intermediate_size=7, num_attention_heads=2, relative_attention=True
    )
    model = transformers.DebertaV2Model(config).eval()
    told = explain(model, {"input_ids": IDS}, layer=1, head=1, query=9)
    with torch.no_grad():
        expected = model(input_ids=IDS, output_attentions=True).attentions[1][0, 1, 9]
    torch.testing.assert_close(torch.tensor([key.weight for key in told.keys]), expected)
    assert NOT_TOLD in told.notes and told.scores == () and told.scale is None and told.kv_head is None
    assert [step.name for step in told.steps] == ["mask", "weights", "output"]
    assert told.keys[0].score is None and told.output_norm > 0
    assert "weight" in told.to_text() and "q.k" not in told.to_text().split("note:")[0]
    with pytest.raises(TextError, match="only returns its weights"):
        explain(model, {"input_ids": IDS}, layer=1, head=1, query=9, against=0)


class GatedAttention(nn.Module):
    num_heads = 3

    def __init__(self):
        super().__init__()
        self.q_proj, self.gate, self.out_proj = (nn.Linear(12, 12) for _ in range(3))

    def forward(self, x):
        q = self.q_proj(x).unflatten(-1, (3, 4)).transpose(1, 2)
        mixed = attention(q, q, q, mask=Causal()).output.transpose(1, 2).flatten(2)
        return self.out_proj(mixed * self.gate(x).sigmoid())


def test_a_gate_behind_the_head_is_noticed_and_nothing_is_written_through_it():
    torch.manual_seed(0)
    told = explain(GatedAttention(), {"x": torch.randn(1, 7, 12)}, head=1)
    assert CHANGED_AFTER in told.notes and told.written_norm is None
    assert all(key.written is None and key.share is not None for key in told.keys)


@pytest.mark.parametrize("kind", ["plain", "alibi", "torch", "torch-masked"])
def test_layers_of_ones_own_and_torchs_are_explained_on_vectors(kind):
    torch.manual_seed(0)
    x = torch.randn(1, 7, 12)
    mask = torch.ones(7, 7, dtype=torch.bool).triu(1) if kind == "torch-masked" else None
    if kind.startswith("torch"):
        layer = nn.MultiheadAttention(12, 3, batch_first=True).eval()
        inputs = {"query": x, "key": x, "value": x, "attn_mask": mask}
        with torch.no_grad():
            expected = layer(x, x, x, attn_mask=mask, average_attn_weights=False)[1][0, 1, 3]
            weight, bias = layer.in_proj_weight[24:], layer.in_proj_bias[24:]
            value = nn.functional.linear(x, weight, bias)[0, :, 4:8]
    else:
        position = ALiBi() if kind == "alibi" else None
        layer = MultiHeadAttention(12, 3, position=position, mask=Causal()).eval()
        inputs = {"query": x}
        with torch.no_grad():
            expected = layer.attend(x, return_weights=True).weights[0, 1, 3]
            value = None
    told = explain(layer, inputs, head=1, query=3)
    got = torch.zeros(7)
    for key in told.keys:
        got[key.index] = key.weight
    torch.testing.assert_close(got, expected)
    assert (told.keys[0].bias is not None) is (kind == "alibi")
    assert told.notes == () and told.written_norm > 0
    if value is not None:
        torch.testing.assert_close(values_of(told, "output"), (expected @ value).double(), rtol=0, atol=1e-5)
    assert layer.training is False and read_weights(layer, inputs, layer=0, head=1).shape == (7, 7)


@pytest.mark.parametrize(("make", "query"), [(make_llama, TOKENS - 1), (make_bert, TOKENS // 2)])
def test_what_is_left_open_is_the_sharpest_head_and_the_last_or_the_middle_token(make, query):
    torch.manual_seed(1)
    model, inputs = make().eval(), {"input_ids": IDS}
    model.set_attn_implementation("eager")
    with torch.no_grad():
        maps = torch.stack(model(**inputs, output_attentions=True).attentions)[:, 0, :, query].clone()
    model.set_attn_implementation("sdpa")
    maps[..., [0, query]] = -1
    first = read_head(model, inputs)
    place = divmod(int(maps.amax(-1).argmax()), maps.shape[1])
    assert (first.layer, first.head, first.query) == (*place, query)
    # with the token that this head reads most passed over, another head is the sharpest
    strongest = int(maps[place].argmax())
    maps[..., strongest] = -1
    best = maps.amax(-1)
    second = read_head(model, inputs, passed_over=(0, strongest))
    assert (second.layer, second.head) == divmod(int(best.argmax()), maps.shape[1]) != place
    assert read_head(model, inputs, layer=0, passed_over=(0, strongest)).head == int(best[0].argmax())
    assert read_head(model, inputs, head=1, passed_over=(0, strongest)).layer == int(best[:, 1].argmax())


def test_nan_in_a_model_is_shown_and_said_not_raised():
    torch.manual_seed(1)
    model = make_bert().eval()
    with torch.no_grad():
        model.encoder.layer[1].attention.self.key.weight[0, 0] = torch.nan
    told = explain(model, {"input_ids": IDS}, layer=1, head=0, query=3)
    assert any("scores are not finite" in note for note in told.notes)
    assert "nan" in told.to_text()
    json.dumps(told.to_dict(), allow_nan=False)
    other = explain(model, {"input_ids": IDS}, layer=1, head=2, query=3)
    assert not any("not finite" in note for note in other.notes)


def test_a_query_that_may_read_nothing_is_said_to():
    layer = MultiHeadAttention(12, 3, mask=~Causal())
    told = explain(layer, {"query": torch.randn(1, 7, 12)}, head=1, query=6)
    assert told.keys == () and told.hidden == tuple(range(7)) and told.output_norm == 0
    assert "may read no key" in told.to_text()


@pytest.mark.parametrize(
    ("asked", "error", "text"),
    [
        ({"layer": 2}, ModelError, "layer must be a number from 0 to 1; got 2"),
        ({"layer": -1}, ModelError, "layer must be a number from 0 to 1; got -1"),
        ({"head": 3}, ModelError, "head must be a number from 0 to 2; got 3"),
        ({"query": 13}, TextError, "must be one of the text's, from 0 to 12; got 13"),
        ({"query": -1}, TextError, "must be one of the text's, from 0 to 12; got -1"),
        ({"stack": "cross"}, ModelError, "stack must be one of"),
    ],
)
def test_a_place_that_there_is_not_is_refused(asked, error, text):
    with pytest.raises(error, match=text):
        read_head(make_bert().eval(), {"input_ids": IDS}, **asked)


def test_cross_attention_names_queries_and_keys_apart():
    torch.manual_seed(1)
    config = transformers.T5Config(vocab_size=VOCAB, d_model=20, d_kv=6, d_ff=7, num_layers=2, num_heads=4)
    model = transformers.T5Model(config).eval()
    inputs = {"input_ids": IDS, "decoder_input_ids": IDS[:, :5]}
    reading = read_head(model, inputs, stack="cross", layer=1, head=2)
    assert (reading.num_queries, reading.num_keys) == (5, TOKENS)
    names = [f"word{number}" for number in range(TOKENS)]
    told = explain_reading(reading, model="m", tokens=["a", "b", "c", "d", "e"], key_tokens=names)
    assert [key.token for key in told.keys] == names
    model.set_attn_implementation("eager")
    with torch.no_grad():
        output = model(**inputs, output_attentions=True)
    torch.testing.assert_close(
        torch.tensor([key.weight for key in told.keys]), output.cross_attentions[1][0, 2, reading.query]
    )


@pytest.mark.parametrize("stack", ["decoder", "cross"])
def test_padding_of_the_source_is_none_of_the_targets_as_long_as_it(stack):
    torch.manual_seed(1)
    config = transformers.T5Config(vocab_size=VOCAB, d_model=20, d_kv=6, d_ff=7, num_layers=2, num_heads=4)
    model = transformers.T5Model(config).eval()
    target, real = IDS[:, :5], torch.tensor([[0, 0, 1, 1, 1]])
    inputs = {"input_ids": IDS[:, 5:10], "attention_mask": real, "decoder_input_ids": target}
    reading = read_head(model, inputs, stack=stack, layer=1, head=2, query=4)
    places = range(5) if stack == "decoder" else [2, 3, 4]
    assert (reading.num_queries, reading.num_keys, reading.is_cross) == (5, len(places), stack == "cross")
    told = explain_reading(
        reading, model="m", tokens=list("abcde"), key_tokens=list("vwxyz")[2:] if stack == "cross" else None
    )
    assert "".join(key.token for key in told.keys) == ("abcde" if stack == "decoder" else "xyz")
    model.set_attn_implementation("eager")
    with torch.no_grad():
        output = model(**inputs, output_attentions=True)
    maps = output.decoder_attentions if stack == "decoder" else output.cross_attentions
    torch.testing.assert_close(torch.tensor([key.weight for key in told.keys]), maps[1][0, 2, 4, list(places)])
    real_target = {"decoder_attention_mask": torch.tensor([[1, 1, 1, 1, 0]])}
    shorter = read_head(model, inputs | real_target, stack=stack, layer=1, head=2)
    assert (shorter.num_queries, shorter.query) == (4, 3 if stack == "decoder" else 2)


def test_the_text_keeps_to_80_columns_and_shows_wide_and_hostile_tokens():
    torch.manual_seed(1)
    model = make_llama().eval()
    names = ["漢字漢字漢字漢字漢字漢字漢字", "a\x1b[2Jb", "x" * 64, *map(str, range(3, TOKENS))]
    told = explain(model, {"input_ids": IDS}, names=names, layer=0, head=1, query=12, pairs=pairs_of_llama(), against=0)
    lines = told.to_text().splitlines()
    assert max(map(cell_len, lines)) <= 80 and all(line.isprintable() for line in lines)
    assert any("漢字" in line for line in lines) and "turns in" in told.to_text()
    assert f"{told.keys[0].weight:.3f}" in told.to_text()
