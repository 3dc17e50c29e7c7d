"""Texts that a model writes itself, and what its decoder reads beside a text."""

from types import SimpleNamespace

import pytest
import tokenizers
import torch
import transformers
from tokenizers import models, pre_tokenizers, processors
from torch import nn

from headwise.errors import ConfigError, ModelError, TextError
from headwise.inspection.detail import Detail
from headwise.inspection.inspect import (
    inspect_inputs,
    inspect_reading,
    inspect_stacks,
    inspect_stacks_of_inputs,
    inspect_texts,
)
from headwise.inspection.relations.relation import Relation
from headwise.inspection.texts.generated import generated_ids
from headwise.inspection.texts.pairs import GENERATED_TOKENS
from headwise.inspection.texts.prepare import prepare_texts

WORDS = ["<pad>", "</s>", "<unk>", "<s>", *"abcdefghijklmnopq"]
VOCAB, PAD, END, START = len(WORDS), 0, 1, 3
HEADS = 3


def tokenizer(frame="$A </s>"):
    backend = tokenizers.Tokenizer(models.WordLevel({word: n for n, word in enumerate(WORDS)}, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    special = [("</s>", END), ("<s>", START)]
    backend.post_processor = processors.TemplateProcessing(single=frame, special_tokens=special)
    named = {"pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>", "bos_token": "<s>"}
    return transformers.PreTrainedTokenizerFast(tokenizer_object=backend, **named)


def seeded(cls, config):
    torch.manual_seed(0)
    return cls(config).eval()


def llama(**settings):
    sizes = {"vocab_size": VOCAB, "hidden_size": 12, "intermediate_size": 7, "num_hidden_layers": 2}
    config = transformers.LlamaConfig(
        **sizes,
        num_attention_heads=HEADS,
        num_key_value_heads=1,
        max_position_embeddings=64,
        initializer_range=0.7,
        **{"pad_token_id": PAD, "bos_token_id": START, "eos_token_id": None, **settings},
    )
    return seeded(transformers.LlamaForCausalLM, config)


def gpt2():
    config = transformers.GPT2Config(
        vocab_size=VOCAB, n_embd=12, n_layer=2, n_head=HEADS, n_positions=19, initializer_range=0.7, eos_token_id=None
    )
    return seeded(transformers.GPT2LMHeadModel, config)


def bert():
    config = transformers.BertConfig(
        vocab_size=VOCAB, hidden_size=12, num_attention_heads=HEADS, num_hidden_layers=1, intermediate_size=7
    )
    return seeded(transformers.BertForMaskedLM, config)


def t5():
    config = transformers.T5Config(
        vocab_size=VOCAB,
        d_model=12,
        d_kv=4,
        d_ff=7,
        num_layers=3,
        num_decoder_layers=2,
        num_heads=HEADS,
        pad_token_id=PAD,
        eos_token_id=END,
        decoder_start_token_id=PAD,
    )
    return seeded(transformers.T5ForConditionalGeneration, config)


def of_bart_kind(cls, config_cls, **settings):
    sizes = {"encoder_layers": 3, "decoder_layers": 2, "encoder_ffn_dim": 7, "decoder_ffn_dim": 7}
    config = config_cls(
        vocab_size=VOCAB,
        d_model=12,
        **sizes,
        encoder_attention_heads=HEADS,
        decoder_attention_heads=HEADS,
        max_position_embeddings=16,
        init_std=0.5,
        pad_token_id=PAD,
        eos_token_id=END,
        bos_token_id=START,
        decoder_start_token_id=END,
        forced_eos_token_id=None,
        **settings,
    )
    return seeded(cls, config)


def bart():
    return of_bart_kind(transformers.BartForConditionalGeneration, transformers.BartConfig)


def marian():
    settings = {"decoder_vocab_size": VOCAB, "scale_embedding": True}
    return of_bart_kind(transformers.MarianMTModel, transformers.MarianConfig, **settings)


def shown(map_):
    return (torch.tensor(list(map_.weights), dtype=torch.float64).view(map_.num_queries, map_.num_keys) / 255) ** 2


def step_by_step(model, ids, count):
    """The weights that the model attends with as it writes, (H, T, T) of each layer: a row more at every step."""
    model.set_attn_implementation("eager")
    settings = {"max_new_tokens": count, "do_sample": False, "pad_token_id": PAD}
    with torch.no_grad():
        output = model.generate(
            torch.tensor([ids]), output_attentions=True, return_dict_in_generate=True, use_cache=True, **settings
        )
    length = output.attentions[-1][0].shape[-1]
    layers = []
    for layer in range(len(output.attentions[0])):
        whole = torch.zeros(HEADS, length, length)
        for number, step in enumerate(output.attentions):
            rows = step[layer][0]  # of the prompt first, then of one token at a time
            start = 0 if number == 0 else len(ids) + number - 1
            whole[:, start : start + rows.shape[1], : rows.shape[2]] = rows
        layers.append(whole)
    return output.sequences[0].tolist(), layers


# a decoder computes the rows of its cache in products of other shapes: off by some float32 eps of a weight of 1 at most
ROUNDED = 1e-5


@pytest.mark.parametrize("make_model", [llama, gpt2])
def test_one_pass_over_all_tokens_weighs_what_decoding_step_by_step_with_a_cache_does(make_model):
    model, count = make_model(), 7
    result = inspect_texts(model, tokenizer("$A"), ["a b c d e", "f"], generate=count, detail=Detail(top_keys=12))
    prompt = [WORDS.index(word) for word in "abcde"]
    written, layers = step_by_step(model, prompt, count)
    assert (
        len(written) == 5 + count and layers[0].shape[-1] == 5 + count - 1
    )  # nothing was written after the last token
    assert result.tokens == tuple(WORDS[token] for token in written)
    assert (result.num_prompt_tokens, result.num_tokens, result.num_texts) == (5, 12, 1)
    assert result.is_causal
    for head, map_, top in zip(result.heads, result.maps, result.top_keys, strict=True):
        expected = layers[head.layer][head.head]
        # half a step of the square root, at its coarsest: (255^2 - 254^2) / 255^2 / 2
        torch.testing.assert_close(shown(map_)[:11, :11].float(), expected, rtol=0, atol=0.00393 + ROUNDED)
        for query in range(11):
            for key, weight in top.of_query(query):
                assert weight == pytest.approx(expected[query, key].item(), abs=ROUNDED)
    notes = " ".join(result.notes)
    assert "The first 5 tokens were given, the model wrote the other 7 itself" in notes
    assert "The first of 2 texts was continued and read, the others were not." in notes


def test_statistics_are_of_the_pass_over_prompt_and_generated_tokens():
    model = llama()
    result = inspect_texts(model, tokenizer("$A"), ["a b c d e"], generate=7)
    ids = torch.tensor([[WORDS.index(token) for token in result.tokens]])
    assert result.heads == inspect_inputs(model, {"input_ids": ids, "attention_mask": torch.ones_like(ids)}).heads


def test_writing_stops_at_the_end_token_which_is_shown():
    free = inspect_texts(llama(), tokenizer("$A"), ["a b c d e"], generate=7)
    third = WORDS.index(free.tokens[7])
    stopped = inspect_texts(llama(eos_token_id=third), tokenizer("$A"), ["a b c d e"], generate=7)
    first = free.tokens[5:].index(free.tokens[7])
    assert stopped.tokens == free.tokens[: 5 + first + 1]


def test_a_prompt_goes_on_before_the_tokens_that_would_end_it():
    result = inspect_texts(llama(), tokenizer("<s> $A </s>"), ["a b"], generate=3)
    assert (result.tokens[:3], result.num_prompt_tokens, result.num_tokens) == (("<s>", "a", "b"), 3, 6)


def test_the_model_is_as_it_was_before_it_wrote():
    model = llama().train()
    inspect_texts(model, tokenizer("$A"), ["a b"], generate=3)
    assert model.training and model.config._attn_implementation == "sdpa"


@pytest.mark.parametrize("make_model", [t5, bart, marian])
def test_stacks_of_an_encoder_decoder_are_read_in_pairs_as_each_pair_alone(make_model):
    model, words = make_model(), tokenizer()
    texts, targets = ["a b c d e f", "g h"], ["i j", "k l m n"]
    found = inspect_stacks(model, prepare_texts(model, words, texts, targets=targets, show=1))
    assert {name: (each.num_tokens, each.num_texts, each.num_prompt_tokens) for name, each in found.items()} == {
        "encoder": (7 + 3, 2, None),
        "decoder": (3 + 5, 2, None),
        "cross": (3 + 5, 2, None),
    }
    start = WORDS[model.config.decoder_start_token_id]
    assert found["encoder"].tokens == ("g", "h", "</s>")
    assert found["decoder"].tokens == found["cross"].tokens == (start, "k", "l", "m", "n")
    assert (found["decoder"].key_tokens, found["cross"].key_tokens) == (None, ("g", "h", "</s>"))
    assert inspect_texts(model, words, texts, targets=targets, show=1, stack="cross") == found["cross"]
    ids = {word: number for number, word in enumerate(WORDS)}
    pairs = []
    for text, target in zip(texts, targets, strict=True):
        source = torch.tensor([[*(ids[word] for word in text.split()), END]])
        decoder = torch.tensor([[ids[start], *(ids[word] for word in target.split())]])
        pairs.append(inspect_stacks_of_inputs(model, {"input_ids": source, "decoder_input_ids": decoder}))
    for name in found:
        alone = [each[name] for each in pairs]
        for number, head in enumerate(found[name].heads):
            weighted = sum(each.num_tokens * each.heads[number].entropy for each in alone)
            assert head.entropy == pytest.approx(weighted / found[name].num_tokens, abs=ROUNDED)
        for map_, other in zip(found[name].maps, alone[1].maps, strict=True):
            difference = torch.tensor(list(map_.weights)).int() - torch.tensor(list(other.weights)).int()
            assert difference.abs().max() <= 1  # a rounding may fall on the other side


@pytest.mark.parametrize("make_model", [t5, bart])
def test_without_a_target_the_decoder_reads_what_the_model_writes_step_by_step(make_model):
    model, words = make_model(), tokenizer()
    found = inspect_stacks(model, prepare_texts(model, words, ["a b c d e", "f g"], generate=6, batch_size=2))
    cross = found["cross"]
    assert [each.num_prompt_tokens for each in found.values()] == [None, 1, 1]
    assert any("what the model wrote itself, up to 6 tokens" in note for note in cross.notes)
    model.set_attn_implementation("eager")
    ids = torch.tensor([[*(WORDS.index(word) for word in "abcde"), END]])
    with torch.no_grad():
        output = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=6,
            do_sample=False,
            num_beams=1,
            output_attentions=True,
            return_dict_in_generate=True,
        )
    assert cross.tokens == tuple(WORDS[token] for token in output.sequences[0].tolist())
    for head, map_ in zip(cross.heads, cross.maps, strict=True):
        rows = torch.cat([step[head.layer][0, head.head] for step in output.cross_attentions])
        torch.testing.assert_close(shown(map_)[: len(rows)].float(), rows, rtol=0, atol=0.00393 + ROUNDED)


def test_an_encoder_decoder_writes_some_tokens_where_nothing_is_said():
    model = t5()
    reading = prepare_texts(model, tokenizer(), ["a b"])
    assert 1 < len(reading.target_tokens) <= GENERATED_TOKENS + 1
    short = prepare_texts(bart(), tokenizer(), ["a b"])  # of 16 positions
    assert len(short.target_tokens) <= 16


def test_texts_and_targets_that_are_too_long_are_cut_and_counted():
    reading = prepare_texts(bart(), tokenizer(), ["a " * 30, "b"], targets=["c " * 30, "d"])
    assert (len(reading.tokens), len(reading.target_tokens)) == (16, 16)
    assert "1 of 2 texts were cut at 16 tokens." in reading.notes
    assert "1 of 2 targets were cut at 16 tokens." in reading.notes


def test_relations_are_of_the_tokens_of_the_stack():
    model, words = t5(), tokenizer()
    detail = Detail(relations=(Relation(name="neighbours", pairs=((0, 1, 2),)),))
    reading = prepare_texts(model, words, ["a b c d"], targets=["e f g"])
    assert inspect_reading(model, reading, stack="decoder", detail=detail).relations[0].num_pairs == 1
    with pytest.raises(TextError, match="a relation is between tokens of one text"):
        inspect_reading(model, reading, stack="cross", detail=detail)


def test_bad_requests_are_refused():
    words = tokenizer("$A")
    with pytest.raises(ModelError, match="BertForMaskedLM cannot generate: tokens are written by a decoder"):
        inspect_texts(bert(), words, ["a b"], generate=3)
    with pytest.raises(ModelError, match="LlamaModel cannot generate"):
        inspect_texts(llama().model, words, ["a b"], generate=3)
    with pytest.raises(ModelError, match="BartModel cannot generate"):
        prepare_texts(bart().model, words, ["a b"])
    with pytest.raises(ConfigError, match=r"generate must be between 1 and .*; got 0"):
        inspect_texts(llama(), words, ["a b"], generate=0)
    with pytest.raises(TextError, match="a target is what the decoder of an encoder-decoder reads; LlamaForCausalLM"):
        inspect_texts(llama(), words, ["a b"], targets=["c"])
    with pytest.raises(TextError, match="a prompt of 2 tokens and 18 generated ones must not exceed the 19 tokens"):
        inspect_texts(gpt2(), words, ["a b"], generate=18)
    with pytest.raises(TextError, match="leave window out"):
        inspect_texts(llama(), words, ["a b"], generate=3, window=9)
    with pytest.raises(TextError, match="the decoder reads targets, or what the model generates itself; got both"):
        prepare_texts(t5(), words, ["a b"], targets=["c"], generate=3)
    with pytest.raises(TextError, match="every text must have its target; got 1 text and 2 targets"):
        prepare_texts(t5(), words, ["a b"], targets=["c", "d"])
    with pytest.raises(TextError, match="reads each text whole, beside its target: give max_length"):
        prepare_texts(t5(), words, ["a b"], window=5)
    with pytest.raises(TextError, match="generate must leave room in the 16 tokens"):
        prepare_texts(bart(), words, ["a b"], generate=16)
    with pytest.raises(ModelError, match="stack must be one of T5ForConditionalGeneration's: 'encoder'"):
        inspect_texts(t5(), words, ["a b"], targets=["c"], stack="middle")
    with pytest.raises(ModelError, match="one stack of attention layers at a time"):
        inspect_texts(t5(), words, ["a b"], targets=["c"])
    sizes = {"d_model": 4, "encoder_layers": 1, "decoder_layers": 1, "num_mel_bins": 4, "max_source_positions": 5}
    config = transformers.WhisperConfig(**sizes, encoder_attention_heads=1, decoder_attention_heads=1)
    with pytest.raises(ModelError, match="reads input_features, no text: give the inputs of a forward pass"):
        prepare_texts(transformers.WhisperForConditionalGeneration(config), words, ["a b"])


class Writer(nn.Module):
    """A model that always writes the same."""

    def __init__(self, ids, *, ends, has_encoder):
        super().__init__()
        self.ids = torch.tensor(ids)
        self.config = SimpleNamespace(is_encoder_decoder=has_encoder)
        self.generation_config = SimpleNamespace(eos_token_id=ends)

    def can_generate(self):
        return True

    def generate(self, input_ids, **_):
        return self.ids if self.config.is_encoder_decoder else torch.cat([input_ids, self.ids], dim=1)


@pytest.mark.parametrize("ends", [7, [9, 7]])
def test_what_pads_a_text_that_ends_before_others_is_none_of_it(ends):
    rows = [[7, 4, 5, 7, 0, 0], [7, 4, 4, 4, 4, 4]]  # a decoder may begin with the token that ends
    inputs = {"input_ids": torch.tensor([[3, 7], [3, 3]])}
    pairs = generated_ids(Writer(rows, ends=ends, has_encoder=True), inputs, 5, PAD)
    assert pairs == [[7, 4, 5, 7], rows[1]]
    alone = generated_ids(Writer(rows, ends=ends, has_encoder=False), inputs, 6, PAD)
    assert alone == [[7], [7]]
    assert generated_ids(Writer(rows, ends=None, has_encoder=True), inputs, 5, PAD) == rows


@pytest.mark.parametrize(
    "told",
    [
        {"return_dict_in_generate": True},
        {"num_return_sequences": 2},
        {"penalty_alpha": 0.6, "top_k": 4},
        {"min_new_tokens": 4, "do_sample": True, "temperature": 0.5},
        {"return_dict_in_generate": True, "output_attentions": True, "output_hidden_states": True},
        {"return_dict_in_generate": True, "output_scores": True, "output_logits": True},
    ],
)
def test_what_a_checkpoint_says_of_what_to_return_changes_nothing(told):
    model = llama()
    plain = inspect_texts(model, tokenizer(), ["a b c"], generate=4)
    for name, value in told.items():
        setattr(model.generation_config, name, value)
    assert inspect_texts(model, tokenizer(), ["a b c"], generate=4).tokens == plain.tokens


def test_transformers_says_nothing_beside_the_note_and_its_settings_stay(caplog, capsys):
    logger, verbosity = (
        transformers.utils.logging.get_logger("transformers"),
        transformers.utils.logging.get_verbosity(),
    )
    short = llama()
    short.config.max_position_embeddings = 7
    logger.addHandler(caplog.handler)
    try:
        found = inspect_texts(short, tokenizer(), ["a b c"], generate=9)
    finally:
        logger.removeHandler(caplog.handler)
    assert any("more than the 7" in note for note in found.notes)
    assert caplog.text == "" and capsys.readouterr().err == ""
    assert transformers.utils.logging.get_verbosity() == verbosity
