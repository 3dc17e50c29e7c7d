"""Reading a user's file: whole, up to a size, or its end."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from headwise.errors import HeadwiseError


def read_whole(path: Path, *, what: str, max_bytes: int, error: type[HeadwiseError]) -> bytes:
    """Return the bytes of a file.

    Args:
        path: where it is.
        what: what it should be, as in "a text".
        max_bytes: how large it may be; no more is ever read.
        error: what to raise.

    Raises:
        HeadwiseError: (of the kind `error`) it is no file, cannot be opened, or is larger.
    """
    with _opened(path, what, error) as file:
        content = file.read(max_bytes + 1)
    if len(content) > max_bytes:
        raise error(f"{what} must be at most {max_bytes // 2**20} MiB; {path} is larger")
    return content


def read_last_lines(path: Path, *, what: str, max_bytes: int, error: type[HeadwiseError]) -> tuple[bytes, bool]:
    """Return the last lines of a file, as many whole ones as so many bytes hold, and whether there are others before.

    Args:
        path, what, error: as of `read_whole`.
        max_bytes: how much is read.

    Raises:
        HeadwiseError: (of the kind `error`) it is no file, or cannot be opened.
    """
    with _opened(path, what, error) as file:
        start = file.seek(0, os.SEEK_END) - max_bytes
        if start <= 0:
            file.seek(0)
            return file.read(max_bytes), False
        file.seek(start - 1)  # with the end of the line before, which may be all of that line that is left
        return file.read(max_bytes + 1).partition(b"\n")[2], True


@contextmanager
def _opened(path: Path, what: str, error: type[HeadwiseError]) -> Iterator[BinaryIO]:
    """Open a file to be read; what the system says against it becomes one line."""
    if path.exists() and not path.is_file():
        raise error(f"{what} must be a file; {path} is a folder, a device or a pipe")
    try:
        with path.open("rb") as file:
            yield file
    except OSError as refusal:
        raise error(f"{what} {path} cannot be read: {refusal.strerror or refusal}") from None
