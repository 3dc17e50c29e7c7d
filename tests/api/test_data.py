"""`headwise.data`: a corpus with what it holds and where it is, or a table of all; checked on small made-up ones."""

import hashlib

import pytest

import headwise
from headwise.api import data as api
from headwise.errors import ConfigError, DataError
from headwise.experiments.corpora.cache import encode
from headwise.experiments.corpora.catalogue import CORPORA
from headwise.experiments.corpora.corpus import Corpus, Counts, Wheel
from headwise.experiments.corpora.texts import Text

TEXTS = [
    Text("train", "cold", "one two three"),
    Text("train", "warm", "one two"),
    Text("validation", "warm", "one"),
    Text("test", "cold", "one two three four five"),
]


@pytest.fixture
def weather(monkeypatch, tmp_path):
    """Return a corpus that lies in the cache already."""
    monkeypatch.setenv("HEADWISE_DATA", str(tmp_path))
    content = encode(TEXTS)
    corpus = Corpus(
        name="weather",
        about="words about weather",
        licence="none",
        labels=("cold", "warm"),
        read=lambda _: [],
        wheel=Wheel(package="weather-words", version="3", num_bytes=1_234_567, files=()),
        counts=Counts(source=7, train=2, validation=1, test=1),
        sha256=hashlib.sha256(content).hexdigest(),
        cautions=("It is small.",),
    )
    path = tmp_path / f"weather-{corpus.sha256[:12]}.jsonl"
    path.write_bytes(content)
    monkeypatch.setitem(CORPORA, "weather", corpus)
    return path


def test_a_corpus_tells_where_it_is_and_what_it_holds(weather):
    result = headwise.data("weather")
    assert (result.name, result.path, result.items) == ("weather", str(weather), 4)
    assert result.sha256 == hashlib.sha256(weather.read_bytes()).hexdigest()
    assert result.splits == {"train": 2, "validation": 1, "test": 1} and result.source_items == 7
    assert result.labels == {
        "cold": {"train": 1, "validation": 0, "test": 1},
        "warm": {"train": 1, "validation": 1, "test": 0},
    }
    assert result.words == {"median": 2, "p90": 5}  # of 1, 2, 3 and 5 words: 2.5 is rounded to the even number
    assert (result.package, result.download_bytes, result.num_classes) == ("weather-words==3", 1_234_567, 2)
    assert result.cautions == ("It is small.",)
    assert {"name", "path", "items", "sha256"} <= set(result.to_dict())


def test_the_table_has_every_corpus_and_fetches_none(weather, monkeypatch, tmp_path):
    def no_fetch(*_, **__):
        raise AssertionError("something was fetched")

    monkeypatch.setattr(api, "fetch", no_fetch)
    result = headwise.data()
    assert [corpus.name for corpus in result.corpora] == [*CORPORA, "digits"]
    assert {corpus.name for corpus in result.corpora if corpus.path is not None} == {"weather"}
    assert result.folder == str(tmp_path)
    assert next(corpus for corpus in result.corpora if corpus.name == "bbc").items == 2122


def test_what_is_installed_needs_no_fetching(monkeypatch, tmp_path):
    monkeypatch.setenv("HEADWISE_DATA", str(tmp_path / "nothing"))
    pydoc, digits = headwise.data("pydoc"), headwise.data("digits")
    assert pydoc.path.endswith("topics.py") and pydoc.items == sum(pydoc.splits.values()) > 50
    assert len(pydoc.sha256) == 64 and pydoc.labels == {} and pydoc.package is None
    assert digits.items == 1797 and digits.words is None and sum(digits.labels["3"].values()) == 183
    assert not (tmp_path / "nothing").exists()


@pytest.mark.parametrize(
    ("name", "wheel", "error", "text"),
    [
        ("imdb", None, ConfigError, "the corpus must be \"bbc\" or .* got 'imdb'"),
        (None, "x.whl", DataError, "wheel needs the name of the corpus"),
        ("digits", "x.whl", DataError, "digits comes with what is installed"),
        ("pydoc", "x.whl", DataError, "pydoc comes with what is installed"),
        ("weather", "x.whl", DataError, "wheel must be a file; 'x.whl' is none"),
    ],
)
def test_what_cannot_be_is_refused(weather, name, wheel, error, text):
    with pytest.raises(error, match=text):
        headwise.data(name, wheel=wheel)
