"""What a tracked step was: the workload of a step that the user's own code ran, told from outside."""

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils._pytree import tree_leaves

from headwise.api.module_config import attention_of, autocast_dtype_on, is_checkpointed, precision_of, unwrap
from headwise.cost.results import Ledger
from headwise.cost.workload import Workload
from headwise.errors import HeadwiseError

# Class -> our name. 8-bit AdamW and Lion are other libraries', told by their names.
_OPTIMIZERS = {"Adam": "adam", "AdamW": "adamw", "Adafactor": "adafactor", "AdamW8bit": "adamw8bit", "Lion": "lion"}
_STATELESS = ("sgd",)
_DECAY_IN_GRADIENTS = ("sgd", "momentum", "adam")
_CACHES = ("cache", "past_key_values")  # how models of transformers take keys and values of tokens before


class Size(NamedTuple):
    """Texts, and tokens per text."""

    batch: int
    seq: int


class _Call(NamedTuple):
    """How the module was called.

    `is_fresh`: it keeps no cache that was there before, and not none either. `has_old_gradients`: weights had gradients
    when it began.
    """

    size: Size | None
    is_training: bool
    has_gradients: bool
    autocast_dtype: torch.dtype | None
    is_fresh: bool
    is_checkpointed: bool
    has_old_gradients: bool


class _Stepped(NamedTuple):
    """An optimizer that stepped: its name and form, and what it steps over.

    `is_steady`: it had its states, as every step but the first finds. `is_plain`: no setting of it keeps or makes more
    than the closed forms know, and all its groups have the same ones.
    """

    optimizer: str | None
    form: str
    is_steady: bool
    is_plain: bool
    parameters: tuple[Tensor, ...]


