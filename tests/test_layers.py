"""Who may import whom: the table of the house, read off every import of the package."""

import ast
from pathlib import Path

import pytest

import headwise

PACKAGE = Path(headwise.__file__).parent
FILES = sorted(PACKAGE.rglob("*.py"))
MAX_LINES = 350

# part -> parts that its files may import, besides itself; a file or folder named alone has a rule of its own
MAY_IMPORT = {
    "errors": set(),
    "files": {"errors"},  # a page and a cache are written alike: whole or not at all
    "png": {"errors"},  # a picture of heads is written, and the image that a model looks at is read
    "results": set(),
    "collector": set(),
    "kernels": {"results"},  # a choice is a result: it prints itself and turns into JSON
    "masks": {"errors", "results"},
    "config": {"errors", "masks"},
    "positions": {"errors", "config"},
    "caches": {"errors", "files", "config"},
    "ops": {"errors", "results", "kernels", "masks"},
    "nn": {"errors", "config", "masks", "positions", "caches", "ops"},
    "integrations": {"errors", "config", "masks", "ops", "caches"},
    "convert": {"errors", "config", "nn", "integrations"},
    "loading": {"errors", "png", "config"},
    "loading/module.py": {"errors", "config", "nn", "convert", "integrations"},
    "cost": {"errors", "results", "collector", "kernels", "masks", "config"},
    "cost/tracing": {"errors", "results", "collector", "kernels", "masks", "config", "integrations"},
    "cost/running": {"errors", "results", "collector", "kernels", "masks", "config", "integrations"},
    "inspection": {"errors", "png", "results", "config", "masks", "ops", "nn", "integrations", "convert"},
    "checks": {"errors", "results", "masks", "ops", "caches", "integrations", "inspection"},
    # a rival with attention over its own states calls ops; a run's folder is written as a page is, whole or not at all
    # and a learned table is lengthened before a test on longer texts
    "experiments": {"errors", "files", "results", "config", "masks", "positions", "ops", "nn", "cost", "inspection"},
    "report": {
        "errors",
        "files",
        "png",
        "results",
        "masks",
        "config",
        "kernels",  # the choice that a fit prints
        "cost.workload",
        "api.bench_results",
        "api.data_results",
        "api.fit_results",
        "api.inspect_results",
        "inspection.roles.results",
        "inspection.walkthrough.results",
        *(f"{part}.results" for part in ("cost", "inspection", "checks", "experiments", "api")),
        *(f"cost.{part}.results" for part in ("oom", "planning", "sharding")),
    },
    "cli": {"errors", "results", "collector", "api", "report"},
}
ANYTHING_BUT_CLI = set(MAY_IMPORT) - {"cli"}
MAY_IMPORT["api"] = ANYTHING_BUT_CLI
MAY_IMPORT["__init__"] = ANYTHING_BUT_CLI | {"api"}
MAY_IMPORT["__main__"] = {"cli"}

LONGER_WITH_A_REASON: dict[str, str] = {}


def imports_of(source: str) -> list[tuple[int, str]]:
    """List (level, dotted name) of every import in a file, at any depth."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found += [(0, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            found.append((node.level, node.module or ""))
    return found


def name_of(path: Path) -> str:
    return path.relative_to(PACKAGE).as_posix()


def find_faults(name: str, source: str) -> list[str]:
    """List what is wrong with the imports of a file of the package."""
    part = name.split("/", maxsplit=1)[0].removesuffix(".py")
    folder = name.rpartition("/")[0]
    allowed = MAY_IMPORT.get(name, MAY_IMPORT.get(folder, MAY_IMPORT.get(part)))
    if allowed is None:
        return [f"{name} belongs to no part of the house"]
    faults = []
    for level, imported in imports_of(source):
        first, _, rest = imported.partition(".")
        target = rest.split(".")[0]
        if level:
            faults.append(f"{name} has a relative import of {imported!r}")
        elif first == "headwise" and not rest and part != "__init__":
            faults.append(f"{name} imports the package itself; import its modules")
        elif first == "headwise" and rest and target != part and target not in allowed and rest not in allowed:
            faults.append(f"{name} may not import headwise.{rest}")
    return faults


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_imports_point_down(path):
    assert find_faults(name_of(path), path.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_a_file_holds_one_idea(path):
    num_lines = len(path.read_text(encoding="utf-8").splitlines())
    assert num_lines <= MAX_LINES or name_of(path) in LONGER_WITH_A_REASON


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("api/count.py", "def f():\n    from headwise.cli.main import main\n"),
        ("cost/flops.py", "import headwise.nn.multihead"),
        ("cost/flops.py", "from headwise.integrations.torch_attention import x"),
        ("report/text.py", "from headwise.cost.memory import predict_step"),
        ("ops/sdpa.py", "from headwise import attention"),
        ("ops/sdpa.py", "from .reference import reference_attention"),
        ("elsewhere/file.py", "import torch"),
    ],
)
def test_the_guard_sees_an_import_that_points_up(name, source):
    assert len(find_faults(name, source)) == 1


def test_the_guard_lets_imports_that_point_down_pass():
    source = "import torch\nfrom headwise.cost.results import Ledger\nfrom headwise.report.figures import Row\n"
    assert find_faults("report/text.py", source) == []


# parts of cost that hold no tensors and run a thousand times in a second; mypy checks them, the tests' run does not
UNCHECKED_AT_RUN_TIME = {
    *("adapted_flops", "adapters", "allocator", "device_catalogue", "frozen_flops", "heap", "kernel_workspace"),
    *("layer_flops", "layer_kinds", "memory", "oom", "planning", "reserved", "step", "step_flops"),
}


def test_annotations_of_every_other_part_are_checked_as_the_tests_run(pytestconfig):
    packages = set(pytestconfig.getoption("jaxtyping_packages").split(","))
    tops = {path.relative_to(PACKAGE).parts[0].removesuffix(".py") for path in FILES}
    costs = {
        path.relative_to(PACKAGE / "cost").parts[0].removesuffix(".py") for path in (PACKAGE / "cost").rglob("*.py")
    }
    expected = {f"headwise.{top}" for top in tops - {"cost", "__init__", "__main__"}}
    expected |= {f"headwise.cost.{part}" for part in costs - UNCHECKED_AT_RUN_TIME}
    assert expected == packages - {"beartype.beartype"}
