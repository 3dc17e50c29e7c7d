"""The folder of one run: what was run and where, a line a step, and the state that it goes on from after a kill."""

import json
import os
import platform
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from headwise.errors import OutputError
from headwise.files import output_errors, whole_file

RUN, METRICS, STATE, BEST = "run.json", "metrics.jsonl", "state.safetensors", "best.safetensors"


class RunFolder:
    """Files of one run, each of which is whole at any moment.

    `run.json`: settings and environment; `metrics.jsonl`: a line for each look, in order; `state.safetensors`: all that
    a training goes on from; `best.safetensors`: the weights that were best on the validation set. A process that is
    killed loses what came after the last state, no more: lines beyond it are dropped when the run goes on.

    Args:
        path: the folder, made where it is missing.
        settings: of the run, as JSON can hold them.

    Raises:
        OutputError: the folder cannot be written, or holds a run of other settings.
    """

    def __init__(self, path: str | os.PathLike[str], settings: Mapping[str, Any]):
        self.path = Path(path)
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
        self.write(RUN, json.dumps({"settings": settings, "environment": environment()}, indent=1) + "\n")

    def append(self, record: Mapping[str, Any]) -> None:
        """Add a line to the metrics."""
        with output_errors(self.path / METRICS), (self.path / METRICS).open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")

    def records(self) -> list[dict[str, Any]]:
        """Return the metrics, but for a last line that was cut off as it was written."""
        return list(_whole_lines(self.path / METRICS))

    def save(self, tensors: Mapping[str, Tensor], numbers: Mapping[str, Any]) -> None:
        """Keep a state in the place of the one before."""
        self._save(STATE, tensors, numbers)

    def save_best(self, tensors: Mapping[str, Tensor], numbers: Mapping[str, Any]) -> None:
        """Keep the best weights in the place of those before."""
        self._save(BEST, tensors, numbers)

    def load(self) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        """Return the last state, and drop the metrics that came after it; None: the run begins anew.

        Raises:
            OutputError: the file is not one of ours.
        """
        found = self._load(STATE)
        step = -1 if found is None else found[1]["step"]
        kept = [record for record in self.records() if record["step"] <= step]
        self.write(METRICS, "".join(json.dumps(record) + "\n" for record in kept))
        return found

    def load_best(self) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        """Return the best weights; None: there are none yet."""
        return self._load(BEST)

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


def environment() -> dict[str, Any]:
    """Return what numbers may depend on beside the settings."""
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "machine": platform.machine(),
        "system": platform.system(),
        "threads": torch.get_num_threads(),
        "capability": torch.backends.cpu.get_cpu_capability(),
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
    }


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
            yield record
