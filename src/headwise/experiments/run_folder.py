"""The folder of one run: what was run and where, a line a step, and the state that it goes on from after a kill."""

import fcntl
import json
import math
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from headwise.errors import OutputError
from headwise.experiments.event_log import EventLog
from headwise.experiments.machine import environment
from headwise.experiments.run_result import Run
from headwise.files import NO_LOCKS, output_errors, whole_file
from headwise.results import plain

RUN, METRICS, STATE, BEST = "run.json", "metrics.jsonl", "state.safetensors", "best.safetensors"
RESULT, EVENTS = "result.json", "tensorboard"


class RunFolder:
    """Files of one run, each of which is whole at any moment.

    `run.json`: settings and environment, the first one and those of every time that the run went on; `metrics.jsonl`: a
    line for each look, in order; `tensorboard/`: the same for TensorBoard, where that is installed;
    `state.safetensors`: all that a training goes on from; `best.safetensors`: the weights that were best on the
    validation set; `result.json`: what came out. A process that is killed loses what came after the last state, no
    more: lines beyond it are dropped when the run goes on.

    Args:
        path: the folder, made where it is missing.
        settings: of the run, as JSON can hold them.
        where: what else its numbers may depend on. Default: this machine's environment.

    Raises:
        OutputError: the folder cannot be written, or holds a run of other settings.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        settings: Mapping[str, Any],
        where: Mapping[str, Any] | None = None,
    ):
        self.path = Path(path)
        self._environment = environment() if where is None else dict(where)
        self._events = EventLog(self.path / EVENTS)
        with output_errors(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
        run = self.path / RUN
        if run.exists():
            found = _read_json(run)
            if found.get("settings") != json.loads(json.dumps(settings)):
                raise OutputError(
                    f"{str(self.path)!r} holds a run of other settings; name another folder, or remove this one"
                )
            return
        self.write(RUN, json.dumps({"settings": settings, "environment": self._environment}, indent=1) + "\n")

    def append(self, record: Mapping[str, Any]) -> None:
        """Add a line to the metrics."""
        with output_errors(self.path / METRICS), (self.path / METRICS).open("a", encoding="utf-8") as file:
            file.write(_line(record))
        self._events.append(record)

    def records(self) -> list[dict[str, Any]]:
        """Return the metrics, but for a last line that was cut off as it was written.

        Raises:
            OutputError: the file is not one of ours.
        """
        found = list(_whole_lines(self.path / METRICS))
        if not all(type(record.get("step")) is int for record in found):
            raise self._damaged_metrics()
        return found

    def _damaged_metrics(self) -> OutputError:
        return OutputError(
            f"{str(self.path / METRICS)!r} lacks lines of its run, or has others; remove {STATE} there to begin anew"
        )

    def save(self, tensors: Mapping[str, Tensor], numbers: Mapping[str, Any]) -> None:
        """Keep a state in the place of the one before."""
        self._save(STATE, tensors, numbers)

    def save_best(self, tensors: Mapping[str, Tensor], numbers: Mapping[str, Any]) -> None:
        """Keep the best weights in the place of those before."""
        self._save(BEST, tensors, numbers)

    def load(self) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        """Return the last state, and drop the metrics that came after it; None: the run begins anew.

        Raises:
            OutputError: the file is not one of ours, or metrics that came before it are not there.
        """
        found = self._load(STATE)
        step = -1 if found is None else found[1]["step"]
        records = [] if found is None else self.records()  # of a run that begins anew none is left
        kept = [record for record in records if record["step"] <= step]
        if found is not None and (not kept or kept[-1]["step"] != step):  # a line is written before its state
            raise self._damaged_metrics()
        self.write(METRICS, "".join(_line(record) for record in kept))
        self._events.begin(kept)
        if found is not None:
            known = _read_json(self.path / RUN)
            known["resumed"] = [*known.get("resumed", []), self._environment]
            self.write(RUN, json.dumps(known, indent=1) + "\n")
        return found

    def load_best(self) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        """Return the best weights; None: there are none yet."""
        return self._load(BEST)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Keep every other process from training here, until this one ends; what is held open is closed then.

        Where the file system has no locks nobody is kept away.

        Raises:
            OutputError: another process is training here.
        """
        with output_errors(self.path):
            lock = os.open(self.path, os.O_RDONLY)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(lock)
            raise OutputError(
                f"another process is at work in {str(self.path)!r}; wait for it, or name another folder"
            ) from error
        except OSError as error:
            if error.errno not in NO_LOCKS:
                os.close(lock)
                raise
        try:
            yield
        finally:
            self._events.close()
            os.close(lock)

    def write_result(self, result: Run) -> None:
        """Keep what came out: the run is done."""
        self.write(RESULT, json.dumps(result.to_dict(), indent=1) + "\n")

    def result(self) -> Run | None:
        """Return what came out; None: the run is not done.

        Raises:
            OutputError: the file is not one of ours.
        """
        if not (self.path / RESULT).exists():
            return None
        known = _read_json(self.path / RESULT)
        try:
            return Run(
                **{
                    **known,
                    **{name: _with_nan(known[name]) for name in ("test", "test_by_length", "further")},
                    "curve": tuple(_with_nan(known["curve"])),
                    "notes": tuple(known["notes"]),
                }
            )
        except (KeyError, TypeError) as error:
            raise OutputError(
                f"{str(self.path / RESULT)!r} is no result of a run, or of another version; remove it to test again"
            ) from error

    def _save(self, name: str, tensors: Mapping[str, Tensor], numbers: Mapping[str, Any]) -> None:
        plain = {key: tensor.detach().cpu().contiguous() for key, tensor in tensors.items()}
        with whole_file(self.path / name) as place:
            try:
                save_file(plain, place, metadata={"numbers": json.dumps(numbers)})
            except SafetensorError as error:  # a full disk, told in its own way
                raise OSError(str(error)) from error

    def _load(self, name: str) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        place = self.path / name
        if not place.exists():
            return None
        try:
            with safe_open(place, framework="pt") as file:
                numbers = json.loads(file.metadata()["numbers"])
            return load_file(place), numbers
        except (SafetensorError, OSError, KeyError, TypeError, ValueError) as error:
            raise OutputError(f"{str(place)!r} is no state of a run, or is damaged; remove it to begin anew") from error

    def write(self, name: str, text: str) -> None:
        """Write a file of text, whole or not at all."""
        with whole_file(self.path / name) as place:
            place.write_text(text, encoding="utf-8")


def _read_json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise OutputError(f"{str(path)!r} is no record of a run; name another folder, or remove it") from error
    return found if isinstance(found, dict) else {}


def _whole_lines(path: Path) -> Iterator[dict[str, Any]]:
    if not path.exists():
        return
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            record = json.loads(line)
        except ValueError:  # cut off by a kill; nothing whole follows
            return
        if isinstance(record, dict):
            yield _with_nan(record)


def _line(record: Mapping[str, Any]) -> str:
    return json.dumps(plain(dict(record))) + "\n"  # JSON has no NaN: null stands for it


def _with_nan(value: Any) -> Any:
    """Return metrics with NaN where JSON has null."""
    if isinstance(value, dict):
        return {name: _with_nan(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_with_nan(each) for each in value]
    return math.nan if value is None else value
