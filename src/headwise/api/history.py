"""The history of tracked steps: a file of JSON lines that grows by one line a step, written and read with care.

A line holds what `TrackedStep` holds, and nothing else of the machine or its user.
"""

import json
import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import MISSING, fields
from datetime import datetime
from pathlib import Path
from statistics import median
from typing import Any, get_args

from headwise.api.fit_results import TrackedAccuracy, TrackedStep
from headwise.errors import HeadwiseError, OutputError
from headwise.loading.files import read_last_lines

MAX_READ_BYTES = 8 * 2**20  # some 30,000 steps, in a second
MAX_LISTED = 100  # steps in an answer
MAX_LINE_BYTES = 4096  # a line of ours has a tenth of it
LINE_START = b'{"when": '  # how every line begins; a file that begins otherwise is not a history, and stays as it is
MAX_NAME_LENGTH = 200
MAX_NUMBER = 2**62


class HistoryFile:
    """A history that was opened for one more line, which goes to its end in one piece, whoever else writes there."""

    def __init__(self, path: str | os.PathLike[str], descriptor: int):
        self._path, self._descriptor = path, descriptor

    def append(self, step: TrackedStep) -> None:
        """Write the line of a step.

        Raises:
            OutputError: the disk is full, or the file went away with it.
        """
        line = json.dumps(step.to_dict()).encode() + b"\n"
        with _output_errors(self._path):
            # Of a writer that was killed half a line may stand there: what follows begins a line of its own.
            is_cut = (size := os.fstat(self._descriptor).st_size) and os.pread(self._descriptor, 1, size - 1) != b"\n"
            written = b"\n" + line if is_cut else line
            if os.write(self._descriptor, written) != len(written):
                raise OSError(None, "the disk took a part of the line only")


@contextmanager
def open_history(path: str | os.PathLike[str]) -> Iterator[HistoryFile]:
    """Open a history for one more line, and make the file where there is none.

    Raises:
        OutputError: it is no file, cannot be written, or its disk is full.
    """
    with _output_errors(path):
        if Path(path).exists() and not Path(path).is_file():  # to open a pipe would wait for its reader
            raise OSError(None, "it is a folder, a device or a pipe")
        descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        with _output_errors(path):
            disk = os.fstatvfs(descriptor)
            if disk.f_bavail * disk.f_frsize < MAX_LINE_BYTES:
                raise OSError(None, "the disk is full")
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise OSError(None, "it is a device or a pipe")
            if not LINE_START.startswith(os.pread(descriptor, len(LINE_START), 0)):
                raise OSError(None, "it holds something else")
        yield HistoryFile(path, descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def _output_errors(path: str | os.PathLike[str]) -> Iterator[None]:
    """Turn what the system says against writing to a history into one line."""
    try:
        yield
    except (OSError, ValueError) as error:  # ValueError: a zero byte in the path
        if isinstance(error, HeadwiseError):
            raise
        reason = getattr(error, "strerror", None) or str(error)
        raise OutputError(
            f"the history must be a file that can be written; {str(path)!r} cannot: {reason}; name another file"
        ) from error


def read_history(path: str | os.PathLike[str]) -> tuple[tuple[TrackedStep, ...], tuple[str, ...]]:
    """Read the steps of a history in their order; notes say how many lines are none, and which is the first.

    Of a history of more than 8 MiB the last ones are read, and a note says so.

    Raises:
        HeadwiseError: there is no such file, or it cannot be read.
    """
    if "\0" in os.fspath(path):
        raise HeadwiseError(f"a history must be a file; got {os.fspath(path)!r}")
    content, is_cut = read_last_lines(Path(path), what="a history", max_bytes=MAX_READ_BYTES, error=HeadwiseError)
    steps: list[TrackedStep] = []
    foreign: list[int] = []
    for number, line in enumerate(content.split(b"\n"), start=1):
        if not line.strip():
            continue
        step = _read_line(line)
        if step is None:
            foreign.append(number)
        else:
            steps.append(step)
    notes = [f"Of the history the last {MAX_READ_BYTES // 2**20} MiB are read."] if is_cut else []
    if foreign:
        notes.append(f"Of the history {_name_lines(foreign, is_cut)} left out: cut short, or not written by headwise.")
    return tuple(steps), tuple(notes)


def list_recent(steps: tuple[TrackedStep, ...]) -> tuple[tuple[TrackedStep, ...], tuple[str, ...]]:
    """Return the steps that an answer lists, the last ones; a note says so where there are others."""
    if len(steps) <= MAX_LISTED:
        return steps, ()
    return steps[-MAX_LISTED:], (f"Of {len(steps):,} steps of the history the last {MAX_LISTED} are listed.",)


def _name_lines(numbers: list[int], is_cut: bool) -> str:
    """Name lines by their numbers, which nobody knows of a file that was not read from its beginning."""
    if is_cut:
        return "one line is" if len(numbers) == 1 else f"{len(numbers)} lines are"
    return f"line {numbers[0]} is" if len(numbers) == 1 else f"{len(numbers)} lines, the first is {numbers[0]}, are"


def summarise_history(steps: Iterable[TrackedStep]) -> tuple[TrackedAccuracy, ...]:
    """Say for each device, in the order in which they came, how near the predicted peaks are to the measured ones."""
    by_device: dict[str, list[TrackedStep]] = {}
    for step in steps:
        by_device.setdefault(step.device, []).append(step)
    return tuple(_summarise(device, of_device) for device, of_device in by_device.items())


def _summarise(device: str, steps: list[TrackedStep]) -> TrackedAccuracy:
    errors = [error for step in steps if (error := step.error) is not None]
    return TrackedAccuracy(
        device=device,
        num_steps=len(steps),
        num_predicted=len(errors),
        median_error=median(map(abs, errors)) if errors else None,
        worst_error=max(errors, key=abs) if errors else None,
    )


def _read_line(line: bytes) -> TrackedStep | None:
    """Read a line; None if it does not hold all that a step has, each of its kind. What else it holds is left out."""
    if len(line) > MAX_LINE_BYTES:
        return None
    try:
        content = json.loads(line)
    except (ValueError, RecursionError):  # no JSON or no UTF-8, numbers of thousands of digits, endless nesting
        return None
    if not isinstance(content, dict):
        return None
    values: dict[str, Any] = {}
    for field in fields(TrackedStep):
        value = content.get(field.name, None if field.default is MISSING else field.default)
        if not _is_sound(field.name, value, get_args(field.type) or (field.type,)):
            return None
        values[field.name] = value
    return TrackedStep(**values)


def _is_sound(name: str, value: object, kinds: tuple[Any, ...]) -> bool:
    """Tell whether a value of a line is one that a field of a step can have."""
    if type(value) not in kinds:
        return False
    if isinstance(value, int):
        return 0 <= value < MAX_NUMBER
    if not isinstance(value, str):
        return True
    return _is_time(value) if name == "when" else value.isprintable() and 0 < len(value) <= MAX_NAME_LENGTH


def _is_time(text: str) -> bool:
    try:
        return datetime.fromisoformat(text).utcoffset() is not None
    except ValueError:
        return False
