"""The command line's door: it can be interrupted from here on, and all else is imported behind it."""

import gc
import sys
from collections.abc import Sequence

from headwise.collector import without_collections

EXIT_INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code: 0 done, 1 the answer is no, 2 a bad request, 130 interrupted."""
    try:
        with without_collections():
            from headwise.cli.run import run

        return run(sys.argv[1:] if arguments is None else arguments)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED


def start() -> int:
    """Run the command line as a program of its own, which ends with it; returns the exit code."""
    code = main()
    gc.freeze()  # the interpreter, as it ends, would look for cycles among all that was made
    return code
