"""measure_training_step: run a real training step of any module, and record its memory, time and FLOPs."""

import copy
import statistics
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from headwise.cost.results import FlopCount, MeasuredStep
from headwise.cost.running.flop_counter import FlopCounter
from headwise.cost.running.peaks import Peaks, record_peaks
from headwise.cost.running.prepare import (
    Inputs,
    Loss,
    autocast,
    call,
    make_loss,
    make_optimizers,
    prepare_inputs,
    prepare_module,
    sum_of_first_tensor,
    switch_cache_off,
)
from headwise.cost.running.saved import follow_saved
from headwise.cost.workload import Workload
from headwise.errors import ConfigError, ModelError, UnsupportedError

MOMENTS = ("forward", "loss", "backward", "optimizer step")
_END = "end"


def measure_training_step(
    module: nn.Module,
    inputs: Inputs,
    *,
    workload: Workload | None = None,
    loss: Loss | None = None,
    optimizer: Literal["adamw", "sgd"] | None = None,
    timed_steps: int = 0,
    with_flops: bool = False,
) -> MeasuredStep:
    """Run training steps of a copy of `module`, and return what the steady one held, took and computed.

    A step is forward in train mode, loss, backward, optimizer step, `zero_grad(set_to_none=True)`. The first one makes
    the optimizer's states, and counts what is saved for backward; the second one is the steady state. What the model
    returns is dropped once the loss is known. A key/value cache is switched off where the module's config has one, as
    transformers' Trainer does. `module` itself, its gradients and the random state are left as they were.

    `peak_bytes` is what the allocator says: on CPU through torch's profiler, which also sees what kernels take for
    themselves; on CUDA its own statistics, blocks rounded as it rounds them (not tried on a GPU so far). Parameters,
    buffers, inputs and optimizer states count as alive all along. `saved_bytes` are the distinct storages that the
    graph of the loss holds when backward begins, without those of parameters, buffers and inputs.

    Args:
        module: on the CPU, or on one CUDA device.
        inputs: what the module is called with, by name or in order, on the same device.
        workload: what to do to the copy before the step (`prepare_module`), the optimizer and its form, the loss, and
            how many passes make a step; its `device` must be the module's, its `batch` and `seq` are the inputs' to
            say. A scaler of the loss is not part of it. Default: the module as it is, at its own dtype and attention.
        loss: what to minimise, of the module's output. Default: the workload's; without one the sum, in float32, of
            the first floating-point tensor: the last hidden state, or the scores where a head stands on top.
        optimizer: without a workload, "adamw" (the default) or "sgd" (no momentum), each with torch's defaults.
        timed_steps: steady steps to time, after those above; 0 = none.
        with_flops: whether to count the FLOPs of one more step.

    Raises:
        ConfigError: a workload and an optimizer beside it, or the workload is of another device or phase.
        UnsupportedError: a tensor is on no such device, or torch or the module cannot do what the workload asks for.
        ModelError: the module cannot be copied, has no weight to train, or gives nothing to train on.
    """
    device = common_device(module, inputs)
    bytes_before = allocated_bytes(device) - storage_bytes(tree_leaves(inputs))
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else ()), torch.enable_grad():
        step = _make_step(module, inputs, device, workload, loss, optimizer)
        given = [*step.module.parameters(), *step.module.buffers(), *tree_leaves(step.inputs)]
        saved_bytes: list[int] = []  # in each pass of the step
        with follow_saved() as saved:
            step.run(Peaks(), before_backward=lambda: saved_bytes.append(_bytes_beside(saved.held(), given)))
        flops = step.count_flops() if with_flops else None
        states = [state for each in step.optimizers for state in each.state.values()]
        standing_bytes = storage_bytes([*given, *tree_leaves(states)])
        if device.type == "cuda":  # with the allocator's rounding
            standing_bytes = allocated_bytes(device) - bytes_before
        with record_peaks(device) as peaks:
            step.run(peaks)
        seconds = [step.run_timed() for _ in range(timed_steps)]
    moment = max(MOMENTS, key=lambda name: peaks.bytes_by_moment[name])
    return MeasuredStep(
        parameter_bytes=storage_bytes(step.module.parameters()),
        saved_bytes=saved_bytes[-1],
        peak_bytes=standing_bytes + peaks.bytes_by_moment[moment],
        peak_moment=moment,
        seconds=statistics.median(seconds) if seconds else None,
        flops=None if flops is None else flops.dense,
        uncounted=() if flops is None else flops.uncounted,
        reserved_bytes=peaks.reserved_bytes,
    )


def storage_bytes(tensors: Iterable[object]) -> int:
    """Add up the memory behind tensors; views of one storage count once, and all of it."""
    storages = {}
    for tensor in tensors:
        if isinstance(tensor, Tensor):
            storage = tensor.untyped_storage()
            storages[storage.data_ptr()] = storage.nbytes()
    return sum(storages.values())


def _bytes_beside(saved: Iterable[Tensor], given: Iterable[object]) -> int:
    """Add up the memory of what is saved, but for storages of tensors that were given."""
    excluded = {one.untyped_storage().data_ptr() for one in given if isinstance(one, Tensor)}
    return storage_bytes(tensor for tensor in saved if tensor.untyped_storage().data_ptr() not in excluded)


