"""What stands around a step, told to a recorder: a module's weights and buffers, an optimizer's states."""

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from headwise.cost.running.layer_lists import named_parts
from headwise.cost.tracing.recorder import Recorder


def stand_module(recorder: Recorder, module: nn.Module) -> None:
    """Record the weights and buffers of a module as there from before."""
    parts = list(named_parts(module))
    for owner, part in parts:
        for own, parameter in part._parameters.items():
            recorder.stand(parameter, "parameter", own, owner)
    for owner, part in parts:
        for own, buffer in part._buffers.items():
            recorder.stand(buffer, "input", own, owner)


def stand_states(recorder: Recorder, optimizer: torch.optim.Optimizer, names: Mapping[int, tuple[str, str]]) -> None:
    """Record the states of an optimizer; those that are unknown so far are there from before.

    Args:
        recorder: to tell.
        optimizer: any; what it keeps beside tensors of weights is left out.
        names: the own name and the owner of each weight, by its id.
    """
    for parameter, name, state in _states(optimizer):
        own, owner = names.get(id(parameter), ("weight", ""))
        recorder.stand(state, "optimizer", f"{name} of {own}", owner)
        recorder.mark(state, "optimizer", f"{name} of {own}", owner)


def _states(optimizer: torch.optim.Optimizer) -> Iterator[tuple[Tensor, str, Any]]:
    for parameter, states in optimizer.state.items():
        if isinstance(parameter, Tensor) and isinstance(states, Mapping):
            for name, state in states.items():
                yield parameter, name, state
