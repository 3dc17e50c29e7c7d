import json
import math
from dataclasses import replace

import pytest
import tokenizers
import torch
import transformers
from tokenizers import models, pre_tokenizers, processors
from torch import nn

from headwise.errors import ConfigError, ModelError, TextError
from headwise.inspection.detail import Detail
from headwise.inspection.inspect import inspect_inputs, inspect_texts
from headwise.inspection.maps import weights_to_bytes
from headwise.inspection.relations.relation import Relation
from headwise.integrations import layer_weights
from headwise.masks.data import KeyPadding
from headwise.nn.multihead import MultiHeadAttention

WORDS = ["[PAD]", "[CLS]", "[SEP]", "[UNK]", *"abcdefghijklmn"]
LAYERS, HEADS = 2, 3


def tokenizer():
    backend = tokenizers.Tokenizer(models.WordLevel({word: n for n, word in enumerate(WORDS)}, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 1), ("[SEP]", 2)]
    )
    special = {"unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]", "pad_token": "[PAD]"}
    return transformers.PreTrainedTokenizerFast(tokenizer_object=backend, **special)


def bert(**settings):
    torch.manual_seed(0)
    config = transformers.BertConfig(
        **{
            "vocab_size": len(WORDS),
            "hidden_size": 12,
            "num_attention_heads": HEADS,
            "num_hidden_layers": LAYERS,
            "intermediate_size": 7,
            "max_position_embeddings": 16,
            "initializer_range": 0.5,
            **settings,
        }
    )
    return transformers.BertModel(config).eval()


def llama():
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=len(WORDS),
        hidden_size=12,
        intermediate_size=7,
        num_attention_heads=HEADS,
        num_key_value_heads=1,
        num_hidden_layers=LAYERS,
        max_position_embeddings=16,
        initializer_range=0.5,
    )
    return transformers.LlamaForCausalLM(config).eval()


def assert_same_heads(heads, expected, *, tolerance):
    assert len(heads) == len(expected) == LAYERS * HEADS
    for head, other in zip(heads, expected, strict=True):
        assert (head.layer, head.head) == (other.layer, other.head)
        for name in ("entropy", "normalized_entropy", "sparsity", "distance", "sink_mass", "max_weight"):
            assert getattr(head, name) == pytest.approx(getattr(other, name), abs=tolerance), name
        for role, other_role in zip(head.roles, other.roles, strict=True):
            assert (role.score is None) == (other_role.score is None), role.name
            assert role.score is None or role.score == pytest.approx(other_role.score, abs=tolerance), role.name


TEXTS = ["a b c d e f g h", "i j", "k l m n a"]


def test_statistics_are_those_of_the_models_own_eager_attention():
    model = bert()
    result = inspect_texts(model, tokenizer(), ["a b c d e"], show=0)
    model.set_attn_implementation("eager")
    with torch.no_grad():
        attentions = model(input_ids=torch.tensor([[1, 4, 5, 6, 7, 8, 2]]), output_attentions=True).attentions
    for head in result.heads:
        weights = attentions[head.layer][0, head.head].double()
        entropy = -(weights * weights.log()).sum(dim=-1)
        assert head.entropy == pytest.approx(entropy.mean().item(), abs=1e-5)
        assert head.normalized_entropy == pytest.approx((entropy / math.log(7)).mean().item(), abs=1e-5)
        assert head.sink_mass == pytest.approx(weights[:, 0].mean().item(), abs=1e-5)
        scores = {role.name: role.score for role in head.roles}
        assert scores["previous token"] == pytest.approx(weights.diagonal(-1).mean().item(), abs=1e-5)
        assert scores["next token"] == pytest.approx(weights.diagonal(1).mean().item(), abs=1e-5)
        assert scores["first token"] == pytest.approx(weights[1:, 0].mean().item(), abs=1e-5)
        assert scores["separator"] == pytest.approx(weights[:-1, -1].mean().item(), abs=1e-5)


@pytest.mark.parametrize("make_model", [bert, llama])
def test_a_padded_batch_of_texts_equals_each_text_alone(make_model):
    model = make_model()
    batched = inspect_texts(model, tokenizer(), TEXTS, batch_size=3)
    one_by_one = inspect_texts(model, tokenizer(), TEXTS, batch_size=1)
    assert (batched.num_texts, batched.num_tokens, batched.window) == (3, 21, 10)
    assert_same_heads(batched.heads, one_by_one.heads, tolerance=1e-5)


