"""track: the ledger of a step that the caller runs, with the line that made each tensor."""

import sys
import sysconfig
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from types import CodeType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from headwise.cost.results import Kind, Ledger
from headwise.cost.tracing.lives import BACKWARD, BEFORE, OPTIMIZER_STEP, make_ledger
from headwise.cost.tracing.recorder import Recorder
from headwise.cost.tracing.standing import stand_module, stand_states

_PACKAGE = str(Path(__file__).parents[2])
_LIBRARIES = tuple(
    {*(sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")), _PACKAGE}
)


@contextmanager
def track(module: nn.Module | None = None) -> Iterator[Ledger]:
    """Record every tensor that the code inside makes, on any device; afterwards the ledger is filled.

    What is a moment, a kind and a name, and what is not seen, stands at `headwise.track`, which is this with a history.

    Args:
        module: its weights and buffers count from the beginning, and its parts give the names. Default: names begin at
            the outermost module that is called.
    """
    ledger = Ledger(moments=(BEFORE,), entries=())
    recorder = Recorder(find_line=_LineFinder())
    if module is not None:
        recorder.name_modules(module)
        stand_module(recorder, module)
    try:
        with _followed_optimizers(recorder), _followed_modules(recorder), recorder:
            yield ledger
    finally:
        _mark_parameters(recorder)
        recorder.close()
        _mark_saved(recorder)
        filled = make_ledger(recorder.standing, recorder.events)
        vars(ledger).clear()  # with what was worked out from the empty one
        vars(ledger).update(vars(filled))


class _LineFinder:
    """Finds the innermost line of the user's own code that is at work."""

    def __init__(self) -> None:
        self._is_library: dict[CodeType, bool] = {}

    def __call__(self) -> str | None:
        """Return "file.py:12", None where only libraries are at work."""
        frame = sys._getframe(2)
        while frame is not None:
            code = frame.f_code
            is_library = self._is_library.get(code)
            if is_library is None:
                is_library = self._is_library[code] = _is_library(code.co_filename)
            if not is_library:
                return f"{code.co_filename}:{frame.f_lineno}"
            frame = frame.f_back  # type: ignore[assignment]
        return None


def _is_library(file: str) -> bool:
    return file.startswith(("<", *_LIBRARIES))


@contextmanager
def _followed_optimizers(recorder: Recorder) -> Iterator[None]:
    """Say when one of torch's optimizers steps, and which tensors are its states."""
    thread = threading.get_ident()

    def without(argument: Any) -> Any:
        is_closure = callable(argument) and not isinstance(argument, torch.optim.Optimizer)
        return partial(_run_outside, recorder, argument) if is_closure else argument

    def before(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> tuple[Any, Any] | None:
        if threading.get_ident() != thread:
            return None
        _mark_parameters(recorder, optimizer)
        stand_states(recorder, optimizer, _name_parameters(recorder))
        recorder.phase = OPTIMIZER_STEP
        return tuple(map(without, args)), {name: without(value) for name, value in kwargs.items()}

    def after(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        if threading.get_ident() == thread:
            recorder.phase = None
            stand_states(recorder, optimizer, _name_parameters(recorder))

    with ExitStack() as stack:
        stack.callback(register_optimizer_step_pre_hook(before).remove)
        stack.callback(register_optimizer_step_post_hook(after).remove)
        yield


def _run_outside(recorder: Recorder, closure: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Run the forward and backward that an optimizer is given to run again; they are no part of its own work."""
    recorder.phase = None
    try:
        return closure(*args, **kwargs)
    finally:
        recorder.phase = OPTIMIZER_STEP


@contextmanager
def _followed_modules(recorder: Recorder) -> Iterator[None]:
    """Say which tensors are weights while their module still lives."""

    def after(module: nn.Module, inputs: Any, output: Any) -> None:
        if not recorder.is_active():
            return
        recorder.phase = None  # an optimizer whose step failed told nobody
        owner = recorder.names[module]
        for own, parameter in module._parameters.items():
            _mark_new(recorder, parameter, "parameter", own, owner)
        for own, buffer in module._buffers.items():
            _mark_new(recorder, buffer, "input", own, owner)

    handle = register_module_forward_hook(after)
    try:
        yield
    finally:
        handle.remove()


def _mark_new(recorder: Recorder, tensor: Tensor | None, kind: Kind, name: str, owner: str) -> None:
    if tensor is not None and (life := recorder.find(tensor)) is not None and life.kind == "temporary":
        recorder.mark(tensor, kind, name, owner)


def _name_parameters(recorder: Recorder) -> dict[int, tuple[str, str]]:
    """Return the own name and the owner of each weight of the modules that are known; of a shared one, the first."""
    names: dict[int, tuple[str, str]] = {}
    for part, owner in recorder.names.items():
        for own, parameter in part._parameters.items():
            names.setdefault(id(parameter), (own, owner))
    return names


def _mark_parameters(recorder: Recorder, optimizer: torch.optim.Optimizer | None = None) -> None:
    """Say which tensors are weights, buffers and gradients: of all known modules, and of an optimizer."""
    names = _name_parameters(recorder)
    parameters = [one for part in recorder.names for one in part._parameters.values() if one is not None]
    if optimizer is not None:
        parameters += [one for group in optimizer.param_groups for one in group["params"]]
    for parameter in parameters:
        own, owner = names.get(id(parameter), ("weight", ""))
        recorder.mark(parameter, "parameter", own, owner)
        recorder.mark(parameter.grad, "gradient", f"gradient of {own}", owner)
    for part, owner in recorder.names.items():
        for own, buffer in part._buffers.items():
            recorder.mark(buffer, "input", own, owner)


def _mark_saved(recorder: Recorder) -> None:
    """Take for saved what was made before a backward began and given back while it ran."""
    born: dict[Any, str] = {}
    for life, where in recorder.events:
        phase = born.setdefault(life, where.phase)
        if where.phase == BACKWARD and phase not in (BACKWARD, OPTIMIZER_STEP) and life.kind == "temporary":
            life.kind = "saved"
