"""Reading the traceback around an out-of-memory message.

Loggers put a prefix before every line, `torchrun` the rank, JSON turns line ends into backslashes, and some tools put
it all on one line; all of these are read.
"""

import re
from bisect import bisect

from headwise.cost.oom.at_work import find_operation
from headwise.cost.oom.frame_formats import Spot, find_ipython_frames, find_python_frames, find_rich_frames
from headwise.cost.oom.results import Frame
from headwise.cost.oom.squeeze import check_length, strip_colours, unescape

MAX_FRAMES = 2000  # twice Python's default limit of recursion
MAX_DISTANCE = 2**19  # characters between the error and the far end of its traceback
MAX_NESTED = 3  # strings within strings, as JSON in JSON

_RANK = re.compile(r"[^\S\n]{0,20}\[((?:rank|default)\d{1,6})\]:")
_HEADER = re.compile(r"Traceback \(most recent call last\)")
_SIZED = re.compile(r"tried\s{1,40}to\s{1,40}(?:re)?allocate", re.IGNORECASE)
_ERROR = re.compile(
    rf"{_SIZED.pattern}|out\s{{1,40}}of\s{{1,40}}memory|alloc_failed|bad_alloc|invalid\s{{1,40}}buffer\s{{1,40}}size",
    re.IGNORECASE,
)
_ESCAPED_FILE = re.compile(r"\\n\s{0,40}File |File \\+\"")


def read_frames(text: str) -> tuple[Frame, ...]:
    """Read the traceback of the out-of-memory error in a text, outermost line first; empty where there is none.

    Of several tracebacks (chained exceptions, many ranks, a long log) it is the first after which the error stands;
    where none is followed by one, the last.

    Args:
        text: a traceback or a log. Paths are kept as they are.
    """
    check_length(text)
    text = strip_colours(_of_one_rank(_around_error(text)))
    for _ in range(MAX_NESTED):
        if _ESCAPED_FILE.search(text):
            text = unescape(text)
    for find in (find_python_frames, find_rich_frames, find_ipython_frames):
        spots = list(find(text))
        if spots:
            return tuple(spot.read() for spot in _choose(text, spots)[-MAX_FRAMES:])
    return ()


def operation_of(frames: tuple[Frame, ...]) -> str | None:
    """Name what was at work when memory ran out, one of `at_work.OPERATIONS`; None where no line says so."""
    operation = find_operation(frames)
    return operation.name if operation else None


def _around_error(text: str) -> str:
    """Cut a long log to what is near the first error, one with a size if there is any; without one, to its end."""
    error = _SIZED.search(text) or _ERROR.search(text)
    middle = error.start() if error else len(text)
    return text[max(0, middle - MAX_DISTANCE) : middle + MAX_DISTANCE]


def _of_one_rank(text: str) -> str:
    """Leave out the lines of all ranks but the first that ran out of memory, for ranks write in between each other."""
    lines = [(rank[1] if (rank := _RANK.match(line)) else None, line) for line in text.splitlines(keepends=True)]
    ranks = [rank for rank, _ in lines if rank is not None]
    if len(set(ranks)) < 2:
        return text
    failed = (rank for rank, line in lines if rank is not None and _ERROR.search(line))
    kept = next(failed, ranks[0])
    return "".join(line for rank, line in lines if rank in (None, kept))


def _choose(text: str, spots: list[Spot]) -> list[Spot]:
    """Return the frames of the first traceback that an out-of-memory error follows, else those of the last."""
    headers = [match.start() for match in _HEADER.finditer(text)]
    errors = [match.start() for match in _ERROR.finditer(text)]
    tracebacks: list[list[Spot]] = [[]]
    for before, spot in zip([None, *spots], spots, strict=False):
        if before is not None and bisect(headers, before.begin) < bisect(headers, spot.begin):
            tracebacks.append([])
        tracebacks[-1].append(spot)
    for traceback, following in zip(tracebacks, [*tracebacks[1:], None], strict=True):
        end = following[0].begin if following else len(text)
        if bisect(errors, traceback[-1].begin) < bisect(errors, end):
            return traceback
    return tracebacks[-1]
