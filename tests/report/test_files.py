"""A file is written whole or not at all."""

import errno
import os
import stat

import pytest

from headwise.errors import OutputError
from headwise.files import check_writable
from headwise.report.files import check_page_place, write_whole


def names_in(folder):
    return sorted(entry.name for entry in folder.iterdir())


def test_the_text_arrives_as_utf_8_with_its_line_ends(tmp_path):
    path = write_whole("注意\r\n🧠\n", tmp_path / "page.html")
    assert path == tmp_path / "page.html"
    assert path.read_bytes() == "注意\r\n🧠\n".encode()
    assert names_in(tmp_path) == ["page.html"]


def test_bytes_arrive_as_they_are(tmp_path):
    content = bytes(range(256)) + b"\r\n"
    assert write_whole(content, tmp_path / "picture.png").read_bytes() == content
    assert names_in(tmp_path) == ["picture.png"]


def test_half_of_a_surrogate_pair_does_not_stop_the_page(tmp_path):
    assert write_whole("a\udc80b", tmp_path / "page.html").read_bytes() == b"a?b"


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o027, 0o640), (0o000, 0o644)])
def test_the_mode_is_0644_less_the_umask(tmp_path, umask, mode):
    before = os.umask(umask)
    try:
        path = write_whole("x", tmp_path / "page.html")
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == mode


def test_a_link_is_followed_and_stays_a_link(tmp_path):
    (tmp_path / "real.html").write_text("old")
    (tmp_path / "link.html").symlink_to("real.html")
    write_whole("new", tmp_path / "link.html")
    assert (tmp_path / "link.html").is_symlink()
    assert (tmp_path / "real.html").read_text() == "new"


def test_a_long_name_that_the_file_system_can_hold_is_written(tmp_path):
    assert write_whole("x", tmp_path / ("n" * 255)).read_text() == "x"


def failing_with(code):
    def fail(*_, **__):
        raise OSError(code, os.strerror(code))

    return fail


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_a_full_disk_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch, step):
    path = tmp_path / "page.html"
    path.write_text("old")
    if step == "fsync":
        monkeypatch.setattr("os.fsync", failing_with(errno.ENOSPC))
    else:
        monkeypatch.setattr("pathlib.Path.replace", failing_with(errno.ENOSPC))
    with pytest.raises(OutputError, match="No space left on device") as caught:
        write_whole("new", path)
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)
    assert path.read_text() == "old"
    assert names_in(tmp_path) == ["page.html"]


def test_an_interrupt_leaves_nothing_behind(tmp_path, monkeypatch):
    def interrupt(_):
        raise KeyboardInterrupt

    monkeypatch.setattr("os.fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_whole("new", tmp_path / "page.html")
    assert names_in(tmp_path) == []


def test_a_text_is_on_the_disk_before_it_takes_the_place(tmp_path, monkeypatch):
    path = tmp_path / "page.html"
    path.write_text("old")
    seen = []

    def look(descriptor):
        seen.append((path.read_text(), os.fstat(descriptor).st_size))

    monkeypatch.setattr("os.fsync", look)
    write_whole("new!", path)
    assert seen == [("old", 4)]


def test_a_folder_a_missing_folder_and_a_device_are_refused_in_one_line(tmp_path):
    for path, words in [
        (tmp_path, "is a folder"),
        (tmp_path / "missing" / "page.html", "No such file or directory"),
        (tmp_path / ("n" * 256), "File name too long"),
        ("/dev/null", "is a device"),
        ("zero\0byte", "null"),
    ]:
        for refuse in (lambda place: write_whole("x", place), check_writable):
            with pytest.raises(OutputError, match=words) as caught:
                refuse(path)
            assert "\n" not in str(caught.value)
    assert names_in(tmp_path) == []
    assert os.path.exists("/dev/null") and not os.path.isfile("/dev/null")  # noqa: PTH110, PTH113


def test_a_link_that_leads_to_itself_is_refused_and_left(tmp_path):
    loop = tmp_path / "loop.html"
    loop.symlink_to(loop)
    for refuse in (lambda place: write_whole("x", place), check_writable, check_page_place):
        with pytest.raises(OutputError, match="is a link that leads to itself: name a file"):
            refuse(loop)
    assert loop.is_symlink() and names_in(tmp_path) == ["loop.html"]


def test_a_check_of_a_good_place_leaves_it_as_it_was(tmp_path):
    (tmp_path / "old.html").write_text("old")
    check_writable(tmp_path / "old.html")
    check_writable(tmp_path / "new.html")
    assert names_in(tmp_path) == ["old.html"]
    assert (tmp_path / "old.html").read_text() == "old"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_without_write_permission_is_refused(tmp_path):
    tmp_path.chmod(0o500)
    try:
        with pytest.raises(OutputError, match="Permission denied"):
            write_whole("x", tmp_path / "page.html")
    finally:
        tmp_path.chmod(0o700)


def test_a_replaced_file_keeps_its_mode(tmp_path):
    path = write_whole("old", tmp_path / "page.html")
    path.chmod(0o600)
    assert stat.S_IMODE(write_whole("new", path).stat().st_mode) == 0o600