@dataclass
class ObservedStep:
    """What was seen of a step while it ran.

    Args:
        module: the model.
    """

    module: nn.Module
    _calls: list[_Call] = field(default_factory=list)
    _stepped: list[_Stepped] = field(default_factory=list)

    @property
    def size(self) -> Size | None:
        """What the module was called with; None where it was not told, or not the same each time."""
        sizes = {call.size for call in self._calls}
        return sizes.pop() if len(sizes) == 1 else None

    @property
    def is_steady(self) -> bool:
        """Whether every optimizer that stepped had its states: a first step has a peak of its own."""
        return all(one.is_steady for one in self._stepped)

    def infer(self, ledger: Ledger, given: Workload | None = None) -> Workload | None:
        """Return the workload of the step; None where it is of a kind that no workload describes, or cannot be told.

        Args:
            ledger: of the step.
            given: what the caller says of it. Its batch and length give way to those of the inputs.
        """
        size = self.size
        if given is not None:
            return given if size is None else replace(given, batch=size.batch, seq=size.seq)
        try:
            return None if size is None else self._infer(size, ledger)
        except _UnknownError:
            return None

    def _infer(self, size: Size, ledger: Ledger) -> Workload:
        parameters = list(self.module.parameters())
        device = parameters[0].device if parameters else torch.device("cpu")
        first = self._calls[0]
        attention, precision = attention_of(self.module), precision_of(self.module, first.autocast_dtype)
        if attention is None or precision is None or device.type not in ("cpu", "cuda"):
            raise _UnknownError
        if first.has_old_gradients:  # of a pass before the block, which the closed form's step does not begin with
            raise _UnknownError
        common: dict[str, Any] = {
            "batch": size.batch,
            "seq": size.seq,
            "precision": precision,
            "attention": attention,
            "device": device.type,
            "dropout": first.is_training,
        }
        if device.type == "cuda":
            common["compute_capability"] = torch.cuda.get_device_capability(device)
        if not first.has_gradients:
            if self._stepped or len(self._calls) > 1 or not first.is_fresh:
                raise _UnknownError
            return Workload(phase="prefill", **common)
        if not all(one.requires_grad for one in parameters):  # adapters, or frozen layers: of which kind is not told
            raise _UnknownError
        optimizer, form = self._optimizer()
        return Workload(
            **common,
            optimizer=optimizer,  # type: ignore[arg-type]
            optimizer_step=form,  # type: ignore[arg-type]
            checkpoint="full" if first.is_checkpointed else "none",
            accumulation=len(self._calls),
            loss="cross_entropy" if _has_cross_entropy(ledger) else "sum",
        )

    def _optimizer(self) -> tuple[str, str]:
        if not all(one.is_plain for one in self._stepped):
            raise _UnknownError
        trained = {id(parameter) for one in self._stepped for parameter in one.parameters}
        if trained != {id(parameter) for parameter in self.module.parameters()}:
            raise _UnknownError
        names = sorted(str(one.optimizer) for one in self._stepped)
        forms = {one.form for one in self._stepped}
        if names == ["adamw", "muon"]:
            return "muon", next(one.form for one in self._stepped if one.optimizer == "adamw")
        if len(names) != 1 or self._stepped[0].optimizer is None:
            raise _UnknownError
        return names[0], forms.pop()

    def note_call(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Remember a call of the module."""
        device = next((leaf.device.type for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)), "cpu")
        caches = kwargs.get("use_cache", getattr(getattr(unwrap(self.module), "config", None), "use_cache", True))
        self._calls.append(
            _Call(
                size=find_size(args, kwargs),
                is_training=self.module.training,
                has_gradients=torch.is_grad_enabled(),
                autocast_dtype=autocast_dtype_on(device),
                is_fresh=caches is not False and all(kwargs.get(name) is None for name in _CACHES),
                is_checkpointed=is_checkpointed(self.module),
                has_old_gradients=any(one.grad is not None for one in self.module.parameters()),
            )
        )

    def note_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Remember an optimizer that is about to step."""
        name = type(optimizer).__name__
        group: dict[str, Any] = optimizer.param_groups[0] if optimizer.param_groups else {}
        known = ("momentum" if group.get("momentum") else "sgd") if name == "SGD" else _OPTIMIZERS.get(name)
        known = "muon" if name == "Muon" else known
        self._stepped.append(
            _Stepped(
                optimizer=known,
                form=_form(group, known),
                is_steady=known in _STATELESS or bool(optimizer.state),
                is_plain=_is_plain(optimizer.param_groups, known),
                parameters=tuple(parameter for one in optimizer.param_groups for parameter in one["params"]),
            )
        )


class _UnknownError(HeadwiseError):
    """The step is of a kind that no workload describes."""


@contextmanager
def observe_step(module: nn.Module) -> Iterator[ObservedStep]:
    """Watch how this thread calls a module, and which optimizers step in it."""
    observed = ObservedStep(module)
    thread = threading.get_ident()

    def before_call(part: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if threading.get_ident() == thread:
            observed.note_call(args, kwargs)

    def before_step(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        if threading.get_ident() == thread:
            observed.note_step(optimizer)

    with ExitStack() as stack:
        stack.callback(module.register_forward_pre_hook(before_call, with_kwargs=True).remove)
        stack.callback(register_optimizer_step_pre_hook(before_step).remove)
        yield observed


def find_size(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Size | None:
    """Tell texts and tokens of what a model is called with: token ids (B, T), else vectors (B, T, E); None: neither."""
    tensors = [one for one in (kwargs.get("input_ids"), *tree_leaves((args, dict(kwargs)))) if isinstance(one, Tensor)]
    for tensor in tensors:
        if tensor.dim() == 2 and not tensor.is_floating_point():
            return Size(*tensor.shape)
    for tensor in tensors:
        if tensor.dim() == 3 and tensor.is_floating_point():
            return Size(*tensor.shape[:2])
    return None


def _form(group: Mapping[str, Any], optimizer: str | None) -> str:
    """Tell how an optimizer goes over its weights; what it leaves open is what torch takes by itself."""
    if group.get("fused"):
        return "fused"
    foreach = group.get("foreach")
    if foreach is None:
        weight = next(iter(group.get("params", ())), None)
        foreach = weight is not None and weight.is_cuda and optimizer != "adafactor"
    return "foreach" if foreach else "loop"


def _is_plain(groups: Sequence[Mapping[str, Any]], optimizer: str | None) -> bool:
    """Tell whether no setting of an optimizer makes tensors that the closed forms do not know.

    AMSGrad keeps the largest second moments, one more state; `maximize` negates the gradients, a copy; weight decay
    that is added to gradients is a copy too, which a fused step alone does without; a differentiable step is recorded.
    """
    if len({(_form(one, optimizer), bool(one.get("momentum"))) for one in groups}) > 1:
        return False
    adds_decay = optimizer in _DECAY_IN_GRADIENTS
    return not any(
        one.get("amsgrad")
        or one.get("maximize")
        or one.get("differentiable")
        or (adds_decay and one.get("weight_decay") and not one.get("fused") and not one.get("decoupled_weight_decay"))
        for one in groups
    )


def _has_cross_entropy(ledger: Ledger) -> bool:
    """Tell whether a cross-entropy was computed: its logarithm of a softmax is what nothing else of a model makes."""
    return any(entry.name == "_log_softmax" for entry in ledger.entries)
