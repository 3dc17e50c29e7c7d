"""Write a file whole or not at all: beside its place first, then renamed into it."""

import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from headwise.errors import OutputError

PAGE_START = b"<!doctype html"


def write_whole(text: str, path: str | os.PathLike[str]) -> Path:
    """Write `text` as UTF-8 to `path`, so that a reader sees the old file or the new one, never a part.

    The text goes to a new file in the same folder (mode of the old one, else 0644 less the umask), is flushed to the
    disk and takes the place of `path` in one step. A link is followed. A character that UTF-8 cannot hold (half of a
    surrogate pair, as in the name of a file that is no UTF-8) is written as `?`.

    Args:
        text: what to write.
        path: where to; its folder must exist.

    Returns:
        The path as given.

    Raises:
        OutputError: the folder is missing or cannot be written, the path is a folder or a device, the disk is full.
    """
    content = text.encode("utf-8", "replace")
    with _output_errors(path):
        place = _place_of(path)
        with _new_file_beside(place) as (descriptor, beside):
            with os.fdopen(descriptor, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
                if place.exists():  # who keeps a page to themselves keeps the next one so
                    os.fchmod(file.fileno(), stat.S_IMODE(place.stat().st_mode))
            beside.replace(place)
    return Path(path)


def check_writable(path: str | os.PathLike[str]) -> None:
    """Raise OutputError now if `write_whole` could not write there: before work is done whose result would be lost."""
    with _output_errors(path), _new_file_beside(_place_of(path)) as (descriptor, _):
        os.close(descriptor)


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


def _place_of(path: str | os.PathLike[str]) -> Path:
    place = Path(os.path.realpath(path))
    if place.is_dir():
        raise OutputError(f"the output must be a file; {str(path)!r} is a folder: name a file in it")
    if place.is_symlink():  # every link was followed
        raise OutputError(f"the output must be a file; {str(path)!r} is a link that leads to itself: name a file")
    if place.exists() and not place.is_file():
        # a rename would put a file in the place of the device itself
        raise OutputError(f"the output must be a file; {str(path)!r} is a device or a pipe: name a file")
    return place


@contextmanager
def _new_file_beside(place: Path) -> Iterator[tuple[int, Path]]:
    """Open a new file in the folder of `place`; it is gone afterwards unless the block renamed it."""
    beside = place.with_name(f".headwise-{secrets.token_hex(8)}.part")
    descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    try:
        yield descriptor, beside
    finally:
        beside.unlink(missing_ok=True)


@contextmanager
def _output_errors(path: str | os.PathLike[str]) -> Iterator[None]:
    """Turn what the system says against writing `path` into one line."""
    try:
        yield
    except OutputError:
        raise
    except (OSError, ValueError) as error:  # ValueError: a zero byte in the path
        reason = getattr(error, "strerror", None) or str(error)
        raise OutputError(
            f"cannot write {str(path)!r}: {reason}; name a file in a folder that can be written"
        ) from error
