"""headwise.compare: what it runs, what it leaves in a folder, and what it will not do."""

import dataclasses
import json
import runpy
from pathlib import Path
from types import SimpleNamespace

import pytest

import headwise
from headwise.api import compare as verb
from headwise.api.compare_results import Compared
from headwise.errors import ConfigError, DataError, HeadwiseError
from headwise.experiments.classification import Classification
from headwise.experiments.compare import Arm, Comparison
from headwise.experiments.language_modelling import LanguageModelling
from headwise.experiments.models import recurrent_for, transformer_for
from headwise.experiments.recipe import Recipe
from headwise.experiments.sequence_tasks import MultiOffsetCopy

MADE_UP = SimpleNamespace(**runpy.run_path(str(Path(__file__).parents[1] / "report" / "synthetic_comparison.py")))
TASK = MultiOffsetCopy(vocab_size=5, seq_len=7, offsets=(1, 2))
TINY = Comparison(
    name="tiny one",
    question="Which?",
    task=TASK,
    arms=(
        Arm(name="heads", model=transformer_for(TASK, embed_dim=8, num_heads=2, num_layers=1)),
        Arm(name="gru", model=recurrent_for(TASK, "gru", embed_dim=8)),
    ),
    recipe=Recipe(steps=3, batch_size=3, warmup_steps=1, evaluate_every=2),
    seeds=(5,),
    num_validation=3,
    num_test=5,
)


REVIEWS = Classification(corpus="movies")  # of two classes, as tweets are
OF_TEXTS = dataclasses.replace(
    TINY,
    task=REVIEWS,
    arms=tuple(Arm(name=str(count), model=transformer_for(REVIEWS, embed_dim=8, num_heads=count)) for count in (1, 2)),
)


@pytest.fixture
def two_parts(monkeypatch):
    """A built-in comparison of two parts, in the place of the real ones."""
    parts = (dataclasses.replace(TINY, name="pair-one"), dataclasses.replace(TINY, name="pair-two", metric="loss"))
    monkeypatch.setattr("headwise.experiments.builtin.catalogue.questions", lambda: {"pair": "Both?"})
    monkeypatch.setattr("headwise.experiments.builtin.catalogue.builtin", lambda name: parts)
    monkeypatch.setattr("headwise.experiments.builtin.catalogue.quick", lambda found: found[:1])
    return parts


def without_run_times(result):
    """The JSON of a result without what another run of the same would not share."""
    answer = result.to_dict()
    answer["arms"] = [{"name": arm["name"], "metrics": arm["metrics"]} for arm in answer["arms"]]
    return {name: answer[name] for name in ("name", "question", "arms", "differences", "claims")}


def test_a_folder_is_kept_gone_on_with_only_by_resume_and_drawn_without_training(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    told = []
    result = headwise.compare(TINY, out="page.html", progress=lambda *now: told.append(now))
    assert told == [("runs", 0, 2), ("runs", 1, 2), ("runs", 2, 2)]
    folder = Path("headwise-compare/tiny-one")
    assert result.folder == str(folder) and (folder / "comparison.json").is_file()
    assert "tiny one" in Path("page.html").read_text(encoding="utf-8") and result.page == "page.html"
    with pytest.raises(HeadwiseError, match="already, all of them done; go on with them by --resume"):
        headwise.compare(TINY)
    more = headwise.compare(TINY, resume=True, seeds=3)
    assert more.parts[0].seeds == (5, 0, 1)  # the comparison's own first
    assert [run.seed for run in more.parts[0].arms[1].runs] == [5, 0, 1]
    assert more.parts[0].arms[0].runs[0] == result.parts[0].arms[0].runs[0]  # read, not run once more
    monkeypatch.setattr(verb, "run_comparison", None)  # nothing is run from here on
    drawn = headwise.compare(folder=folder, out="again.svg")
    assert drawn == dataclasses.replace(more, page="again.svg")
    assert Path("again.svg").read_text(encoding="utf-8").startswith("<svg")


def test_parts_have_folders_of_their_own_and_one_answer(two_parts, tmp_path):
    told = []
    result = headwise.compare("pair", folder=tmp_path, progress=lambda *now: told.append(now[0]))
    assert [part.name for part in result.parts] == ["pair-one", "pair-two"]
    assert list(dict.fromkeys(told)) == ["pair-one: runs", "pair-two: runs"]
    assert sorted(place.name for place in tmp_path.iterdir()) == ["pair-one", "pair-two", "parts.json"]
    answer = json.loads(json.dumps(result.to_dict(), allow_nan=False))
    assert [(arm["part"], arm["name"]) for arm in answer["arms"]] == [
        (part, arm) for part in ("pair-one", "pair-two") for arm in ("heads", "gru")
    ]
    assert [one["metric"] for one in answer["differences"]] == ["accuracy", "loss"]
    assert {"metric", "mean", "low", "high", "seeds"} <= set(answer["differences"][0])
    assert answer["differences"][0]["seeds"] == 1 and "arms" not in answer["parts"][0]
    with pytest.raises(HeadwiseError, match="already; go on with them by --resume"):
        headwise.compare("pair", folder=tmp_path)
    assert headwise.compare(folder=tmp_path) == result
    assert without_run_times(headwise.compare("pair", folder=tmp_path, resume=True)) == without_run_times(result)
    alone = headwise.compare("pair-two", folder=tmp_path / "pair-two", resume=True)
    assert alone.parts[0].arms == result.parts[1].arms
    assert len(headwise.compare("pair", quick=True, folder=tmp_path / "quick").parts) == 1


def test_a_part_that_is_not_there_is_told_with_those_that_are(two_parts):
    with pytest.raises(HeadwiseError, match="or a part of pair: pair-one, pair-two; got 'pair-three'"):
        headwise.compare("pair-three")


def test_a_result_prints_itself_and_shows_itself_in_a_notebook():
    made = MADE_UP.make_comparison()
    result = Compared(name="heads", question="Do more heads help?", parts=(made,), folder="runs")
    assert str(result).startswith("heads: Do more heads read more places?")
    shown = result._repr_html_()
    assert shown.startswith("<svg") and "supported: Eight heads read more places" in shown


def test_what_is_no_comparison_is_named():
    with pytest.raises(HeadwiseError, match="must be a name, a path or a Comparison; got 7"):
        verb.find_comparison(7)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "name a comparison, heads, .* or the folder of one"),
        ({"folder": "x", "quick": True}, "quick is about runs"),
        ({"folder": "nowhere"}, "must be the folder of a comparison"),
        ({"comparison": "no-such"}, "must be a TOML file, one of heads, .*; got 'no-such'"),
        ({"comparison": "no-such.toml"}, "cannot read 'no-such.toml'"),
        ({"comparison": TINY, "seeds": 0}, "seeds must be between 1"),
        ({"comparison": TINY, "workers": 0}, "workers must be between 1"),
        ({"comparison": TINY, "out": "x.pdf"}, "must be a page .* or a picture .*; got 'x.pdf'"),
        ({"comparison": TINY, "out": "thesis.html"}, "thesis.html is another file"),
        ({"comparison": TINY, "out": "no/page.html"}, "cannot write 'no/page.html'"),
        ({"comparison": TINY, "folder": "."}, "holds other files"),
    ],
)
def test_what_cannot_be_done_is_refused_before_anything_is_run(arguments, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(verb, "run_comparison", None)
    Path("thesis.html").write_text("mine", encoding="utf-8")
    with pytest.raises(HeadwiseError, match=message):
        headwise.compare(**arguments)
    assert [place.name for place in tmp_path.iterdir()] == ["thesis.html"]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("heads", "^corpora are not on this machine: 'bbc', 'r8'; fetch them once: headwise data bbc r8$"),
        ("heads-bbc", "^the corpus 'bbc' is not on this machine; fetch it once: headwise data bbc$"),
        ("length", "once: headwise data r8$"),
    ],
)
def test_a_corpus_that_is_missing_is_told_before_anything_is_made(name, message, tmp_path, monkeypatch):
    monkeypatch.setenv("HEADWISE_DATA", str(tmp_path / "no-corpora"))
    monkeypatch.setattr(verb, "run_comparison", None)
    with pytest.raises(DataError, match=message):
        headwise.compare(name, quick=True, folder=tmp_path / "runs")
    assert list(tmp_path.iterdir()) == []


