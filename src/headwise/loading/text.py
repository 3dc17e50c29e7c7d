"""A user's text file."""

from pathlib import Path

from headwise.errors import TextError
from headwise.loading.files import read_whole

MAX_TEXT_BYTES = 4 * 2**20  # a book; tokenizers need a hundred times a text's bytes


def read_text(path: Path) -> str:
    """Read a text file in UTF-8.

    Raises:
        TextError: it cannot be opened, is larger than 4 MiB, is no UTF-8 text, or holds only white space.
    """
    content = read_whole(path, what="a text", max_bytes=MAX_TEXT_BYTES, error=TextError)
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise TextError(f"a text must be UTF-8; {path} holds other bytes at {error.start}") from None
    if "\0" in text:
        raise TextError(f"a text must be UTF-8 text; {path} holds zero bytes, as binary files do")
    if not text.strip():
        raise TextError(f"a text must hold words; {path} is empty or only white space")
    return text
