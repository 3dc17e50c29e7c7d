"""`headwise.oom`: what an out-of-memory message is about, and what to change."""

import os
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headwise.api.fit_door import check_devices
from headwise.api.fit_results import OomAnswer
from headwise.api.fit_subject import find_subject
from headwise.api.oom_changes import KnownStep, check_known, with_changes
from headwise.api.summary import summarise
from headwise.config.checks import require_instance, require_size, shown
from headwise.config.model import ModelConfig
from headwise.cost.devices import HERE, find_device, kernel_note_of, usable_ram_bytes
from headwise.cost.oom.card import card_note, find_card
from headwise.cost.oom.kinds import diagnose
from headwise.cost.oom.messages import read_message
from headwise.cost.oom.results import OomMessage
from headwise.cost.oom.solve import solve
from headwise.cost.oom.steps import Hints
from headwise.cost.oom.traceback import operation_of
from headwise.cost.results import Device
from headwise.cost.workload import Workload
from headwise.errors import HeadwiseError, TextError

if TYPE_CHECKING:
    from torch import nn

MAX_STREAM_BYTES = 2**30
MAX_LOG_BYTES = 4 * 2**20  # the end of a longer log is read: a failure is the last thing in it
LOG_SUFFIXES = (".log", ".txt", ".out", ".err")
NO_MODEL = "Without a model no changes can be reckoned: give model (--model), and batch and seq where known."
THIS_COMPUTER = "The message tells no memory of the computer: that of this one is taken; name another with gpu (--gpu)."


def oom(
    message: str,
    *,
    model: "str | os.PathLike[str] | ModelConfig | nn.Module | None" = None,
    batch: int | None = None,
    seq: int | None = None,
    gpu: str | Device | None = None,
    head: bool = False,
    num_gpus: int = 8,
    **step: Any,
) -> OomAnswer:
    """Read an out-of-memory message, with the traceback and the log around it, and say what it is about.

    Args:
        message: the text, in any of torch's wordings.
        model: MODEL that ran, in any form of the command line, or a ModelConfig or a module in hand. Default: not
            known; then tensors of common shapes are tried.
        batch: texts in the step. Default: solved for.
        seq: tokens per text. Default: solved for.
        gpu: the device: a name of the catalogue, or a Device. Default: one of the capacity that the message tells.
        head: read a bare model as its family's language model.
        num_gpus: devices of the shardings among the changes.
        **step: what is known of the step: phase, precision, optimizer, optimizer_step, attention, checkpoint, loss,
            dropout, compute_capability. None = not known.

    Raises:
        TextError: the text holds no out-of-memory message.
        HeadwiseError: MODEL cannot be found or read, or what is known of the step is not possible.
    """
    require_instance("message", message, str)
    for name, value in (("batch", batch), ("seq", seq)):
        if value is not None:
            require_size(name, value)
    check_devices(num_gpus)
    hints = _hints(step)
    read = read_message(message)
    device, notes = _find_device(read, gpu, hints.compute_capability)
    if hints.compute_capability is None and device is not None:
        hints = replace(hints, compute_capability=device.compute_capability)
    subject = None if model is None else find_subject(model, head=head)
    config = None if subject is None else subject.config
    if subject is not None:
        check_known(subject, hints, batch=batch, seq=seq)
    candidates = solve(read, config, hints=hints, operation=operation_of(read.traceback), batch=batch, seq=seq)
    kind, evidence, advice = diagnose(read)
    answer = OomAnswer(
        kind=kind,
        requested_bytes=_middle(read.requested_low_bytes, read.requested_high_bytes),
        message=read,
        evidence=evidence,
        advice=advice,
        candidates=candidates,
        model=None if subject is None else summarise(config, name=subject.name, source=subject.source),
        notes=notes,
    )
    if subject is None:
        return replace(answer, notes=(NO_MODEL,))
    known = KnownStep(hints=hints, batch=batch, seq=seq, device=device, num_gpus=num_gpus)
    return with_changes(answer, subject, known)


def read_text(source: str) -> str:
    """Return the text of a file where `source` is the path of one, else `source` itself.

    Raises:
        TextError: the file cannot be read, or `source` looks like the path of a file and there is none.
    """
    try:
        path = Path(source)
        is_file, is_folder = path.is_file(), path.is_dir()
    except (OSError, ValueError):  # too long for a path, or no path at all
        is_file = is_folder = False
    if not is_file:
        if is_folder and source:
            raise TextError(f"a log must be a file; {shown(source)} is a folder")
        if _is_like_path(source):
            raise TextError(f"there is no file {shown(source)}: give the path of a log, or the message itself")
        return source
    try:
        with path.open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - MAX_LOG_BYTES))
            return _decode(file.read(MAX_LOG_BYTES))
    except OSError as error:
        raise TextError(f"a log {source} cannot be read: {error.strerror or error}") from None


def _is_like_path(source: str) -> bool:
    """Tell whether a word was meant as a path; a message has blanks."""
    is_word = bool(source) and not any(map(str.isspace, source))
    return is_word and (source.lower().endswith(LOG_SUFFIXES) or "/" in source or "\\" in source)


def read_stream(stream: Any) -> str:
    """Return the end of what a text stream such as standard input holds, whatever its bytes.

    Raises:
        TextError: it is closed, or does not end.
    """
    if stream is None:
        raise TextError("standard input must be open, or a message or a file be given; it is closed")
    end, num_bytes = b"", 0
    while block := stream.buffer.read(MAX_LOG_BYTES):
        end = (end + block)[-MAX_LOG_BYTES:]
        num_bytes += len(block)
        if num_bytes > MAX_STREAM_BYTES:
            raise TextError(f"standard input must end within {MAX_STREAM_BYTES // 2**20} MiB; got more")
    return _decode(end)


def _decode(log: bytes) -> str:
    return log.decode("utf-8", errors="replace")


def _hints(step: dict[str, Any]) -> Hints:
    """Return what is known of the step; Workload says what is possible.

    Raises:
        HeadwiseError: a name or a value is none of a step's.
    """
    known = {field.name for field in fields(Hints)}
    for name in step:
        if name not in known:
            raise HeadwiseError(f"what is known of a step must be one of {', '.join(sorted(known))}; got {name}")
    given = {name: value for name, value in step.items() if value is not None}
    Workload(batch=1, seq=1, **given)
    return Hints(**given)


def _find_device(
    message: OomMessage, gpu: str | Device | None, capability: tuple[int, int] | None
) -> tuple[Device | None, tuple[str, ...]]:
    """Return the device that ran out of memory, None where nothing tells its memory, and what is assumed of it."""
    if gpu is not None:
        require_instance("gpu", gpu, Device if isinstance(gpu, Device) else str)
        device = gpu if isinstance(gpu, Device) else find_device(gpu)
        return device, _kernel_notes(device)
    if message.backend == "cpu":
        computer = Device(
            name=HERE,
            description="this computer",
            memory_bytes=usable_ram_bytes(),
            kind="cpu",
            source="the operating system",
            date="",
        )
        return computer, (THIS_COMPUTER,)
    found, note = find_card(message, capability), card_note(message, capability)
    return found, ((note,) if note else ()) + (_kernel_notes(found) if found else ())


def _kernel_notes(device: Device) -> tuple[str, ...]:
    note = kernel_note_of(device)
    return () if note is None else (note[0].upper() + note[1:] + ".",)


def _middle(low: int | None, high: int | None) -> int | None:
    """Return the size that a message prints: of the sizes that print so, the one in the middle."""
    return None if low is None or high is None else (low + high + 1) // 2
