"""trace_step: the ledger of any module's step, run on tensors that have shapes but no numbers."""

import contextlib
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses import FakeTensorMode
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    UnsupportedOperatorException,
)
from torch.utils._pytree import tree_leaves

from headwise.cost.results import Ledger, StepMemory
from headwise.cost.running.prepare import (
    Inputs,
    Loss,
    autocast,
    call,
    make_loss,
    make_optimizers,
    prepare_inputs,
    prepare_module,
)
from headwise.cost.tracing.fake import FakeKernels, copy_to_meta, make_fake
from headwise.cost.tracing.layers import Row, cut_rows, find_rows
from headwise.cost.tracing.lives import BACKWARD, FORWARD, LOSS, OPTIMIZER_STEP, make_ledger
from headwise.cost.tracing.recorder import Recorder
from headwise.cost.tracing.repeat import IrregularError, repeat_row
from headwise.cost.workload import Workload
from headwise.errors import HeadwiseError, ModelError, UnsupportedError, describe
from headwise.integrations.transformers_tracing import whole_texts

_UNKNOWN_NUMBERS = (DataDependentOutputException, DynamicOutputShapeException, UnsupportedOperatorException)


def trace_step(
    module: nn.Module | Callable[[], nn.Module], inputs: Inputs, workload: Workload, *, loss: Loss | None = None
) -> Ledger:
    """Run one step of a copy of any module on fake tensors, and return every tensor that it makes, with its life.

    The step is real code, the module's own, under torch's autograd and torch's optimizer: forward in train mode, loss,
    backward (both `accumulation` times) and the optimizer's step in its steady state, without gradients at its start; a
    "prefill" is the forward alone, without autograd and in eval mode. No numbers are computed and no weights are read,
    so that a model of any size is traced on any machine. Every birth and every release is a moment of the ledger,
    named "forward: layers.3": its phase, and the layer of a row of layers or else the module. The peak is exact for
    what operations return; what kernels take for themselves and give back is not seen, nor the random generator's state
    (5056 bytes) that a checkpoint keeps.

    On CPU, kernels are those that torch takes on CPU. On CUDA our own rules stand in place of attention, dropout,
    autocast and norms (`device_rules`): derived from torch's sources, not measured.

    Layers that are alike are traced a few times and repeated, where the record itself shows that they live alike.

    Args:
        module: any module on any device (meta too), or a function without arguments that makes one. Nothing of it is
            changed, and a function's module is made of fake tensors, at no cost of memory.
        inputs: what it is called with, by name or in order; of tensors only shapes and dtypes are read.
        workload: what the step does; its `batch` and `seq` are the inputs' to say.
        loss: what to minimise, of the module's output. Default: the workload's.

    Raises:
        ModelError: the module cannot be copied or run, has no weight to train, or gives nothing to train on.
        UnsupportedError: the step depends on the values of tensors, or torch or the module cannot do what the workload
            asks for.
    """
    given = module
    if not isinstance(given, nn.Module):
        with FakeTensorMode():
            given = given()
    with torch.random.fork_rng(devices=()):
        rows = find_rows(given)
        if any(row.num_missing for row in rows):
            # A module that fails without the layers that were cut may run with them.
            with contextlib.suppress(IrregularError, ModelError):
                cut = _record(given, inputs, workload, loss, rows)
                standing, events = cut.standing, cut.events
                for row in rows:
                    standing, events = repeat_row(row, standing, events)
                return make_ledger(standing, events)
        whole = _record(given, inputs, workload, loss, [])
    return make_ledger(whole.standing, whole.events)


def step_memory(ledger: Ledger) -> StepMemory:
    """Return the totals of a traced training step, in the terms of a measured one.

    Args:
        ledger: of `trace_step`, phase "train". What is saved is counted when the first backward begins.
    """
    phases = [moment.split(":")[0] for moment in ledger.moments]
    last_forward = phases.index(BACKWARD) - 1 if BACKWARD in phases else len(phases) - 1
    return StepMemory(
        parameter_bytes=ledger.kind_bytes("parameter"),
        saved_bytes=sum(entry.bytes for entry in ledger.alive(last_forward) if entry.kind == "saved"),
        peak_bytes=ledger.bytes_at(ledger.peak),
        peak_moment=phases[ledger.peak],
    )


def _record(given: nn.Module, inputs: Inputs, workload: Workload, loss: Loss | None, rows: list[Row]) -> Recorder:
    """Record a step of a copy of the module, without the layers of some rows that need no trace."""
    module: Any = copy_to_meta(given)
    cut_rows(module, rows)
    is_caching = getattr(getattr(module, "config", None), "use_cache", None)
    prepare_module(module, workload)
    if workload.phase == "prefill" and is_caching:
        module.config.use_cache = True
    recorder = Recorder(find_workspace=_workspace_of(workload), with_random_states=workload.device == "cpu")
    recorder.name_modules(module)
    with FakeTensorMode(allow_non_fake_inputs=True), _clear_errors(module, recorder):
        inputs = prepare_inputs(make_fake(module, inputs), workload)
        step = _Step(module, inputs, workload, recorder)
        if workload.phase == "prefill":
            step.run_prefill()
        else:
            step.run_training(loss or make_loss(module, inputs, workload))
    return recorder


def _workspace_of(workload: Workload) -> Callable[[Any, tuple[Any, ...], dict[str, Any]], int] | None:
    """Return what tells the bytes that a kernel of the workload's device takes for itself; None where none is known."""
    if workload.device != "cuda":
        return None
    from headwise.cost.cuda.workspace import workspace_bytes

    return partial(workspace_bytes, compute_capability=workload.compute_capability)


