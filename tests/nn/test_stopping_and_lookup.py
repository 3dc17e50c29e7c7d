"""Where a row ends, and what is proposed to follow."""

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given

from headwise.errors import ConfigError
from headwise.nn.lookup import Lookup
from headwise.nn.stopping import Stopping

tokens = st.lists(st.integers(0, 3), max_size=12)


def spell(ids):
    return "".join("abcd"[token] for token in ids)


@given(before=tokens, after=tokens, stop=st.sets(st.integers(0, 3), max_size=2), most=st.integers(1, 20))
def test_a_row_ends_at_the_first_stop_token_or_at_its_number(before, after, stop, most):
    before = [token for token in before if token not in stop][: most - 1]
    taken, is_done = Stopping(most, sorted(stop), (), None).cut(before, after)
    places = [place for place, token in enumerate(after) if token in stop or len(before) + place + 1 == most]
    assert (taken, is_done) == ((after[: places[0] + 1], True) if places else (after, False))


@given(before=tokens, after=tokens, string=st.text("abcd", min_size=1, max_size=3))
def test_a_row_ends_with_the_token_that_completes_a_string(before, after, string):
    while string in spell(before):
        before = before[:-1]
    taken, is_done = Stopping(99, (), [string], spell).cut(before, after)
    whole = spell(before + after)
    if string in whole:
        assert is_done and spell(before + taken) == whole[: whole.index(string) + len(string)]
    else:
        assert not is_done and taken == after


@given(text=st.lists(st.integers(0, 2), min_size=1, max_size=15), num=st.integers(1, 4), ngram=st.integers(1, 3))
def test_what_is_proposed_followed_the_longest_ending_where_it_stood_last(text, num, ngram):
    proposed = Lookup(num_tokens=num, max_ngram=ngram).propose(text)
    for length in range(min(ngram, len(text) - 1), 0, -1):
        starts = [start for start in range(len(text) - length) if text[start : start + length] == text[-length:]]
        if starts:
            assert proposed == text[starts[-1] + length :][:num] and proposed
            return
    assert proposed == []


def test_a_lookup_by_hand():
    assert Lookup(num_tokens=3, max_ngram=2).propose([5, 1, 2, 7, 8, 9, 1, 2]) == [7, 8, 9]
    assert Lookup(num_tokens=3, max_ngram=2).propose([5, 6, 1]) == []


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"stop_tokens": torch.ones(1)}, "stop_tokens must be whole numbers; got [1.0]"),
        ({"stop_strings": "end"}, "stop_strings must be a list of strings; got 'end'"),
        ({"stop_strings": ["end"], "decode": None}, "stop_strings need decode, which makes a text of tokens; got None"),
        ({"stop_strings": [""]}, "stop_strings must be strings that hold something; got ['']"),
    ],
)
def test_strings_that_cannot_be_found_are_refused(settings, text):
    with pytest.raises(ConfigError) as caught:
        Stopping(**{"max_new_tokens": 3, "stop_tokens": (), "stop_strings": (), "decode": spell, **settings})
    assert str(caught.value) == text


def test_stop_tokens_may_be_a_tensor():
    stopping = Stopping(9, torch.tensor([3, 5]), (), None)
    assert stopping.cut([], [1, 5, 2]) == ([1, 5], True)


def test_a_string_is_found_across_tokens_that_show_nothing_and_characters_of_several_bytes():
    """Tokens are bytes, and a 0 shows nothing, as special tokens that a tokenizer skips."""

    def decode(tokens):
        return bytes(token for token in tokens if token).decode(errors="replace")

    for string in ("END", "注意"):
        tokens = list(b"so: ")
        for byte in string.encode():
            tokens += [0] * 25 + [byte]
        stopping = Stopping(500, (), (string,), decode)
        assert stopping.cut([], tokens[:-1])[1] is False
        assert stopping.cut(tokens[:-1], tokens[-1:]) == (tokens[-1:], True)


def test_a_decode_that_makes_no_string_is_refused():
    with pytest.raises(ConfigError, match="decode must make a string of tokens; got None"):
        Stopping(3, (), ("end",), lambda tokens: None).cut([], [1])
