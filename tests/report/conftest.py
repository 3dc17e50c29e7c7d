"""Reports of made-up numbers, as a fixture: a tests folder is not imported from."""

import runpy
from pathlib import Path
from types import SimpleNamespace

import pytest


@pytest.fixture(scope="session")
def synthetic():
    return SimpleNamespace(**runpy.run_path(str(Path(__file__).with_name("synthetic.py"))))


@pytest.fixture(scope="session")
def synthetic_fit():
    return SimpleNamespace(**runpy.run_path(str(Path(__file__).with_name("synthetic_fit.py"))))
