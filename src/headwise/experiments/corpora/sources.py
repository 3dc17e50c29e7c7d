"""Reading the files of each source: bytes to texts, with what the source knows of them."""

import bz2
import csv
import io
import re
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Literal

from headwise.errors import DataError
from headwise.experiments.corpora.texts import SourceText

Files = Mapping[str, bytes]
MAX_FIELD = 2**24  # letters of one text; csv takes 2^17 by itself, and some posts are longer
_ADDRESS = re.compile(r"https?://\S+")


def read_folders(files: Files) -> list[SourceText]:
    """Read one text a file, whose folder is its class.

    Files are UTF-8; one of another kind is taken for Latin-1, which gives every byte a letter.
    """
    return [SourceText(text=_decoded(files[name]), label=PurePosixPath(name).parent.name) for name in sorted(files)]


def read_tables(files: Files) -> list[SourceText]:
    """Read tables of class and text, one for training and one for tests, each with three lines of headings.

    A row without a class or a text is none.
    """
    texts = []
    for name in sorted(files):
        split: Literal["train", "test"] = "test" if name.endswith("-test.tab") else "train"
        rows = _table(name, files[name], "\t", ("Category", "Text"))[2:]
        texts += [
            SourceText(text=row["Text"], label=row["Category"], split=split)
            for row in rows
            if row["Category"] and row["Text"]
        ]
    return texts


def read_reviews(files: Files) -> list[SourceText]:
    """Read sentences of film reviews, "fresh" or "rotten", in groups by film; summaries of plots are left out."""
    ((name, content),) = files.items()
    try:
        table = bz2.decompress(content)
    except (OSError, ValueError) as error:
        raise DataError(f"{name!r} must be a bzip2 file; {error}") from error
    return [
        SourceText(text=row["text"], label=row["category"], group=row["movie_name"])
        for row in _table(name, table, ",", ("category", "text", "movie_name"))
        if row["category"] in ("fresh", "rotten")
    ]


def read_tweets(files: Files) -> list[SourceText]:
    """Read tweets with their authors; retweets are left out, and so are web addresses in the others."""
    ((name, content),) = files.items()
    rows = _table(name, content, "\t", ("Is retweet", "Author", "Content"))[2:]
    return [
        SourceText(text=_ADDRESS.sub(" ", row["Content"]).strip(), label=row["Author"])
        for row in rows
        if row["Is retweet"] == "False"
    ]


def read_help() -> list[SourceText]:
    """Return the chapters of Python's own language reference that its `help()` shows, of this Python.

    Raises:
        DataError: this Python came without them.
    """
    try:
        from pydoc_data.topics import topics
    except ModuleNotFoundError as error:
        raise DataError(
            "this Python came without pydoc_data, its help texts; install its full standard library, or take bbc"
        ) from error
    return [SourceText(text=topics[name]) for name in sorted(topics)]


def _table(name: str, content: bytes, delimiter: str, columns: tuple[str, ...]) -> list[dict[str, str]]:
    before = csv.field_size_limit(MAX_FIELD)  # of the whole process: put back below
    try:
        reader = csv.DictReader(io.StringIO(content.decode("utf-8"), newline=""), delimiter=delimiter, restval="")
        rows = list(reader)
    except (UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{name!r} must be a table in UTF-8; {error}") from error
    finally:
        csv.field_size_limit(before)
    missing = [column for column in columns if column not in (reader.fieldnames or ())]
    if missing:
        raise DataError(f"{name!r} must have a column {missing[0]!r}; got {reader.fieldnames!r:.100}")
    return rows


def _decoded(content: bytes) -> str:
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError:
        return content.decode("latin-1")
