"""What every verb prints: one JSON object for machines, and a progress bar on stderr for people."""

import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

from headwise.results import Result


def print_json(result: Result) -> None:
    """Print a result as one JSON object on stdout, and nothing else."""
    try:
        json.dump(result.to_dict(), sys.stdout, allow_nan=False)
        sys.stdout.write("\n")
        sys.stdout.flush()
    except BrokenPipeError:  # typer would exit with 1, which says that the answer is no
        drop(sys.stdout)


def drop(stream: TextIO) -> None:
    """Send what is still buffered for a stream nowhere, so that the interpreter does not fail on it when it ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


@contextmanager
def progress_bar() -> Iterator[Callable[[str, int, int], None]]:
    """Show a progress bar on stderr, where that is a terminal, while the block runs; yields what moves it."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    from headwise.report.text import console_environment

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f}%"),
        TimeElapsedColumn(),
    )
    console = Console(
        file=sys.stderr, _environ=console_environment()
    )  # this stream, even while a library's chatter is redirected
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("starting", total=None)

        def move(what: str, done: int, total: int) -> None:
            bar.update(task, description=what, completed=done, total=total)

        yield move
