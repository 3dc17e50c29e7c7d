"""`headwise.make_report`: what a model's attention costs, whether it fits, and what its heads do."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from headwise.api.results import FlopsSection, MemorySection, ParametersSection, Report
from headwise.api.summary import resolve_seq, summarise
from headwise.config.model import ModelConfig
from headwise.cost.devices import find_device, this_machine
from headwise.cost.flops import forward_flops, train_flops
from headwise.cost.kv import kv_cache_bytes, kv_cache_bytes_per_token, score_matrix_bytes
from headwise.cost.memory import predict_step
from headwise.cost.parameters import count_parameters
from headwise.cost.planner import judge
from headwise.cost.results import Device, FlopCount, StepMemory
from headwise.cost.workload import Workload
from headwise.errors import ModelError, TextError
from headwise.inspection.results import Inspection
from headwise.loading.config import Location, load_config, locate
from headwise.results import format_bytes

if TYPE_CHECKING:
    from torch import Tensor, nn

    from headwise.loading.module import LoadedModule

Progress = Callable[[str, int, int], None]
"""Called with what is being done, how many steps are done, and how many there are."""

WEIGHTS_DTYPE = "float32"  # the report loads, trains and looks in float32
MEASURE_SHARE_OF_MEMORY = 0.8  # a step that is predicted above this share of the machine's memory is not tried
STATE_COPIES = 4  # weights, gradients and AdamW's two states: what a step holds at least
DEFAULT_TEXT_TOKENS = 128  # a paragraph of the default text: 126 tokens and the two that BERT puts around them
EXAMPLE_SEQ = 128  # tokens of the example input whose heads are shown where there is no tokenizer
PAPER_ONLY = "A preset or a config has no weights: nothing was measured, and there are no heads to look at."


def make_report(
    model: str | None = None,
    *,
    text: str | Path | None = None,
    batch: int = 1,
    seq: int | None = None,
    gpu: str = "here",
    out: str | Path | None = None,
    progress: Progress | None = None,
) -> Report:
    """Report what a model's attention costs, whether a training step fits, and what its heads do.

    Args:
        model: MODEL, in any form of the command line; None = a small real BERT checkpoint that a package carries.
        text: file of UTF-8 text to look at heads with; None = English prose that ships with Python.
        batch: texts in the step that is counted and weighed (default 1).
        seq: tokens per text there (default: the smaller of 512 and the model's positions).
        gpu: device that the step should fit: a name of the catalogue, or "here" for this machine.
        out: where to write the page; None = no page.
        progress: called with what is being done, the steps done and the steps in all.

    Raises:
        HeadwiseError: something asked for cannot be found, read, run or written.
    """
    started = time.perf_counter()
    step = _Steps(progress)
    device = this_machine() if gpu == "here" else find_device(gpu)
    if out is not None:
        from headwise.report.page import check_writable

        check_writable(Path(out))
    location = locate(model) if model is not None else None
    if location is not None and location.kind in ("preset", "config"):
        if text is not None:
            raise TextError(f"a text needs a model with weights to read it, and {location.text} has none; leave it out")
        report = _report_on_paper(location, batch=batch, seq=seq, device=device)
    else:
        report = _report_on_module(location, text=text, batch=batch, seq=seq, device=device, step=step)
    report = replace(report, seconds=round(time.perf_counter() - started, 2))
    if out is not None:
        from headwise.report.page import write_page

        step("writing the page")
        report = replace(report, page=str(out))
        write_page(report, Path(out))
    step.done()
    return report


class _Steps:
    """Counts the steps of a report for a progress bar."""

    NAMES = (
        "loading the model",
        "counting parameters and FLOPs",
        "measuring a training step",
        "looking at the heads",
        "writing the page",
    )

    def __init__(self, progress: Progress | None):
        self.progress = progress

    def __call__(self, name: str, share: float = 0.0) -> None:
        if self.progress:
            self.progress(name, round(100 * (self.NAMES.index(name) + share)), 100 * len(self.NAMES))

    def done(self) -> None:
        if self.progress:
            self.progress("done", 100 * len(self.NAMES), 100 * len(self.NAMES))


def _report_on_paper(location: Location, *, batch: int, seq: int | None, device: Device) -> Report:
    """Predict everything from a config; nothing is loaded or run."""
    config = load_config(location)
    workload = Workload(batch=batch, seq=resolve_seq(config, seq), device=device.kind)
    return Report(
        model=summarise(config, name=config.name, source=location.text),
        workload=workload,
        parameters=ParametersSection(predicted=count_parameters(config), counted=None, notes=(PAPER_ONLY,)),
        flops=_flops_section(config, workload, counted=None, notes=(PAPER_ONLY,)),
        memory=_memory_section(config, workload, device, predicted_here=None, measured=None, notes=(PAPER_ONLY,)),
        heads=None,
        heads_notes=(PAPER_ONLY,),
    )


def _report_on_module(
    location: Location | None, *, text: str | Path | None, batch: int, seq: int | None, device: Device, step: "_Steps"
) -> Report:
    """Predict from the config, count and measure on the module, and look at its heads on a text."""
    step("loading the model")
    from headwise.api.example import example_inputs
    from headwise.api.running import run_or_explain
    from headwise.cost.flop_counter import count_flops
    from headwise.cost.module_parameters import count_module_parameters
    from headwise.loading.module import load_module, sample_checkpoint

    texts = _read_texts(text)  # before the model, so that a missing file is said at once
    loaded = load_module(location or sample_checkpoint())
    config, module = loaded.config, loaded.module
    attention = getattr(getattr(module, "config", None), "_attn_implementation", None)
    workload = Workload(
        batch=batch,
        seq=resolve_seq(config, seq),
        device=device.kind,
        attention="eager" if attention == "eager" else "sdpa",
    )
    inputs = example_inputs(module, batch=batch, seq=workload.seq)

    step("counting parameters and FLOPs")
    with run_or_explain(loaded.name):
        counted_flops = count_flops(module, **inputs)

    step("measuring a training step")
    predicted_here = predict_step(config, replace(workload, device="cpu")) if config else None
    measured, memory_notes = _measure(module, inputs, loaded.name, predicted_here)

    step("looking at the heads")
    heads, heads_notes = _look(loaded, texts, step)
    return Report(
        model=summarise(config, name=loaded.name, source=location.text if location else loaded.name),
        workload=workload,
        parameters=ParametersSection(
            predicted=count_parameters(config) if config else None,
            counted=count_module_parameters(module),
            notes=loaded.notes,
        ),
        flops=_flops_section(config, workload, counted=counted_flops, notes=loaded.notes),
        memory=_memory_section(
            config,
            workload,
            device,
            predicted_here=predicted_here,
            measured=measured,
            notes=(*loaded.notes, *memory_notes),
        ),
        heads=heads,
        heads_notes=heads_notes,
    )


def _measure(
    module: "nn.Module", inputs: Mapping[str, "Tensor"], name: str, predicted: StepMemory | None
) -> tuple[StepMemory | None, tuple[str, ...]]:
    """Measure a training step, unless it would not fit this machine's memory; a note says so then."""
    from headwise.api.running import run_or_explain
    from headwise.cost.measure import measure_training_step

    weights = sum(parameter.numel() * parameter.element_size() for parameter in module.parameters())
    needed = predicted.peak_bytes if predicted else STATE_COPIES * weights
    memory = this_machine().memory_bytes
    if needed > MEASURE_SHARE_OF_MEMORY * memory:
        return None, (
            f"No step was measured: it needs about {format_bytes(needed)}, "
            f"and this machine has {format_bytes(memory)}.",
        )
    with run_or_explain(name):
        return measure_training_step(module, inputs), ()


def _read_texts(path: str | Path | None) -> Sequence[str] | None:
    """Read the user's text, or None for the default one."""
    from headwise.loading.text import read_text

    return None if path is None else (read_text(Path(path)),)


def _look(
    loaded: "LoadedModule", texts: Sequence[str] | None, step: "_Steps"
) -> tuple[Inspection | None, tuple[str, ...]]:
    """Look at the heads on the texts, or on example inputs where there is no tokenizer; a note says why not."""
    from headwise.api.example import example_inputs
    from headwise.inspection.default_text import default_texts
    from headwise.inspection.inspect import inspect_inputs, inspect_texts

    def progress(done: int, total: int) -> None:
        step("looking at the heads", done / total)

    if loaded.tokenizer is None and texts is not None:
        raise TextError(f"a text needs a tokenizer, and {loaded.name} comes without one; leave the text out")
    try:
        if loaded.tokenizer is None:
            seq = resolve_seq(loaded.config, None)
            inputs = example_inputs(loaded.module, batch=1, seq=min(seq, EXAMPLE_SEQ))
            notes = ("There is no tokenizer: these are heads on random input, not on a text.",)
            return inspect_inputs(loaded.module, inputs, notes=notes), ()
        max_length = DEFAULT_TEXT_TOKENS if texts is None else None
        texts = default_texts() if texts is None else texts
        return inspect_texts(loaded.module, loaded.tokenizer, texts, max_length=max_length, progress=progress), ()
    except ModelError as error:
        return None, (f"Its heads cannot be shown: {error}.",)


def _flops_section(
    config: ModelConfig | None, workload: Workload, *, counted: FlopCount | None, notes: tuple[str, ...]
) -> FlopsSection:
    if config is None:
        return FlopsSection(forward=None, train=None, counted_forward=counted, notes=notes)
    size = {"batch": workload.batch, "seq": workload.seq}
    return FlopsSection(
        forward=forward_flops(config, **size), train=train_flops(config, **size), counted_forward=counted, notes=notes
    )


def _memory_section(
    config: ModelConfig | None,
    workload: Workload,
    device: Device,
    *,
    predicted_here: StepMemory | None,
    measured: StepMemory | None,
    notes: tuple[str, ...],
) -> MemorySection:
    """Put prediction beside measurement, and judge whether the step fits the device."""
    if config is None:
        fits = judge(measured.peak_bytes, device) if measured and device.kind == "cpu" else None
        return MemorySection(
            predicted=None,
            measured=measured,
            saved_gap_percent=None,
            peak_gap_percent=None,
            kv_cache_bytes=None,
            kv_cache_bytes_per_token=None,
            score_matrix_bytes=None,
            fit=fits,
            notes=notes,
        )
    on_device = predicted_here if predicted_here and device.kind == "cpu" else predict_step(config, workload)
    shown = predicted_here or on_device
    widest = max(block.attention.num_heads for block in config.blocks)
    return MemorySection(
        predicted=shown,
        measured=measured,
        saved_gap_percent=_gap(shown.saved_bytes, measured.saved_bytes) if measured else None,
        peak_gap_percent=_gap(shown.peak_bytes, measured.peak_bytes) if measured else None,
        kv_cache_bytes=kv_cache_bytes(config, batch=workload.batch, seq=workload.seq, dtype=WEIGHTS_DTYPE),
        kv_cache_bytes_per_token=kv_cache_bytes_per_token(config, dtype=WEIGHTS_DTYPE),
        score_matrix_bytes=score_matrix_bytes(
            batch=workload.batch, num_heads=widest, query_len=workload.seq, key_len=workload.seq, dtype=WEIGHTS_DTYPE
        ),
        fit=judge(on_device.peak_bytes, device),
        notes=notes,
    )


def _gap(predicted: int, measured: int) -> float | None:
    """Return (predicted - measured) / measured in percent; None where nothing was measured."""
    return 100.0 * (predicted - measured) / measured if measured else None
