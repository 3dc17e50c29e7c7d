"""Recorder: follow every tensor's memory, from the operation that makes it to its release.

A dispatch mode sees what PyTorch's operations return, of real and of fake tensors, on any device, in backward too.
Memory is followed by its storage, with a finalizer, so that views count once and a release is seen when it happens.
It does not see what a kernel takes for itself and gives back before it returns, but for what it is told
(`find_workspace`) and one case that it knows: a matrix product copies a factor whose numbers lie in no order that BLAS
reads, such as one number spread out.

While any dispatch mode is active, torch adds out of place where it else adds in place: gradients of a tensor with
several readers, a mask to the scores, a bias to a product. Those sums are told by their counts of references, and are
recorded as the additions in place that they are in an unwatched step.
"""

import threading
import weakref
from bisect import bisect_right
from collections.abc import Callable, Iterable, MutableMapping, Sequence
from contextlib import ExitStack
from functools import partial
from types import TracebackType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack
from torch.utils.weak import WeakIdKeyDictionary

from headwise.cost.results import Kind
from headwise.cost.running.layer_lists import find_lists, named_parts
from headwise.cost.tracing.lives import (
    BACKWARD,
    BEFORE,
    FORWARD,
    OPTIMIZER_STEP,
    OUTSIDE,
    WORKSPACE,
    Event,
    Layer,
    Life,
    Where,
    dtype_name,
    has_storage,
    make_life,
)
from headwise.cost.tracing.random_states import listen_to_random_states
from headwise.cost.tracing.references import find_reused, is_readable_by_blas

_GETS_DEVICE = torch.ops.prim.device.default  # what torch asks of a fake tensor many times an operation
_LIFT = torch.ops.aten.lift_fresh.default
_ADD = torch.ops.aten.add.Tensor
_PRODUCTS = (torch.ops.aten.mm.default, torch.ops.aten.addmm.default, torch.ops.aten.bmm.default)
_MAX_SEQUENCE_NUMBER = 2**63  # autograd numbers the leaves of its graph beyond it
_ALL_WEIGHTS = Where(OPTIMIZER_STEP)  # where an optimizer is that goes over all weights at once


class _Call(NamedTuple):
    """A module that runs, in backward where a checkpoint runs it again; `layer`: the one that it is or is part of."""

    owner: str
    layer: Layer | None
    is_in_backward: bool


