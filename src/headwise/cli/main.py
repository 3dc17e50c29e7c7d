"""The command line's door: collects the verbs and turns every refusal into one line and exit code 2."""

import io
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from headwise.api.catalogue import DEVICE_NAMES, PRESET_NAMES
from headwise.cli import count, explain, fit, oom, report
from headwise.cli.output import drop
from headwise.errors import HeadwiseError

EXIT_BAD_REQUEST = 2
EXIT_INTERRUPTED = 130
MAX_LINE = 2000  # a name that was given may be of any length

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
app.command("explain")(explain.explain)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code: 0 done, 1 the answer is no, 2 a bad request."""
    words = sys.argv[1:] if arguments is None else list(arguments)
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by whoever started us
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115  open to the end
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal that cannot show a sign shows another
    try:
        code = app(words or ["--help"], prog_name="headwise", standalone_mode=False)
        sys.stdout.flush()
    except HeadwiseError as error:
        return _refuse(str(error))
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
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


def _refuse(message: str) -> int:
    line = "".join(sign if sign.isprintable() else "\ufffd" for sign in " ".join(message.split()))
    try:
        print(f"headwise: {line[:MAX_LINE]}", file=sys.stderr, flush=True)
    except OSError:  # stderr is full; the exit code still tells
        drop(sys.stderr)
    return EXIT_BAD_REQUEST
