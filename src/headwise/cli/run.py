"""Running a verb: every refusal turns into one line and exit code 2."""

import inspect
import io
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from headwise.api.catalogue import DEVICE_NAMES, PRESET_NAMES
from headwise.cli import bench, compare, count, data, explain, fit, oom, report
from headwise.cli import inspect as inspect_verb
from headwise.cli.interrupts import heed_interrupts
from headwise.cli.output import drop
from headwise.errors import HeadwiseError

EXIT_BAD_REQUEST = 2
MAX_WORD = 300  # a name that was given may be of any length, and the reason stands behind it
MAX_LINE = 2000
# a word of the line itself: not quoted, no part of a path, no assignment
_NAME = re.compile(r"""(?<![\w/\\.'"-])[a-z]+(?:_[a-z]+)+(?![\w/\\'"=-]|\.\w)""")

app = typer.Typer(
    name="headwise",
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


def _print_version(is_asked: bool) -> bool:
    if is_asked:
        from importlib.metadata import version

        print(f"headwise {version('headwise')}")
        raise typer.Exit
    return is_asked


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="print the version")
    ] = False,
) -> None:
    """What attention costs, what makes it cheaper, and what its heads do."""


app.command("report", epilog=f"Devices for --gpu: {', '.join(DEVICE_NAMES)}.")(report.report)
app.command("count", epilog=f"Presets: {', '.join(PRESET_NAMES)}.")(count.count)
app.command("fit", epilog=f"Devices for --gpu: {', '.join(DEVICE_NAMES)}.")(fit.fit)
app.command("oom")(oom.oom)
app.command("bench")(bench.bench)
app.command("inspect")(inspect_verb.inspect)
app.command("explain")(explain.explain)
app.command("compare")(compare.compare)
app.command("data")(data.data)

OPTIONS = {
    name: f"--{name.replace('_', '-')}"
    for verb in (report.report, count.count, fit.fit, oom.oom, bench.bench, inspect_verb.inspect, explain.explain)
    for name in inspect.signature(verb).parameters
    if "_" in name
}
"""What an argument of the Python twins is called here, where it is not the same word."""


def run(words: Sequence[str]) -> int:
    """Run the command line; returns the exit code: 0 done, 1 the answer is no, 2 a bad request."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by whoever started us
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115  open to the end
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal that cannot show a sign shows another
    try:
        with heed_interrupts():
            code = app(list(words) or ["--help"], prog_name="headwise", standalone_mode=False)
        sys.stdout.flush()
    except HeadwiseError as error:
        return _refuse(_with_options(str(error)))
    except OSError as error:  # files are read and written behind doors of our own: this is stdout
        drop(sys.stdout)
        return 0 if isinstance(error, BrokenPipeError) else _refuse(f"the answer cannot be written: {error.strerror}")
    except Exception as error:
        if not hasattr(error, "format_message"):  # typer's own usage errors have it; anything else is ours to fix
            raise
        context = getattr(error, "ctx", None)
        command = context.command_path if context else "headwise"
        return _refuse(f"{error.format_message()} (see {command} --help)")
    return code if isinstance(code, int) else 0


def _with_options(message: str) -> str:
    """Return a message with the options of the command line in place of the arguments of its Python twins."""
    return _NAME.sub(lambda match: OPTIONS.get(match[0], match[0]), message)


def _refuse(message: str) -> int:
    line = " ".join(_shorten(word, MAX_WORD) for word in message.split())
    line = "".join(sign if sign.isprintable() else "\ufffd" for sign in _shorten(line, MAX_LINE))
    try:
        print(f"headwise: {line}", file=sys.stderr, flush=True)
    except OSError:  # stderr is full; the exit code still tells
        drop(sys.stderr)
    return EXIT_BAD_REQUEST


def _shorten(text: str, limit: int) -> str:
    """Return a text without its middle if it is longer than the limit."""
    half = limit // 2
    return text if len(text) <= limit else f"{text[:half]}...{text[-half:]}"
