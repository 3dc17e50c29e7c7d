"""Override torch operations while a trace runs, for fake tensors and one thread, and leave nothing behind."""

import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from threading import Lock
from typing import Any, NamedTuple

import torch
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._pytree import tree_iter

from headwise.kernels import Device


class DeviceKind(NamedTuple):
    """The device that a trace stands for; the capability of a CUDA device decides which kernels it has."""

    device: Device
    compute_capability: tuple[int, int]


@dataclass(frozen=True)
class Override:
    """What an operation does in a trace, in place of what torch does on the machine that traces.

    Attributes:
        operation: the operation with its overload.
        key: the dispatch key where it is overridden: "CompositeImplicitAutograd" for an operation that torch writes in
            terms of others, "AutogradCPU" for one with its own backward, "AutocastCPU" for what autocast casts.
        run: called as `run(kind, original, *args, **kwargs)`, where `original(*args, **kwargs)` is what torch does.
            None: this key does nothing, the next one is asked.
    """

    operation: OpOverload
    key: str
    run: Callable[..., Any] | None


_active_kind: ContextVar[DeviceKind | None] = ContextVar("the kind of device that is traced", default=None)


class OverrideSet:
    """Overrides that go in and out together.

    torch has one dispatcher for the whole process. So the overrides stand in it once, from the first use to the end of
    the last, and hand every call that is not theirs to what was there before: calls of other threads, and calls with
    tensors that are not fake.
    """

    def __init__(self, overrides: tuple[Override, ...]) -> None:
        self._overrides = overrides
        self._lock = Lock()
        self._num_uses = 0
        self._registration = ExitStack()

    @contextmanager
    def active(self, kind: DeviceKind) -> Iterator[None]:
        """Run what is inside as the given device would, in this thread. Of several nested uses the innermost counts."""
        with self._lock:
            if self._num_uses == 0:
                self._register()
            self._num_uses += 1
        token = _active_kind.set(kind)
        try:
            yield
        finally:
            _active_kind.reset(token)
            with self._lock:
                self._num_uses -= 1
                if self._num_uses == 0:
                    self._registration.close()

    def _register(self) -> None:
        with ExitStack() as stack:
            library = stack.enter_context(torch.library._scoped_library("aten", "IMPL"))
            with warnings.catch_warnings():  # torch warns, once in a process, that a kernel is overridden
                warnings.simplefilter("ignore")
                for override in self._overrides:
                    library.impl(override.operation, _write_kernel(override), override.key, with_keyset=True)
            self._registration = stack.pop_all()


def _write_kernel(override: Override) -> Callable[..., Any]:
    """Write what the dispatcher calls: the override for traced tensors, for all others what was there before."""
    pass_on, before = _write_pass_on(override.operation), _find_kernel(override)
    run = override.run

    def kernel(keyset: Any, *args: Any, **kwargs: Any) -> Any:
        def original(*args: Any, **kwargs: Any) -> Any:
            return before(keyset, *args, **kwargs)

        kind = _active_kind.get()
        if kind is None or kind.device == "cpu" or not _has_fake_tensor((args, kwargs)):
            return original(*args, **kwargs)
        return pass_on(keyset, *args, **kwargs) if run is None else run(kind, original, *args, **kwargs)

    return kernel


def _find_kernel(override: Override) -> Callable[..., Any]:
    """Find what torch does now for an operation at a key, as a function of the dispatch keys and the arguments."""
    operation, key = override.operation, override.key
    name: str = operation.name()  # type: ignore[no-untyped-call]
    if key == "AutocastCPU" and not torch._C._dispatch_has_kernel_for_dispatch_key(name, key):
        return _write_pass_on(operation)
    kernel = torch.library.get_kernel(operation, "AutogradCPU" if key == "CompositeImplicitAutograd" else key)
    return kernel.call_boxed


def _write_pass_on(operation: OpOverload) -> Callable[..., Any]:
    """Write the call that asks the dispatch keys below autocast's, where autocast stays on for what they call."""

    def pass_on(keyset: Any, *args: Any, **kwargs: Any) -> Any:
        return operation.redispatch(keyset.remove(torch._C.DispatchKey.AutocastCPU), *args, **kwargs)

    return pass_on


def _has_fake_tensor(values: Any) -> bool:
    return any(isinstance(value, FakeTensor) for value in tree_iter(values))
