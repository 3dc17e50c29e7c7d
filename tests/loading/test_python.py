"""Objects of a user's own modules: by `package.module:name`, and by `file.py:name`."""

import sys

import pytest

from headwise.errors import ModelError
from headwise.loading.config import locate
from headwise.loading.python import find_object


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with a file in it, and one in a folder of that; the current folder is another one."""
    (tmp_path / "inner").mkdir()
    (tmp_path / "outer_blocks.py").write_text("import inner_blocks\nvalue = inner_blocks.value + 1\n")
    (tmp_path / "inner" / "inner_blocks.py").write_text("class Some:\n    value = 5\nvalue = 7\n")
    (tmp_path / "inner" / "broken_blocks.py").write_text("raise RuntimeError('no')\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield tmp_path
    for name in ("outer_blocks", "inner_blocks", "broken_blocks"):
        sys.modules.pop(name, None)


def test_a_file_is_as_good_as_a_module(folder):
    assert find_object("inner/inner_blocks.py:value") == 7
    assert find_object("inner/inner_blocks.py:Some.value") == 5
    assert find_object("outer_blocks:value") == find_object("outer_blocks.py:value") == 8
    assert find_object(f"{folder}/outer_blocks.py:value") == 8


def test_a_file_with_a_name_is_a_location_of_its_own(folder):
    assert locate("inner/inner_blocks.py:value").kind == "python"
    assert locate(f"{folder}/outer_blocks.py:value").kind == "python"
    with pytest.raises(ModelError):
        locate("inner/missing.py:value")
    with pytest.raises(ModelError):
        locate("inner/inner_blocks.py:not a name")
    with pytest.raises(ModelError):
        locate(f"{'x/' * 5000}y.py:value")


@pytest.mark.parametrize(
    ("target", "text"),
    [
        ("inner/inner_blocks.py:missing", "inner_blocks has no 'missing'"),
        ("inner/broken_blocks.py:value", "importing broken_blocks raised RuntimeError: no"),
        ("nothing_by_this_name:value", "there is no module 'nothing_by_this_name'"),
    ],
)
def test_what_cannot_be_found_is_one_line(folder, target, text):
    with pytest.raises(ModelError) as refusal:
        find_object(target)
    assert str(refusal.value).startswith(target) and text in str(refusal.value)
