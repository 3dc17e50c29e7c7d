"""Which forward calls of a training step are listened to: the first of each module, and no recomputation."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

Opened = Callable[[nn.Module, tuple[Any, ...], dict[str, Any]], None]


class HeardPasses:
    """Follows the forward calls of a model's modules while a step runs.

    A call that no other call of the model contains is a pass. It is heard unless its module, or one that holds it, has
    been heard in this step: later micro-batches are not, nor what gradient checkpointing computes again in backward.

    Args:
        model: what is followed; its hooks are there until `close`.
        opened: called with the module and its arguments when a pass begins that is heard.

    Attributes:
        is_open: whether a call that comes now is heard.
    """

    def __init__(self, model: nn.Module, opened: Opened):
        self.is_open = False
        self._opened = opened
        self._depth = 0
        self._heard: set[nn.Module] = set()
        self._handles = []
        for part in model.modules():
            if next(part.children(), None) is not None:  # attention has projections: it never runs in a leaf alone
                self._handles.append(part.register_forward_pre_hook(self._before, with_kwargs=True))
                self._handles.append(part.register_forward_hook(self._after, always_call=True))

    def _before(self, module: nn.Module, args: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        if torch.compiler.is_compiling():  # nothing can be heard of a graph
            return
        self._depth += 1
        if self._depth == 1 and module not in self._heard:
            self.is_open = True
            self._opened(module, args, keywords)

    def _after(self, module: nn.Module, *_: Any) -> None:
        if torch.compiler.is_compiling():
            return
        self._depth -= 1
        if self._depth == 0 and self.is_open:
            self.is_open = False
            self._heard.update(module.modules())

    def close(self) -> None:
        """Take the hooks away."""
        self.is_open = False
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
