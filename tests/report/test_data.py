"""A corpus and the table of all as a terminal shows them."""

from headwise.api.data_results import CorpusData, CorpusTable

CORPUS = CorpusData(
    name="weather",
    about="words about weather",
    path="/cache/weather-0123.jsonl",
    items=1234,
    sha256="ab" * 32,
    package="weather-words==3",
    download_bytes=1_234_567,
    licence="none",
    source_items=1300,
    splits={"train": 1000, "validation": 100, "test": 134},
    num_classes=23,
    labels={f"class {n:02}": {"train": 10 + n, "validation": 1, "test": 2} for n in range(23)},
    words={"median": 1099, "p90": 2500},
    cautions=("It is \x1b[31msmall.",),
)


def test_a_corpus_shows_its_facts_its_largest_classes_and_its_cautions():
    lines = str(CORPUS).splitlines()
    assert lines[0] == "weather: words about weather"
    assert "items    1,234, of 1,300 before cleaning" in lines
    assert "words    half have 1,099 at most, nine tenths 2,500" in lines
    assert "package  weather-words==3, 1.2 MB" in lines
    rows = [line.split() for line in lines if line.startswith("class ")]
    assert len(rows) == 1 + 20 and rows[1] == ["class", "22", "32", "1", "2"]
    assert ["all", "1,000", "100", "134"] in [line.split() for line in lines]
    assert "and 3 smaller classes" in lines
    assert lines[-1] == "note: It is \ufffd[31msmall."


def test_a_corpus_that_is_not_known_yet_shows_what_is():
    unknown = {"path": None, "items": None, "sha256": None, "words": None, "labels": {}, "splits": {}, "cautions": ()}
    bare = CorpusData(**{**CORPUS.__dict__, **unknown})
    assert str(bare).splitlines()[2:] == ["package  weather-words==3, 1.2 MB", "licence  none"]


def test_the_table_says_what_is_fetched():
    other = CorpusData(**{**CORPUS.__dict__, "name": "other", "path": None, "items": None, "source_items": None})
    installed = CorpusData(**{**CORPUS.__dict__, "name": "here", "package": None, "download_bytes": None})
    rows = [line.split() for line in str(CorpusTable(folder="/cache", corpora=(CORPUS, other, installed))).splitlines()]
    assert rows[1] == ["weather", "words", "about", "weather", "1,234", "23", "1.2", "MB", "yes"]
    assert rows[2] == ["other", "words", "about", "weather", "–", "23", "1.2", "MB", "no"]
    assert rows[3] == ["here", "words", "about", "weather", "1,234", "23", "none", "not", "needed"]
    assert ["Kept", "in", "/cache"] in rows
