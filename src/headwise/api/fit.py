"""`headwise.fit`: does a step fit a device, what fills it, and which single change frees how much."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from headwise.api.fit_door import (
    adapters_of,
    check_devices,
    check_flags,
    check_paths,
    check_progress,
    check_step,
    check_sweep,
    find_fit_device,
)
from headwise.api.fit_notes import notes_on_images, notes_on_length, notes_on_plan, notes_on_sizes
from headwise.api.fit_results import FitPlan
from headwise.api.fit_subject import FitSubject, find_subject, length_of
from headwise.api.history import list_recent, read_history, summarise_history
from headwise.api.images import note_on_image
from headwise.api.prediction import kernel_note, kernel_of, with_usual_attention
from headwise.api.progress import Progress, Steps
from headwise.api.summary import summarise
from headwise.config.model import ModelConfig
from headwise.config.vision_model import ImageConfig
from headwise.cost.devices import HERE, kernel_note_of
from headwise.cost.planner import held_bytes, unmodelled
from headwise.cost.planning.moments import describe_moment, largest_at_peak, timeline
from headwise.cost.planning.plan import Planned, plan
from headwise.cost.planning.positions import with_positions
from headwise.cost.planning.setup import Setup
from headwise.cost.planning.sweep import axis_of, parse_axes
from headwise.cost.results import NO_FUSED_KERNELS, Device
from headwise.cost.roofline import estimate_time
from headwise.cost.sharding.results import Sharding
from headwise.cost.workload import Workload

if TYPE_CHECKING:
    from torch import nn

STEPS = ("reading the model", "planning", "verifying on this machine", "writing the page")
MAX_LISTED = 20_000  # tensors in the answer; a model with more of them is deeper than any published one
QUADRATIC = "That kernel builds the score matrix: the memory of a step grows with the square of the length."


def fit(
    model: "str | os.PathLike[str] | ModelConfig | ImageConfig | nn.Module",
    *,
    batch: int = 1,
    seq: int | None = None,
    image: int | None = None,
    stride: int | None = None,
    gpu: str | Device = HERE,
    gpu_memory: str | None = None,
    head: bool = False,
    lora_rank: int | None = None,
    shard: str | None = None,
    num_gpus: int = 8,
    sweep: Sequence[str] | None = None,
    verify: bool = False,
    history: str | os.PathLike[str] | None = None,
    out: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
    **step: Any,
) -> FitPlan:
    """Say whether a step fits a device, what fills it, and which single change frees how much.

    A preset, a config.json, a checkpoint folder and a ModelConfig are reckoned from the config alone, without torch; a
    family without a closed form, and a module, are traced on tensors without numbers. The step is the one that
    `predict_ledger` describes.

    Args:
        model: MODEL, in any form of the command line, or a config or a module in hand.
        batch: texts, or images, in one pass on one device (default 1).
        seq: tokens per text (default: the smaller of 512 and the model's positions; an image's own number). A length
            beyond the model's table of positions is reckoned with a longer table.
        image: pixels along one side of a square image, for a `PatchEncoder` or a `C3TR`, or the config of one.
        stride: of a C3TR: pixels of the image from one place of its feature map to the next (default 32).
        gpu: the device: a name of the catalogue, "here" for this machine, or a Device.
        gpu_memory: memory of a device of your own, such as "24GiB"; with `gpu`, that device with other memory.
        head: read a bare model as its family's language model.
        lora_rank: train adapters of this rank on queries and values (default: none).
        shard: how the step is spread over `num_gpus` devices: a kind of `Sharding` (default: not at all).
        num_gpus: devices of `shard`, and of the shardings among the changes.
        sweep: ranges of a grid, ("batch=1..64", "seq=512..32768"), or "image=320..1280" in place of seq beside `image`.
        verify: also make the changes to a small model of the same kind, and run it here.
        history: file of the steps that `track(history=...)` kept.
        out: where to write a page; None = no page. An earlier page is replaced, any other file is not.
        progress: called with what is being done, how much is done, and how much there is.
        **step: fields of `Workload`: phase, precision, optimizer, attention, checkpoint, loss, ... Default loss:
            "cross_entropy" of a language model, else "sum".

    Raises:
        HeadwiseError: something asked for cannot be found, read, predicted or written, or is out of range.
    """
    check_progress(progress)
    steps = Steps(progress, STEPS)
    steps.start("reading the model")
    check_devices(num_gpus, shard=shard)
    check_flags(head=head, verify=verify)
    check_paths(history=history, out=out)
    check_step(step, lora_rank=lora_rank)
    check_sweep(sweep)
    device = find_fit_device(gpu, gpu_memory)
    if out is not None:
        from headwise.report.files import check_page_place

        check_page_place(out)
    kept, history_notes = ((), ()) if history is None else read_history(history)
    subject = find_subject(model, head=head, seq=seq, image=image, stride=stride)
    axes = None if sweep is None else parse_axes(sweep, size=axis_of(subject.config))
    workload = _workload(subject, batch=batch, seq=seq, device=device, lora_rank=lora_rank, step=step)
    notes = [*subject.notes, *note_on_image(subject.config), *history_notes, *list_recent(kept)[1]]
    config = subject.config
    if config is not None:
        notes += notes_on_length(config, workload.seq)
        config = with_positions(config, workload.seq)
    sharding = None if shard is None else Sharding(kind=shard, num_devices=num_gpus)  # type: ignore[arg-type]
    setup = Setup(config=subject.config, workload=workload, sharding=sharding)
    steps.start("planning")
    predictor, setup, predictor_notes = subject.predictor_of(setup, is_attention_given="attention" in step)
    workload = setup.workload
    planned = plan(predictor, setup, device, num_devices=num_gpus, axes=axes)
    sizes = [
        *notes_on_images(subject.config, planned, axes),
        *notes_on_sizes(subject.config, workload.seq, planned, axes),
    ]
    notes += [*predictor_notes, *notes_on_plan(predictor, setup, device, planned), *sizes]
    kernel = None if config is None else kernel_of(config, workload)
    device_note = kernel_note_of(device)
    if kernel is not None and device.step_capability == NO_FUSED_KERNELS:
        kernel = replace(kernel, reasons=())  # they speak of CUDA's devices; the note says what is known of this one
    elif kernel is not None and kernel.is_quadratic:
        notes += [kernel_note(device.description, kernel), QUADRATIC]
    if device_note:
        notes.append(device_note)
    result = _answer(subject, setup, device, planned)
    result = replace(
        result,
        kernel=kernel,
        time=None if config is None else estimate_time(config, workload, device, planned.ledger, sharding=sharding),
        sweep=planned.sweep,
        history=list_recent(kept)[0],
        accuracy=summarise_history(kept),
        source_of="trace" if predictor_notes else "config",
        notes=(*notes, *result.notes),
    )
    if verify:
        from headwise.api.fit_verify import verify_changes

        steps.start("verifying on this machine")
        result = replace(result, verification=verify_changes(model, workload, head=head))
    if out is not None:
        from headwise.report.fit_page import write_fit_page

        steps.start("writing the page")
        result = replace(result, page=os.fspath(out))
        write_fit_page(result, out)
    steps.finish()
    return result


def _workload(
    subject: FitSubject, *, batch: int, seq: int | None, device: Device, lora_rank: int | None, step: dict[str, Any]
) -> Workload:
    """Return what is asked of the model, with the defaults that its config decides."""
    config = subject.config
    has_scores = config is not None and config.head is not None and config.head.kind == "language_model"
    is_training = step.get("phase", "train") == "train"
    defaults: dict[str, Any] = {
        "loss": "cross_entropy" if has_scores and is_training else "sum",
        "device": device.step_device,
        "compute_capability": device.step_capability,
        "lora": adapters_of(config, lora_rank),
        **({} if subject.attention is None else {"attention": subject.attention}),
    }
    workload = Workload(batch=batch, seq=length_of(subject, seq), **{**defaults, **step})
    return workload if "attention" in step else with_usual_attention(config, workload)


def _answer(subject: FitSubject, setup: Setup, device: Device, planned: Planned) -> FitPlan:
    verdict, ledger = planned.verdict, planned.ledger
    label = ledger.moments[ledger.peak]
    num_devices = setup.sharding.num_devices if setup.sharding else 1
    parts = unmodelled(
        verdict.peak_bytes,
        device,
        reserved_bytes=verdict.reserved_bytes,
        num_devices=num_devices,
        workload=setup.workload,
    )
    most_bytes = held_bytes(verdict.peak_bytes, verdict.reserved_bytes) + sum(part.high for part in parts)
    notes = [f"The largest {what} was not found in time." for what in _not_found(setup, planned)]
    listed = ledger
    if len(ledger.entries) > MAX_LISTED:
        listed = replace(ledger, entries=tuple(ledger.alive(ledger.peak)[:MAX_LISTED]))
        notes.append(f"Of {len(ledger.entries):,} tensors the {MAX_LISTED:,} largest at the peak are listed.")
    return FitPlan(
        model=summarise(subject.config, name=subject.name, source=subject.source),
        workload=setup.workload,
        sharding=setup.sharding,
        device=device,
        fits=verdict.fits,
        reason=verdict.reason,
        peak_bytes=verdict.peak_bytes,
        reserved_bytes=verdict.reserved_bytes,
        capacity_bytes=device.memory_bytes,
        spare_bytes=device.memory_bytes - most_bytes,
        peak_moment=label,
        peak_label=describe_moment(label, setup.config),
        largest=largest_at_peak(ledger),
        timeline=timeline(ledger),
        ledger=listed,
        kernel=None,
        changes=planned.changes,
        path=planned.paths[0].changes if planned.paths else (),
        paths=planned.paths,
        largest_batch=planned.largest_batch,
        largest_seq=planned.largest_seq,
        largest_image=planned.largest_image,
        unmodelled=parts,
        time=None,
        notes=tuple(notes),
    )


def _not_found(setup: Setup, planned: Planned) -> Iterator[str]:
    if planned.largest_batch is None:
        yield "batch"
    has_fixed_length = setup.config is not None and setup.config.patches is not None
    if planned.largest_seq is None and not has_fixed_length:
        yield "length"
