"""explain_oom: around a step; when memory runs out in it, the error says what it is about and what to change."""

import traceback
import weakref
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from types import TracebackType
from typing import Any, TypeVar, cast

import torch
from torch import nn

from headwise.api.around_function import run_inside
from headwise.api.fit_results import OomAnswer
from headwise.api.module_config import attention_of, autocast_dtype_on, config_of, is_checkpointed, precision_of
from headwise.config.checks import require_instance, require_size
from headwise.cost.devices import find_device
from headwise.cost.oom.messages import read_message
from headwise.cost.results import Device
from headwise.errors import describe

Function = TypeVar("Function", bound=Callable[..., Any])
ANSWER = "headwise_answer"
MAX_TEXT = 2**16  # characters of an error in which its message is looked for
NO_MODULE = "Without a model no changes can be reckoned: give explain_oom the module, and batch and seq."
NO_CONFIG = "The config of {name} cannot be read: tensors of common shapes were tried in place of its own."


def explain_oom(
    module: nn.Module | None = None,
    *,
    batch: int | None = None,
    seq: int | None = None,
    gpu: str | Device | None = None,
) -> "ExplainOom":
    """Explain an out-of-memory error that the code inside raises, and let it go on.

    The error that leaves the block is the same object, of the same type. Its notes, which Python prints below its text,
    hold the answer of `headwise.oom`: which tensor it is about, what else was alive, and what to change. Its attribute
    `headwise_answer` is that answer, an `OomAnswer`. If the explanation fails, a note says so, and the error goes on as
    it is.

    What can be caught: on GPUs `torch.OutOfMemoryError`. On a CPU a `RuntimeError` of torch's allocator, raised where a
    single tensor is more than the system grants, a limit (`ulimit -v`) or the address space; it is told by its text.
    What cannot: as a rule Linux grants memory that it does not have, and kills the process when the memory is used.
    Nothing runs in the process then, and nothing is explained. `headwise fit` tells before.

    The explanation needs no GPU memory, and on the host some MB: what it needs is imported when the block is entered,
    and nothing is read before an error comes. It frees nothing and keeps nothing alive, the module neither: tensors of
    the failed step live as long as the error's traceback. To go on after it, leave the `except` clause before
    `torch.cuda.empty_cache()`.

    Args:
        module: the model. If it carries a Hugging Face config, the tensor is looked for among this model's, in steps
            that agree with what the module says: the dtype of its weights, autocast where it is on around the block,
            its attention, training mode and gradients, checkpointing.
        batch: number of texts of the step. Default: solved for.
        seq: tokens per text. Default: solved for.
        gpu: the device: a name of the catalogue, or a `Device`. Default: one of the capacity that the error tells.

    Raises:
        ConfigError: an argument is no module or no number, or there is no such device.

    Example:
        >>> with headwise.explain_oom(model):
        ...     loss = model(inputs).sum()
        ...     loss.backward()

        >>> @headwise.explain_oom(model)
        ... async def step(inputs): ...
    """
    if module is not None:
        require_instance("module", module, nn.Module)
    for name, value in (("batch", batch), ("seq", seq)):
        if value is not None:
            require_size(name, value)
    device = find_device(gpu) if isinstance(gpu, str) else gpu
    if device is not None:
        require_instance("gpu", device, Device)
    return ExplainOom(module, batch=batch, seq=seq, gpu=device)


class ExplainOom:
    """What `explain_oom` returns: a context manager, and a decorator of a function that makes a step.

    A decorated coroutine or generator, also an async one, is watched while its own code runs.
    """

    def __init__(self, module: nn.Module | None, **known: Any):
        self._module = None if module is None else weakref.ref(module)
        self._known = {name: value for name, value in known.items() if value is not None}

    def __call__(self, function: Function) -> Function:
        """Return a function of the same kind, watched while its own code runs."""
        return cast(Function, run_inside(self, function))

    def __enter__(self) -> "ExplainOom":
        # Now, as later there may be no memory to import anything with.
        from headwise.api.oom import oom
        from headwise.report.oom import oom_text

        self._oom, self._write = oom, oom_text
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None or not is_out_of_memory(error):
            return
        try:
            if hasattr(error, ANSWER):  # a block inside has explained it
                return
            answer = self._explain(error)
            error.add_note(self._write(answer))
            error.headwise_answer = answer  # type: ignore[attr-defined]
        except Exception as failure:  # whatever it is, the step's own error is the one to see
            with suppress(Exception):
                error.add_note(f"headwise could not explain this error: {describe(failure)}")

    def _explain(self, error: BaseException) -> OomAnswer:
        """Ask what the error is about, with the lines of code around it; its causes are other errors."""
        text = "".join(traceback.format_exception(error, chain=False))
        module = None if self._module is None else self._module()
        model = None if module is None else config_of(module)
        step = {} if module is None or model is None else step_of(module, error)
        answer = self._oom(text, model=model, **self._known, **step)
        if model is not None:
            return answer
        return replace(answer, notes=(NO_MODULE if module is None else NO_CONFIG.format(name=type(module).__name__),))


def step_of(module: nn.Module, error: BaseException) -> dict[str, Any]:
    """Return what a module says of the step that raised an error, as settings of `oom`; what it leaves open is not in.

    Autocast and gradients are as they were around the block, for what was switched inside is switched back. float32
    weights leave the precision open where a function of the traceback switches autocast.
    """
    weight = next(module.parameters(), None)
    device = torch.device("cpu") if weight is None else weight.device
    codes = [frame.f_code for frame, _ in traceback.walk_tb(error.__traceback__)]
    autocast_dtype = autocast_dtype_on(device.type)
    precision = precision_of(module, autocast_dtype)
    if precision == "fp32" and any("autocast" in name for code in codes for name in (code.co_name, *code.co_names)):
        precision = None
    known = {
        "phase": _phase(module, {code.co_name for code in codes}),
        "precision": precision,
        "attention": attention_of(module),
        "checkpoint": "full" if is_checkpointed(module) else "none",
        "dropout": module.training,
        "compute_capability": torch.cuda.get_device_capability(device) if device.type == "cuda" else None,
    }
    return {name: value for name, value in known.items() if value is not None}


def _phase(module: nn.Module, functions: set[str]) -> str | None:
    """Tell the phase by mode and gradients; None: of a module that does not train, gradients may be off inside."""
    if torch.is_grad_enabled():
        return "train" if module.training else None
    # transformers' `generate` reads the prompt in `_prefill`, and then goes on token by token.
    is_token = "generate" in functions and "_prefill" not in functions
    return "decode" if is_token else "prefill"


def is_out_of_memory(error: BaseException) -> bool:
    """Tell whether an error says that there was no memory: one of torch's class for it, or one that `oom` can read."""
    if isinstance(error, torch.OutOfMemoryError):
        return True
    if not isinstance(error, RuntimeError | MemoryError):
        return False
    try:
        read_message(str(error)[:MAX_TEXT])
    except Exception:  # it is about something else; or a user's own exception, whose text fails
        return False
    return True
