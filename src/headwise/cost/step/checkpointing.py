"""checkpointed: a part of the forward pass that keeps its inputs alone, and runs again in backward.

This is torch's checkpoint without reentry, as transformers and torchtune switch it on: what operations inside would
keep is dropped on the way; in backward, the first of them that is reached makes the whole part run again, up to the
last tensor that is kept, and each operation then finds what it needs and drops it when it is done.

Source: Chen et al. 2016, "Training Deep Nets with Sublinear Memory Cost", section 3; torch 2.13, utils/checkpoint.py.
"""

import weakref
from collections.abc import Callable
from typing import TypeVar

from headwise.cost.step.autocast import autocasting
from headwise.cost.step.tape import Frame, Node, Storage, Tape, Value

RANDOM_STATE_BYTES = 5056  # torch's random state on CPU, kept so that dropout drops the same again

T = TypeVar("T")


def checkpointed(tape: Tape, function: Callable[..., T], *inputs: Value) -> T:
    """Run a part of the forward pass so that it keeps its inputs alone; without gradients, just run it.

    Args:
        tape: where it runs.
        function: of the inputs; what else it reads is held by it, until its backward is done, and counts as alive but
            not as saved.
        *inputs: tensors that autograd saves.
    """
    if not tape.grad_enabled:
        return function(*inputs)
    tape.frame = _Checkpoint(tape, function, inputs)
    result = function(*inputs)
    tape.frame = None
    return result


class _Done(Exception):  # noqa: N818  a signal, no error
    """Everything that is kept has been made again."""


class _Checkpoint(Frame):
    """One checkpointed part. Operations of the first run hold it until their backward is done."""

    def __init__(self, tape: Tape, function: Callable[..., object], inputs: tuple[Value, ...]):
        self._tape = tape
        self._function = function
        self._inputs = inputs
        self._autocast_dtype = tape.autocast_dtype
        self._keepers: list[weakref.ref[Node]] = []
        self._num_remade: int | None = None  # None: it has not run again
        for value in inputs:
            value.storage.record.is_kept = True
        self._random_state = self._copy_random_state()

    @property
    def drops(self) -> bool:
        return self._num_remade is None

    def take(self, node: Node, kept: tuple[Storage, ...]) -> None:
        if not kept:
            return
        if self._num_remade is None:
            node.frame = self
            self._keepers.append(weakref.ref(node))
            return
        first = self._keepers[self._num_remade]()
        if first is not None:  # else its result was not read
            first.kept = kept
        self._num_remade += 1
        if self._num_remade == len(self._keepers):
            raise _Done

    def recompute(self) -> None:
        if self._num_remade is not None:
            return
        self._num_remade = 0
        _random_state_now = self._copy_random_state()
        self._tape.frame = self
        try:
            with autocasting(self._tape, self._autocast_dtype):
                self._function(*self._inputs)
        except _Done:
            pass
        self._tape.frame = None

    def _copy_random_state(self) -> Storage | None:
        if self._tape.device != "cpu":
            return None  # it is kept on the host
        return self._tape.new("random state", (RANDOM_STATE_BYTES,), "uint8")
