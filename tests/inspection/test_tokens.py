import tokenizers
import transformers
from tokenizers import models, pre_tokenizers

from headwise.inspection.texts.tokens import UNREADABLE, label_by_decoding, label_by_offsets, show_spaces


def byte_tokenizer():
    """A byte-level tokenizer that knows single bytes only, as GPT-2's does for signs that it has not learnt."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = tokenizers.Tokenizer(models.BPE(vocab={sign: i for i, sign in enumerate(alphabet)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = tokenizers.decoders.ByteLevel()
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=backend)
    tokenizer.add_special_tokens({"eos_token": "<|end|>"})
    return tokenizer


def labels_by_offsets(tokenizer, text):
    encoded = tokenizer(text, return_offsets_mapping=True)
    return label_by_offsets(tokenizer, encoded["input_ids"], encoded["offset_mapping"], text)


def test_byte_pieces_are_labelled_with_their_sign_and_their_place_in_it():
    tokenizer = byte_tokenizer()
    expected = ("a", "東¹", "東²", "東³", "é¹", "é²", "🙂¹", "🙂²", "🙂³", "🙂⁴")
    assert labels_by_offsets(tokenizer, "a東é🙂") == expected
    assert label_by_decoding(tokenizer, tokenizer("a東é🙂")["input_ids"]) == expected


def test_a_sign_that_occurs_twice_in_a_row_is_two_signs():
    tokenizer = byte_tokenizer()
    expected = ("東¹", "東²", "東³", "東¹", "東²", "東³")
    assert labels_by_offsets(tokenizer, "東東") == expected
    assert label_by_decoding(tokenizer, tokenizer("東東")["input_ids"]) == expected


def test_bytes_that_no_sign_explains_are_no_mojibake():
    tokenizer = byte_tokenizer()
    half = tokenizer("東")["input_ids"][:2]
    assert label_by_decoding(tokenizer, [*half, *tokenizer("b")["input_ids"]]) == (UNREADABLE, UNREADABLE, "b")


def test_special_tokens_go_by_name():
    tokenizer = byte_tokenizer()
    ids = [*tokenizer("a")["input_ids"], tokenizer.eos_token_id]
    assert label_by_decoding(tokenizer, ids) == ("a", "<|end|>")
    assert label_by_offsets(tokenizer, ids, [(0, 1), (0, 0)], "a") == ("a", "<|end|>")


def test_white_space_can_be_seen_and_does_not_surround_words():
    assert labels_by_offsets(byte_tokenizer(), "a \n\tb") == ("a", "␣", "↵", "⇥", "b")
    assert show_spaces(" word") == "word"
    assert show_spaces("\u3000") == "\u3000"


def test_markup_in_a_text_is_shown_as_itself():
    assert "".join(labels_by_offsets(byte_tokenizer(), "<b>'\"&</b>")) == "<b>'\"&</b>"


def test_word_pieces_are_labelled_with_the_text_that_they_cover_even_where_unknown():
    backend = tokenizers.Tokenizer(
        models.WordPiece(vocab={"[UNK]": 0, "un": 1, "##seen": 2}, unk_token="[UNK]", continuing_subword_prefix="##")
    )
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="[UNK]")
    assert labels_by_offsets(tokenizer, "unseen 力") == ("un", "seen", "力")
