"""A user's text file."""

from pathlib import Path

from headwise.errors import TextError

MAX_TEXT_BYTES = 4 * 2**20  # a book; tokenizers need a hundred times a text's bytes


def read_text(path: Path) -> str:
    """Read a text file in UTF-8.

    Raises:
        TextError: it cannot be opened, is larger than 4 MiB, is no UTF-8 text, or holds only white space.
    """
    if path.exists() and not path.is_file():
        raise TextError(f"a text must be a file; {path} is a folder, a device or a pipe")
    try:
        with path.open("rb") as file:
            content = file.read(MAX_TEXT_BYTES + 1)
    except OSError as error:
        raise TextError(f"the text {path} cannot be read: {error.strerror or error}") from None
    if len(content) > MAX_TEXT_BYTES:
        raise TextError(f"a text must be at most {MAX_TEXT_BYTES // 2**20} MiB; {path} is larger")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise TextError(f"a text must be UTF-8; {path} holds other bytes at {error.start}") from None
    if "\0" in text:
        raise TextError(f"a text must be UTF-8 text; {path} holds zero bytes, as binary files do")
    if not text.strip():
        raise TextError(f"a text must hold words; {path} is empty or only white space")
    return text