@dataclass
class _Step:
    """A step, ready to run once on fake tensors."""

    module: nn.Module
    inputs: Inputs
    workload: Workload
    recorder: Recorder
    kernels: FakeKernels = field(default_factory=FakeKernels)

    def run_prefill(self) -> None:
        self._stand()
        with torch.no_grad(), self._watched():
            self.recorder.phase = FORWARD
            output = self._forward()
            self.recorder.close()
        del output  # what is given back here is no part of the prefill

    def run_training(self, loss: Loss) -> None:
        optimizers = make_optimizers(self.module, self.workload)
        self._stand()
        with torch.enable_grad():
            with self._watched():
                for _ in range(self.workload.accumulation):
                    self._pass(loss)
            self.kernels.answers = True  # an optimizer may read numbers, but makes its tensors whatever they are
            names = self._name_gradients()
            for optimizer in optimizers:
                with self.kernels:
                    optimizer.step()  # makes the states, which a step in the steady state finds
                self._stand_states(optimizer, names)
            with self._watched():
                self.recorder.phase = OPTIMIZER_STEP
                for optimizer in optimizers:
                    optimizer.step()
                self.recorder.close()

    def _pass(self, loss: Loss) -> None:
        recorder = self.recorder
        saved = SavedTensors()
        hooks = torch.autograd.graph.saved_tensors_hooks(saved.pack, saved.unpack)
        with autocast(replace(self.workload, device="cpu")), hooks:  # the CPU is where fake tensors are
            recorder.phase = FORWARD
            output = self._forward()
            recorder.phase = LOSS
            value = loss(output)
            del output
            if self.workload.accumulation > 1:
                value = value / self.workload.accumulation
        saved.mark(recorder)
        if value.grad_fn is None:
            raise ModelError("the loss must depend on a parameter; it has no gradient")
        recorder.phase = BACKWARD
        torch.autograd.backward(value)

    def _forward(self) -> Any:
        return call(self.module, self.inputs, self.workload)

    @contextlib.contextmanager
    def _watched(self) -> Iterator[None]:
        """Record, under the rules of the workload's device and with its checkpointing of attention."""
        with contextlib.ExitStack() as stack:
            stack.enter_context(whole_texts())
            stack.enter_context(self.kernels)
            stack.enter_context(self.recorder)
            if self.workload.device == "cuda":
                from headwise.cost.cuda.rules import device_rules

                stack.enter_context(device_rules("cuda", compute_capability=self.workload.compute_capability))
            yield

    def _stand(self) -> None:
        """Record what the step finds but for the states of the optimizer: weights, buffers and inputs."""
        for name, parameter in self.module.named_parameters():
            owner, _, own = name.rpartition(".")
            self.recorder.stand(parameter, "parameter", own, owner)
        for name, buffer in self.module.named_buffers():
            owner, _, own = name.rpartition(".")
            self.recorder.stand(buffer, "input", own, owner)
        inputs = self.inputs if isinstance(self.inputs, Mapping) else dict(enumerate(self.inputs))
        for place, value in inputs.items():
            for leaf in tree_leaves(value):
                self.recorder.stand(leaf, "input", f"input {place}")

    def _name_gradients(self) -> dict[Tensor, tuple[str, str]]:
        """Say which recorded tensors are gradients; return the own name and the owner of each weight."""
        names: dict[Tensor, tuple[str, str]] = {}
        for name, parameter in self.module.named_parameters():
            owner, _, own = name.rpartition(".")
            names[parameter] = (own, owner)
            self.recorder.mark(parameter.grad, "gradient", f"gradient of {own}", owner)
        return names

    def _stand_states(self, optimizer: torch.optim.Optimizer, names: Mapping[Tensor, tuple[str, str]]) -> None:
        for parameter, states in optimizer.state.items():
            own, owner = names[parameter]
            for name, state in states.items():
                self.recorder.stand(state, "optimizer", f"{name} of {own}", owner)


class SavedTensors:
    """What operations save for backward; it holds nothing itself."""

    def __init__(self) -> None:
        self._packed: list[weakref.ref[_Packed]] = []

    def pack(self, tensor: Tensor) -> "_Packed":
        """Take a tensor that an operation saves."""
        packed = _Packed(tensor)
        self._packed.append(weakref.ref(packed))
        return packed

    @staticmethod
    def unpack(packed: "_Packed") -> Tensor:
        """Give it back."""
        return packed.tensor

    def mark(self, recorder: Recorder) -> None:
        """Give the kind "saved" to what is held now, but for weights, buffers and inputs."""
        for reference in self._packed:
            packed = reference()
            life = None if packed is None else recorder.find(packed.tensor)
            if life is not None and life.kind == "temporary":
                life.kind = "saved"


class _Packed:
    """One saved tensor; it lives as long as its operation holds it."""

    __slots__ = ("__weakref__", "tensor")

    def __init__(self, tensor: Tensor):
        self.tensor = tensor.detach()  # an operation that saves its own result would else hold itself alive


@contextlib.contextmanager
def _clear_errors(module: nn.Module, recorder: Recorder) -> Iterator[None]:
    """Turn what stops a step into one line that names the module."""
    try:
        yield
    except HeadwiseError:
        raise
    except _UNKNOWN_NUMBERS as error:
        owner = (recorder.failed_at.owner if recorder.failed_at else "") or type(module).__name__
        raise UnsupportedError(
            f"a traced step must not depend on the values of its tensors; {owner} asks for them "
            f"({describe(error)}): measure it instead"
        ) from error
    except Exception as error:
        raise ModelError(f"a step of {type(module).__name__} must run; it raised {describe(error)}") from error
