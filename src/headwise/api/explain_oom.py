"""explain_oom: around a step; when memory runs out in it, the error says what it is about and what to change."""

import traceback
from contextlib import ContextDecorator, suppress
from types import TracebackType
from typing import Any

import torch
from torch import nn

from headwise.api.fit_results import OomAnswer
from headwise.api.module_config import config_of
from headwise.config.checks import require_instance, require_size
from headwise.errors import describe

# What RuntimeErrors say that are about memory: of a CPU's allocator, of Apple's GPUs, and of CUDA where it is not
# torch's allocator that failed. All others pass untouched.
WORDINGS = ("DefaultCPUAllocator", "MPS backend out of memory", "CUDA out of memory", "CUDA error: out of memory")
ANSWER = "headwise_answer"


def explain_oom(module: nn.Module | None = None, *, batch: int | None = None, seq: int | None = None) -> "ExplainOom":
    """Explain an out-of-memory error that the code inside raises, and let it go on.

    The error that leaves the block is the same object, of the same type. Its notes, which Python prints below its text,
    hold the answer of `headwise.oom`: which tensor it is about, what else was alive, and what to change. Its attribute
    `headwise_answer` is that answer, an `OomAnswer`. If the explanation fails, a note says so, and the error goes on as
    it is.

    What can be caught: on GPUs `torch.OutOfMemoryError`. On a CPU a `RuntimeError` of torch's allocator, raised where a
    single tensor is more than the system grants, a limit (`ulimit -v`) or the address space; it is told by its text.
    What cannot: as a rule Linux grants memory that it does not have, and kills the process when the memory is used.
    Nothing runs in the process then, and nothing is explained. `headwise fit` tells before.

    The explanation needs no GPU memory, and on the host some MB: what it reads is imported and read when the block is
    entered. It frees nothing and keeps nothing alive: tensors of the failed step live as long as the error's traceback.
    To go on after it, leave the `except` clause before `torch.cuda.empty_cache()`.

    Args:
        module: the model. If it carries a Hugging Face config, the tensor is looked for among this model's.
        batch: number of texts of the step. Default: solved for.
        seq: tokens per text. Default: solved for.

    Raises:
        ConfigError: an argument is no module or no number.

    Example:
        >>> with headwise.explain_oom(model):
        ...     loss = model(inputs).sum()
        ...     loss.backward()
    """
    if module is not None:
        require_instance("module", module, nn.Module)
    for name, value in (("batch", batch), ("seq", seq)):
        if value is not None:
            require_size(name, value)
    return ExplainOom(module, batch=batch, seq=seq)


class ExplainOom(ContextDecorator):
    """What `explain_oom` returns: a context manager, and a decorator of a function that makes a step."""

    def __init__(self, module: nn.Module | None, *, batch: int | None, seq: int | None):
        self._module = module
        self._known: dict[str, Any] = {
            name: value for name, value in (("batch", batch), ("seq", seq)) if value is not None
        }

    def __enter__(self) -> "ExplainOom":
        # Now, as later there may be no memory to import anything with.
        from headwise.api.oom import oom
        from headwise.report.oom import oom_text

        self._oom, self._write = oom, oom_text
        self._model = config_of(self._module) if self._module is not None else None
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None or not is_out_of_memory(error) or hasattr(error, ANSWER):
            return
        try:
            answer = self._explain(error)
            error.add_note(self._write(answer))
            error.headwise_answer = answer  # type: ignore[attr-defined]
        except Exception as failure:  # whatever it is, the step's own error is the one to see
            with suppress(Exception):
                error.add_note(f"headwise could not explain this error: {describe(failure)}")

    def _explain(self, error: BaseException) -> OomAnswer:
        """Ask what the error is about, with the lines of code around it; its causes are other errors."""
        text = "".join(traceback.format_exception(error, chain=False))
        return self._oom(text, model=self._model, **self._known)


def is_out_of_memory(error: BaseException) -> bool:
    """Tell whether an error says that torch found no memory for a tensor."""
    if isinstance(error, torch.OutOfMemoryError):
        return True
    with suppress(Exception):  # a user's own exception, whose text fails
        return isinstance(error, RuntimeError) and any(wording in str(error) for wording in WORDINGS)
    return False
