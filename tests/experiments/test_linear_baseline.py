"""The linear rival is scikit-learn's, chosen on validation texts and tested once on what a run is tested on."""

import math
import sys

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import f1_score

from headwise.errors import MissingExtraError
from headwise.experiments.classification import Classification
from headwise.experiments.corpora.catalogue import CORPORA
from headwise.experiments.corpora.corpus import Corpus
from headwise.experiments.corpora.fetch import texts_of
from headwise.experiments.corpora.texts import SourceText, words_of
from headwise.experiments.linear_baseline import _models, linear_baseline

LABELS = ("no", "yes")


def read(_):
    """Return 101 texts whose words hint at their class, and whose last words give it away."""
    texts = []
    for n in range(101):
        label = LABELS[n % 2]
        hint = label if n % 7 else LABELS[1 - n % 2]
        texts.append(SourceText(text=f"{hint} it {'is ' * (n % 11)}t{n % 5} x{n} sure{label}", label=label))
    return texts


@pytest.fixture(autouse=True)
def answers(monkeypatch):
    corpus = Corpus(name="answers", about="", licence="", labels=LABELS, read=read)
    monkeypatch.setitem(CORPORA, "answers", corpus)
    return corpus


def test_it_is_logistic_regression_on_tf_idf_by_its_formula(answers):
    texts = {
        split: [(words_of(text.text), text.label) for text in texts_of(answers) if text.split == split]
        for split in ("train", "validation", "test")
    }
    documents = [set(words) for words, _ in texts["train"]]
    count = {word: sum(word in own for own in documents) for own in documents for word in own}
    known = sorted(word for word in count if count[word] >= 2)

    def features(words):
        row = [
            (1 + math.log(words.count(word))) * (1 + math.log((1 + len(documents)) / (1 + count[word])))
            if word in words
            else 0.0
            for word in known
        ]
        norm = math.sqrt(sum(value**2 for value in row))
        return [value / norm for value in row]

    vectorizer, _ = _models((1.0,))
    found = vectorizer.fit_transform([words for words, _ in texts["train"]]).toarray()
    expected = [features(words) for words, _ in texts["train"]]
    assert found == pytest.approx(np.array(expected)) and list(vectorizer.get_feature_names_out()) == known
    model = LogisticRegression(C=1.0, max_iter=1000)
    model.fit(expected, [label for _, label in texts["train"]])
    labels = [label for _, label in texts["test"]]
    given = list(model.predict([features(words) for words, _ in texts["test"]]))
    result = linear_baseline(Classification(corpus="answers"), inverse_penalties=(1.0,))
    assert result.num_features == len(known) and result.num_parameters == len(known) + 1
    assert result.test["accuracy"] == pytest.approx(sum(a == b for a, b in zip(labels, given, strict=True)) / 20)
    assert result.test["macro_f1"] == pytest.approx(f1_score(labels, given, average="macro"))
    assert result.test["texts"] == 20 and result.validation["texts"] == 10


def test_it_reads_as_many_words_as_the_models_do_unless_it_is_told_otherwise():
    short = Classification(corpus="answers", max_tokens=3)
    cut = linear_baseline(short)
    whole = linear_baseline(short, whole_texts=True)
    assert whole.test["accuracy"] == 1.0 and whole.max_tokens is None
    assert cut.test["accuracy"] < 1.0 and cut.max_tokens == 3 and cut.num_features == 3  # no, yes, it


def test_lengths_are_told_apart_by_words_of_the_whole_texts(answers):
    result = linear_baseline(Classification(corpus="answers", max_tokens=3), buckets=(7, 11))
    lengths = [len(words_of(text.text)) for text in texts_of(answers) if text.split == "test"]
    assert {name: found["texts"] for name, found in result.test_by_length.items()} == {
        "<=7": sum(length <= 7 for length in lengths),
        "8-11": sum(7 < length <= 11 for length in lengths),
        ">11": sum(length > 11 for length in lengths),
    }
    right = sum(found["texts"] * found["accuracy"] for found in result.test_by_length.values())
    assert right / len(lengths) == pytest.approx(result.test["accuracy"])


def test_the_penalty_is_the_best_on_validation_texts():
    tried = {
        value: linear_baseline(Classification(corpus="answers", max_tokens=4), inverse_penalties=(value,))
        for value in (1e-4, 3.0)
    }
    best = max(tried.values(), key=lambda result: result.validation["accuracy"])
    assert tried[1e-4].validation != tried[3.0].validation
    chosen = linear_baseline(Classification(corpus="answers", max_tokens=4), inverse_penalties=(1e-4, 3.0))
    assert chosen.inverse_penalty == best.inverse_penalty and chosen.test == best.test


def test_without_scikit_learn_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn", None)
    with pytest.raises(MissingExtraError, match=r'pip install "headwise\[experiments\]"'):
        linear_baseline(Classification(corpus="answers"))
