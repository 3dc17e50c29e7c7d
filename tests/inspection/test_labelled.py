"""Pairs of words as pairs of tokens."""

import pytest
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from headwise.errors import TextError
from headwise.inspection.relations.labelled import relations_between_words

TEXTS = ("the cats chase it", "a mouse")
VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "the", "cat", "##s", "chase", "it", "a", "mo", "##us", "##e"]


@pytest.fixture(scope="module")
def tokenizer():
    made = Tokenizer(models.WordPiece({word: number for number, word in enumerate(VOCABULARY)}, unk_token="[UNK]"))
    made.normalizer = normalizers.Lowercase()
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    names = {"unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]", "pad_token": "[PAD]"}
    return PreTrainedTokenizerFast(tokenizer_object=made, **names)


def tokens_of(tokenizer, pairs, *, window=None, max_length=None):
    (relation,) = relations_between_words(tokenizer, TEXTS, {"of": pairs}, window=window, max_length=max_length)
    assert relation.name == "of"
    return relation.pairs


def test_a_word_is_its_last_token_special_tokens_counted(tokenizer):
    # [CLS] the cat ##s chase it [SEP]; [CLS] a mo ##us ##e [SEP]
    pairs = ((0, (4, 8), (9, 14)), (1, (2, 7), (0, 1)), (0, (4, 7), (0, 3)), (0, (0, 14), (15, 17)))
    assert tokens_of(tokenizer, pairs) == ((0, 3, 4), (1, 4, 1), (0, 2, 1), (0, 4, 5))


@pytest.mark.parametrize("limit", [{"window": 5}, {"max_length": 5}])
def test_a_word_behind_the_first_window_is_refused(tokenizer, limit):
    # the first window is [CLS] the cat ##s [SEP]: token 4 is no word there
    assert tokens_of(tokenizer, ((0, (4, 8), (0, 3)),), **limit) == ((0, 3, 1),)
    with pytest.raises(TextError, match=r"the first 5 tokens of a text.*'chase' of text 0, which is token 4"):
        tokens_of(tokenizer, ((0, (9, 14), (0, 3)),), **limit)


def test_what_has_no_token_is_refused(tokenizer):
    with pytest.raises(TextError, match="a word must have a token; 'of' has ' ' of text 0"):
        tokens_of(tokenizer, ((0, (3, 4), (0, 3)),))


def test_a_tokenizer_that_does_not_tell_places_is_refused(tokenizer):
    class Slow:
        is_fast = False

    with pytest.raises(TextError, match="Slow does not: give Relations"):
        tokens_of(Slow(), ((0, (4, 8), (0, 3)),))
