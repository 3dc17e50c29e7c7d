"""Running Hugging Face models on fake tensors as they run on real ones.

transformers looks into position ids for several texts packed in one row, and into padding masks for padding. It cannot
in fake ones, and then builds masks for the case; where positions are the default ones and no token is padding, real
tensors never get those masks.
"""

import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from functools import wraps
from threading import Lock
from typing import Any

from torch._subclasses import FakeTensor

# The function that decides -> the argument that it looks into.
_DECISIONS = {
    "find_packed_sequence_indices": "position_ids",
    "_ignore_causal_mask_sdpa": "padding_mask",
    "_ignore_bidirectional_mask_sdpa": "padding_mask",
    "create_recurrent_attention_mask": "attention_mask",
}

_is_whole: ContextVar[bool] = ContextVar("whether texts without numbers are whole", default=False)


@contextmanager
def whole_texts() -> Iterator[None]:
    """Let transformers find one text without padding in each row of fake tensors, inside and in this thread.

    Real tensors and other threads are answered as ever. Nothing happens where transformers is not imported: then no
    model of it is at hand.
    """
    with _overrides.active():
        token = _is_whole.set(True)
        try:
            yield
        finally:
            _is_whole.reset(token)


class _Overrides:
    """The decisions of transformers in our own words; they stand from the first use to the end of the last."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._num_uses = 0
        self._is_in = False
        self._originals = ExitStack()

    @contextmanager
    def active(self) -> Iterator[None]:
        with self._lock:
            self._put_in()
            self._num_uses += 1
        try:
            yield
        finally:
            with self._lock:
                self._num_uses -= 1
                if self._num_uses == 0:
                    self._originals.close()
                    self._is_in = False

    def _put_in(self) -> None:
        masks: Any = sys.modules.get("transformers.masking_utils")
        if masks is None or self._is_in:
            return
        self._is_in = True
        models = [module for name, module in list(sys.modules.items()) if name.startswith("transformers.")]
        for name, argument in _DECISIONS.items():
            original = getattr(masks, name)
            ours = _decide(original, argument)
            for module in models:
                if vars(module).get(name) is original:  # models import some of them by name
                    self._originals.callback(setattr, module, name, original)
                    setattr(module, name, ours)


def _decide(original: Callable[..., Any], argument: str) -> Callable[..., Any]:
    signature = inspect.signature(original)

    @wraps(original)
    def decide(*args: Any, **kwargs: Any) -> Any:
        call = signature.bind(*args, **kwargs)
        if not _is_whole.get() or not isinstance(call.arguments.get(argument), FakeTensor):
            return original(*args, **kwargs)
        if argument == "position_ids":
            original(*args, **kwargs)  # it takes its memory all the same
            return None
        call.arguments[argument] = None
        return original(*call.args, **call.kwargs)

    return decide


_overrides = _Overrides()