@pytest.mark.parametrize("side", ["left", "right"])
def test_ids_padded_on_either_side_equal_the_texts_alone(side):
    model = llama()
    ids = torch.zeros(2, 9, dtype=torch.long)
    mask = torch.zeros_like(ids)
    texts = [[4, 5, 6, 7, 8], [9, 10, 11, 12, 13, 14, 15, 16, 17]]
    for row, text in enumerate(texts):
        place = slice(9 - len(text), 9) if side == "left" else slice(0, len(text))
        ids[row, place], mask[row, place] = torch.tensor(text), 1
    batched = inspect_inputs(model, {"input_ids": ids, "attention_mask": mask}, real_tokens=mask.bool())
    alone = [inspect_inputs(model, {"input_ids": torch.tensor([text])}) for text in texts]
    assert batched.is_causal
    assert batched.tokens == ("0", "1", "2", "3", "4")
    for number, head in enumerate(batched.heads):
        entropy = sum(len(text) * one.heads[number].entropy for text, one in zip(texts, alone, strict=True)) / 14
        assert head.entropy == pytest.approx(entropy, abs=1e-5)
        distance = sum(len(text) * one.heads[number].distance for text, one in zip(texts, alone, strict=True)) / 14
        assert head.distance == pytest.approx(distance, abs=1e-4)
    for batched_map, alone_map in zip(batched.maps, alone[0].maps, strict=True):
        difference = torch.tensor(list(batched_map.weights)) - torch.tensor(list(alone_map.weights))
        assert difference.abs().max() <= 1  # a rounding may fall on the other side


@pytest.mark.parametrize("block_elements", [10**6, 200])  # all queries at once, and two at a time
def test_maps_show_the_real_tokens_of_the_shown_text_in_8_bits(block_elements, monkeypatch):
    monkeypatch.setattr(layer_weights, "BLOCK_ELEMENTS", block_elements)
    model = bert()
    result = inspect_texts(model, tokenizer(), TEXTS, show=2)
    assert result.tokens == ("[CLS]", "k", "l", "m", "n", "a", "[SEP]")
    model.set_attn_implementation("eager")
    ids = torch.tensor([[1, *(WORDS.index(word) for word in "klmna"), 2]])
    with torch.no_grad():
        attentions = model(input_ids=ids, output_attentions=True).attentions
    assert [(each.layer, each.head) for each in result.maps] == [(n, h) for n in range(LAYERS) for h in range(HEADS)]
    for each in result.maps:
        assert (each.num_queries, each.num_keys, len(each.weights)) == (7, 7, 49)
        shown = (torch.tensor(list(each.weights)).view(7, 7) / 255) ** 2
        # half a step of the square root, at its coarsest: (256/255)^2 - (255/255)^2, halved
        torch.testing.assert_close(shown, attentions[each.layer][0, each.head], rtol=0, atol=0.004)


def test_a_weight_is_the_square_of_its_byte():
    assert weights_to_bytes(torch.tensor([0.0, 1.0, 0.25, 1e-6, 4e-6])).tolist() == [0, 255, 128, 0, 1]


def test_long_maps_are_cropped_with_a_note():
    result = inspect_texts(bert(), tokenizer(), TEXTS, max_map_tokens=4)
    assert {each.num_queries for each in result.maps} == {4}
    assert "Maps show the first 4 of 10 tokens." in result.notes


def test_maps_are_left_out_when_not_asked_for():
    assert inspect_texts(bert(), tokenizer(), TEXTS, max_map_tokens=0).maps == ()


def test_a_text_longer_than_the_model_is_read_in_windows_and_the_result_says_so():
    result = inspect_texts(bert(), tokenizer(), ["a b c d e f g h i j k l m n " * 3])
    assert (result.num_texts, result.num_windows, result.window, result.num_tokens) == (1, 3, 16, 42 + 6)
    assert "Read in 3 windows of up to 16 tokens: statistics depend on the window." in result.notes
    assert len(result.tokens) == 16


def test_texts_that_were_cut_are_counted_in_a_note():
    result = inspect_texts(bert(), tokenizer(), TEXTS, max_length=6)
    assert "2 of 3 texts were cut at 6 tokens." in result.notes
    assert result.window == 6


