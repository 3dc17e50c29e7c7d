"""A text's class is asked for at its end mark, its words are the training split's, and splits never mix."""

import pytest
import torch

from headwise.errors import ConfigError, DataError
from headwise.experiments.classification import Classification, drawn
from headwise.experiments.corpora.catalogue import CORPORA
from headwise.experiments.corpora.corpus import Corpus
from headwise.experiments.corpora.fetch import texts_of
from headwise.experiments.corpora.texts import SourceText, words_of
from headwise.experiments.examples import IGNORED
from headwise.experiments.models import transformer_for
from headwise.experiments.recipe import Recipe
from headwise.experiments.run import RunSettings, run
from headwise.experiments.vocabulary import END, NUM_MARKS, PAD, UNKNOWN

ANIMALS = ("bird", "cat", "dog")


def read(_):
    """Return 101 texts of 2 to 18 words: each names its animal, and its number, which no other has."""
    return [SourceText(text=f"a {'very ' * (n % 17)}{ANIMALS[n % 3]} n{n}", label=ANIMALS[n % 3]) for n in range(101)]


@pytest.fixture(autouse=True)
def animals(monkeypatch):
    corpus = Corpus(name="animals", about="", licence="", labels=ANIMALS, read=read)
    monkeypatch.setitem(CORPORA, "animals", corpus)
    return corpus


def task(**numbers):
    return Classification(**{"corpus": "animals", "max_tokens": 11, "vocab_size": 19, **numbers})


def test_the_class_is_asked_for_at_the_end_mark_and_nowhere_else(animals):
    one = task()
    examples = one.draw(1000, seed=1, split="test")
    lengths = [len(words_of(text.text)) for text in texts_of(animals) if text.split == "test"]
    assert examples.lengths.tolist() == lengths and max(lengths) > 10  # of the whole texts
    assert len(examples) == 20 and one.num_classes == 3 and one.classifies and one.max_len == 11
    for ids, targets, length, real in zip(examples.ids, examples.targets, examples.lengths, examples.real, strict=True):
        end = int(real.sum()) - 1
        assert real.tolist() == [place <= end for place in range(len(ids))]
        assert ids[end] == END and (ids[:end] >= UNKNOWN).all() and (ids[:end] != END).all()
        assert (ids[end + 1 :] == PAD).all()
        assert end == min(int(length), 10)  # ten words and the end mark at most
        assert (
            targets[end, 0] in (0, 1, 2) and (targets[:end] == IGNORED).all() and (targets[end + 1 :] == IGNORED).all()
        )


def test_each_text_has_its_own_words_and_class_as_they_were_read(animals):
    one = task(max_tokens=40, vocab_size=1000)
    texts = [text for text in texts_of(animals) if text.split == "validation"]
    examples = one.draw(1000, seed=0, split="validation")
    train = [words_of(text.text) for text in texts_of(animals) if text.split == "train"]
    counts = {}
    for words in train:
        for word in words:
            counts[word] = counts.get(word, 0) + 1
    order = sorted(counts, key=lambda word: (-counts[word], word))
    for number, text in enumerate(texts):
        words = words_of(text.text)
        expected = [NUM_MARKS + order.index(word) if word in counts else UNKNOWN for word in words]
        assert examples.ids[number][examples.real[number]].tolist() == [*expected, END]
        assert examples.targets[number].max() == ANIMALS.index(text.label)
        assert examples.lengths[number] == len(words)


def test_no_word_of_the_other_splits_is_known(animals):
    examples = task(max_tokens=40, vocab_size=1000).draw(1000, seed=0, split="test")
    places = examples.real.sum(dim=1) - 2  # the number, behind the animal
    assert (examples.ids[torch.arange(20), places] == UNKNOWN).all()


def test_training_texts_are_drawn_by_the_seed_and_the_others_are_fixed():
    one = task()
    first, again, other = (one.draw(13, seed=seed) for seed in (3, 3, 4))
    assert torch.equal(first.ids, again.ids) and torch.equal(first.targets, again.targets)
    assert first.ids.shape != other.ids.shape or not torch.equal(first.ids, other.ids)
    tests = [one.draw(7, seed=seed, split="test") for seed in (3, 4)]
    assert torch.equal(tests[0].ids, tests[1].ids) and len(tests[0]) == 7
    more = one.draw(9, seed=0, split="test")
    assert torch.equal(more.ids[:7, : tests[0].ids.shape[1]], tests[0].ids)


def test_every_training_text_is_drawn_before_one_is_drawn_again():
    order = drawn(7, 18, seed=2).tolist()
    assert sorted(order[:7]) == sorted(order[7:14]) == list(range(7)) and len(set(order[14:])) == 4
    assert order[:7] != order[7:14]


def test_a_batch_is_as_long_as_its_longest_text():
    examples = task().draw(3, seed=1)
    assert examples.ids.shape[1] == int(examples.real.sum(dim=1).max())


@pytest.mark.parametrize(
    ("numbers", "text"),
    [
        ({"corpus": "pydoc"}, "corpus must be one with classes, bbc, r8, .*; got 'pydoc'"),
        ({"corpus": "imdb"}, "corpus must be"),
        ({"max_tokens": 1}, "max_tokens"),
        ({"vocab_size": 3}, "vocab_size"),
    ],
)
def test_what_cannot_be_is_refused(numbers, text):
    with pytest.raises(ConfigError, match=text):
        task(**numbers)


def test_a_task_can_be_described_before_its_corpus_is_there(monkeypatch, tmp_path):
    monkeypatch.setenv("HEADWISE_DATA", str(tmp_path))
    one = Classification(corpus="r8")
    assert one.num_classes == 8 and transformer_for(one).vocab_size == 8192
    with pytest.raises(DataError, match="headwise data r8"):
        one.draw(1, seed=0)


def test_a_model_learns_to_tell_the_classes_apart(tmp_path):
    one = task(max_tokens=20)
    settings = RunSettings(
        task=one,
        model=transformer_for(one, embed_dim=16, num_heads=2),
        recipe=Recipe(steps=60, batch_size=16, learning_rate=1e-2, warmup_steps=5, evaluate_every=20),
    )
    found = run(settings, tmp_path / "run")
    assert found.test["accuracy"] == 1.0 and found.test["macro_f1"] == 1.0
