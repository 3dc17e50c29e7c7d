"""Reading a user's file whole, up to a size."""

from pathlib import Path

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
    if path.exists() and not path.is_file():
        raise error(f"{what} must be a file; {path} is a folder, a device or a pipe")
    try:
        with path.open("rb") as file:
            content = file.read(max_bytes + 1)
    except OSError as refusal:
        raise error(f"{what} {path} cannot be read: {refusal.strerror or refusal}") from None
    if len(content) > max_bytes:
        raise error(f"{what} must be at most {max_bytes // 2**20} MiB; {path} is larger")
    return content
