"""`headwise.make_report`: what a model's attention costs, whether it fits, and what its heads do."""

import os
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headwise.api.prediction import predict, with_usual_attention
from headwise.api.progress import Progress, Steps
from headwise.api.results import ParametersSection, Report
from headwise.api.sections import flops_section, memory_section
from headwise.api.subject import find_on_paper, load
from headwise.api.summary import resolve_seq, summarise
from headwise.config.model import ModelConfig
from headwise.cost.devices import find_device
from headwise.cost.parameters import count_parameters
from headwise.cost.results import Device
from headwise.cost.workload import Workload
from headwise.errors import TextError

if TYPE_CHECKING:
    from torch import nn

    from headwise.loading.module import LoadedModule

STEPS = (
    "loading the model",
    "counting parameters and FLOPs",
    "measuring a training step",
    "looking at the heads",
    "writing the page",
)
PAPER_ONLY = "A preset or a config has no weights: nothing was measured, and there are no heads to look at."


def make_report(
    model: "str | os.PathLike[str] | ModelConfig | nn.Module | None" = None,
    *,
    tokenizer: Any | None = None,
    text: str | os.PathLike[str] | None = None,
    batch: int = 1,
    seq: int | None = None,
    gpu: str = "here",
    out: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
) -> Report:
    """Report what a model's attention costs, whether a training step fits, and what its heads do.

    Args:
        model: MODEL, in any form of the command line, or a ModelConfig or a module in hand (a copy of it is run); None
            = a small real BERT checkpoint that a package carries.
        tokenizer: the tokenizer of a Hugging Face model in hand; a checkpoint brings its own.
        text: file of UTF-8 text to look at heads with; None = English prose that ships with Python.
        batch: texts in the step that is counted and weighed (default 1).
        seq: tokens per text there (default: the smaller of 512 and the model's positions).
        gpu: device that the step should fit: a name of the catalogue, or "here" for this machine.
        out: where to write the page; None = no page. An earlier page is replaced, any other file is not.
        progress: called with what is being done, how much is done, and how much there is.

    Raises:
        HeadwiseError: something asked for cannot be found, read, run or written.
    """
    started = time.perf_counter()
    steps = Steps(progress, STEPS)
    device = find_device(gpu)
    if out is not None:
        from headwise.report.files import check_page_place

        check_page_place(out)
    paper = find_on_paper(model, kinds=("preset", "config")) if model is not None else None
    if paper is not None:
        config, source = paper
        if text is not None:
            raise TextError(f"a text needs a model with weights to read it, and {config.name} has none; leave it out")
        report = _report_on_paper(config, source, batch=batch, seq=seq, device=device)
    else:
        steps.start("loading the model")
        from headwise.loading.text import read_text

        texts = None if text is None else (read_text(Path(text)),)  # before the model: a missing file is said at once
        loaded, source = load(model, tokenizer)
        if texts is not None and loaded.tokenizer is None:
            raise TextError(f"a text needs a tokenizer, and {loaded.name} comes without one; leave the text out")
        from headwise.api.running import explained

        with explained(loaded.name):
            report = _report_on_module(loaded, source, texts=texts, batch=batch, seq=seq, device=device, steps=steps)
    report = replace(report, seconds=round(time.perf_counter() - started, 2))
    if out is not None:
        from headwise.report.page import write_page

        steps.start("writing the page")
        report = replace(report, page=os.fspath(out))
        write_page(report, out)
    steps.finish()
    return report


def _report_on_paper(config: ModelConfig, source: str, *, batch: int, seq: int | None, device: Device) -> Report:
    """Predict everything from a config; nothing is loaded or run."""
    workload = with_usual_attention(
        config, Workload(batch=batch, seq=resolve_seq(config, seq), device=device.step_device)
    )
    return Report(
        model=summarise(config, name=config.name, source=source),
        workload=workload,
        parameters=ParametersSection(predicted=count_parameters(config), counted=None, notes=(PAPER_ONLY,)),
        flops=flops_section(config, workload, counted=None, notes=(PAPER_ONLY,)),
        memory=memory_section(config, workload, device, predicted_here=None, measured=None, notes=(PAPER_ONLY,)),
        heads=None,
        heads_notes=(PAPER_ONLY,),
    )


def _report_on_module(
    loaded: "LoadedModule",
    source: str,
    *,
    texts: tuple[str, ...] | None,
    batch: int,
    seq: int | None,
    device: Device,
    steps: Steps,
) -> Report:
    """Predict from the config, count and measure on the module, and look at its heads on texts."""
    from headwise.api import running
    from headwise.api.example import example_inputs
    from headwise.cost.running.parameters import count_module_parameters

    config = loaded.config
    workload = Workload(
        batch=batch,
        seq=resolve_seq(config, seq),
        device=device.step_device,
        attention="eager" if running.is_eager(loaded.module) else "sdpa",
    )
    here = replace(workload, device="cpu")
    forward_here = predict(config, replace(here, phase="prefill"))
    is_too_large = forward_here is not None and running.refusal("A pass", forward_here.peak_bytes) is not None
    # a pass that will be refused gets inputs of one token: even the ids of so many may not fit
    size = {"batch": 1, "seq": 1} if is_too_large else {"batch": workload.batch, "seq": workload.seq}
    inputs = example_inputs(loaded.module, **size)

    steps.start("counting parameters and FLOPs")
    counted_flops, flops_notes = running.count(loaded, inputs, forward_here)
    steps.start("measuring a training step")
    predicted_here = predict(config, here)
    measured, memory_notes = running.measure(loaded, inputs, predicted_here)
    steps.start("looking at the heads")
    heads, heads_notes = running.look(loaded, texts, workload.seq, steps.advance)

    return Report(
        model=summarise(config, name=loaded.name, source=source),
        workload=workload,
        parameters=ParametersSection(
            predicted=count_parameters(config) if config else None,
            counted=count_module_parameters(loaded.module),
            notes=loaded.notes,
        ),
        flops=flops_section(config, workload, counted=counted_flops, notes=(*loaded.notes, *flops_notes)),
        memory=memory_section(
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
