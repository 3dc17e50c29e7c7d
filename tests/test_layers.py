"""Who may import whom: the table of the house, read off every import of the package."""

import ast
from pathlib import Path

import pytest

import headwise

PACKAGE = Path(headwise.__file__).parent
FILES = sorted(PACKAGE.rglob("*.py"))
MAX_LINES = 350

# part -> parts that its files may import, besides itself; a file named alone has a rule of its own
MAY_IMPORT = {
    "errors": set(),
    "results": set(),
    "kernels": {"results"},
    "masks": {"errors", "results"},
    "config": {"errors", "masks"},
    "positions": {"errors", "config"},
    "caches": {"errors"},
    "ops": {"errors", "results", "kernels", "masks"},
    "nn": {"errors", "config", "masks", "positions", "caches", "ops"},
    "integrations": {"errors", "config", "masks", "ops"},
    "convert": {"errors", "config", "nn", "integrations"},
    "loading": {"errors", "config"},
    "loading/module.py": {"errors", "config", "nn", "convert", "integrations"},
    "cost": {"errors", "results", "kernels", "masks", "config"},
    "cost/trace.py": {"errors", "results", "kernels", "masks", "config", "integrations"},
    "cost/measure.py": {"errors", "results", "kernels", "masks", "config", "integrations"},
    "inspection": {"errors", "results", "config", "masks", "ops", "nn", "integrations", "convert"},
    "checks": {"errors", "results", "masks", "ops", "caches", "integrations", "inspection"},
    "experiments": {"errors", "results", "config", "masks", "nn", "cost", "inspection"},
    "report": {
        "errors",
        "results",
        "masks",
        "config",
        *(f"{part}.results" for part in ("cost", "inspection", "checks", "experiments", "api")),
        "cost.workload",  # a result names the workload it is about
    },
    "cli": {"errors", "results", "api", "report"},
}
ANYTHING_BUT_CLI = set(MAY_IMPORT) - {"cli"}
MAY_IMPORT["api"] = ANYTHING_BUT_CLI
MAY_IMPORT["__init__"] = ANYTHING_BUT_CLI | {"api"}

LONGER_WITH_A_REASON: dict[str, str] = {}


def imports_of(path: Path) -> list[tuple[int, str]]:
    """List (level, dotted name) of every import in a file, at any depth."""
    found = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found += [(0, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            found.append((node.level, node.module or ""))
    return found


def name_of(path: Path) -> str:
    return path.relative_to(PACKAGE).as_posix()


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_imports_point_down(path):
    name = name_of(path)
    part = name.split("/")[0].removesuffix(".py")
    allowed = MAY_IMPORT.get(name, MAY_IMPORT.get(part))
    assert allowed is not None, f"{name} belongs to no part of the house"
    for level, imported in imports_of(path):
        assert level == 0, f"{name} has a relative import of {imported!r}"
        first, _, rest = imported.partition(".")
        if first != "headwise":
            continue
        assert rest or part == "__init__", f"{name} imports the package itself; import its modules"
        target = rest.split(".")[0]
        assert target == part or target in allowed or rest in allowed, f"{name} may not import headwise.{rest}"


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_a_file_holds_one_idea(path):
    num_lines = len(path.read_text(encoding="utf-8").splitlines())
    assert num_lines <= MAX_LINES or name_of(path) in LONGER_WITH_A_REASON


def test_the_guard_sees_an_import_that_points_up():
    tree = ast.parse("def f():\n    from headwise.cli.main import main\n")
    assert [node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)] == ["headwise.cli.main"]
    assert "cli" not in MAY_IMPORT["api"]
    assert "nn" not in MAY_IMPORT["cost"]
