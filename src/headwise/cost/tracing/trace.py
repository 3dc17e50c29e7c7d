"""trace_step: the ledger of any module's step, run on tensors that have shapes but no numbers."""

import contextlib
from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import takewhile
from typing import NamedTuple

import torch
from torch import nn
from torch._subclasses import FakeTensorMode

from headwise.collector import without_collections
from headwise.cost.results import Ledger, StepMemory
from headwise.cost.running.freezing import freeze_layers
from headwise.cost.running.prepare import Inputs, Loss
from headwise.cost.tracing.fake import copy_to_meta
from headwise.cost.tracing.layers import find_rows
from headwise.cost.tracing.lives import BACKWARD, Event, Life, make_ledger
from headwise.cost.tracing.quiet import quiet_trace
from headwise.cost.tracing.recorder import Recorder
from headwise.cost.tracing.repeat import IrregularError, repeat_row
from headwise.cost.tracing.step import record_step
from headwise.cost.workload import Workload
from headwise.errors import HeadwiseError, ModelError, describe


class Followed(NamedTuple):
    """A step that was traced, and what that took.

    `is_regular`: whether layers that look alike live alike; False also where there are no layers to leave out.
    `num_events`: births and releases that were recorded, of the layers that ran.
    """

    ledger: Ledger
    is_regular: bool
    num_events: int


def trace_step(
    module: nn.Module | Callable[[], nn.Module], inputs: Inputs, workload: Workload, *, loss: Loss | None = None
) -> Ledger:
    """Run one step of a copy of any module on fake tensors, and return every tensor that it makes, with its life.

    The step is real code, the module's own, under torch's autograd and torch's optimizer: forward in train mode, loss,
    backward (both `accumulation` times) and the optimizer's step in its steady state, without gradients at its start; a
    "prefill" is the forward alone, without autograd and in eval mode, and a "decode" that of one token against a cache
    of `seq - 1`, which is made here: `inputs` are not read. No numbers are computed and no weights are read, so that a
    model of any size is traced on any machine. Every birth and every release is a moment of the ledger, named
    "forward: layers.3": its phase, and the layer of a row of layers or else the module. The peak is exact for what
    operations return; what kernels take for themselves and give back is not seen.

    On CPU, kernels are those that torch takes on CPU. On CUDA our own rules stand in place of attention, dropout,
    autocast and norms (`device_rules`): derived from torch's sources, not measured. Not covered there: recurrent layers
    and batch norm through cuDNN, `log_sigmoid`, torch's fused encoder layers, FlexAttention, grouped products of
    experts.

    A model of transformers takes the texts for whole: one in each row, without padding, whatever an attention mask or
    position ids hold.

    The forward pass is run whole. Backward and the optimizer's step are run for a few of the layers that are alike and
    repeated for the others, where the record of those few foretells the whole forward pass to the last tensor; else
    they are run whole too.

    Args:
        module: any module on any device (meta too), or a function without arguments that makes one. Nothing of it is
            changed, and a function's module is made of fake tensors, at no cost of memory.
        inputs: what it is called with, by name or in order; of tensors only shapes and dtypes are read.
        workload: what the step does; its `batch` and `seq` are the inputs' to say.
        loss: what to minimise, of the module's output. Default: the workload's.

    Raises:
        ModelError: the module cannot be made, copied or run, has no weight to train, or gives nothing to train on.
        UnsupportedError: the step depends on the values of tensors, trains an `nn.LSTM` through oneDNN (whose memory
            nobody tells), or torch or the module cannot do what the workload asks for.
    """
    return follow_step(module, inputs, workload, loss=loss).ledger