def test_a_corpus_of_a_further_test_is_looked_for_too(tmp_path, monkeypatch):
    monkeypatch.setenv("HEADWISE_DATA", str(tmp_path / "no-corpora"))
    tests = (("others", Classification(corpus="tweets")),)
    with pytest.raises(DataError, match=r"headwise data movies tweets$"):
        headwise.compare(dataclasses.replace(OF_TEXTS, further_tests=tests), folder=tmp_path / "runs")
    with pytest.raises(DataError, match=r"headwise data movies$"):
        headwise.compare(dataclasses.replace(OF_TEXTS, test_task=OF_TEXTS.task), folder=tmp_path / "runs")
    assert list(tmp_path.iterdir()) == []


def test_what_else_is_wrong_with_a_corpus_is_told_as_it_is(tmp_path, monkeypatch):
    def draw(self, num_examples, *, seed, split="train"):
        raise DataError("the texts of tomorrow are not written yet")

    monkeypatch.setattr(MultiOffsetCopy, "draw", draw)
    with pytest.raises(DataError, match=r"^the texts of tomorrow"):
        headwise.compare(TINY, folder=tmp_path / "runs")
    monkeypatch.setattr(Classification, "draw", draw)
    monkeypatch.setattr(verb, "read_cached", lambda corpus: b"it is there")
    with pytest.raises(DataError, match=r"^the texts of tomorrow"):
        headwise.compare(OF_TEXTS, folder=tmp_path / "runs")


def test_each_task_is_asked_for_the_splits_that_are_drawn_of_it(tmp_path, monkeypatch):
    """A test task's validation split may be too short; whose test split is asked may not, and is told before a run."""
    drawn = []

    def draw(self, num_examples, *, seed, split="train"):
        drawn.append((self.seq_len, split))

    def run_comparison(*_, **__):
        raise NotImplementedError

    monkeypatch.setattr(LanguageModelling, "draw", draw)
    monkeypatch.setattr(verb, "run_comparison", run_comparison)
    tasks = [LanguageModelling(seq_len=size, vocab_size=257) for size in (7, 5, 3)]
    arms = tuple(
        Arm(name=str(count), model=transformer_for(tasks[0], embed_dim=8, num_heads=count)) for count in (1, 2)
    )
    one = dataclasses.replace(TINY, task=tasks[0], arms=arms, further_tests=(("far", tasks[2]),))
    for test_task, size in ((None, 7), (tasks[1], 5)):
        drawn.clear()
        with pytest.raises(NotImplementedError):
            headwise.compare(dataclasses.replace(one, test_task=test_task), folder=tmp_path / str(size))
        assert drawn == [(7, "train"), (7, "validation"), (size, "test"), (3, "test")]


@pytest.mark.parametrize("name", ["workers", "threads", "seeds"])
def test_numbers_that_no_machine_has_are_refused(name, tmp_path):
    for number in (0, -1, 10**9):
        with pytest.raises(ConfigError, match=f"{name} must be between 1 and 10000; got {number}"):
            headwise.compare(TINY, folder=tmp_path / "runs", **{name: number})
