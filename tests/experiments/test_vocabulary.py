"""Tokens come from the training texts alone, and are the same every time."""

import os
import subprocess
import sys

import pytest

from headwise.errors import MissingExtraError
from headwise.experiments.vocabulary import END, NUM_MARKS, PAD, UNKNOWN, BytePairs, WordVocabulary

TEXTS = ["the cat and the dog and the bird", "the café by the sea: 東京", "cats and dogs, and the sea"]


def test_the_most_frequent_words_have_numbers_and_the_alphabet_decides_between_equals():
    vocabulary = WordVocabulary.of([text.split() for text in ("b a c b", "b c", "a")], size=NUM_MARKS + 2)
    assert vocabulary.words == ("b", "a")  # b three times; a and c twice
    assert vocabulary.encode(["c", "b", "a", "zebra"]) == [UNKNOWN, NUM_MARKS, NUM_MARKS + 1, UNKNOWN]
    assert WordVocabulary.of([["ba", "c", "ab", "aaa"]], size=NUM_MARKS + 4).words == ("aaa", "ab", "ba", "c")
    assert len({PAD, UNKNOWN, END}) == NUM_MARKS


def test_few_words_leave_numbers_without_use():
    assert WordVocabulary.of([["a"]], size=100).words == ("a",)


def test_byte_pairs_write_every_text_back():
    pairs = BytePairs(TEXTS, 271)
    texts = [*TEXTS, " two  spaces\nand a line", "never seen: ÿ 🎈", ""]
    encoded = pairs.encode(texts)
    assert [pairs.decode([*ids, pairs.end]) for ids in encoded] == texts
    assert max(max(ids, default=0) for ids in encoded) < pairs.end == 270


def test_without_pairs_tokens_are_bytes():
    (ids,) = BytePairs(TEXTS, 257).encode(["café 東"])
    assert len(ids) == len("café 東".encode()) and max(ids) < 256


def test_the_first_pair_is_the_most_frequent_one():
    merges = BytePairs(["xy xy xy xy zw zw"], 258).merges()
    assert merges == [["x", "y"]]


def test_byte_pairs_do_not_depend_on_threads_or_the_process():
    script = (
        "from headwise.experiments.vocabulary import BytePairs\n"
        "from headwise.experiments.corpora.sources import read_help\n"
        "print(BytePairs([one.text for one in read_help()][:9], 400).merges())"
    )
    printed = {
        subprocess.run(
            [sys.executable, "-c", script],
            env={**os.environ, "RAYON_NUM_THREADS": threads, "PYTHONHASHSEED": threads},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for threads in ("1", "3")
    }
    assert len(printed) == 1 and printed.pop().count("[") > 100


def test_without_tokenizers_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(MissingExtraError, match=r'pip install "headwise\[hf\]"'):
        BytePairs(TEXTS, 257)
