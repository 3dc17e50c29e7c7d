"""docs/claims.md: all 31 claims, each with a test that is there and with commands that can be given."""

import ast
import functools
import re
import shlex
from pathlib import Path

import pytest
import typer.main

from headwise.cli.run import app
from headwise.experiments.builtin.catalogue import questions

ROOT = Path(__file__).parent.parent
NUM_CLAIMS = 31
CLAIM = re.compile(r"^## (\d+)\. ", re.MULTILINE)
CITED = re.compile(r"`(tests/[^`]+)`")
COMMAND = re.compile(r"`headwise ([^`]+)`")
BENCHMARK = re.compile(r"`python -m (benchmarks\.\w+)[^`]*`")

PAGE = (ROOT / "docs" / "claims.md").read_text(encoding="utf-8")
SECTIONS = dict(zip(*[iter(CLAIM.split(PAGE)[1:])] * 2, strict=True))


@functools.cache
def names_in(path: Path) -> set[str]:
    """Return the names of the tests that a file defines, as pytest collects them here: functions of the module."""
    body = ast.parse(path.read_text(encoding="utf-8")).body
    return {item.name for item in body if isinstance(item, ast.FunctionDef) and item.name.startswith("test_")}


def test_every_claim_stands_once_and_in_order():
    assert [int(number) for number in CLAIM.findall(PAGE)] == list(range(1, NUM_CLAIMS + 1))


@pytest.mark.parametrize("number", SECTIONS)
def test_every_claim_is_shown_and_names_tests_that_are_there(number):
    section = SECTIONS[number]
    assert "```python\n" in section and "```text\n" in section
    cited = CITED.findall(section)
    assert cited
    for test in cited:
        path, name = test.split("::")
        assert name in names_in(ROOT / path), test


@pytest.mark.parametrize("command", sorted(set(COMMAND.findall(PAGE))))
def test_every_command_can_be_given(command):
    verb, *words = shlex.split(command)
    context = typer.main.get_command(app).commands[verb].make_context(verb, words)
    if verb == "compare" and context.params["comparison"] is not None:
        assert context.params["comparison"] in questions()


def test_every_benchmark_that_is_named_is_there():
    for module in BENCHMARK.findall(PAGE):
        assert (ROOT / f"{module.replace('.', '/')}.py").is_file(), module


def test_a_claim_that_is_to_be_measured_names_the_comparison():
    """And every built-in comparison is named by one."""
    for number, section in SECTIONS.items():
        if "ot measured yet" in section:
            assert "`headwise compare " in section, number
    named = {command.split()[1] for command in COMMAND.findall(PAGE) if command.startswith("compare ")}
    assert named == set(questions())