class Recorder(TorchDispatchMode):
    """Context manager that records the life of every storage that operations make inside it.

    Only the thread that enters it is recorded, and the threads in which autograd runs that thread's backward: those
    where this mode is active.

    Args:
        find_line: called at every birth for the line that is at work. Default: lines are not recorded.
        find_workspace: called with every operation and its arguments for the bytes that its kernel takes for itself
            while it runs; None for one that takes none at any size. Default: none does.
        with_random_states: record the states of the CPU's random generator that checkpointing keeps, which no operation
            makes; False where only a device's memory counts.

    Attributes:
        phase: the caller's name for what is running; None = told by what is seen (modules, backward). An optimizer's
            step holds neither: there modules and backward are told by what is seen too.
        names: of the modules that were announced or have run, as long as they live.
        failed_at: where the last operation failed that did.
        standing: lives that began before the record.
        events: births and releases so far, in their order.
    """

    def __init__(
        self,
        *,
        find_line: Callable[[], str | None] | None = None,
        find_workspace: Callable[[Any, tuple[Any, ...], dict[str, Any]], int | None] | None = None,
        with_random_states: bool = True,
    ):
        super().__init__()  # type: ignore[no-untyped-call]
        self.phase: str | None = None
        self.standing: list[Life] = []
        self.events: list[Event] = []
        self._find_line = find_line or _no_line
        self._find_workspace = find_workspace
        self._has_random_states = with_random_states
        self._alive: dict[int, tuple[Life, weakref.ref[torch.UntypedStorage]]] = {}
        self.names: MutableMapping[nn.Module, str] = WeakIdKeyDictionary()  # some modules have no hash
        self.failed_at: Where | None = None
        self._layers: dict[str, Layer] = {}
        self._thread = threading.get_ident()
        self._calls: list[_Call] = []
        self._place: tuple[str, Layer | None] = ("", None)
        self._where = Where(OUTSIDE)
        # Where in the order of autograd's operations each module begins and ends: numbers, and the place from there on.
        self._border_numbers = [0]
        self._border_places: list[tuple[str, Layer | None]] = [self._place]
        self._stack = ExitStack()

    def __enter__(self) -> "Recorder":
        self._thread = threading.get_ident()
        self._stack.callback(register_module_forward_pre_hook(self._enter_module).remove)
        self._stack.callback(register_module_forward_hook(self._leave_module, always_call=True).remove)
        if self._has_random_states:
            self._stack.enter_context(listen_to_random_states(self._see_random_state))
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        super().__exit__(kind, error, traceback)  # type: ignore[no-untyped-call]
        self._stack.close()

    def close(self) -> None:
        """Let go of all storages: nothing is recorded from here on."""
        self._alive.clear()

    def name_modules(self, module: nn.Module, *, root: str = "") -> None:
        """Take the names of a module's parts, and of the layers in its lists of layers."""
        for name, part in named_parts(module):
            self.names.setdefault(part, name or root)
        for row, layers in find_lists(module).items():
            self._layers |= {f"{row}.{index}": (row, index) for index in range(len(layers))}

    def stand(self, tensor: object, kind: Kind, name: str, owner: str = "") -> None:
        """Record a tensor that was there before."""
        if isinstance(tensor, Tensor) and has_storage(tensor):
            storage = tensor.untyped_storage()
            if storage._cdata not in self._alive:
                life = make_life(tensor, storage, name, owner, self._layer_of(owner), kind=kind)
                self.standing.append(life)
                self._follow(storage, life)

    def mark(self, tensor: object, kind: Kind, name: str, owner: str) -> None:
        """Say what a tensor turned out to be."""
        if isinstance(tensor, Tensor) and (life := self.find(tensor)) is not None:
            life.kind, life.name, life.owner, life.layer = kind, name, owner, self._layer_of(owner)

    def find(self, tensor: Tensor) -> Life | None:
        """Return the life of a tensor's memory, None where it is not known."""
        found = self._alive.get(tensor.untyped_storage()._cdata) if has_storage(tensor) else None
        return None if found is None else found[0]

    def is_active(self) -> bool:
        """Tell whether this thread is one that is recorded: torch carries the mode into backward's own threads."""
        return any(mode is self for mode in _get_current_dispatch_mode_stack())

    def where(self) -> Where:
        """Return where the step is."""
        node = torch._C._current_autograd_node()
        given = None if self.phase == OPTIMIZER_STEP and (self._calls or node is not None) else self.phase
        if node is None:
            return Where(given or (FORWARD if self._calls else OUTSIDE), *self._place)
        phase = given or BACKWARD
        if self._calls and self._calls[-1].is_in_backward:
            return Where(phase, *self._place)
        return Where(phase, *self._place_of(node))

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is _GETS_DEVICE:
            return func(*args)
        self._where = self.where()
        if self._where.phase == OPTIMIZER_STEP and args and isinstance(args[0], Tensor):
            self._where = self._parameter_at_work(args, None)
        reused = find_reused(args) if func is _ADD else None
        try:
            result = func(*args, **kwargs) if kwargs else func(*args)
        except BaseException:
            self.failed_at = self._where
            raise
        if func is not _LIFT:  # torch.tensor(data) allocates unseen, and shows its new tensor as an input here
            self._see_inputs(args)
            if kwargs:
                self._see_inputs(kwargs.values())
        if reused is not None:
            self._reuse(reused, result)
        elif isinstance(result, Tensor):
            self._see_output(result, func, args)
            if func in _PRODUCTS:
                self._see_copied_factors(args[-2:], func)
        elif isinstance(result, tuple | list):
            for place, output in enumerate(result):
                if isinstance(output, Tensor):
                    self._see_output(output, func, args, place)
        if self._find_workspace is not None:
            self._see_workspace(func, self._find_workspace(func, args, kwargs or {}))
        return result

    def _see_inputs(self, values: Iterable[Any]) -> None:
        """Note memory that was there before it was watched, or that changed its size."""
        for value in values:
            if isinstance(value, Tensor):
                life = self.find(value)
                if life is None:
                    self.stand(value, "temporary", BEFORE)
                elif life.bytes != value.untyped_storage().nbytes():
                    self._resize(value, life)
            elif isinstance(value, tuple | list):
                self._see_inputs(value)

    def _see_output(self, tensor: Tensor, func: Any, args: tuple[Any, ...], place: int | None = None) -> None:
        if not has_storage(tensor):
            return
        storage = tensor.untyped_storage()
        if storage._cdata in self._alive:
            return
        where = self._where
        if where.phase == OPTIMIZER_STEP and place is not None:
            where = self._parameter_at_work(args, place)
        life = make_life(tensor, storage, func._opname, where.owner, where.layer, line=self._find_line())
        self.events.append(Event(life, where))
        self._follow(storage, life)

    def _see_random_state(self, state: Tensor) -> None:
        if self.is_active():
            where = self.where()
            storage = state.untyped_storage()
            life = make_life(state, storage, "random state", where.owner, where.layer, line=self._find_line())
            self.events.append(Event(life, where))
            self._follow(storage, life)

    def _see_copied_factors(self, factors: Sequence[Tensor], func: Any) -> None:
        for factor in factors:
            if not is_readable_by_blas(factor):
                num_bytes = factor.numel() * factor.element_size()
                name = f"copy of a factor of {func._opname}"
                self._pass(name, num_bytes, tuple(factor.shape), dtype_name(factor))

    def _see_workspace(self, func: Any, num_bytes: int | None) -> None:
        """Note what a kernel takes for itself, also where it is nothing: at other sizes it is something."""
        if num_bytes is not None:
            self._pass(WORKSPACE + func._opname, num_bytes, (num_bytes,), "uint8")

    def _pass(self, name: str, num_bytes: int, shape: tuple[int, ...], dtype: str) -> None:
        """Record what a kernel takes for itself: it is born beside its results, and released at once."""
        owner, layer, line = self._where.owner, self._where.layer, self._find_line()
        life = Life(
            name=name,
            kind="temporary",
            num_bytes=num_bytes,
            shape=shape,
            dtype=dtype,
            owner=owner,
            layer=layer,
            line=line,
        )
        self.events += 2 * [Event(life, self._where)]

    def _follow(self, storage: torch.UntypedStorage, life: Life) -> None:
        key = storage._cdata
        self._alive[key] = (life, weakref.ref(storage, partial(self._release, key)))

    def _release(self, key: int, _: object) -> None:
        life = self._alive.pop(key)[0]
        if self.phase is None and torch._C._current_autograd_node() is None:
            self._where = self.where()  # backward may be over without another operation to tell
        where = self._where
        if where == _ALL_WEIGHTS:
            where = Where(OPTIMIZER_STEP, life.owner, life.layer)
        self.events.append(Event(life, where))

    def _resize(self, tensor: Tensor, old: Life) -> None:
        """End one life and begin another of the new size."""
        storage = tensor.untyped_storage()
        life = make_life(tensor, storage, old.name, old.owner, old.layer, kind=old.kind, line=old.line)
        self.events += [Event(old, self._where), Event(life, self._where)]
        self._follow(storage, life)

    def _reuse(self, reused: Tensor, result: Tensor) -> None:
        """Let the memory of a sum be the memory of the term that an unwatched step would have added to."""
        life = self.find(reused)
        if life is not None:
            del self._alive[reused.untyped_storage()._cdata]
            self._follow(result.untyped_storage(), life)

    def _parameter_at_work(self, args: tuple[Any, ...], place: int | None) -> Where:
        """Tell for which weight an optimizer's operation works: for that of its first tensor, or the one in place."""
        for value in args:
            one = (
                value[place] if place is not None and isinstance(value, tuple | list) and place < len(value) else value
            )
            life = self.find(one) if isinstance(one, Tensor) else None
            if life is not None:
                return Where(OPTIMIZER_STEP, life.owner, life.layer)
        return _ALL_WEIGHTS

    def _layer_of(self, owner: str) -> Layer | None:
        while owner and owner not in self._layers:
            owner = owner.rpartition(".")[0]
        return self._layers.get(owner)

    def _place_of(self, node: Any) -> tuple[str, Layer | None]:
        """Return where in the forward pass an operation of autograd's was made; of a leaf, where backward stands."""
        number = node._sequence_nr()
        if number >= _MAX_SEQUENCE_NUMBER:
            return self._where.owner, self._where.layer
        return self._border_places[bisect_right(self._border_numbers, number) - 1]

    def _enter_module(self, module: nn.Module, inputs: Any) -> None:
        if not self.is_active():
            return
        node = torch._C._current_autograd_node()
        if module not in self.names:
            self.name_modules(module, root=type(module).__name__)
        name = self.names[module]
        outer = self._calls[-1].layer if self._calls else None
        layer = self._layers.get(name, outer)
        if layer is None and node is not None:
            layer = self._place_of(node)[1]
        self._calls.append(_Call(name, layer, node is not None))
        self._cross_border(name, layer)

    def _leave_module(self, module: nn.Module, inputs: Any, output: Any) -> None:
        if not self._calls or not self.is_active():
            return
        left = self._calls.pop()
        owner, layer = self._calls[-1][:2] if self._calls else ("", None)
        # What comes between two layers of a row belongs to the first of them, until another module runs.
        self._cross_border(owner, self._layers.get(left.owner, layer))

    def _cross_border(self, owner: str, layer: Layer | None) -> None:
        self._place = (owner, layer)
        self._where = self.where()
        if threading.get_ident() == self._thread:  # autograd numbers each thread's operations by themselves
            self._border_numbers.append(torch._C._autograd._get_sequence_nr())
            self._border_places.append(self._place)


def _no_line() -> None:
    return None
