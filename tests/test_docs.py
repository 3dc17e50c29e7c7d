"""The README and the docs tell the truth: their Python runs, their commands succeed and print what is shown."""

import contextlib
import io
import re
import shlex
from pathlib import Path

import pytest

from headwise.cli.main import main

ROOT = Path(__file__).parent.parent
TRANSLATED = [ROOT / "README.zh-CN.md", ROOT / "docs" / "claims.zh.md"]  # tests/test_translations.py: the same blocks
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(set((ROOT / "docs").rglob("*.md")) - set(TRANSLATED))]
SHOWN = re.compile(r"^```python\n(.*?)^```$(?:\n\n```text\n(.*?)^```$)?", re.MULTILINE | re.DOTALL)
FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(?:\]\(|src=\")(?!https?://|#)([^)#\"]+)")


def blocks(page: Path, language: str) -> list[str]:
    return [body for kind, body in FENCE.findall(page.read_text(encoding="utf-8")) if kind == language]


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "python")], ids=name_of)
def test_python_blocks_run_in_order(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    namespace = {"__name__": "docs"}
    for body, shown in SHOWN.findall(page.read_text(encoding="utf-8")):
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(body, name_of(page), "exec"), namespace)
        if shown:  # a block of text behind it is what it prints
            assert printed.getvalue() == shown


COMMANDS = [
    pytest.param(body, id=f"{name_of(page)}:{body.splitlines()[0][2:]}")
    for page in PAGES
    for body in blocks(page, "console")
]


@pytest.mark.parametrize("body", COMMANDS)
def test_commands_print_what_is_shown(body, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    for part in re.split(r"^\$ ", body, flags=re.MULTILINE)[1:]:
        command, _, shown = part.partition("\n")
        words = shlex.split(command)
        assert words[0] == "headwise"
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            code = main(words[1:])
        assert code == ("Does not fit" in printed.getvalue())  # 1: the answer is no
        lines = [line.split() for line in printed.getvalue().splitlines()]
        assert all(line.split() in (["..."], *lines) for line in shown.splitlines() if line.strip())


@pytest.mark.parametrize("page", PAGES + TRANSLATED, ids=name_of)
def test_every_file_that_a_page_links_to_is_there(page):
    for target in LINK.findall(page.read_text(encoding="utf-8")):
        assert (page.parent / target).exists(), target
