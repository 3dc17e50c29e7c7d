"""`headwise.make_report`: what a model's attention costs, whether it fits, and what its heads do."""

import time
from dataclasses import replace
from pathlib import Path

from headwise.api.progress import Progress, Steps
from headwise.api.results import ParametersSection, Report
from headwise.api.sections import flops_section, memory_section
from headwise.api.summary import resolve_seq, summarise
from headwise.cost.devices import find_device
from headwise.cost.memory import predict_step
from headwise.cost.parameters import count_parameters
from headwise.cost.results import Device
from headwise.cost.workload import Workload
from headwise.errors import TextError
from headwise.loading.config import Location, load_config, locate

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
        progress: called with what is being done, how much is done, and how much there is.

    Raises:
        HeadwiseError: something asked for cannot be found, read, run or written.
    """
    started = time.perf_counter()
    steps = Steps(progress)
    device = find_device(gpu)
    if out is not None:
        from headwise.report.page import check_writable

        check_writable(out)
    location = locate(model) if model is not None else None
    if location is not None and location.kind in ("preset", "config"):
        if text is not None:
            raise TextError(f"a text needs a model with weights to read it, and {location.text} has none; leave it out")
        report = _report_on_paper(location, batch=batch, seq=seq, device=device)
    else:
        report = _report_on_module(location, text=text, batch=batch, seq=seq, device=device, steps=steps)
    report = replace(report, seconds=round(time.perf_counter() - started, 2))
    if out is not None:
        from headwise.report.page import write_page

        steps.start("writing the page")
        report = replace(report, page=str(out))
        write_page(report, out)
    steps.finish()
    return report


def _report_on_paper(location: Location, *, batch: int, seq: int | None, device: Device) -> Report:
    """Predict everything from a config; nothing is loaded or run."""
    config = load_config(location)
    workload = Workload(batch=batch, seq=resolve_seq(config, seq), device=device.kind)
    return Report(
        model=summarise(config, name=config.name, source=location.text),
        workload=workload,
        parameters=ParametersSection(predicted=count_parameters(config), counted=None, notes=(PAPER_ONLY,)),
        flops=flops_section(config, workload, counted=None, notes=(PAPER_ONLY,)),
        memory=memory_section(config, workload, device, predicted_here=None, measured=None, notes=(PAPER_ONLY,)),
        heads=None,
        heads_notes=(PAPER_ONLY,),
    )


def _report_on_module(
    location: Location | None, *, text: str | Path | None, batch: int, seq: int | None, device: Device, steps: Steps
) -> Report:
    """Predict from the config, count and measure on the module, and look at its heads on a text."""
    steps.start("loading the model")
    from headwise.api import running
    from headwise.api.example import example_inputs
    from headwise.loading.module import SAMPLE_PACKAGE, load_module, load_sample
    from headwise.loading.text import read_text

    texts = None if text is None else (read_text(Path(text)),)  # before the model: a missing file is said at once
    loaded = load_module(location) if location else load_sample()
    if texts is not None and loaded.tokenizer is None:
        raise TextError(f"a text needs a tokenizer, and {loaded.name} comes without one; leave the text out")
    config = loaded.config
    workload = Workload(
        batch=batch,
        seq=resolve_seq(config, seq),
        device=device.kind,
        attention="eager" if running.is_eager(loaded.module) else "sdpa",
    )
    inputs = example_inputs(loaded.module, batch=batch, seq=workload.seq)

    steps.start("counting parameters and FLOPs")
    counted_parameters, counted_flops = running.count(loaded, inputs)
    steps.start("measuring a training step")
    predicted_here = predict_step(config, replace(workload, device="cpu")) if config else None
    measured, memory_notes = running.measure(loaded, inputs, predicted_here)
    steps.start("looking at the heads")
    heads, heads_notes = running.look(loaded, texts, steps.advance)

    return Report(
        model=summarise(config, name=loaded.name, source=location.text if location else f"package {SAMPLE_PACKAGE}"),
        workload=workload,
        parameters=ParametersSection(
            predicted=count_parameters(config) if config else None, counted=counted_parameters, notes=loaded.notes
        ),
        flops=flops_section(config, workload, counted=counted_flops, notes=loaded.notes),
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
