"""measure_training_step: run a real training step of any module and record the memory that it holds."""

import copy
import os
import weakref
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile, record_function
from torch.utils._pytree import tree_leaves

from headwise.cost.results import StepMemory
from headwise.errors import ModelError, UnsupportedError

MOMENTS = ("forward", "loss", "backward", "optimizer step")
_END = "end"
_RANGE = "headwise: "

Inputs = Mapping[str, Tensor] | tuple[Tensor, ...]
Loss = Callable[[Any], Tensor]


def measure_training_step(
    module: nn.Module,
    inputs: Inputs,
    *,
    loss: Loss | None = None,
    optimizer: Literal["adamw", "sgd"] = "adamw",
) -> StepMemory:
    """Run two training steps of a copy of `module`, and return the bytes that the second one held.

    A step is forward in train mode, loss, backward, optimizer step, `zero_grad(set_to_none=True)`. The first one makes
    the optimizer's states, and counts what is saved for backward; the second one is the steady state. What the model
    returns is dropped once the loss is known. A key/value cache is switched off where the module's config has one, as
    transformers' Trainer does. `module` itself, its gradients and the random state are left as they were.

    `peak_bytes` is read from the allocator through torch's profiler, which also sees what kernels take for themselves;
    parameters, buffers, inputs and optimizer states count as alive all along. `saved_bytes` are the distinct storages
    that the graph of the loss holds when backward begins, without those of parameters, buffers and inputs.

    Args:
        module: on the CPU.
        inputs: what the module is called with, by name or in order.
        loss: what to minimise, of the module's output. Default: the sum, in float32, of its first floating-point
            tensor: the last hidden state, or the scores where a head stands on top.
        optimizer: "adamw" or "sgd" (without momentum), each with torch's defaults.

    Raises:
        UnsupportedError: the module or an input is on another device.
        ModelError: the module cannot be copied, has no weight to train, or gives nothing to train on.
    """
    _require_cpu(module, inputs)
    loss = loss or sum_of_first_tensor
    with torch.random.fork_rng(devices=()), torch.enable_grad():
        trained = _copy_for_training(module)
        parameters = [parameter for parameter in trained.parameters() if parameter.requires_grad]
        if not parameters:
            raise ModelError("a training step needs a parameter that requires a gradient; the module has none")
        steps = torch.optim.AdamW(parameters) if optimizer == "adamw" else torch.optim.SGD(parameters)
        given = [*trained.parameters(), *trained.buffers(), *tree_leaves(inputs)]
        with count_saved_bytes(given) as saved:
            _run_step(trained, inputs, loss, steps, before_backward=saved.close)
        standing_bytes = storage_bytes([*given, *tree_leaves(list(steps.state.values()))])
        with _record_allocations() as profiler:
            _run_step(trained, inputs, loss, steps)
        peaks = _peaks(profiler)
    moment = max(MOMENTS, key=lambda name: peaks[name])
    return StepMemory(
        parameter_bytes=storage_bytes(trained.parameters()),
        saved_bytes=saved.total_bytes,
        peak_bytes=standing_bytes + peaks[moment],
        peak_moment=moment,
    )


def sum_of_first_tensor(output: object) -> Tensor:
    """Sum the first floating-point tensor of a module's output, in float32."""
    for leaf in tree_leaves(output):
        if isinstance(leaf, Tensor) and leaf.is_floating_point():
            return leaf.float().sum()
    raise ModelError(
        f"the module's output must hold a floating-point tensor to train on; got {type(output).__name__}: give a loss"
    )


def storage_bytes(tensors: Iterable[object]) -> int:
    """Add up the memory behind tensors; views of one storage count once, and all of it."""
    storages = {}
    for tensor in tensors:
        if isinstance(tensor, Tensor):
            storage = tensor.untyped_storage()
            storages[storage.data_ptr()] = storage.nbytes()
    return sum(storages.values())