def test_the_shown_text_may_lie_in_any_batch_and_window():
    result = inspect_texts(bert(), tokenizer(), TEXTS, window=5, show=1, batch_size=2)
    assert result.tokens == ("[CLS]", "i", "j", "[SEP]")
    assert len(result.maps) == LAYERS * HEADS
    assert result.maps[0].num_queries == 4


def test_progress_counts_windows():
    seen = []
    inspect_texts(bert(), tokenizer(), TEXTS, batch_size=2, progress=lambda done, total: seen.append((done, total)))
    assert seen == [(2, 3), (3, 3)]


@pytest.mark.parametrize(("make_model", "causal"), [(bert, False), (llama, True)])
def test_causality_is_read_from_the_masks(make_model, causal):
    assert inspect_texts(make_model(), tokenizer(), TEXTS).is_causal is causal


def test_a_tiny_text_comes_with_a_warning():
    assert any("say little" in note for note in inspect_texts(bert(), tokenizer(), ["a b"]).notes)


def test_inputs_have_the_words_that_the_caller_gives_and_no_separators():
    result = inspect_inputs(bert(), {"input_ids": torch.tensor([[1, 4, 5, 2, 6, 7, 2]])}, tokens=list("abcdefg"))
    assert result.tokens == tuple("abcdefg")
    separator = result.heads[0].roles[4]
    assert (separator.name, separator.score, separator.holds) == ("separator", None, False)
    assert json.loads(json.dumps(separator.to_dict()))["score"] is None


def test_the_result_is_plain_json_without_its_maps():
    result = inspect_texts(bert(), tokenizer(), TEXTS, max_map_tokens=0).to_dict()
    assert set(json.loads(json.dumps(result))["heads"][0]) >= {
        "layer",
        "head",
        "entropy",
        "sparsity",
        "distance",
        "roles",
    }


