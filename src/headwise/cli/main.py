"""The command line's door: collects the verbs and turns every refusal into one line and exit code 2."""

import sys
from collections.abc import Sequence

import typer

from headwise.cli import count, explain, report
from headwise.errors import HeadwiseError

EXIT_BAD_REQUEST = 2

app = typer.Typer(
    name="headwise",
    help="What attention costs, what makes it cheaper, and what its heads do.",
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
app.command("report")(report.report)
app.command("count")(count.count)
app.command("explain")(explain.explain)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code: 0 done, 1 the answer is no, 2 a bad request."""
    words = sys.argv[1:] if arguments is None else list(arguments)
    try:
        code = app(words or ["--help"], prog_name="headwise", standalone_mode=False)
    except HeadwiseError as error:
        return _refuse(str(error))
    except KeyboardInterrupt:
        return 130
    except Exception as error:
        if not hasattr(error, "format_message"):  # typer's own usage errors have it; anything else is ours to fix
            raise
        context = getattr(error, "ctx", None)
        command = context.command_path if context else "headwise"
        return _refuse(f"{error.format_message()} (see {command} --help)")
    return code if isinstance(code, int) else 0


def _refuse(message: str) -> int:
    print("headwise: " + " ".join(message.split()), file=sys.stderr)
    return EXIT_BAD_REQUEST
