"""The independent paths compared: closed form, trace and measurement of a small model of the same build."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from headwise.api.example import example_inputs
from headwise.api.prediction import NO_CLOSED_FORM, predict
from headwise.api.results import ComparedFigure, Verification
from headwise.api.running import explained
from headwise.api.small_copy import make_small_copy
from headwise.api.summary import summarise
from headwise.api.tracing import with_modules_attention
from headwise.cost.flops import forward_flops
from headwise.cost.parameters import count_parameters
from headwise.cost.running.flop_counter import count_flops
from headwise.cost.running.measure import measure_training_step
from headwise.cost.running.parameters import count_module_parameters
from headwise.cost.running.prepare import make_optimizers
from headwise.cost.tracing.flops import trace_flops
from headwise.cost.tracing.trace import step_memory, trace_step
from headwise.cost.workload import Workload

BATCH, SEQ = 3, 11  # a small step whose sizes cannot be taken for one another
PEAK_TOLERANCE = 0.01  # the peak also holds what kernels take for themselves


def verify(model: Any, **step: Any) -> Verification:
    """Scale a model down, build it with random weights, and compare what the paths say of it.

    Parameters, FLOPs and saved bytes must be equal; peaks within 1 %. The step runs on this machine's CPU.

    Args:
        model: a preset, a config.json or a checkpoint folder.
        **step: fields of `Workload`; batch, length and device are this function's.

    Raises:
        ModelError: MODEL is no config that can be scaled down.
        HeadwiseError: MODEL cannot be found or read, or its module cannot be built.
    """
    copied = make_small_copy(model)
    name, config, module, notes = copied.name, copied.config, copied.module, copied.notes
    seq = config.patches.num_tokens if config and config.patches else SEQ
    workload = Workload(**{**step, "batch": BATCH, "seq": seq, "device": "cpu"})
    with torch.random.fork_rng(devices=()), explained(name):
        if "attention" not in step:
            workload = with_modules_attention(module, workload)
        inputs = example_inputs(module, batch=BATCH, seq=seq)
        measured = measure_training_step(module, inputs, workload=workload)
        with torch.no_grad():
            counted = count_flops(module.eval(), **inputs).dense
    traced = step_memory(trace_step(module, inputs, workload))
    predicted = predict(config, workload)
    figures = (
        _compare(
            "parameters",
            count_parameters(config).total if config else None,
            None,
            count_module_parameters(module).total,
        ),
        _compare(
            "forward FLOPs, dense",
            forward_flops(config, batch=BATCH, seq=seq).dense if config else None,
            trace_flops(module, inputs).dense,
            counted,
        ),
        _compare(
            "bytes saved for backward",
            predicted.saved_bytes if predicted else None,
            traced.saved_bytes,
            measured.saved_bytes,
        ),
        _compare(
            "peak bytes of a step",
            predicted.peak_bytes if predicted else None,
            traced.peak_bytes,
            measured.peak_bytes,
            tolerance=PEAK_TOLERANCE,
        ),
    )
    return Verification(
        model=summarise(config, name=f"{name}, scaled down", source=name),
        workload=workload,
        figures=figures,
        notes=notes if predicted or config is None else (*notes, NO_CLOSED_FORM.format(config.model_type)),
    )


def require_runnable(step: Mapping[str, Any]) -> None:
    """Raise UnsupportedError for a step that no torch runs, before anything is built.

    Args:
        step: fields of `Workload`.
    """
    workload = Workload(**{**step, "batch": BATCH, "seq": SEQ, "device": "cpu"})
    make_optimizers(nn.Linear(1, 1), workload)


def _compare(
    what: str, closed_form: int | None, traced: int | None, measured: int, *, tolerance: float = 0.0
) -> ComparedFigure:
    others = [figure for figure in (closed_form, traced) if figure is not None]
    return ComparedFigure(
        what=what,
        closed_form=closed_form,
        traced=traced,
        measured=measured,
        tolerance=tolerance,
        holds=all(abs(figure - measured) <= tolerance * measured for figure in others),
    )
