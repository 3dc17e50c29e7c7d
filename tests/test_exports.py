"""The public surface: what `headwise` promises is there, lazily, and nowhere else."""

import ast
from pathlib import Path

import pytest

import headwise

TREE = ast.parse(Path(headwise.__file__).read_text(encoding="utf-8"))


def names_for_type_checkers() -> dict[str, str]:
    block = next(node for node in TREE.body if isinstance(node, ast.If))
    return {alias.name: node.module for node in block.body for alias in node.names}


@pytest.mark.parametrize("name", headwise.__all__)
def test_every_promised_name_is_there_and_documented(name):
    value = getattr(headwise, name)
    assert name == "__version__" or value.__doc__


def test_type_checkers_see_the_same_names_from_the_same_modules():
    assert names_for_type_checkers() == headwise._MODULE_OF


def test_the_promised_names_are_sorted_and_unique():
    names = headwise.__all__[:-1]
    assert names == sorted(set(names))
    assert headwise.__all__[-1] == "__version__"


def test_dir_shows_the_promised_names():
    assert set(headwise.__all__) <= set(dir(headwise))


def test_an_unknown_name_is_an_attribute_error_that_names_it():
    with pytest.raises(AttributeError, match="no attribute 'attn'"):
        headwise.attn  # noqa: B018


def test_the_version_is_the_one_of_the_citation():
    root = Path(__file__).parent.parent
    assert f"version: {headwise.__version__}" in (root / "CITATION.cff").read_text(encoding="utf-8")
