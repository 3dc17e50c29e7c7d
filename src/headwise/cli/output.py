"""What every verb prints: one JSON object for machines, and a progress bar on stderr for people."""

import json
import os
import sys
import time
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
def progress_bar(*, with_remaining: bool = False) -> Iterator[Callable[[str, int, int], None]]:
    """Show a progress bar on stderr, where that is a terminal, while the block runs; yields what moves it.

    Args:
        with_remaining: whether it says how long what is being done will take still, once a part of it is done.
    """
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
        remaining = Remaining()

        def move(what: str, done: int, total: int) -> None:
            words = remaining.words(what, done, total) if with_remaining else ""
            bar.update(task, description=f"{what}{words}", completed=done, total=total)

        yield move


class Remaining:
    """Says how long what is being done will take still, from the parts that were done since it began.

    Parts that come at once at the beginning, as those do that were done before and are only read, do not count.

    Args:
        clock: seconds that only grow.
    """

    AT_ONCE = 0.05  # seconds; what is done takes longer

    def __init__(self, clock: Callable[[], float] = time.monotonic):
        self.clock = clock
        self.what: str | None = None
        self.last = clock()
        self.parts, self.seconds = 0, 0.0

    def words(self, what: str, done: int, total: int) -> str:
        """Return how far it is and what is left in words, once a part is done: " 3 of 21, about 4 min left"."""
        now = self.clock()
        if what != self.what:
            self.what, self.parts, self.seconds = what, 0, 0.0
        if done and (self.parts or now - self.last > self.AT_ONCE):
            self.parts += 1
            self.seconds += now - self.last
        self.last = now
        if not self.parts or done >= total:
            return f" {done} of {total}"
        left = self.seconds / self.parts * (total - done)
        shown = f"{left:.0f} s" if left < 90 else f"{left / 60:.0f} min" if left < 5400 else f"{left / 3600:.1f} h"
        return f" {done} of {total}, about {shown} left"
