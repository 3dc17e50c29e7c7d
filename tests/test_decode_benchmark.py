"""The benchmark of decoding judges rightly, and its rows about caches run."""

import importlib
import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture
def benchmark(monkeypatch):
    monkeypatch.syspath_prepend(ROOT)
    return importlib.import_module("benchmarks.decode")


def test_a_bound_is_kept_from_the_side_that_it_names(benchmark):
    check = importlib.import_module("benchmarks.contest").Check
    assert check("", 3.0, 3.0).holds and not check("", 2.9, 3.0).holds
    assert check("", 1.3, 1.3, at_least=False).holds and not check("", 1.4, 1.3, at_least=False).holds
    assert check("", 1.0).holds is None


def test_a_row_of_bytes_and_one_of_times_are_told(benchmark, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["decode", "--json", "--repeats", "1", "--only", "paged", "static"])
    benchmark.main()
    paged, static = json.loads(capsys.readouterr().out)["rows"]
    assert [check["holds"] for check in paged["checks"]] == [True, None]
    assert set(static["seconds"]) == {"256 live of 8192 slots", "a cache of exactly 256"}
    monkeypatch.setattr(sys, "argv", ["decode", "--only", "paged"])
    benchmark.main()
    assert "target 1.05  holds" in capsys.readouterr().out
