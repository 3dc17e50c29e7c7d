"""What a fit would change about the step that ran out of memory, and what else was alive in it."""

from contextlib import suppress
from dataclasses import dataclass, fields, replace
from typing import Any

from headwise.api.fit_results import OomAnswer
from headwise.api.fit_subject import FitSubject, length_of
from headwise.api.prediction import with_usual_attention
from headwise.config.model import ModelConfig
from headwise.cost.flops import require_lengths
from headwise.cost.oom.instant import find_instant
from headwise.cost.oom.results import Candidate
from headwise.cost.oom.steps import Hints
from headwise.cost.planning.closed_form import ClosedForm
from headwise.cost.planning.moments import describe_moment
from headwise.cost.planning.plan import plan
from headwise.cost.planning.positions import with_positions
from headwise.cost.planning.rank import list_changes
from headwise.cost.planning.results import Change, Path
from headwise.cost.planning.setup import Predictor, Setup
from headwise.cost.results import Device, Ledger, LedgerEntry
from headwise.cost.workload import Workload
from headwise.errors import HeadwiseError, UnsupportedError
from headwise.results import Result, format_bytes

NUM_ALIVE = 10
HELD_SHARE = 1.5
"""From so many times the peak of a step on, what a message says was held cannot have been that step's alone."""

NO_CONFIG = "The config of {name} is of a family without a closed form: tensors of common shapes were tried."
NO_CANDIDATE = "No tensor of {name} has this size in the steps that were tried: give batch and seq to reckon changes."
NO_SIZE = "The message names no size: give batch and seq to reckon the changes of that step."
OF_CANDIDATE = "The changes are reckoned for the likeliest candidate's step: {step}."
OF_THE_GIVEN = "No candidate is of the step that was given; the changes are reckoned for it: {step}."
OPEN_SIZES = "Of that step the {names} cannot be told from the size of the tensor: 1 was taken; give what it was."
NO_CAPACITY = "The memory of the device is not known: name it with gpu (--gpu) to know what fits."
OTHER_STEP = (
    "That step has {peak} of tensors at its peak, and the message says that {held} were held: another batch or length, "
    "another model than {name}, or tensors beside the step."
)
CANNOT = "No changes are reckoned: {error}."

# A step fits it in any size: what changes free does not depend on the device, and what fits is then left out.
_ENDLESS = Device(name="", description="the device", memory_bytes=2**80, kind="cuda", source="", date="")


@dataclass(frozen=True, kw_only=True)
class KnownStep(Result):
    """What is known of a step beside its message; None = not known."""

    hints: Hints
    batch: int | None
    seq: int | None
    device: Device | None
    num_gpus: int


def with_changes(answer: OomAnswer, subject: FitSubject, known: KnownStep) -> OomAnswer:
    """Add what else was alive, and what a fit would change.

    The step is the likeliest candidate's; where there is none, it is the one of the batch and length that are known,
    with what is usual of the rest.

    Args:
        answer: what is known without.
        subject: the model.
        known: what is known of the step.
    """
    notes = [*answer.notes]
    if subject.config is None:
        notes.append(NO_CONFIG.format(name=subject.name))
    candidate = next((one for one in answer.candidates if one.workload is not None), None)
    workload = _workload(candidate, subject.config, known)
    if workload is None:
        if subject.config is not None:
            notes.append(NO_SIZE if answer.requested_bytes is None else NO_CANDIDATE.format(name=subject.name))
        return replace(answer, notes=tuple(notes))
    notes.append((OF_THE_GIVEN if candidate is None else OF_CANDIDATE).format(step=_describe(workload)))
    if candidate is not None:
        notes += _notes_on_open_sizes(candidate, known)
    setup = Setup(config=subject.config, workload=workload)
    try:
        is_given = candidate is not None or known.hints.attention is not None
        predictor, setup, traced = subject.predictor_of(setup, is_attention_given=is_given)
        alive, moment = _find_alive(answer, candidate, setup, predictor, known.device)
        peak_bytes = predictor.step(setup).peak_bytes
        changes, path = _find_changes(predictor, setup, known)
    except HeadwiseError as error:
        return replace(answer, workload=workload, notes=(*notes, CANNOT.format(error=str(error).rstrip("."))))
    held = answer.message.allocated_bytes
    if held is not None and held > HELD_SHARE * peak_bytes:
        notes.append(OTHER_STEP.format(peak=format_bytes(peak_bytes), held=format_bytes(held), name=subject.name))
    if known.device is None and not answer.notes:  # else they say why
        notes.append(NO_CAPACITY)
    return replace(
        answer,
        workload=setup.workload,
        peak_moment=moment,
        alive=alive,
        changes=changes,
        path=() if path is None else path.changes,
        path_peak_bytes=None if path is None else path.peak_bytes,
        notes=(*notes, *traced),
    )


