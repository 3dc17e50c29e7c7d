"""Lives of tensors in a step that runs, as they are recorded, and the ledger that they make."""

from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from headwise.cost.results import Kind, Ledger, LedgerEntry

FORWARD, LOSS, BACKWARD, OPTIMIZER_STEP = "forward", "loss", "backward", "optimizer step"
OUTSIDE = "outside modules"
BEFORE = "before"
WORKSPACE = "workspace of "  # begins the name of what a kernel takes for itself

Layer = tuple[str, int]
"""One of several layers in a row: the name of the list that holds them, and its number there."""


class Where(NamedTuple):
    """A place in a step: its phase, the module at work, and the layer in a row of layers that this belongs to."""

    phase: str
    owner: str = ""
    layer: Layer | None = None

    @property
    def label(self) -> str:
        """The name of a moment here: the phase, and the layer or else the module."""
        part = self.owner if self.layer is None else f"{self.layer[0]}.{self.layer[1]}"
        return f"{self.phase}: {part}" if part else self.phase


class Life:
    """The memory of one tensor with all its views; `layer` is the layer that it belongs to."""

    __slots__ = ("bytes", "dtype", "kind", "layer", "line", "name", "owner", "shape")

    def __init__(
        self,
        *,
        name: str,
        kind: Kind,
        num_bytes: int,
        shape: tuple[int, ...],
        dtype: str,
        owner: str,
        layer: Layer | None,
        line: str | None = None,
    ):
        self.name, self.kind, self.bytes, self.shape, self.dtype = name, kind, num_bytes, shape, dtype
        self.owner, self.layer, self.line = owner, layer, line


class Event(NamedTuple):
    """A birth, or the release of what was born before or stood from the beginning."""

    life: Life
    where: Where


def make_ledger(standing: Iterable[Life], events: Iterable[Event]) -> Ledger:
    """Write lives as a ledger whose moments are the events, after a first one for what stood from the beginning."""
    born: dict[Life, int] = dict.fromkeys(standing, 0)
    freed: dict[Life, int] = {}
    moments: list[str] = []
    for moment, (life, where) in enumerate(events, start=1):
        moments.append(where.label)
        (freed if life in born else born)[life] = moment
    entries = tuple(
        LedgerEntry(
            name=life.name,
            kind=life.kind,
            bytes=life.bytes,
            shape=life.shape,
            dtype=life.dtype,
            owner=life.owner,
            born=moment,
            freed=freed.get(life),
            line=life.line,
        )
        for life, moment in born.items()
    )
    return Ledger(moments=(moments[0] if moments else BEFORE, *moments), entries=entries)


def make_life(
    tensor: Tensor,
    storage: torch.UntypedStorage,
    name: str,
    owner: str,
    layer: Layer | None,
    *,
    kind: Kind = "temporary",
    line: str | None = None,
) -> Life:
    """Describe the memory of a tensor, the storage behind it, with what is known of it."""
    return Life(
        name=name,
        kind=kind,
        num_bytes=storage.nbytes(),
        shape=tuple(tensor.shape),
        dtype=dtype_name(tensor),
        owner=owner,
        layer=layer,
        line=line,
    )


def dtype_name(tensor: Tensor) -> str:
    """Return a tensor's dtype as torch spells it."""
    return str(tensor.dtype).removeprefix("torch.")


def has_storage(tensor: Tensor) -> bool:
    """Tell whether a tensor has memory of its own kind to follow; a lazy weight has none before the first call."""
    is_strided = tensor.layout is torch.strided and not torch._is_functional_tensor(tensor)
    return is_strided and not nn.parameter.is_lazy(tensor)
