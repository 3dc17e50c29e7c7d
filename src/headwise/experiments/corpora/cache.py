"""Where corpora are kept: a folder of the user's, one file a corpus, whole or not there at all."""

import errno
import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import get_args

from headwise.errors import DataError, OutputError
from headwise.experiments.corpora.corpus import Corpus
from headwise.experiments.corpora.texts import Split, Text
from headwise.files import NO_LOCKS

FOLDER_VARIABLE = "HEADWISE_DATA"
LOCK = ".lock"
REMAINS = (".fetch-*", ".headwise-*.part")  # of a fetch that was killed


def data_folder() -> Path:
    """Return the folder that corpora are kept in: HEADWISE_DATA, else `headwise/data` in the user's cache.

    The cache is XDG_CACHE_HOME where that is an absolute path, else `~/.cache`.

    Raises:
        OutputError: there is no home folder.
    """
    own = os.environ.get(FOLDER_VARIABLE)
    cache = Path(os.environ.get("XDG_CACHE_HOME", ""))
    try:
        if own:
            return Path(own).expanduser().absolute()
        return (cache if cache.is_absolute() else Path.home() / ".cache") / "headwise" / "data"
    except RuntimeError as error:
        raise OutputError(f"{FOLDER_VARIABLE} must name a folder for corpora, for you have no home folder") from error


def cached_path(corpus: Corpus) -> Path:
    """Return where a fetched corpus is kept.

    The name has the start of its digest: another way of cleaning or splitting makes another file, and no reader takes
    one for the other.
    """
    assert corpus.sha256 is not None
    return data_folder() / f"{corpus.name}-{corpus.sha256[:12]}.jsonl"


def encode(texts: Iterable[Text]) -> bytes:
    """Return texts as JSON lines: split, label and text."""
    return b"".join(
        json.dumps({"split": text.split, "label": text.label, "text": text.text}).encode("ascii") + b"\n"
        for text in texts
    )


def decode(content: bytes) -> list[Text]:
    """Return the texts of JSON lines."""
    texts = []
    for line in content.splitlines():
        found = json.loads(line)
        assert found["split"] in get_args(Split)
        texts.append(Text(found["split"], found["label"], found["text"]))
    return texts


def digest_of(content: bytes) -> str:
    """Return the SHA-256 of bytes, in hexadecimal."""
    return hashlib.sha256(content).hexdigest()


def read_cached(corpus: Corpus) -> bytes | None:
    """Return the file of a fetched corpus; None: there is none, or it is not what was written.

    Raises:
        DataError: it is there and cannot be read.
    """
    path = cached_path(corpus)
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise DataError(
            f"cannot read {str(path)!r}: {error.strerror}; mend that, or set {FOLDER_VARIABLE} to another folder"
        ) from error
    return content if digest_of(content) == corpus.sha256 else None


@contextmanager
def locked_folder() -> Iterator[Path]:
    """Yield the folder of corpora, made where it is missing; of several processes one at a time is inside.

    What killed ones left is cleared first. Where the file system has no locks nothing is cleared, and several may be
    inside: each then writes the same file, whole.

    Raises:
        OutputError: the folder cannot be written.
    """
    folder = data_folder()
    with folder_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / LOCK).open("a")
    with lock:
        with folder_errors(folder):
            try:
                fcntl.flock(lock, fcntl.LOCK_EX)
            except OSError as error:
                if error.errno not in NO_LOCKS:
                    raise
            else:
                for pattern in REMAINS:
                    for remains in folder.glob(pattern):
                        shutil.rmtree(remains, ignore_errors=True)
        yield folder


@contextmanager
def folder_errors(folder: Path) -> Iterator[None]:
    """Turn what the system says against writing the folder into one line."""
    try:
        yield
    except OutputError as error:  # of a file that is written whole, which advises to name another file
        cause = error.__cause__
        if not isinstance(cause, OSError):
            raise
        raise _unwritable(folder, cause) from cause
    except OSError as error:
        raise _unwritable(folder, error) from error


def _unwritable(folder: Path, error: OSError) -> OutputError:
    space = " free some space there, or" if error.errno in (errno.ENOSPC, errno.EDQUOT) else ""
    return OutputError(
        f"cannot write {str(folder)!r}: {error.strerror or error};{space} set {FOLDER_VARIABLE} to a folder that can "
        "be written"
    )