def check_known(subject: FitSubject, hints: Hints, *, batch: int | None, seq: int | None) -> None:
    """Raise ConfigError where what is known of a step is none that the model can make, as `fit` does."""
    if subject.config is None:
        return
    length = length_of(subject, seq)
    require_lengths(subject.config, batch=batch or 1, seq=length)
    workload = _step_of(subject.config, hints, batch=batch or 1, seq=length)
    with suppress(UnsupportedError):  # no closed form tells of it, which is no reason to refuse
        ClosedForm().step(Setup(config=subject.config, workload=workload))


def _workload(candidate: Candidate | None, config: ModelConfig | None, known: KnownStep) -> Workload | None:
    """Return the step to reckon with; None where too little is known of it."""
    if candidate is not None and candidate.workload is not None:
        of_candidate = candidate.workload
        return replace(of_candidate, batch=known.batch or of_candidate.batch, seq=known.seq or of_candidate.seq)
    if known.batch is None or known.seq is None:
        return None
    device = "cuda" if known.device is None else known.device.step_device
    return _step_of(config, known.hints, batch=known.batch, seq=known.seq, device=device)


def _step_of(config: ModelConfig | None, hints: Hints, *, batch: int, seq: int, device: str = "cuda") -> Workload:
    """Return the step of a batch and length that is known, with what is usual of the rest."""
    has_scores = config is not None and config.head is not None and config.head.kind == "language_model"
    given: dict[str, Any] = {
        field.name: value for field in fields(Hints) if (value := getattr(hints, field.name)) is not None
    }
    is_training = given.get("phase", "train") == "train"
    usual: dict[str, Any] = {"loss": "cross_entropy" if has_scores and is_training else "sum", "device": device}
    workload = Workload(batch=batch, seq=seq, **{**usual, **given})
    return workload if hints.attention is not None else with_usual_attention(config, workload)


def _notes_on_open_sizes(candidate: Candidate, known: KnownStep) -> list[str]:
    sizes = (("batch", candidate.batch, known.batch), ("length", candidate.seq, known.seq))
    missing = [name for name, found, given in sizes if found is None and given is None]
    return [OPEN_SIZES.format(names=" and ".join(missing))] if missing else []


def _find_alive(
    answer: OomAnswer, candidate: Candidate | None, setup: Setup, predictor: Predictor, device: Device | None
) -> tuple[tuple[LedgerEntry, ...], str]:
    """Return the largest tensors alive just before the candidate is made, else at the peak, and when that is."""
    config = setup.config
    if candidate is not None and config is not None:
        instant = find_instant(
            with_positions(config, setup.workload.seq),
            setup.workload,
            candidate,
            observed_bytes=answer.message.allocated_bytes,
            limit_bytes=None if device is None else device.memory_bytes,
        )
        if instant is not None:
            return instant.alive[:NUM_ALIVE], describe_moment(instant.label, config)
    ledger: Ledger = predictor.ledger(setup)
    return tuple(ledger.alive(ledger.peak)[:NUM_ALIVE]), describe_moment(ledger.moments[ledger.peak], config)


def _find_changes(predictor: Predictor, setup: Setup, known: KnownStep) -> tuple[tuple[Change, ...], Path | None]:
    if known.device is None:
        changes = list_changes(predictor, setup, _ENDLESS, num_devices=known.num_gpus)
        return tuple(replace(change, fits=None) for change in changes), None
    planned = plan(predictor, setup, known.device, num_devices=known.num_gpus)
    return planned.changes, planned.paths[0] if planned.paths else None


def _describe(workload: Workload) -> str:
    parts = (workload.phase, f"batch {workload.batch:,}", f"length {workload.seq:,}", workload.precision)
    return ", ".join((*parts, f"{workload.attention} attention", f"checkpoint {workload.checkpoint}"))
