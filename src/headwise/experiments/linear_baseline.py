"""The plain rival of every classifier: which words a text has, weighed, and one linear model."""

import time
from collections.abc import Sequence
from typing import Any

from headwise.errors import MissingExtraError
from headwise.experiments.answers import bucket_of
from headwise.experiments.classification import Classification, words_by_split
from headwise.experiments.corpora.catalogue import find_corpus
from headwise.experiments.results import LinearBaseline

INVERSE_PENALTIES = (1.0, 10.0, 100.0, 1000.0)  # tried on the validation split
LEAST_TEXTS = 2  # of the training split that a word must stand in


def linear_baseline(
    task: Classification,
    *,
    whole_texts: bool = False,
    buckets: tuple[int, ...] = (),
    num_test: int | None = None,
    inverse_penalties: Sequence[float] = INVERSE_PENALTIES,
) -> LinearBaseline:
    """Fit logistic regression on TF-IDF to a corpus's training split, and test it once.

    A word's weight in a text is `(1 + ln(its count)) (1 + ln((1 + texts) / (1 + texts with it)))`, and each text's
    weights have a 2-norm of 1. Words that stand in one training text alone are left out. There is no chance in it: the
    result needs no seeds.

    Args:
        task: the corpus, and how much of each text is read.
        whole_texts: read whole texts, and not the first `max_tokens - 1` words that the task's models see.
        buckets: bounds of words that tests are told apart by, as in a run.
        num_test: texts of the test split that it is tested on, the first ones, as in a run. Default: all.
        inverse_penalties: values of scikit-learn's `C` to choose from; a high one lets weights grow.

    Raises:
        DataError: the corpus was not fetched yet.
        MissingExtraError: scikit-learn is not installed.

    Source: Salton and Buckley 1988, "Term-weighting approaches in automatic text retrieval".
    """
    started = time.perf_counter()
    vectorizer, models = _models(inverse_penalties)
    read = None if whole_texts else task.max_tokens - 1
    splits = words_by_split(find_corpus(task.corpus))
    splits["test"] = splits["test"][:num_test]
    words = {split: [one[:read] for one, _ in texts] for split, texts in splits.items()}
    labels = {split: [label for _, label in texts] for split, texts in splits.items()}
    features = {"train": vectorizer.fit_transform(words["train"])}
    features |= {split: vectorizer.transform(words[split]) for split in ("validation", "test")}
    best: tuple[float, Any] | None = None
    chosen: dict[str, float] = {}
    for inverse_penalty, model in models:
        model.fit(features["train"], labels["train"])
        metrics = _metrics(labels["validation"], list(model.predict(features["validation"])))
        if best is None or metrics["accuracy"] > chosen["accuracy"]:
            best, chosen = (inverse_penalty, model), metrics
    assert best is not None
    inverse_penalty, model = best
    answers = list(model.predict(features["test"]))
    lengths = [len(whole) for whole, _ in splits["test"]]
    return LinearBaseline(
        corpus=task.corpus,
        max_tokens=None if whole_texts else task.max_tokens,
        inverse_penalty=inverse_penalty,
        num_features=len(vectorizer.vocabulary_),
        num_parameters=model.coef_.size + model.intercept_.size,
        seconds=time.perf_counter() - started,
        validation=chosen,
        test=_metrics(labels["test"], answers),
        test_by_length=_by_length(lengths, buckets, labels["test"], answers) if buckets else {},
    )


def _by_length(
    lengths: Sequence[int], buckets: tuple[int, ...], labels: Sequence[str], answers: Sequence[str]
) -> dict[str, dict[str, float]]:
    """Return the metrics of each bucket, the shortest texts first."""
    pairs: dict[str, list[tuple[str, str]]] = {bucket_of(length, buckets): [] for length in sorted(lengths)}
    for length, label, answer in zip(lengths, labels, answers, strict=True):
        pairs[bucket_of(length, buckets)].append((label, answer))
    return {name: _metrics([label for label, _ in own], [answer for _, answer in own]) for name, own in pairs.items()}


def _metrics(labels: Sequence[str], answers: Sequence[str]) -> dict[str, float]:
    from sklearn.metrics import accuracy_score, f1_score

    return {
        "accuracy": float(accuracy_score(labels, answers)),
        # over the classes that were right or answered somewhere, as of a run
        "macro_f1": float(f1_score(labels, answers, average="macro", zero_division=0.0)),
        "texts": float(len(labels)),
    }


def _models(inverse_penalties: Sequence[float]) -> tuple[Any, list[tuple[float, Any]]]:
    try:
        from sklearn import linear_model
        from sklearn.feature_extraction import text
    except ModuleNotFoundError as error:
        if error.name != "sklearn":
            raise
        raise MissingExtraError("scikit-learn", "experiments") from error
    vectorizer = text.TfidfVectorizer(analyzer=_as_it_is, min_df=LEAST_TEXTS, sublinear_tf=True)
    return vectorizer, [(value, linear_model.LogisticRegression(C=value, max_iter=1000)) for value in inverse_penalties]


def _as_it_is(words: list[str]) -> list[str]:
    return words
