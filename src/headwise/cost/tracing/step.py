"""A step of a copy of any module on fake tensors, recorded: its own code under torch's autograd and optimizers."""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
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

from headwise.cost.running.decode import CACHE, cached_tensors, make_decode_inputs
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
from headwise.cost.running.saved import follow_saved
from headwise.cost.tracing.fake import FakeKernels, copy_to_meta, make_fake
from headwise.cost.tracing.layers import Row, cut_rows
from headwise.cost.tracing.lives import BACKWARD, FORWARD, LOSS, OPTIMIZER_STEP
from headwise.cost.tracing.recorder import Recorder
from headwise.cost.tracing.standing import stand_module, stand_states
from headwise.cost.workload import Workload
from headwise.errors import HeadwiseError, ModelError, UnsupportedError, describe
from headwise.integrations.transformers_tracing import whole_texts
from headwise.kernels import traced_device

_UNKNOWN_NUMBERS = (DataDependentOutputException, DynamicOutputShapeException, UnsupportedOperatorException)


def record_step(
    given: nn.Module,
    inputs: Inputs,
    workload: Workload,
    loss: Loss | None,
    *,
    rows: Iterable[Row] = (),
    is_foreseen: Callable[[Recorder], bool] = lambda _: False,
) -> Recorder | None:
    """Record a step of a copy of a module on fake tensors.

    Args:
        given: the module, `inputs`, `workload`, `loss`: as of `trace_step`.
        rows: of layers, from which those that need no trace are cut.
        is_foreseen: asked when the first backward begins, whether the rest is known and need not run.

    Returns:
        The record; None if the rest is known.
    """
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
        if workload.phase == "decode":
            step.make_cache()
        if workload.phase != "train":
            step.run_inference()
        else:
            is_foreseen_here = partial(is_foreseen, recorder)
            if not step.run_training(loss or make_loss(module, inputs, workload), is_foreseen_here):
                return None
    return recorder


def _workspace_of(workload: Workload) -> Callable[[Any, tuple[Any, ...], dict[str, Any]], int | None] | None:
    """Return what tells the bytes that a kernel of the workload's device takes for itself; None where none is known."""
    if workload.device != "cuda":
        return None
    from headwise.cost.cuda.workspace import workspace_bytes

    return partial(workspace_bytes, compute_capability=workload.compute_capability)


@dataclass
class _Step:
    """A step, ready to run once on fake tensors."""

    module: nn.Module
    inputs: Any  # `Inputs`, or of a decode with a cache among them
    workload: Workload
    recorder: Recorder
    kernels: FakeKernels = field(default_factory=FakeKernels)

    @property
    def _on_cpu(self) -> Workload:
        """The workload where fake tensors are."""
        return replace(self.workload, device="cpu")

    def make_cache(self) -> None:
        """Put a token and a cache, as decoding finds them, in the place of the inputs."""
        with whole_texts(), self.kernels, autocast(self._on_cpu):
            self.inputs = make_decode_inputs(self.module, self.workload)

    def run_inference(self) -> None:
        self._stand()
        with torch.no_grad(), self._watched():
            self.recorder.phase = FORWARD
            with autocast(self._on_cpu):
                output = self._forward()
            self.recorder.close()
        del output  # what is given back here is no part of the prefill

    def run_training(self, loss: Loss, is_foreseen: Callable[[], bool]) -> bool:
        """Run the step to its end, and return True; False if it was foreseen when the first backward began."""
        optimizers = make_optimizers(self.module, self.workload)
        self._stand()
        with torch.enable_grad():
            with self._watched():
                for number in range(self.workload.accumulation):
                    value = self._run_forward(loss)
                    if number == 0 and is_foreseen():
                        return False
                    self.recorder.phase = BACKWARD
                    torch.autograd.backward(value)
                    del value
            self.kernels.answers = True  # an optimizer may read numbers, but makes its tensors whatever they are
            names = self._name_gradients()
            for optimizer in optimizers:
                with self.kernels:
                    optimizer.step()  # makes the states, which a step in the steady state finds
                stand_states(self.recorder, optimizer, names)
            with self._watched():
                self.recorder.phase = OPTIMIZER_STEP
                for optimizer in optimizers:
                    optimizer.step()
                self.recorder.close()
        return True

    def _run_forward(self, loss: Loss) -> Tensor:
        """Run forward and loss, and give the kind "saved" to what is held for backward then."""
        recorder = self.recorder
        with autocast(self._on_cpu), follow_saved() as saved:
            recorder.phase = FORWARD
            output = self._forward()
            recorder.phase = LOSS
            value = loss(output)
            del output
            if self.workload.accumulation > 1:
                value = value / self.workload.accumulation
        for tensor in saved.held():
            life = recorder.find(tensor)
            if life is not None and life.kind == "temporary":
                life.kind = "saved"
        if value.grad_fn is None:
            raise ModelError("the loss must depend on a parameter; it has no gradient")
        return value

    def _forward(self) -> Any:
        if self.workload.phase == "decode":
            return self.module(**self.inputs)
        return call(self.module, self.inputs, self.workload)

    @contextlib.contextmanager
    def _watched(self) -> Iterator[None]:
        """Record, under the rules of the workload's device and with its checkpointing of attention."""
        with contextlib.ExitStack() as stack:
            stack.enter_context(whole_texts())
            stack.enter_context(self.kernels)
            stack.enter_context(self.recorder)
            token = traced_device.set(self.workload.device)
            stack.callback(traced_device.reset, token)
            if self.workload.device == "cuda":
                from headwise.cost.cuda.rules import device_rules

                stack.enter_context(device_rules("cuda", compute_capability=self.workload.compute_capability))
            yield

    def _stand(self) -> None:
        """Record what the step finds but for the states of the optimizer: weights, buffers and inputs."""
        stand_module(self.recorder, self.module)
        inputs = self.inputs if isinstance(self.inputs, Mapping) else dict(enumerate(self.inputs))
        for place, value in inputs.items():
            leaves = cached_tensors(value) if place == CACHE else tree_leaves(value)
            for leaf in leaves:
                self.recorder.stand(leaf, "input", f"input {place}")

    def _name_gradients(self) -> dict[int, tuple[str, str]]:
        """Say which recorded tensors are gradients; return the own name and the owner of each weight, by its id."""
        names: dict[int, tuple[str, str]] = {}
        for name, parameter in self.module.named_parameters():
            owner, _, own = name.rpartition(".")
            names[id(parameter)] = (own, owner)
            self.recorder.mark(parameter.grad, "gradient", f"gradient of {own}", owner)
        return names


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
