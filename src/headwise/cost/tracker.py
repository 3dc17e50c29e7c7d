"""AllocationTracker: which tensors are alive, how large, whose, and which were when the most were.

It sees what PyTorch's operations return, on any device, also in backward, and so knows every tensor by shape and owner.
It does not see what a kernel takes for itself and gives back before it returns; for the exact peak of a step on the CPU
read the allocator's own record, as `headwise.cost.measure` does. While it watches, torch adds a mask to attention
scores out of place rather than in place, so that a step under it may hold a little more than one without.
"""

import weakref
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from headwise.results import Result

BEFORE = "before"


@dataclass(frozen=True, kw_only=True)
class LiveStorage(Result):
    """Memory that was alive: of the tensor whose operation made it, with all its views.

    `owner`: name of the module that ran, or whose backward did; "" outside all. `phase`: the caller's label at its
    birth, "before" for what existed when the tracker began.
    """

    bytes: int
    shape: tuple[int, ...]
    dtype: str
    owner: str
    phase: str


@dataclass(eq=False)
class _Record:
    storage: LiveStorage
    born: int
    freed: int | None = None


class AllocationTracker:
    """Context manager that follows every storage that operations make inside it.

    Args:
        module: its parameters and buffers count from the beginning, and its parts give the owners' names.
        existing: more tensors that count from the beginning (optimizer states, inputs). What existed without being
            named here is counted, from the beginning too, once an operation reads it.

    Example:
        >>> with AllocationTracker(model) as tracker:
        ...     with tracker.phase("forward"):
        ...         loss = model(inputs).sum()
        ...     with tracker.phase("backward"):
        ...         loss.backward()
        >>> tracker.peak_bytes, tracker.peak_phase, tracker.peak_storages()[0]
    """

    def __init__(self, module: nn.Module | None = None, *, existing: Iterable[Tensor] = ()):
        self.current_bytes = 0
        self.peak_bytes = 0
        self.peak_phase = BEFORE
        self._peak_tick = 0
        self._tick = 0
        self._phase = ""
        self._records: list[_Record] = []
        self._alive: dict[weakref.ref[torch.UntypedStorage], _Record] = {}
        self._names = {} if module is None else {part: name for name, part in module.named_modules()}
        self._owners = [""]
        # Where in the order of autograd's operations each module begins and ends: (number, owner from here on).
        self._borders: list[tuple[int, str]] = [(0, "")]
        self._stack = ExitStack()
        for name, tensor in [] if module is None else [*module.named_parameters(), *module.named_buffers()]:
            self._add_existing(tensor, name.rpartition(".")[0])
        for tensor in existing:
            self._add_existing(tensor, "")

    def __enter__(self) -> "AllocationTracker":
        self._stack.callback(register_module_forward_pre_hook(self._enter_module).remove)
        self._stack.callback(register_module_forward_hook(self._leave_module, always_call=True).remove)
        self._stack.enter_context(_Watch(self))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stack.__exit__(kind, error, traceback)
        self._refresh()

    @contextmanager
    def phase(self, label: str) -> Iterator[None]:
        """Give what happens inside this label."""
        before, self._phase = self._phase, label
        self._refresh()
        try:
            yield
        finally:
            self._refresh()
            self._phase = before

    def peak_storages(self) -> tuple[LiveStorage, ...]:
        """Return what was alive when the most bytes were, largest first."""
        return self._storages_at(self._peak_tick)

    def live_storages(self) -> tuple[LiveStorage, ...]:
        """Return what is alive now, largest first."""
        self._refresh()
        return self._storages_at(self._tick)

    def _storages_at(self, tick: int) -> tuple[LiveStorage, ...]:
        alive = (
            record.storage
            for record in self._records
            if record.born <= tick and (record.freed is None or tick < record.freed)
        )
        return tuple(sorted(alive, key=lambda storage: -storage.bytes))

    def _see(self, before: list[Tensor], after: list[Tensor], is_birth: bool) -> None:
        """Take note of an operation's inputs and outputs; a birth's inputs are as new as its outputs."""
        for tensor in before:
            storage = tensor.untyped_storage()
            record = self._alive.get(weakref.ref(storage))
            if record is None and not is_birth:
                self._add_existing(tensor, "")
            elif record is not None and record.storage.bytes != storage.nbytes():
                self._resize(storage, record)
        for tensor in after:
            if weakref.ref(tensor.untyped_storage()) not in self._alive:
                self._add(tensor, self._owner(), self._phase)

    def _add_existing(self, tensor: Tensor, owner: str) -> None:
        if weakref.ref(tensor.untyped_storage()) not in self._alive:
            record = self._add(tensor, owner, BEFORE, born=0)
            self.peak_bytes += record.storage.bytes  # it was there at the peak so far

    def _add(self, tensor: Tensor, owner: str, phase: str, born: int | None = None) -> _Record:
        storage = tensor.untyped_storage()
        live = LiveStorage(
            bytes=storage.nbytes(),
            shape=tuple(tensor.shape),
            dtype=str(tensor.dtype).removeprefix("torch."),
            owner=owner,
            phase=phase,
        )
        return self._track(storage, live, born)

    def _track(self, storage: torch.UntypedStorage, live: LiveStorage, born: int | None = None) -> _Record:
        if born is None:
            self._tick += 1
        record = _Record(live, self._tick if born is None else born)
        self._records.append(record)
        self._alive[weakref.ref(storage, self._free)] = record
        self.current_bytes += live.bytes
        if born is None and self.current_bytes > self.peak_bytes:
            self.peak_bytes, self.peak_phase, self._peak_tick = self.current_bytes, self._phase, self._tick
        return record

    def _free(self, reference: "weakref.ref[torch.UntypedStorage]") -> None:
        record = self._alive.pop(reference)
        self._tick += 1
        record.freed = self._tick
        self.current_bytes -= record.storage.bytes

    def _resize(self, storage: torch.UntypedStorage, record: _Record) -> None:
        """End one record and begin another of the new size."""
        self._free(weakref.ref(storage))
        old = record.storage
        live = LiveStorage(
            bytes=storage.nbytes(), shape=old.shape, dtype=old.dtype, owner=old.owner, phase=self._phase or old.phase
        )
        self._track(storage, live)

    def _refresh(self) -> None:
        """Find storages that were resized without an operation (FSDP does so)."""
        for reference, record in list(self._alive.items()):
            storage = reference()
            if storage is not None and storage.nbytes() != record.storage.bytes:
                self._resize(storage, record)

    def _owner(self) -> str:
        node = torch._C._current_autograd_node()
        if node is None:
            return self._owners[-1]
        place = bisect_right(self._borders, node._sequence_nr(), key=lambda border: border[0]) - 1
        return self._borders[place][1]

    def _enter_module(self, module: nn.Module, inputs: Any) -> None:
        self._owners.append(self._names.get(module, type(module).__name__))
        self._borders.append((torch._C._autograd._get_sequence_nr(), self._owners[-1]))

    def _leave_module(self, module: nn.Module, inputs: Any, output: Any) -> None:
        self._owners.pop()
        self._borders.append((torch._C._autograd._get_sequence_nr(), self._owners[-1]))


class _Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Shows every operation to a tracker."""

    def __init__(self, tracker: AllocationTracker):
        super().__init__()  # type: ignore[no-untyped-call]
        self._tracker = tracker

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        inputs = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        result = func(*args, **kwargs)
        outputs = [leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor)]
        # torch.tensor(data) allocates unseen and shows its new tensor as the input of this operation.
        self._tracker._see(inputs, outputs, is_birth=func is torch.ops.aten.lift_fresh.default)
        return result
