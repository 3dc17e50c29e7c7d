"""`headwise.oom`: what an out-of-memory message is about, and what to change."""

import os
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headwise.api.fit_results import OomAnswer
from headwise.api.fit_subject import FitSubject, find_subject
from headwise.api.summary import summarise
from headwise.config.checks import require_instance, require_size
from headwise.config.model import ModelConfig
from headwise.cost.devices import find_device, this_machine
from headwise.cost.oom.card import find_card
from headwise.cost.oom.kinds import diagnose
from headwise.cost.oom.messages import read_message
from headwise.cost.oom.results import Candidate, OomMessage
from headwise.cost.oom.solve import solve
from headwise.cost.oom.steps import Hints
from headwise.cost.oom.traceback import operation_of
from headwise.cost.planning.closed_form import ClosedForm
from headwise.cost.planning.moments import describe_moment
from headwise.cost.planning.plan import plan
from headwise.cost.planning.positions import with_positions
from headwise.cost.planning.setup import Setup
from headwise.cost.results import Device, Ledger, LedgerEntry
from headwise.cost.workload import Workload
from headwise.errors import HeadwiseError, TextError

if TYPE_CHECKING:
    from torch import nn

MAX_LOG_BYTES = 4 * 2**20  # the end of a longer log is read: a failure is the last thing in it
NUM_ALIVE = 10
NO_MODEL = "Without a model no changes can be reckoned: give --model (model=), and --batch and --seq where known."
NO_CANDIDATE = "No tensor of {name} has this size in the steps that were tried: no changes are reckoned."
ASSUMED = "The changes are reckoned for the likeliest candidate's step: {step}."
NO_CAPACITY = "The message does not tell the memory of the device: give --gpu (gpu=) to know what fits."


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
        **step: what is known of the step: phase, precision, optimizer, optimizer_step, attention, checkpoint, loss.

    Raises:
        TextError: the text holds no out-of-memory message.
        HeadwiseError: MODEL cannot be found or read, or what is known of the step is not possible.
    """
    require_instance("message", message, str)
    for name, value in (("batch", batch), ("seq", seq)):
        if value is not None:
            require_size(name, value)
    read = read_message(message)
    device = _device_of(read, gpu)
    subject = None if model is None else find_subject(model, head=head)
    config = None if subject is None else subject.config
    hints = _hints(step)
    candidates = solve(read, config, hints=hints, operation=operation_of(read.traceback), batch=batch, seq=seq)
    kind, evidence, advice = diagnose(read)
    answer = OomAnswer(
        kind=kind,
        requested_bytes=read.requested_high_bytes,
        message=read,
        evidence=evidence,
        advice=advice,
        candidates=candidates,
        model=None if subject is None else summarise(config, name=subject.name, source=subject.source),
    )
    if subject is None:
        return replace(answer, notes=(NO_MODEL,))
    return _with_changes(answer, subject, device, batch=batch, seq=seq, num_gpus=num_gpus)


def read_text(source: str) -> str:
    """Return the text of a file where `source` is the path of one, else `source` itself.

    Raises:
        TextError: the file cannot be read.
    """
    try:
        is_file = Path(source).is_file()
    except (OSError, ValueError):  # too long for a path, or no path at all
        is_file = False
    if not is_file:
        return source
    try:
        with Path(source).open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - MAX_LOG_BYTES))
            return _decode(file.read(MAX_LOG_BYTES))
    except OSError as error:
        raise TextError(f"a log {source} cannot be read: {error.strerror or error}") from None


def read_stream(stream: Any) -> str:
    """Return the end of what a binary stream holds."""
    end = b""
    while block := stream.read(MAX_LOG_BYTES):
        end = (end + block)[-MAX_LOG_BYTES:]
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
    Workload(batch=1, seq=1, **step)
    return Hints(**step)


def _device_of(message: OomMessage, gpu: str | Device | None) -> Device | None:
    """Return the device that ran out of memory; None where nothing tells its memory."""
    if isinstance(gpu, Device):
        return gpu
    if gpu is not None:
        return find_device(gpu)
    return this_machine() if message.backend == "cpu" else find_card(message)


def _with_changes(
    answer: OomAnswer, subject: FitSubject, device: Device | None, *, batch: int | None, seq: int | None, num_gpus: int
) -> OomAnswer:
    """Add what else was alive, and what a fit would change, for the step of the likeliest candidate."""
    found = next((one for one in answer.candidates if one.workload is not None), None)
    config = subject.config
    if found is None or found.workload is None or config is None:
        return replace(answer, notes=(NO_CANDIDATE.format(name=subject.name),))
    workload = found.workload
    config = with_positions(config, workload.seq)
    predictor = ClosedForm()
    setup = Setup(config=config, workload=workload)
    ledger = predictor.ledger(setup)
    moment = _moment_of(found, ledger)
    notes = [ASSUMED.format(step=_describe(workload))]
    answer = replace(
        answer,
        workload=workload,
        peak_moment=describe_moment(ledger.moments[moment], config),
        alive=tuple(ledger.alive(moment)[:NUM_ALIVE]),
    )
    if device is None:
        return replace(answer, notes=(*notes, NO_CAPACITY))
    planned = plan(predictor, setup, device, num_devices=num_gpus)
    return replace(
        answer,
        changes=planned.changes,
        path=planned.paths[0].changes if planned.paths else (),
        notes=tuple(notes),
    )


def _moment_of(candidate: Candidate, ledger: Ledger) -> int:
    """Return when a tensor of a candidate's shape and dtype is first alive; the peak where none is."""

    def is_it(entry: LedgerEntry) -> bool:
        return (entry.shape, entry.dtype) == (candidate.shape, candidate.dtype)

    born = [entry.born for entry in ledger.entries if is_it(entry)]
    return min(born) if born else ledger.peak


def _describe(workload: Workload) -> str:
    parts = (workload.phase, f"batch {workload.batch:,}", f"length {workload.seq:,}", workload.precision)
    return ", ".join((*parts, f"{workload.attention} attention", f"checkpoint {workload.checkpoint}"))
