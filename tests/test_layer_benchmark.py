"""The benchmark of the layer judges rightly, and its quick form runs."""

import importlib
import json
import runpy
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def made():
    return SimpleNamespace(**runpy.run_path(str(ROOT / "benchmarks" / "layer_cases.py")))


def test_every_figure_reads_contestants_of_its_own_case(made):
    cases = list(made.cases())
    assert len({(case.name, case.seq) for case in cases}) == len(cases)
    for case in cases:
        took = {name: 2.0**place for place, name in enumerate(case.make())}
        assert took and all(check.value_of(took) > 0 for check in case.checks)


def test_each_figure_is_the_ratio_that_it_names(made):
    cases = {(case.name, case.seq): case for case in made.cases()}
    took = {made.OURS: 2.0, made.TORCH: 3.0, made.TORCH_WEIGHTS: 5.0}
    assert [check.value_of(took) for check in cases["all pairs", 2048].checks] == [1.5, 2.5]
    took = {made.OURS: 2.0, made.LAYER_SDPA: 11.0, made.BARE: 1.0, made.BARE_SDPA: 7.0}
    assert [check.value_of(took) for check in cases["window", 4096].checks] == [1.5, 5.5]
    took = {made.MODEL: 2.0, made.MODEL_SDPA: 5.0}
    assert cases["Mistral, window, forward", 4096].checks[0].value_of(took) == 2.5


def test_the_quick_form_tells_times_and_figures(monkeypatch, capsys):
    monkeypatch.syspath_prepend(ROOT)
    layer = importlib.import_module("benchmarks.layer")
    told = {}
    for only in ("overhead", "Llama, forward", "memory, grouped"):
        monkeypatch.setattr(sys, "argv", ["layer", "--json", "--quick", "--repeats", "1", "--only", only])
        layer.main()
        result = json.loads(capsys.readouterr().out)
        assert result["machine"]["gflops_per_second"] > 0
        (told[only],) = result["rows"]
    memory = told.pop("memory, grouped")
    assert memory["checks"][0]["holds"] and memory["bytes"]["tracked"] > 0
    for row in told.values():
        assert all(seconds > 0 for seconds in row["seconds"].values())
        for check in row["checks"]:
            assert check["value"] > 0
            assert check["holds"] == (None if check["target"] is None else check["value"] >= check["target"])
