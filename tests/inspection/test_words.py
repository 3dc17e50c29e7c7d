"""Which token a word is."""

import pytest

from headwise.errors import TextError
from headwise.inspection.walkthrough.words import find_word

TEXT = "The token that tokenization made, the other a way back: The end"
TOKENS = ["[CLS]", "The", "token", "that", "token", "ization", "made", ",", "the", "a", "way", "end", "The"]


def test_a_word_is_found_in_its_own_spelling_alone_or_in_pieces():
    assert find_word("made", TOKENS, TEXT) == (6, 6)
    assert find_word("the", TOKENS, TEXT) == (8, 8)
    assert find_word("tokenization", TOKENS, TEXT) == (4, 5)
    assert find_word("[CLS]", TOKENS, TEXT) == (0, 0)


@pytest.mark.parametrize(
    ("word", "text"),
    [
        ("token", "'token' stands in 2: give its token, one of 2, 4"),
        ("The", "one of 1, 12"),
        (
            "away",
            r"'away' is none of its 13 \(The, token, that, token, made, the, a, way, \.\.\.\)$",
        ),  # two tokens side by side spell it, but the text does not hold it
        ("MADE", r"'MADE' is none of its 13 \(.*\); tokens that differ in capitals alone: 6"),
        ("", "a token of the text, as the tokenizer cuts it; '' is none of its 13"),
    ],
)
def test_a_word_that_is_none_or_several_is_refused_with_the_places(word, text):
    with pytest.raises(TextError, match=text):
        find_word(word, TOKENS, TEXT)


def test_of_many_places_the_first_are_listed():
    with pytest.raises(TextError, match=r"stands in 20: give its token, one of 0, 1, 2, 3, 4, 5, 6, 7, \.\.\."):
        find_word("a", ["a"] * 20, "a " * 20)


def test_the_text_that_is_read_is_named_and_a_long_word_of_it_is_cut():
    with pytest.raises(TextError, match=rf"a token of the default text, .*; 'it' is none of its 1 \({'a' * 20}\)$"):
        find_word("it", ["a" * 99], "a" * 99, name="the default text")
