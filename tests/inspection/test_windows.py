from types import SimpleNamespace

import pytest
import tokenizers
import transformers
from tokenizers import models, pre_tokenizers, processors

from headwise.errors import TextError
from headwise.inspection.texts.windows import cut_into_windows, model_length

WORDS = ["[CLS]", "[SEP]", "[UNK]", *"abcdefgh"]


def word_tokenizer():
    vocab = {word: number for number, word in enumerate(WORDS)}
    backend = tokenizers.Tokenizer(models.WordLevel(vocab, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 0), ("[SEP]", 1)]
    )
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=backend, unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]"
    )


class SlowTokenizer:
    """The least of a tokenizer without offsets: one id a letter, a bos token before them."""

    is_fast = False
    all_special_ids = (0,)
    sep_token_id = None

    def __call__(self, text, *, add_special_tokens=True, **_):
        return {"input_ids": [0] * add_special_tokens + [ord(sign) for sign in text]}

    def decode(self, ids):
        return "".join(map(chr, ids))

    def convert_ids_to_tokens(self, token_id):
        return "<s>"


def cut(texts, tokenizer=None, **limits):
    windows, num_cut = cut_into_windows(
        tokenizer or word_tokenizer(), texts, **{"window": None, "max_length": None, **limits}
    )
    return [(window.text, " ".join(window.labels)) for window in windows], num_cut


def test_a_text_is_framed_by_the_special_tokens_of_its_tokenizer():
    windows, _ = cut_into_windows(word_tokenizer(), ["a b"], window=None, max_length=None)
    assert windows[0].ids == (0, 3, 4, 1)
    assert windows[0].labels == ("[CLS]", "a", "b", "[SEP]")
    assert windows[0].separators == (False, False, False, True)


def test_a_long_text_is_read_in_windows_that_together_hold_all_its_tokens_once():
    found, num_cut = cut(["a b c d e f g", "h"], window=5)
    assert found == [(0, "[CLS] a b c [SEP]"), (0, "[CLS] d e f [SEP]"), (0, "[CLS] g [SEP]"), (1, "[CLS] h [SEP]")]
    assert num_cut == 0


def test_max_length_drops_the_rest_of_a_text_and_counts_the_texts_that_lost_some():
    found, num_cut = cut(["a b c d e f g", "h", "a b c"], max_length=5)
    assert found == [(0, "[CLS] a b c [SEP]"), (1, "[CLS] h [SEP]"), (2, "[CLS] a b c [SEP]")]
    assert num_cut == 1


def test_max_length_and_window_go_together():
    assert cut(["a b c d e f g"], max_length=7, window=5) == ([(0, "[CLS] a b c [SEP]"), (0, "[CLS] d e [SEP]")], 1)


def test_a_tokenizer_without_offsets_is_read_by_decoding():
    assert cut(["abc"], SlowTokenizer(), window=3) == ([(0, "<s> a b"), (0, "<s> c")], 0)


@pytest.mark.parametrize("texts", [(), [], "a b"])
def test_texts_must_be_a_sequence_of_texts(texts):
    with pytest.raises(TextError, match="texts must be a sequence of at least one text"):
        cut(texts)


def test_a_text_without_tokens_is_refused_by_its_number():
    with pytest.raises(TextError, match="text 2 of 3 is '  '"):
        cut(["a", "  ", "b"])


@pytest.mark.parametrize("limit", ["window", "max_length"])
def test_a_limit_without_room_for_a_token_is_refused(limit):
    with pytest.raises(
        TextError, match=f"{limit} must leave room for a token beside the tokenizer's 2 special tokens; got 2"
    ):
        cut(["a"], **{limit: 2})


@pytest.mark.parametrize(
    ("positions", "tokenizer_length", "expected"),
    [(512, 128, 128), (128, 512, 128), (512, 10**30, 512), (None, 10**30, None), (None, 77, 77)],
)
def test_the_model_reads_what_its_config_and_its_tokenizer_both_allow(positions, tokenizer_length, expected):
    config = SimpleNamespace(max_position_embeddings=positions)
    config.get_text_config = lambda: config
    model, tokenizer = SimpleNamespace(config=config), SimpleNamespace(model_max_length=tokenizer_length)
    assert model_length(model, tokenizer) == expected
