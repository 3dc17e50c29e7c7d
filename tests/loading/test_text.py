"""A user's text file, and every way that it can be bad."""

import pytest

from headwise.errors import TextError
from headwise.loading.text import read_text


def test_a_text_is_read_as_it_stands(tmp_path):
    path = tmp_path / "text.txt"
    path.write_bytes("\ufeffEine Zeile.\n東京 🙂\n".encode())
    assert read_text(path) == "Eine Zeile.\n東京 🙂\n"


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"", "empty or only white space"),
        (b" \n\t\n", "empty or only white space"),
        (b"\x89PNG\r\n\x1a\n\xff\xfe", "must be UTF-8"),
        (b"ELF\0\0\0", "zero bytes"),
        ("naïve".encode("latin-1"), "must be UTF-8"),
    ],
)
def test_what_is_no_text_is_refused(tmp_path, content, text):
    path = tmp_path / "text.txt"
    path.write_bytes(content)
    with pytest.raises(TextError, match=text):
        read_text(path)


def test_a_missing_file_and_a_folder_are_refused(tmp_path):
    with pytest.raises(TextError, match="No such file"):
        read_text(tmp_path / "missing.txt")
    with pytest.raises(TextError, match="must be a file"):
        read_text(tmp_path)
