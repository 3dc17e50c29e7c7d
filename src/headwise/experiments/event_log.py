"""The lines of a run's looks as TensorBoard reads them, where that is installed."""

import math
from collections.abc import Iterable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from headwise.files import output_errors


class EventLog:
    """A folder of TensorBoard's event files that says what a run's lines say, each number by its name and step.

    Written by torch's `SummaryWriter`. When a run goes on, the files are written anew from the lines that stayed, so
    that no step stands there twice, and what a kill cut off is gone. Without TensorBoard nothing is written.

    Args:
        path: the folder.
    """

    def __init__(self, path: Path):
        self.path = path
        self._writer: Any = None

    def begin(self, records: Iterable[Mapping[str, Any]]) -> None:
        """Begin with the lines that stand already.

        Raises:
            OutputError: the folder cannot be written.
        """
        self.close()
        if find_spec("tensorboard") is None:
            return
        from torch.utils.tensorboard import SummaryWriter

        with output_errors(self.path):
            for old in self.path.glob("events.out.tfevents.*"):
                old.unlink()
            self._writer = SummaryWriter(str(self.path))
        for record in records:
            self.append(record)

    def append(self, record: Mapping[str, Any]) -> None:
        """Add the numbers of a line, all but its step, and see that they are written.

        Raises:
            OutputError: the file cannot be written.
        """
        if self._writer is None:
            return
        with output_errors(self.path):
            for name, value in record.items():
                if name != "step":
                    number = math.nan if value is None else float(value)
                    self._writer.add_scalar(_tag(name), number, record["step"])
            self._writer.flush()

    def close(self) -> None:
        """Let go of the file."""
        if self._writer is not None:
            writer, self._writer = self._writer, None
            with output_errors(self.path):
                writer.close()


def _tag(name: str) -> str:
    """Return TensorBoard's name of a number: those of training and of validation stand together each."""
    for part in ("train", "validation"):
        if name.startswith(f"{part}_"):
            return f"{part}/{name.removeprefix(f'{part}_')}"
    return f"optimizer/{name}"
