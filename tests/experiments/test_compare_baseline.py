"""The linear rival stands beside comparisons of texts' classes: fitted once, kept, and no arm."""

import dataclasses
import json
import sys

import pytest

from headwise.experiments import compare
from headwise.experiments.classification import Classification
from headwise.experiments.compare import Arm, Comparison, run_comparison
from headwise.experiments.comparison_folder import COMPARISON, read_result
from headwise.experiments.corpora.catalogue import CORPORA
from headwise.experiments.corpora.corpus import Corpus
from headwise.experiments.corpora.texts import SourceText
from headwise.experiments.linear_baseline import linear_baseline
from headwise.experiments.models import recurrent_for, transformer_for
from headwise.experiments.recipe import Recipe

LABELS = ("no", "yes")


def read(_):
    """Return 101 texts of 4 to 14 words, whose first word hints at the class."""
    return [
        SourceText(text=f"{LABELS[(n + (n % 7 == 0)) % 2]} it {'is ' * (n % 11)}t{n % 5} x{n}", label=LABELS[n % 2])
        for n in range(101)
    ]


@pytest.fixture
def comparison(monkeypatch):
    monkeypatch.setitem(CORPORA, "answers", Corpus(name="answers", about="", licence="", labels=LABELS, read=read))
    task = Classification(corpus="answers", max_tokens=7, vocab_size=64)
    return Comparison(
        name="answers",
        task=task,
        arms=(
            Arm(name="heads", model=transformer_for(task, embed_dim=8, num_heads=2, num_layers=1)),
            Arm(name="gru", model=recurrent_for(task, "gru", embed_dim=8)),
        ),
        recipe=Recipe(steps=2, batch_size=5, warmup_steps=1, evaluate_every=2),
        seeds=(0,),
        buckets=(6, 9),
        num_validation=7,
        num_test=13,
    )


def without_seconds(found):
    return dataclasses.replace(found, seconds=0.0)


def test_it_is_fitted_once_told_of_the_texts_that_arms_are_tested_on_and_kept(comparison, tmp_path, monkeypatch):
    told = []
    result = run_comparison(comparison, tmp_path, progress=lambda *now: told.append(now))
    assert told[:2] == [("linear baseline", 0, 1), ("linear baseline", 1, 1)]
    expected = linear_baseline(comparison.task, buckets=(6, 9), num_test=13)
    assert without_seconds(result.baseline) == without_seconds(expected)
    assert result.baseline.test["texts"] == 13 and set(result.baseline.test) == {"accuracy", "macro_f1", "texts"}
    assert {name: found["texts"] for name, found in result.baseline.test_by_length.items()} == {
        name: float(count) for name, count in result.arms[0].length_counts.items()
    }
    assert [arm.name for arm in result.arms] == ["heads", "gru"]
    assert read_result(tmp_path) == result
    monkeypatch.setattr(compare, "linear_baseline", None)  # it is not fitted once more
    assert run_comparison(dataclasses.replace(comparison, metric="macro_f1"), tmp_path).baseline == result.baseline


def test_results_from_before_it_are_read(comparison, tmp_path):
    result = run_comparison(comparison, tmp_path)
    content = json.loads((tmp_path / COMPARISON).read_text(encoding="utf-8"))
    del content["result"]["baseline"]
    for arm in content["result"]["arms"]:
        del arm["no_prediction"]
        arm["numbers"] = {
            name: one for name, one in arm["numbers"].items() if name not in ("predicted_peak_bytes", "peak_gap")
        }
    (tmp_path / COMPARISON).write_text(json.dumps(content), encoding="utf-8")
    old = read_result(tmp_path)
    assert old.baseline is None and old.arms[0].metrics == result.arms[0].metrics
    assert old.arms[0].no_prediction is None


def test_where_it_says_nothing_about_the_test_there_is_none(comparison, tmp_path):
    other = dataclasses.replace(comparison, test_task=dataclasses.replace(comparison.task, max_tokens=6))
    assert run_comparison(other, tmp_path).baseline is None


def test_without_scikit_learn_a_note_stands_in_its_place(comparison, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn", None)
    result = run_comparison(comparison, tmp_path)
    assert result.baseline is None and result.arms[0].mean is not None
    assert [note for note in result.notes if "no linear baseline" in note and "headwise[experiments]" in note]