@dataclass(frozen=True, kw_only=True, eq=False)
class _Step:
    """Everything that a step is made of, ready to run any number of times."""

    module: nn.Module
    inputs: Inputs
    loss: Loss
    optimizers: tuple[torch.optim.Optimizer, ...]
    workload: Workload
    device: torch.device

    def run(self, peaks: Peaks, before_backward: Callable[[], None] = lambda: None) -> None:
        for _ in range(self.workload.accumulation):
            self._pass(peaks, before_backward)
        with peaks.moment("optimizer step"):
            for optimizer in self.optimizers:
                optimizer.step()
        with peaks.moment(_END):
            self._forget_gradients()

    def run_timed(self) -> float:
        """Return the seconds that a step takes, until the device is done with it."""
        self._wait()
        started = time.perf_counter()
        self.run(Peaks())
        self._wait()
        return time.perf_counter() - started

    def count_flops(self) -> FlopCount:
        """Return the FLOPs of the passes of one step; the optimizer does not step."""
        with FlopCounter() as counter:
            for _ in range(self.workload.accumulation):
                self._pass(Peaks(), lambda: None)
        self._forget_gradients()
        return counter.count

    def _pass(self, peaks: Peaks, before_backward: Callable[[], None]) -> None:
        """Run forward, loss and backward once; gradients add up."""
        with autocast(self.workload):
            with peaks.moment("forward"):
                output = call(self.module, self.inputs, self.workload)
            with peaks.moment("loss"):
                value = self.loss(output)
                del output
                if self.workload.accumulation > 1:
                    value = value / self.workload.accumulation
        before_backward()
        if value.grad_fn is None:
            raise ModelError("the loss must depend on a parameter; it has no gradient")
        with peaks.moment("backward"):
            torch.autograd.backward(value)

    def _forget_gradients(self) -> None:
        for optimizer in self.optimizers:
            optimizer.zero_grad(set_to_none=True)
        for leaf in tree_leaves(self.inputs):
            if isinstance(leaf, Tensor):
                leaf.grad = None

    def _wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


def _make_step(
    module: nn.Module,
    inputs: Inputs,
    device: torch.device,
    workload: Workload | None,
    loss: Loss | None,
    optimizer: Literal["adamw", "sgd"] | None,
) -> _Step:
    trained = copy_module(module)
    if workload is None:
        kind: Any = device.type
        workload = Workload(batch=1, seq=1, optimizer=optimizer or "adamw", device=kind)
        switch_cache_off(trained.train())
        loss = loss or sum_of_first_tensor
    else:
        _require_measurable(workload, device, optimizer)
        prepare_module(trained, workload)
        inputs = prepare_inputs(inputs, workload)
        loss = loss or make_loss(trained, inputs, workload)
    inputs = _own_leaves(inputs)
    return _Step(
        module=trained,
        inputs=inputs,
        loss=loss,
        optimizers=make_optimizers(trained, workload),
        workload=workload,
        device=device,
    )


def _own_leaves(inputs: Inputs) -> Inputs:
    """Return inputs of the same numbers that gradients may be left on, as the caller's are not the step's to change."""

    def own(leaf: object) -> object:
        return leaf.detach().requires_grad_(leaf.requires_grad) if isinstance(leaf, Tensor) else leaf

    owned: Inputs = tree_map(own, dict(inputs) if isinstance(inputs, Mapping) else tuple(inputs))
    return owned


def copy_module(module: nn.Module) -> nn.Module:
    """Return a copy of a module, without gradients, to run in its place.

    Raises:
        ModelError: it cannot be copied.
    """
    try:
        trained = copy.deepcopy(module)
    except Exception as error:
        raise ModelError(f"the module must allow a copy, to train it in its place; copying raised {error!r}") from error
    trained.zero_grad(set_to_none=True)
    return trained


def _require_measurable(workload: Workload, device: torch.device, optimizer: str | None) -> None:
    if optimizer is not None:
        raise ConfigError(
            f"the optimizer stands in the workload; got {workload.optimizer} there and {optimizer} beside it"
        )
    if workload.device != device.type:
        raise ConfigError(
            f"a step is measured where the module is; got a module on {device.type} and a workload of device "
            f"{workload.device}: give Workload(device={device.type!r})"
        )
    if workload.phase != "train":
        raise ConfigError(f"a training step needs phase 'train'; got {workload.phase!r}")


def common_device(module: nn.Module, inputs: Inputs) -> torch.device:
    """Return the one device, CPU or CUDA, of all tensors."""
    tensors = [*module.parameters(), *module.buffers(), *tree_leaves(inputs)]
    devices = {tensor.device for tensor in tensors if isinstance(tensor, Tensor)}
    if len(devices) > 1 or any(device.type not in ("cpu", "cuda") for device in devices):
        found = ", ".join(sorted(map(str, devices)))
        raise UnsupportedError(
            f"a step is measured with all tensors on the CPU or all on one CUDA device; got tensors on {found}"
        )
    return devices.pop() if devices else torch.device("cpu")


def allocated_bytes(device: torch.device) -> int:
    """Return what the CUDA allocator has handed out; on CPU nobody keeps that count."""
    return torch.cuda.memory_allocated(device) if device.type == "cuda" else 0