class Padded(nn.Module):
    """One layer of ours, told which tokens are padding by its own inputs."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.attention = MultiHeadAttention(12, HEADS)

    def forward(self, x, lengths):
        return self.attention(x, mask=KeyPadding(lengths))


def test_a_module_without_tokenizer_is_inspected_on_plain_inputs():
    x = torch.randn(2, 7, 12, generator=torch.Generator().manual_seed(0))
    result = inspect_inputs(Padded(), {"x": x, "lengths": torch.tensor([7, 4])}, show=1, notes=["Random input."])
    assert (result.num_texts, result.num_tokens, result.window) == (2, 11, 7)
    assert result.tokens == ("0", "1", "2", "3")
    assert result.maps[0].num_queries == 4
    assert result.notes[0] == "Random input."
    alone = [inspect_inputs(Padded(), (x[b : b + 1, :n], torch.tensor([n]))) for b, n in ((0, 7), (1, 4))]
    for number, head in enumerate(result.heads):
        expected = (7 * alone[0].heads[number].entropy + 4 * alone[1].heads[number].entropy) / 11
        assert head.entropy == pytest.approx(expected, abs=1e-6)


def test_padding_of_a_torch_module_is_what_its_attention_is_told():
    torch.manual_seed(0)
    block = nn.TransformerEncoderLayer(12, HEADS, dim_feedforward=5, batch_first=True)
    padding = torch.tensor([[False] * 7, [False] * 4 + [True] * 3])
    x = torch.randn(2, 7, 12)
    result = inspect_inputs(block, {"src": x, "src_key_padding_mask": padding})
    assert result.num_tokens == 11
    given = inspect_inputs(block, {"src": x, "src_key_padding_mask": padding}, real_tokens=~padding)
    assert given.heads == result.heads


def test_layers_that_read_texts_of_other_lengths_are_refused():
    class Pooling(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = MultiHeadAttention(12, HEADS), MultiHeadAttention(12, HEADS)

        def forward(self, x):
            return self.second(self.first(x)[:, ::2])

    with pytest.raises(ModelError, match="2 of 7 tokens; one reads 2 with 4 queries and 4 keys"):
        inspect_inputs(Pooling(), (torch.randn(2, 7, 12),))


def test_bad_requests_are_refused():
    model = bert()
    with pytest.raises(ConfigError, match=r"max_map_tokens must be between 0 and \d+; got -1"):
        inspect_inputs(model, {"input_ids": torch.tensor([[3, 4]])}, max_map_tokens=-1)
    with pytest.raises(ModelError, match="Linear is none: give its inputs to inspect_inputs"):
        inspect_texts(nn.Linear(2, 3), tokenizer(), TEXTS)
    with pytest.raises(TextError, match="window must not exceed the 16 tokens that the model reads at once; got 17"):
        inspect_texts(model, tokenizer(), TEXTS, window=17)
    with pytest.raises(TextError, match="show must be the number of a text, from 0 to 2; got 3"):
        inspect_texts(model, tokenizer(), TEXTS, show=3)
    ids = {"input_ids": torch.tensor([[4, 5], [6, 7]])}
    with pytest.raises(TextError, match="text 2 of 2 is all padding"):
        inspect_inputs(model, ids, real_tokens=torch.tensor([[True, True], [False, False]]))
    with pytest.raises(TextError, match="a word for each of the 2 tokens that are shown; got 3"):
        inspect_inputs(model, ids, tokens=["a", "b", "c"])


def test_padding_of_a_hugging_face_model_is_read_off_its_attention_mask():
    ids, mask = torch.tensor([[1, 4, 5, 6, 2], [1, 7, 2, 0, 0]]), torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]])
    together = inspect_inputs(bert(), {"input_ids": ids, "attention_mask": mask})
    alone = [
        inspect_inputs(bert(), {"input_ids": row[row_mask.bool()][None]})
        for row, row_mask in zip(ids, mask, strict=True)
    ]
    assert together.num_tokens == 8
    for number, head in enumerate(together.heads):
        weighted = sum(each.num_tokens * each.heads[number].entropy for each in alone) / 8
        assert math.isclose(head.entropy, weighted, abs_tol=1e-5)


def test_a_text_that_is_foreign_to_the_tokenizer_is_noted():
    result = inspect_texts(bert(), tokenizer(), ["a b x y z"])
    assert any(note.startswith("42 % of the tokens are [UNK]") for note in result.notes)  # 3 of 7
    assert not any("[UNK]" in note for note in inspect_texts(bert(), tokenizer(), ["a b c"]).notes)


def test_endless_tokens_are_shown_short():
    result = inspect_texts(bert(), tokenizer(), ["y" * 1000])
    assert len(result.tokens[1]) == 64


def test_weights_that_are_not_numbers_have_no_sparsity():
    layer = MultiHeadAttention(6, 2)
    layer.q_proj.weight.data.fill_(float("nan"))
    head = inspect_inputs(layer, {"query": torch.ones(1, 4, 6)}).heads[0]
    assert math.isnan(head.sparsity) and math.isnan(head.entropy)


def test_detail_is_measured_on_the_shown_text_beside_the_same_statistics():
    relation = Relation(name="neighbours", pairs=((2, 1, 2), (0, 4, 3)))
    detail = Detail(costly=True, across_layers=True, top_keys=2, overview_cells=4, relations=(relation,))
    model = bert()
    plain = inspect_texts(model, tokenizer(), TEXTS, show=2)
    result = inspect_texts(model, tokenizer(), TEXTS, show=2, detail=detail)
    assert result.maps == plain.maps
    assert_same_heads(result.heads, plain.heads, tolerance=0)
    assert plain.heads[0].stable_rank is None
    assert 1 <= result.heads[0].stable_rank <= 10
    assert 1 <= result.heads[0].num_keys_for_90_percent <= 10
    assert [len(each.divergence) for each in result.divergences] == [HEADS] * LAYERS
    across = result.divergence_across_layers
    assert across.heads == tuple((head.layer, head.head) for head in result.heads)
    for layer, each in enumerate(result.divergences):
        own = slice(layer * HEADS, (layer + 1) * HEADS)
        for row, other in zip(each.divergence, across.divergence[own], strict=True):
            assert row == pytest.approx(other[own], rel=1e-9)
    assert [(each.layer, each.head, each.num_queries) for each in result.top_keys] == [
        (head.layer, head.head, 7) for head in result.heads
    ]
    assert [(each.tile, each.num_queries) for each in result.overviews] == [(2, 4)] * LAYERS * HEADS
    (scores,) = result.relations
    first, third = (inspect_texts(model, tokenizer(), [TEXTS[n]], detail=Detail(top_keys=1)).top_keys for n in (0, 2))
    for head, of_first, of_third in zip(scores.heads, first, third, strict=True):
        follows = (of_first.of_query(4)[0][0] == 3) + (of_third.of_query(1)[0][0] == 2)
        assert head.share == follows / 2


def test_the_null_of_a_relation_is_another_inspection():
    detail = Detail(relations=(Relation(name="neighbours", pairs=((0, 1, 2), (0, 4, 3))),))
    null = inspect_texts(bert(), tokenizer(), TEXTS[:1], detail=detail)
    (scores,) = inspect_texts(bert(), tokenizer(), TEXTS[:1], detail=replace(detail, null=null)).relations
    assert [head.null_share for head in scores.heads] == [head.share for head in null.relations[0].heads]


# weights are float32: in a batch of other size or padding their sums are rounded apart by some 1e-7
ROUNDED = 1e-6


def weights_of_pairs(texts, *pairs, **settings):
    detail = Detail(relations=(Relation(name="neighbours", pairs=pairs),))
    (scores,) = inspect_texts(bert(), tokenizer(), texts, detail=detail, **settings).relations
    return [head.weight for head in scores.heads]


def test_relations_are_of_the_first_window_of_a_text():
    texts = ["a b c d e f g h", "i j k l m n"]
    in_windows = weights_of_pairs(texts, (1, 2, 1), window=6)
    assert in_windows == pytest.approx(weights_of_pairs(["i j k l"], (0, 2, 1)), abs=ROUNDED)
    with pytest.raises(TextError, match="from 0 to 5, as text 1 is read"):
        weights_of_pairs(texts, (1, 6, 1), window=6)


def test_relations_do_not_depend_on_the_batches_that_texts_are_read_in():
    pairs = ((0, 1, 2), (1, 2, 1), (2, 4, 3))
    together, apart = (weights_of_pairs(TEXTS, *pairs, batch_size=size) for size in (3, 1))
    assert together == pytest.approx(apart, abs=ROUNDED)
    alone = [weights_of_pairs([text], (0, *tokens)) for text, (_, *tokens) in zip(TEXTS, pairs, strict=True)]
    assert together == pytest.approx([sum(each) / 3 for each in zip(*alone, strict=True)], abs=ROUNDED)


def test_relations_of_plain_inputs_are_of_rows_of_the_batch():
    relation = Relation(name="neighbours", pairs=((1, 3, 2), (0, 4, 4)))
    layer = MultiHeadAttention(12, HEADS).eval()
    x = torch.randn(2, 5, 12, generator=torch.Generator().manual_seed(0))
    result = inspect_inputs(layer, {"query": x}, detail=Detail(relations=(relation,), top_keys=1), show=1)
    for head, top in zip(result.relations[0].heads, result.top_keys, strict=True):
        assert head.share >= 0.5 * (top.of_query(3)[0][0] == 2)
    with pytest.raises(TextError, match="from 0 to 4, as text 0 is read"):
        inspect_inputs(layer, {"query": x}, detail=Detail(relations=(Relation(name="no", pairs=((0, 5, 0),)),)))


def test_blocks_are_computed_once_for_all_that_looks_at_them(monkeypatch):
    starts = []
    block = layer_weights.ProjectedWeights.block

    def count(self, start, stop, **options):
        starts.append(start)
        return block(self, start, stop, **options)

    monkeypatch.setattr(layer_weights.ProjectedWeights, "block", count)
    relation = Relation(name="neighbours", pairs=((0, 1, 2),))
    inspect_texts(bert(), tokenizer(), TEXTS, detail=Detail(top_keys=2, overview_cells=4, relations=(relation,)))
    trial = LAYERS * [0]
    assert starts in ([0] * LAYERS, trial + [0] * LAYERS)


def test_negative_counts_of_a_detail_are_refused():
    with pytest.raises(ConfigError, match="top_keys must be between 0"):
        Detail(top_keys=-1)
    with pytest.raises(ConfigError, match="overview_cells must be between 0"):
        Detail(overview_cells=-3)


def test_rotary_positions_go_on_beyond_the_models_length_and_it_is_said():
    text = " ".join(WORDS[4 + number % 14] for number in range(40))
    inspection = inspect_texts(llama(), tokenizer(), [text], window=42, max_map_tokens=0)
    assert (inspection.num_windows, inspection.window) == (1, 42)
    assert any(note.startswith("Up to 42 tokens are read at once, more than the 16 ") for note in inspection.notes)
    within = inspect_texts(llama(), tokenizer(), [text], max_map_tokens=0)
    assert within.window == 16 and not any("more than" in note for note in within.notes)
