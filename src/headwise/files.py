"""A new file in the place of an old one, whole or not at all: beside its place first, then renamed into it."""

import errno
import os
import secrets
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from headwise.errors import OutputError

NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)  # of file systems without locks: some on a network


@contextmanager
def whole_file(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield the path of an empty file to fill, which takes the place of `path` in one step when the block ends.

    A reader sees the old file or the new one, never a part, however many write to one path at once. The new file (mode
    of the old one, else 0644 less the umask) is flushed to the disk first. A link is followed. Where the block raises,
    or the disk is full, the old file stays and nothing else is left; a process that is killed leaves a folder
    `.headwise-*.part` beside it.

    Args:
        path: where to; its folder must exist.

    Raises:
        OutputError: the folder is missing or cannot be written, the path is a folder or a device, the disk is full.
    """
    with output_errors(path):
        place = _place_of(path)
        with _new_file_beside(place) as beside:
            mode = beside.stat().st_mode
            yield beside
            with beside.open("rb") as file:
                # who keeps a file to themselves keeps the next one so
                os.fchmod(file.fileno(), stat.S_IMODE(place.stat().st_mode if place.exists() else mode))
                os.fsync(file.fileno())
            beside.replace(place)


def check_writable(path: str | os.PathLike[str]) -> None:
    """Raise OutputError now if `whole_file` could not write there: before work is done whose result would be lost."""
    with output_errors(path), _new_file_beside(_place_of(path)):
        pass


@contextmanager
def output_errors(path: str | os.PathLike[str]) -> Iterator[None]:
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
def _new_file_beside(place: Path) -> Iterator[Path]:
    """Make an empty file in a new folder beside `place`; both are gone afterwards, unless the file was renamed.

    In a folder of its own, since writers of some formats leave half-written files beside the one that they are given.
    """
    folder = place.with_name(f".headwise-{secrets.token_hex(8)}.part")
    folder.mkdir(mode=0o700)
    try:
        beside = folder / "new"
        os.close(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644))
        yield beside
    finally:
        shutil.rmtree(folder, ignore_errors=True)
