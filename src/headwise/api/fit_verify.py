"""The changes of a plan, made to a small model of the same build and run here: predicted beside measured."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import nn

from headwise.api.example import example_inputs
from headwise.api.fit_results import FitVerification, VerifiedChange
from headwise.api.prediction import predict
from headwise.api.running import explained
from headwise.api.small_changes import change_model
from headwise.api.small_copy import SmallCopy, build_copy, make_small_copy
from headwise.api.subject import find_content
from headwise.api.summary import default_seq, summarise
from headwise.api.verify import PEAK_TOLERANCE
from headwise.config.huggingface import read_config
from headwise.config.model import ModelConfig
from headwise.cost.devices import usable_ram_bytes
from headwise.cost.planning.catalogue import CATALOGUE
from headwise.cost.planning.closed_form import ClosedForm
from headwise.cost.planning.option import Made, Place
from headwise.cost.planning.setup import Setup
from headwise.cost.planning.verdict import Judge
from headwise.cost.results import Device
from headwise.cost.running.measure import measure_training_step
from headwise.cost.running.prepare import make_optimizers
from headwise.cost.tracing.quiet import quiet_trace
from headwise.cost.tracing.trace import step_memory, trace_step
from headwise.cost.workload import Workload
from headwise.errors import HeadwiseError, UnsupportedError

MIN_BATCH, MIN_SEQ = 2, 16  # both can be halved, and a text is longer than the small model's windows
MAX_SEQ, MAX_TOKENS = 128, 512  # a step takes some hundredths of a second
USUAL_BATCH, USUAL_SEQ = 4, 62  # where nothing tells the proportions of the large model
MAX_VOCAB = 4096
BASE = "base"
SIZES = ("accumulate", "batch", "seq")  # changes that a plan makes as large as a device needs; here by half
NARROW = (
    "On a CPU some kernels take memory for themselves in bfloat16 and float16, which is not modelled: more is measured "
    "there than predicted."
)
OF_DEVICES = "Changes of the number of devices are not made here."
NO_KEY = "its config has no key that makes these layers and changes nothing else"


class _Trial(NamedTuple):
    """A change, the step with it, and the model with it."""

    key: str
    words: str
    workload: Workload
    small: SmallCopy


def verify_changes(model: Any, workload: Workload, *, head: bool = False) -> FitVerification:
    """Make each change of a plan that this machine can run to a small model of the same build, and run it.

    A change of the model (fewer heads, a window) is made to the config of the small one, where its family has a key for
    it, and that model is built and run.

    The small model keeps the proportions that decide what a change frees, as far as a few seconds allow: scores to
    hidden states (length / width of a head), hidden states to weights (batch / heads), the vocabulary to the width.
    The first row is the step without a change; what a change frees is the difference. Saved bytes must be equal, peaks
    within 1 %. What is predicted is the closed form's; of a family without one, the trace's. All of it runs on the CPU,
    in one thread, on random weights; the random state and the number of threads are then as they were.

    Args:
        model: a preset, a config.json or a checkpoint folder.
        workload: the step of the plan, phase "train"; its device does not matter.
        head: read a bare model as its family's language model.

    Raises:
        UnsupportedError: another phase, or the step itself cannot be run here.
        ModelError: MODEL is no config that can be scaled down.
        HeadwiseError: MODEL cannot be found or read, or its module cannot be built or run.
    """
    if workload.phase != "train":
        raise UnsupportedError(f"changes are verified on training steps; got phase {workload.phase!r}: leave it out")
    small = make_small_copy(model, head=head, resize=_with_vocabulary)
    with quiet_trace(), _plain_kernels(), torch.random.fork_rng(devices=()):
        base, notes = _small_workload(small, _large_config(model, head), workload)
        rows = [_run(_Trial(BASE, "no change", base, small))]
        trials, refusals = _trials_of_model(small, base)
        notes += refusals
        for trial in [*_trials(small, base), *trials]:
            try:
                rows.append(_run(trial))
            except HeadwiseError as error:
                notes.append(_not_run(trial.words, error))
    if any(_is_short_alone(row) for row in rows):
        notes.append(NARROW)
    return FitVerification(
        model=summarise(small.config, name=f"{small.name}, scaled down", source=small.name),
        workload=base,
        changes=tuple(rows),
        notes=(*small.notes, *notes, OF_DEVICES),
    )


def _not_run(words: str, reason: object) -> str:
    return f"Not run here: {words}: {str(reason).rstrip('.')}."


def _run(trial: _Trial) -> VerifiedChange:
    """Run a step, and put what is predicted beside it."""
    small, workload = trial.small, trial.workload
    with explained(small.name):
        inputs = example_inputs(small.module, batch=workload.batch, seq=workload.seq)
        measured = measure_training_step(small.module, inputs, workload=workload)
        predicted = predict(small.config, workload) or step_memory(trace_step(small.module, inputs, workload))
    is_near = abs(predicted.peak_bytes - measured.peak_bytes) <= PEAK_TOLERANCE * measured.peak_bytes
    return VerifiedChange(
        key=trial.key,
        change=trial.words,
        predicted_peak_bytes=predicted.peak_bytes,
        measured_peak_bytes=measured.peak_bytes,
        predicted_saved_bytes=predicted.saved_bytes,
        measured_saved_bytes=measured.saved_bytes,
        tolerance=PEAK_TOLERANCE,
        holds=is_near and predicted.saved_bytes == measured.saved_bytes,
    )


def _is_short_alone(row: VerifiedChange) -> bool:
    """Tell whether nothing is wrong with a row but that more was measured than predicted."""
    is_saved_right = row.predicted_saved_bytes == row.measured_saved_bytes
    return not row.holds and is_saved_right and row.predicted_peak_bytes < row.measured_peak_bytes


def _trials(small: SmallCopy, base: Workload) -> Iterator[_Trial]:
    """Give the changes of a plan that leave the model as it is and take one device, and those of the step's size."""
    for key, made in _changes(small, base):
        if made.setup.config == small.config:
            yield _Trial(key, made.words, made.setup.workload, small)
    if base.attention == "sdpa":
        yield _Trial("eager", "plain attention (eager)", replace(base, attention="eager"), small)
    if base.optimizer != "sgd":
        yield _Trial("sgd", "SGD, which has no states", replace(base, optimizer="sgd"), small)
    half = base.batch // 2
    yield _Trial("accumulate", f"accumulate over 2 passes of {half}", replace(base, batch=half, accumulation=2), small)
    yield _Trial("batch", f"batch {half} in place of {base.batch}", replace(base, batch=half), small)
    if small.config is None or small.config.patches is None:
        yield _Trial("seq", f"length {base.seq // 2} in place of {base.seq}", replace(base, seq=base.seq // 2), small)


def _changes(small: SmallCopy, base: Workload) -> Iterator[tuple[str, Made]]:
    """Give the changes of the small model's step that can be made on one device, but for those of its size."""
    setup = Setup(config=small.config, workload=base)
    place = Place(judge=Judge(ClosedForm(), _this_cpu()), num_devices=2)
    for option in CATALOGUE:
        if not option.takes_devices and option.key not in SIZES:
            made = option.make(setup, place)
            if not isinstance(made, str):
                yield option.key, made


def _trials_of_model(small: SmallCopy, base: Workload) -> tuple[list[_Trial], list[str]]:
    """Return the changes of the model, each with a small model that has it, and notes on those that have none."""
    config = small.config
    if config is None or predict(config, base) is None:
        return [], []
    trials, notes = [], []
    made = {key: one for key, one in _changes(small, base) if one.setup.config != config}
    for change in change_model(config, small.content, made, seq=base.seq):
        try:
            changed = build_copy(change.content, small.name)
            if changed.config is None or changed.config.blocks != change.blocks:
                raise UnsupportedError(NO_KEY)
            trials.append(_Trial(change.key, change.words, base, changed))
        except HeadwiseError as error:
            notes.append(_not_run(change.words, error))
    return trials, notes


def _large_config(model: Any, head: bool) -> ModelConfig | None:
    content = find_content(model)
    try:
        return read_config(content, name=str(model), head=head)
    except HeadwiseError:  # the small one says so
        return None


def _with_vocabulary(content: Mapping[str, Any], small: Mapping[str, Any]) -> Mapping[str, Any]:
    """Give the small model as many words for its width as the large one has."""
    try:
        large = read_config(content, name="")
        width = read_config(small, name="").embed_dim
    except HeadwiseError:
        return small
    if "vocab_size" not in small:
        return small
    share = large.vocab_size * width // large.embed_dim
    return {**small, "vocab_size": min(max(small["vocab_size"], share), MAX_VOCAB)}


def _small_workload(small: SmallCopy, large: ModelConfig | None, workload: Workload) -> tuple[Workload, list[str]]:
    """Return the step in proportion to the small model, as this machine can run it; notes say what is another."""
    notes = []
    batch, seq = _small_size(small, large, workload)
    base = replace(workload, batch=batch, seq=seq, device="cpu", frozen_layers=0)
    if workload.frozen_layers and small.config is not None and large is not None:
        share = workload.frozen_layers * small.config.num_layers // large.num_layers
        base = replace(base, frozen_layers=max(share, 1))
    try:
        make_optimizers(nn.Linear(1, 1), base)
    except UnsupportedError as error:
        base = replace(base, optimizer="adamw", optimizer_step="loop")
        notes.append(f"AdamW runs in place of {workload.optimizer}: {error}.")
    return base, notes


def _small_size(small: SmallCopy, large: ModelConfig | None, workload: Workload) -> tuple[int, int]:
    """Return batch and length with the proportions of the large model's step."""
    if large is None or small.config is None:
        return USUAL_BATCH, min(USUAL_SEQ, default_seq(small.content))
    before, after = (summarise(config, name="", source="") for config in (large, small.config))
    assert before.head_dim and after.head_dim and before.num_heads and after.num_heads
    seq = _within(workload.seq * after.head_dim // before.head_dim, MIN_SEQ, MAX_SEQ)
    seq = min(seq, small.config.position_table_size or seq)
    if small.config.patches is not None:
        seq = small.config.patches.num_tokens
    batch = _within(workload.batch * after.num_heads // before.num_heads, MIN_BATCH, max(MAX_TOKENS // seq, MIN_BATCH))
    return batch - batch % 2, seq


def _within(value: int, low: int, high: int) -> int:
    return min(max(value, low), high)


def _this_cpu() -> Device:
    return Device(
        name="cpu",
        description="this machine's CPU",
        memory_bytes=usable_ram_bytes(),
        kind="cpu",
        source="the operating system",
        date="",
    )


@contextmanager
def _plain_kernels() -> Iterator[None]:
    """Keep what kernels take for themselves small: one thread, since each has its own, and no oneDNN.

    oneDNN copies the factors of products in bfloat16 and float16; in the small model that is several percent.
    """
    set_flags: Any = torch.backends.mkldnn.set_flags
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    is_enabled, *_others = set_flags(_enabled=False, _fp32_precision=None)
    try:
        yield
    finally:
        set_flags(_enabled=is_enabled, _fp32_precision=None)
        torch.set_num_threads(num_threads)
