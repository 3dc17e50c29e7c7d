"""What operations save for backward, followed without holding it."""

import weakref
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor


class SavedTensors:
    """The tensors that operations have saved and still hold."""

    def __init__(self) -> None:
        self._packed: list[weakref.ref[_Packed]] = []

    def held(self) -> list[Tensor]:
        """Return what is held now; one that several operations hold, several times."""
        return [packed.tensor for reference in self._packed if (packed := reference()) is not None]

    def _pack(self, tensor: Tensor) -> "_Packed":
        packed = _Packed(tensor)
        self._packed.append(weakref.ref(packed))
        return packed


class _Packed:
    """One saved tensor; it lives as long as its operation holds it."""

    __slots__ = ("__weakref__", "tensor")

    def __init__(self, tensor: Tensor):
        self.tensor = tensor.detach()  # an operation that saves its own result would else hold itself alive


@contextmanager
def follow_saved() -> Iterator[SavedTensors]:
    """Follow what the operations inside save for backward."""
    saved = SavedTensors()
    with torch.autograd.graph.saved_tensors_hooks(saved._pack, lambda packed: packed.tensor):
        yield saved
