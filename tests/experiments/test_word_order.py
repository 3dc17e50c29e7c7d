"""Without positions two orders of the same words are one to a model; with positions they are two."""

import pytest

from headwise.errors import ConfigError
from headwise.experiments.word_order import compare_orders


def test_cat_eats_fish_is_fish_eats_cat_without_positions():
    seen = compare_orders("cat eats fish", "fish eats cat", position="none")
    assert seen.size > 0.1
    assert seen.difference < 1e-14  # float64 sums of numbers below 1


@pytest.mark.parametrize("position", ["learned", "sinusoidal", "rotary", "t5"])
def test_positions_tell_both_apart(position):
    assert compare_orders("cat eats fish", "fish eats cat", position=position).difference > 1e-3


def test_alibi_knows_distances_without_a_sign_and_so_not_forwards_from_backwards():
    assert compare_orders("cat eats fish", "fish eats cat", position="alibi").difference < 1e-14
    assert compare_orders("cat eats fish", "eats cat fish", position="alibi").difference > 1e-3


@pytest.mark.parametrize("second", ["fish eats dog", "fish eats", "fish eats cat cat"])
def test_sentences_of_other_words_are_refused(second):
    with pytest.raises(ConfigError, match="the same words, two or more, each once"):
        compare_orders("cat eats fish", second)
