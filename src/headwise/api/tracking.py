"""track: the ledger of a step that the caller runs, and on request one more line in a history of such steps."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import torch
from torch import nn

from headwise.api.fit_results import TrackedStep
from headwise.api.history import open_history
from headwise.api.module_config import config_of, unwrap
from headwise.api.observed_step import ObservedStep, observe_step
from headwise.api.prediction import reserved
from headwise.api.subject import find_on_paper
from headwise.config.checks import require_instance
from headwise.config.model import ModelConfig
from headwise.config.presets import PRESETS
from headwise.cost.memory import predict_step
from headwise.cost.results import Ledger
from headwise.cost.tracing.track import track as track_tensors
from headwise.cost.workload import Workload
from headwise.errors import HeadwiseError
from headwise.results import format_count

CPU = "CPU"


@contextmanager
def track(
    module: nn.Module | None = None,
    *,
    history: str | os.PathLike[str] | None = None,
    model: Any = None,
    workload: Workload | None = None,
) -> Iterator[Ledger]:
    """Record every tensor that the code inside makes, on any device; afterwards the ledger is filled.

    Every birth and release is a moment, named by its phase ("forward", "backward", "optimizer step", "outside modules")
    and the layer or module at work. Kinds are told by modules, their gradients and torch's optimizers. "saved" is what
    a forward pass made and backward gave back. What existed before counts from the first moment, once an operation
    reads it. What a kernel takes for itself is not seen; nor is what compiled code keeps inside. No module is held: of
    one that dies inside, gradients are told only where an optimizer stepped before.

    Only what the calling thread does is recorded, and its backward in the threads of autograd. Blocks may follow and
    hold one another. After an exception, an out-of-memory error too, the ledger ends where it was raised.

    With a history, a block that ends without an exception adds a line to that file: when, which model (a preset's name,
    or the module's class and size), on which device, batch and length, and the peak as it was measured and as it is
    predicted. Nothing else of the machine or its user is kept. The prediction is the closed form's for the model's
    config and the step that was seen: precision, attention, optimizer, checkpointing of layers, passes, loss. It is
    left out where there is none, where parts of the step cannot be told, and for an optimizer's first step, which makes
    its states at its end. On CUDA the allocator's peaks are kept too, and its statistics of peaks start anew.

    Args:
        module: its weights and buffers count from the beginning, and its parts give the names. Default: names begin at
            the outermost module that is called.
        history: a file of JSON lines; it is made where there is none. `headwise fit --history` shows it.
        model: what the history predicts for: MODEL as a preset, a config.json or a checkpoint folder, or a ModelConfig.
            Default: the Hugging Face config that the module carries.
        workload: what the step is, where the history should not tell it by looking; the batch and length of the inputs
            count before its own.

    Raises:
        OutputError: the history cannot be written, before anything runs; or its disk is full, after the step.
        HeadwiseError: MODEL cannot be found or read, or it or a workload is given without a history.

    Example:
        >>> with headwise.track(model) as ledger:
        ...     loss = model(inputs).sum()
        ...     loss.backward()
        ...     optimizer.step()
        >>> ledger.moments[ledger.peak], [(e.owner, e.shape, e.line) for e in ledger.alive(ledger.peak)[:3]]
    """
    if history is None:
        if model is not None or workload is not None:
            raise HeadwiseError("model and workload say what a history predicts; give history=, a file, with them")
        with track_tensors(module) as ledger:
            yield ledger
        return
    if workload is not None:
        require_instance("workload", workload, Workload)
    config = _config(module, model)
    device = _device(module)
    with open_history(history) as file, observe_step(nn.Module() if module is None else module) as observed:
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
        with track_tensors(module) as ledger:
            yield ledger
        file.append(_describe(ledger, observed, _name(module, model), device, config, workload))


def _describe(
    ledger: Ledger,
    observed: ObservedStep,
    name: str,
    device: torch.device,
    config: ModelConfig | None,
    given: Workload | None,
) -> TrackedStep:
    """Say what a step was and needed, and what is predicted of it."""
    is_cuda = device.type == "cuda"
    workload = observed.infer(ledger, given)
    peak_bytes, reserved_bytes = (None, None) if not observed.is_steady else _predict(config, workload)
    size = observed.size or workload
    return TrackedStep(
        when=datetime.now(tz=UTC).isoformat(timespec="seconds"),
        model=name,
        device=torch.cuda.get_device_name(device) if is_cuda else CPU,
        batch=size.batch if size else None,
        seq=size.seq if size else None,
        predicted_peak_bytes=peak_bytes,
        measured_peak_bytes=ledger.bytes_at(ledger.peak) if ledger.moments else 0,
        predicted_reserved_bytes=reserved_bytes,
        measured_reserved_bytes=torch.cuda.max_memory_reserved(device) if is_cuda else None,
        measured_allocated_bytes=torch.cuda.max_memory_allocated(device) if is_cuda else None,
    )


def _predict(config: ModelConfig | None, workload: Workload | None) -> tuple[int | None, int | None]:
    """Return the peak and the reserved bytes that are predicted; None where they are not."""
    if config is None or workload is None:
        return None, None
    try:
        return predict_step(config, workload).peak_bytes, reserved(config, workload)
    except HeadwiseError:  # no closed form of this family or setting
        return None, None


def _config(module: nn.Module | None, model: Any) -> ModelConfig | None:
    if model is None:
        return config_of(module) if module is not None else None
    paper = find_on_paper(model, kinds=("preset", "config", "checkpoint"))
    if paper is None:
        raise HeadwiseError(
            "model must be a preset, a config.json, a checkpoint folder or a ModelConfig, for a history to predict its "
            f"steps; got {type(model).__name__}"
        )
    return paper[0]


def _name(module: nn.Module | None, model: Any) -> str:
    """Return what to call the model: no file's or folder's name, which may be personal."""
    if isinstance(model, str) and model in PRESETS:
        return model
    if module is None:
        return "a model in hand"
    num_parameters = sum(parameter.numel() for parameter in module.parameters())
    return f"{type(unwrap(module)).__name__}, {format_count(num_parameters)} parameters"


def _device(module: nn.Module | None) -> torch.device:
    """Return where the model is; without one, the current GPU if the process uses one."""
    weight = next(module.parameters(), None) if module is not None else None
    if weight is not None:
        return weight.device
    has_cuda = torch.cuda.is_available() and torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    return torch.device("cuda" if has_cuda else "cpu")
