"""`headwise.inspect`: stacks beside one another, other texts and checkpoints, and what a page keeps."""

import json
from dataclasses import replace

import pytest
import tokenizers
import torch
import transformers
from tokenizers import models, pre_tokenizers, processors

import headwise
from headwise.api.looking import ENCODER_ALONE, look_at_heads
from headwise.api.page_budget import CHARS_PER_KEY, TOP_KEYS, UNKNOWN_HEADS, count_heads, keep
from headwise.errors import ConfigError, ModelError, TextError
from headwise.inspection.detail import NO_DETAIL, Detail
from headwise.loading.module import from_module

WORDS = ["<pad>", "</s>", "<unk>", *"abcdefghijklmnopq"]
VOCAB, HEADS = len(WORDS), 3
TEXT, OTHER = "a b c d e f g h", "i j k l"


def tokenizer():
    backend = tokenizers.Tokenizer(models.WordLevel({word: n for n, word in enumerate(WORDS)}, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    named = {"pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}
    return transformers.PreTrainedTokenizerFast(tokenizer_object=backend, **named)


def t5(seed=0, **settings):
    torch.manual_seed(seed)
    sizes = {"d_model": 12, "d_kv": 4, "d_ff": 7, "num_layers": 3, "num_decoder_layers": 2, "num_heads": HEADS}
    config = transformers.T5Config(
        vocab_size=VOCAB, decoder_start_token_id=0, pad_token_id=0, eos_token_id=1, **{**sizes, **settings}
    )
    return transformers.T5ForConditionalGeneration(config).eval()


def llama(seed=0, num_layers=2):
    torch.manual_seed(seed)
    config = transformers.LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=12,
        intermediate_size=7,
        num_hidden_layers=num_layers,
        num_attention_heads=HEADS,
        num_key_value_heads=1,
        max_position_embeddings=64,
        initializer_range=0.7,
        eos_token_id=None,
    )
    return transformers.LlamaForCausalLM(config).eval()


def look(model, **asked):
    return headwise.inspect(model, tokenizer=tokenizer(), **{"texts": [TEXT], **asked})


def test_all_stacks_of_an_encoder_decoder_are_shown_beside_one_another():
    result = look(t5(), targets=[OTHER])
    assert (result.part, result.stack, len(result.heads)) == ("encoder", "encoder", 9)
    assert [(part.name, part.comparable, part.changes) for part in result.others] == [
        ("decoder", False, ()),
        ("cross", False, ()),
    ]
    decoder, cross = (part.inspection for part in result.others)
    assert (decoder.tokens, cross.tokens) == (("<pad>", *OTHER.split()),) * 2
    assert (result.tokens, cross.key_tokens) == ((*TEXT.split(), "</s>"),) * 2
    assert decoder.is_causal and not result.is_causal and len(cross.maps) == 6
    answer = json.loads(json.dumps(result.to_dict()))
    for inspection in (answer, *(part["inspection"] for part in answer["others"])):
        assert not {"maps", "overviews", "top_keys"} & set(inspection)
    text = str(result)
    assert max(map(len, text.splitlines())) <= 80
    for line in ("T5ForConditionalGeneration: encoder", "decoder", "cross", "6 heads, over 5 tokens, which read those"):
        assert line in text


def test_one_stack_stands_alone_where_it_is_named():
    whole = look(t5(), targets=[OTHER])
    cross = look(t5(), targets=[OTHER], stack="cross")
    assert (cross.part, cross.others, cross.stack) == (None, (), "cross")
    assert cross.heads == whole.others[1].inspection.heads
    assert look(t5(), generate=3, stack="decoder").num_prompt_tokens == 1


def test_stacks_of_a_model_without_a_tokenizer_are_read_on_random_input():
    result = headwise.inspect(t5())
    assert result.is_example and [part.name for part in result.others] == ["decoder", "cross"]
    inputs = {"input_ids": torch.tensor([[3, 4, 5, 6]]), "decoder_input_ids": torch.tensor([[0, 7]])}
    result = headwise.inspect(t5(), inputs=inputs)
    assert not result.is_example
    assert [part.inspection.num_tokens for part in result.others] == [2, 2]
    assert headwise.inspect(t5(), inputs=inputs, stack="cross").key_tokens == tuple("0123")


def test_a_report_shows_the_encoders_heads_alone_and_says_so():
    loaded = from_module(t5(), tokenizer=tokenizer())
    found = look_at_heads(loaded, [TEXT])
    assert found.notes[0] == ENCODER_ALONE
    assert found.heads == look(t5(), targets=[OTHER]).heads


def test_generated_tokens_are_shown_with_the_prompt():
    result = look(llama(), generate=4)
    assert (len(result.tokens), result.num_prompt_tokens) == (9 - 1 + 4, 8)  # the token that ends a text is left out
    assert "the model wrote the other 4 itself" in " ".join(str(result).split())
    assert look(llama(), texts=None, generate=3).num_texts == 1


def test_two_texts_are_compared_head_by_head():
    model = llama()
    result = look(model, against_texts=[OTHER])
    (part,) = result.others
    assert (result.part, part.name, part.comparable) == ("text in hand", "text in hand (the other)", True)
    alone = look(model, texts=[OTHER])
    assert part.inspection.heads == alone.heads
    for change in part.changes:
        place = change.layer * HEADS + change.head
        assert change.differences["entropy"] == alone.heads[place].entropy - result.heads[place].entropy
        assert change.divergence is None  # of other tokens
    text = str(result)
    assert "against text in hand (the other)" in text and "heads that differ most" in text
    assert max(map(len, text.splitlines())) <= 80


def test_two_checkpoints_are_compared_on_the_same_text():
    result = look(llama(), against=llama(seed=1))
    (part,) = result.others
    assert (result.part, part.name) == ("LlamaForCausalLM", "LlamaForCausalLM (the other)")
    sizes = [change.divergence for change in part.changes]
    assert sizes == sorted(sizes, reverse=True) and sizes[-1] > 0
    answer = json.loads(json.dumps(result.to_dict()))["others"][0]
    assert len(answer["changes"]) == 6 and answer["changes"][0]["divergence_error"] > 0
    assert "±" in str(result) and max(map(len, str(result).splitlines())) <= 80
    same = look(llama(), against=llama()).others[0]
    assert {change.divergence for change in same.changes} == {0.0}


def test_of_an_encoder_decoder_one_stack_is_compared_the_first_unless_it_is_named():
    result = look(t5(), targets=[OTHER], against=t5(seed=1))
    assert [(part.inspection.stack, part.comparable) for part in result.others] == [("encoder", True)]
    cross = look(t5(), targets=[OTHER], against=t5(seed=1), stack="cross")
    assert (cross.stack, cross.others[0].inspection.stack) == ("cross", "cross")
    assert cross.others[0].changes[0].divergence > 0


def test_texts_come_from_files_under_their_names(tmp_path):
    one, two = tmp_path / "one.txt", tmp_path / "two.txt"
    one.write_text(TEXT)
    two.write_text(OTHER)
    result = headwise.inspect(llama(), tokenizer=tokenizer(), text=one, against_text=two)
    assert (result.part, result.others[0].name) == ("one.txt", "two.txt")
    pair = headwise.inspect(t5(), tokenizer=tokenizer(), text=[one, two], target=[two, one])
    assert pair.others[0].inspection.tokens == ("<pad>", *OTHER.split())
    several = headwise.inspect(llama(), tokenizer=tokenizer(), text=[one, two], against_text=[two, one, one])
    assert (several.part, several.others[0].name) == ("one.txt and 1 more", "two.txt and 2 more")


def test_roles_are_probed_in_the_stack_that_reads_the_text():
    result = look(t5(), targets=[OTHER], roles=True, texts=[TEXT])
    assert len(result.probe.heads) == 9
    with pytest.raises(ModelError, match="'cross' reads another text: leave roles out"):
        look(t5(), targets=[OTHER], stack="cross", roles=True)
    with pytest.raises(ModelError, match="in the stack that reads the text, 'encoder'; got 'decoder'"):
        look(t5(), targets=[OTHER], stack="decoder", roles=True)


def test_a_text_longer_than_its_maps_keeps_an_overview_and_the_heaviest_keys():
    model = llama()
    short = look(model)
    assert (short.overviews, short.top_keys) == ((), ())
    result = look(model, map_tokens=5)
    assert {each.num_queries for each in result.maps} == {5}
    assert {(each.tile, each.num_queries) for each in result.overviews} == {(1, 9)}
    assert {(each.num_queries, each.num_keys) for each in result.top_keys} == {(9, TOP_KEYS)}
    assert look(model, map_tokens=0).top_keys == ()
    asked = look(model, map_tokens=5, detail=Detail(top_keys=7, overview_cells=3))
    assert (asked.top_keys[0].num_keys, asked.overviews[0].num_queries) == (7, 3)


def written_chars(num_heads, num_tokens):
    """What maps, overview and heaviest keys take on a page, as base64 of whole tokens by whole tokens."""
    kept = keep(num_heads, num_tokens, map_tokens=None, detail=NO_DETAIL)
    side, cells = min(num_tokens, kept.map_tokens), kept.detail.overview_cells
    return num_heads * ((side**2 + cells**2) * 4 / 3 + CHARS_PER_KEY * kept.detail.top_keys * num_tokens)


REST_OF_A_PAGE = 300_000  # words, statistics, and the page itself


@pytest.mark.parametrize(("num_tokens", "most"), [(128, 5e6), (512, 5e6), (4096, 15e6), (32_768, 15e6)])
@pytest.mark.parametrize("num_heads", [1, 72, 144, 288, 2304])
def test_a_page_stays_small(num_heads, num_tokens, most):
    if num_heads <= 144 or num_tokens > 512:
        assert written_chars(num_heads, num_tokens) + REST_OF_A_PAGE < most


def test_a_page_of_many_tokens_keeps_what_there_is_room_for():
    assert keep(144, 120, map_tokens=None, detail=NO_DETAIL).detail == NO_DETAIL
    for num_tokens, top_keys in ((121, 4), (512, 4), (4096, 4), (8192, 2), (16_384, 1), (32_768, 0)):
        kept = keep(144, num_tokens, map_tokens=None, detail=NO_DETAIL)
        assert (kept.map_tokens, kept.detail.overview_cells, kept.detail.top_keys) == (120, 52, top_keys)
    assert keep(288, 512, map_tokens=None, detail=NO_DETAIL).map_tokens == 85  # two parts share a page


def test_maps_beyond_1_gib_are_refused_with_the_largest_that_fit():
    # 270 heads: 1994^2 * 270 is the last number below 2^30
    assert keep(270, 16384, map_tokens=1994, detail=NO_DETAIL).map_tokens == 1994
    with pytest.raises(ConfigError, match=r"270 heads and 1,995 tokens are 1\.0 GiB: ask for map_tokens up to 1,994$"):
        keep(270, 16384, map_tokens=1995, detail=NO_DETAIL)
    assert keep(270, 1994, map_tokens=10**6, detail=NO_DETAIL).map_tokens == 10**6  # of a text that is short


def test_what_is_no_tokenizer_is_named():
    config = transformers.BertConfig(
        vocab_size=VOCAB, hidden_size=12, num_attention_heads=HEADS, num_hidden_layers=1, intermediate_size=7
    )
    model = transformers.BertModel(config)
    for look_at in (headwise.inspect, headwise.explain):
        with pytest.raises(TextError, match="a text is read with a tokenizer of transformers; got 3"):
            look_at(model, tokenizer=3)
    assert written_chars(144, 512) == pytest.approx(4.46e6, rel=0.01)
    assert written_chars(144, 4096) == pytest.approx(12.7e6, rel=0.01)


def test_heads_of_all_stacks_are_counted():
    assert count_heads(from_module(t5())) == HEADS * (3 + 2 + 2)
    assert count_heads(from_module(llama())) == HEADS * 2
    loaded = from_module(t5())
    assert count_heads(replace(loaded, config=None)) == HEADS * 3 * 3  # its config names the encoder's layers alone
    assert count_heads(from_module(torch.nn.Linear(2, 3))) == UNKNOWN_HEADS


def test_bad_requests_are_refused():
    with pytest.raises(ModelError, match=r"LlamaForCausalLM's: 'self' \(2 layers\); got 'encoder'"):
        look(llama(), stack="encoder")
    with pytest.raises(TextError, match="a target is what the decoder of an encoder-decoder reads; LlamaForCausalLM"):
        look(llama(), targets=[OTHER])
    with pytest.raises(TextError, match="a target belongs to a text"):
        headwise.inspect(t5(), tokenizer=tokenizer(), targets=[OTHER])
    inputs = {"input_ids": torch.tensor([[3, 4]])}
    with pytest.raises(TextError, match="generate goes with a text that a tokenizer reads"):
        headwise.inspect(llama(), inputs=inputs, generate=3)
    with pytest.raises(TextError, match="one of target, targets and inputs says what is read"):
        headwise.inspect(t5(), inputs=inputs, targets=[OTHER])
    with pytest.raises(TextError, match="got both against and against_text"):
        look(llama(), against=llama(), against_texts=[OTHER])
    with pytest.raises(ModelError, match="one has 2 layers of 3 heads, the other 3 layers of 3 heads"):
        look(llama(), against=llama(num_layers=3))
    with pytest.raises(ModelError, match="bert-base has none: give a checkpoint"):
        look(llama(), against="bert-base")
    with pytest.raises(ConfigError, match="generate must be between 1"):
        look(llama(), generate=0)
    with pytest.raises(TextError, match="a text needs a tokenizer"):
        headwise.inspect(llama(), against_texts=[OTHER])
