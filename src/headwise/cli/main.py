"""The command line's door: it can be interrupted from here on, and all else is imported behind it."""

import sys
from collections.abc import Sequence

EXIT_INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code: 0 done, 1 the answer is no, 2 a bad request, 130 interrupted."""
    try:
        from headwise.cli.run import run

        return run(sys.argv[1:] if arguments is None else arguments)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