def follow_step(
    module: nn.Module | Callable[[], nn.Module],
    inputs: Inputs,
    workload: Workload,
    *,
    loss: Loss | None = None,
    is_regular: bool | None = None,
) -> Followed:
    """Trace a step as `trace_step` does, or faster where it is known of the module how its layers live.

    Args:
        module, inputs, workload, loss: as of `trace_step`.
        is_regular: True: layers that look alike live alike, as another step of this module at this length has shown; a
            few run, and no whole forward pass. False: they do not. Default: not known.

    Raises:
        HeadwiseError: as of `trace_step`.
    """
    with quiet_trace(), without_collections(), torch.random.fork_rng(devices=()):
        given = _make(module)
        if workload.phase == "train" and workload.frozen_layers:  # before rows of equal layers are looked for
            given = copy_to_meta(given)
            freeze_layers(given, workload.frozen_layers)
            workload = replace(workload, frozen_layers=0)
        forecast = None if is_regular is False else _foresee(given, inputs, workload, loss)
        if forecast is not None and is_regular:
            return _foreseen(forecast)
        expected = None if forecast is None else _forward_ledger(forecast.standing, forecast.events)

        def is_foreseen(recorder: Recorder) -> bool:
            return expected is not None and _forward_ledger(recorder.standing, recorder.events) == expected

        recorder = record_step(given, inputs, workload, loss, is_foreseen=is_foreseen)
    if recorder is not None:
        ledger = make_ledger(recorder.standing, recorder.events)
        return Followed(ledger, is_regular=False, num_events=len(recorder.events))
    assert forecast is not None and expected is not None
    foreseen = _foreseen(forecast)
    return foreseen._replace(num_events=foreseen.num_events + len(expected.moments))


def step_memory(ledger: Ledger) -> StepMemory:
    """Return the totals of a traced training step, in the terms of a measured one.

    Args:
        ledger: of `trace_step`, phase "train". What is saved is counted when the first backward begins.
    """
    phases = [moment.split(":")[0] for moment in ledger.moments]
    last_forward = phases.index(BACKWARD) - 1 if BACKWARD in phases else len(phases) - 1
    return StepMemory(
        parameter_bytes=ledger.kind_bytes("parameter"),
        saved_bytes=sum(entry.bytes for entry in ledger.alive(last_forward) if entry.kind == "saved"),
        peak_bytes=ledger.bytes_at(ledger.peak),
        peak_moment=phases[ledger.peak],
    )


def _make(module: nn.Module | Callable[[], nn.Module]) -> nn.Module:
    """Return the module, or the one that a function makes, of fake tensors."""
    if isinstance(module, nn.Module):
        return module
    name = getattr(module, "__name__", repr(module))
    try:
        with FakeTensorMode():
            made = module()
    except HeadwiseError:
        raise
    except Exception as error:
        raise ModelError(
            f"a module is needed, or a function that makes one without arguments; calling {name} raised "
            f"{describe(error)}"
        ) from error
    if not isinstance(made, nn.Module):
        raise ModelError(f"a module is needed, or a function that makes one; {name} made a {type(made).__name__}")
    return made


class _Forecast(NamedTuple):
    """What the record of a step will be, and how many events it is made from."""

    standing: list[Life]
    events: list[Event]
    num_recorded: int


def _foresee(given: nn.Module, inputs: Inputs, workload: Workload, loss: Loss | None) -> _Forecast | None:
    """Return what the record of a step will be if layers that look alike live alike; None where nothing is foreseen.

    A prefill is a forward pass, which has to run in any case.
    """
    rows = [row for row in find_rows(given) if row.num_missing] if workload.phase == "train" else []
    if not rows:
        return None
    # A module that fails without the layers that were cut may run with them.
    with contextlib.suppress(IrregularError, ModelError):
        cut = record_step(given, inputs, workload, loss, rows=rows)
        assert cut is not None
        standing, events = cut.standing, cut.events
        for row in rows:
            standing, events = repeat_row(row, standing, events)
        return _Forecast(standing, events, len(cut.events))
    return None


def _foreseen(forecast: _Forecast) -> Followed:
    return Followed(make_ledger(forecast.standing, forecast.events), True, forecast.num_recorded)


def _forward_ledger(standing: Iterable[Life], events: Iterable[Event]) -> Ledger:
    """Write the lives of a step up to its first backward; states of the optimizer are recorded after that."""
    found = (life for life in standing if life.kind != "optimizer")
    return make_ledger(found, takewhile(lambda event: event.where.phase != BACKWARD, events))