class _Saved:
    """One tensor that an operation saved; it lives as long as the operation holds it."""

    __slots__ = ("__weakref__", "tensor")

    def __init__(self, tensor: Tensor):
        # Detached: an operation that saves its own result would else hold itself alive.
        self.tensor = tensor.detach()


class SavedBytes:
    """The bytes that are saved for backward at the moment of `close`."""

    def __init__(self, excluded: Iterable[object]):
        self.total_bytes = 0
        self._excluded = {one.untyped_storage().data_ptr() for one in excluded if isinstance(one, Tensor)}
        self._saved: list[weakref.ref[_Saved]] = []

    def pack(self, tensor: Tensor) -> _Saved:
        """Take a tensor that an operation saves."""
        saved = _Saved(tensor)
        self._saved.append(weakref.ref(saved))
        return saved

    def close(self) -> None:
        """Count what is still held."""
        held = [saved.tensor for reference in self._saved if (saved := reference()) is not None]
        self.total_bytes = storage_bytes(
            tensor for tensor in held if tensor.untyped_storage().data_ptr() not in self._excluded
        )


@contextmanager
def count_saved_bytes(excluded: Iterable[object]) -> Iterator[SavedBytes]:
    """Follow what operations save for backward, but for the storages of some tensors; call `close` before backward."""
    saved = SavedBytes(excluded)
    with torch.autograd.graph.saved_tensors_hooks(saved.pack, lambda one: one.tensor):
        yield saved


def _run_step(
    module: nn.Module,
    inputs: Inputs,
    loss: Loss,
    optimizer: torch.optim.Optimizer,
    before_backward: Callable[[], None] = lambda: None,
) -> None:
    with record_function(_RANGE + "forward"):
        output = module(**inputs) if isinstance(inputs, Mapping) else module(*inputs)
    with record_function(_RANGE + "loss"):
        value = loss(output)
        del output
    before_backward()
    if value.grad_fn is None:
        raise ModelError("the loss must depend on a parameter; it has no gradient")
    with record_function(_RANGE + "backward"):
        torch.autograd.backward(value)
    with record_function(_RANGE + "optimizer step"):
        optimizer.step()
    with record_function(_RANGE + _END):
        optimizer.zero_grad(set_to_none=True)


def _copy_for_training(module: nn.Module) -> nn.Module:
    try:
        trained = copy.deepcopy(module)
    except Exception as error:
        raise ModelError(f"the module must allow a copy, to train it in its place; copying raised {error!r}") from error
    trained.zero_grad(set_to_none=True)
    config: Any = getattr(trained, "config", None)
    if getattr(config, "use_cache", False):
        config.use_cache = False
    return trained.train()


def _require_cpu(module: nn.Module, inputs: Inputs) -> None:
    for tensor in [*module.parameters(), *module.buffers(), *tree_leaves(inputs)]:
        if isinstance(tensor, Tensor) and tensor.device.type != "cpu":
            raise UnsupportedError(f"a step is measured on the CPU; got a tensor on {tensor.device}: move it there")


@contextmanager
def _record_allocations() -> Iterator[profile]:
    """Record every allocation and release on the CPU."""
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # else the profiler's engine writes lines of its own to stderr
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        yield profiler


def _peaks(profiler: profile) -> dict[str, int]:
    """Return the most bytes alive in each moment, above those alive when the record began."""
    events: list[Any] = profiler.profiler.kineto_results.events()  # type: ignore[union-attr]
    changes = sorted((event.start_ns(), index) for index, event in enumerate(events) if event.name() == "[memory]")
    ranges = sorted((event.start_ns(), event.name()) for event in events if event.name().startswith(_RANGE))
    beginnings = [beginning for beginning, _ in ranges]
    peaks = dict.fromkeys((*MOMENTS, _END), 0)
    current_bytes = 0
    for time, index in changes:
        current_bytes += events[index].nbytes()
        place = bisect_right(beginnings, time) - 1
        if place >= 0:
            moment = ranges[place][1].removeprefix(_RANGE)
            peaks[moment] = max(peaks[moment], current_bytes)
    return peaks
