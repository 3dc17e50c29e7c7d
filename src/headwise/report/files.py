"""Pages, pictures and other texts in files, whole or not at all, over no file that is something else."""

import os
from pathlib import Path

from headwise.errors import OutputError
from headwise.files import check_writable, whole_file

PAGE_START = b"<!doctype html"


def write_whole(content: str | bytes, path: str | os.PathLike[str]) -> Path:
    """Write a text as UTF-8, or bytes, to `path`, so that a reader sees the old file or the new one, never a part.

    A character that UTF-8 cannot hold (half of a surrogate pair, as in the name of a file that is no UTF-8) is written
    as `?`; the rest is as of `whole_file`.

    Args:
        content: what to write.
        path: where to; its folder must exist.

    Returns:
        The path as given.

    Raises:
        OutputError: the folder is missing or cannot be written, the path is a folder or a device, the disk is full.
    """
    with whole_file(path) as beside:
        beside.write_bytes(content if isinstance(content, bytes) else content.encode("utf-8", "replace"))
    return Path(path)


def check_page_place(path: str | os.PathLike[str]) -> None:
    """Raise OutputError unless a page can be written there: over an earlier page, but over no other file.

    What stands there may be the model or the text that the page is about.
    """
    check_writable(path)
    place = Path(path)
    if place.is_file() and place.stat().st_size:
        with place.open("rb") as file:
            if not file.read(len(PAGE_START)).lower().startswith(PAGE_START):
                raise OutputError(f"the output replaces an earlier page only; {path} is another file: name a new one")
