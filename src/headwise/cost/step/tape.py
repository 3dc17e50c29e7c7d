"""Tape: a training step played on paper, with sizes and lives of tensors but no numbers.

A forward pass is written in Python as a model is, on `Value`s instead of tensors. Lives need no bookkeeping: a `Value`
holds its `Storage`, an operation that needs a tensor for backward holds its storage too, and a storage is freed when
Python drops the last hold, just as in torch. `autograd` then plays the way back.
"""

from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import prod

from headwise.config.dtypes import DTYPE_BYTES
from headwise.cost.results import Kind
from headwise.cost.workload import Lora

BYTES_OF_DTYPE = DTYPE_BYTES | {"int64": 8, "uint64": 8, "int32": 4, "uint8": 1, "int8": 1, "bool": 1}

Shape = tuple[int, ...]


@dataclass(eq=False, slots=True)
class Record:
    """What is remembered of a storage: `born` and `freed` are ticks of the tape's clock, `freed` None = still alive."""

    name: str
    kind: Kind
    shape: Shape
    dtype: str
    owner: str
    bytes: int
    born: int
    freed: int | None = None
    is_kept: bool = False


class Storage:
    """Memory of one tensor and all its views; alive for as long as something holds this object."""

    __slots__ = ("is_expanded", "is_view", "layout", "num_buffers", "record", "tape")

    def __init__(self, tape: "Tape", record: Record, layout: str, is_expanded: bool):
        self.tape = tape
        self.record = record
        self.layout = layout
        self.is_expanded = is_expanded
        self.num_buffers = 0  # gradients in flight that are this storage
        self.is_view = False  # a gradient that is a view of this storage is not added to in place

    def __del__(self) -> None:
        self.tape._free(self.record)


@dataclass(eq=False, slots=True)
class Edge:
    """Where one gradient of an operation goes: made fresh, or the operation's own gradient passed on as it is.

    `slot`: which result of the node at the other end it belongs to.
    """

    node: "Node"
    slot: int
    shape: Shape
    dtype: str
    is_passed: bool
    layout: str


@dataclass(eq=False, slots=True, weakref_slot=True)
class Node:
    """An operation as backward sees it. Without edges it is a leaf, mostly a parameter: the gradient is its own.

    Args:
        name, shape, owner: of the result.
        stretch: the stretch of the forward pass that it ran in.
        number: its place in the order of the forward pass.
        edges: where its gradients go.
        kept: storages that it holds for its backward.
        scratch: shapes of what its backward needs while it runs.
        needs_dense: its backward copies a gradient that is one number spread out, or in the order "places".
        copied_layouts: orders in memory in which its backward copies the gradient before it passes it on.
        dtype: of a parameter.
        is_view: the result is a view of the input, and so is the gradient of the result's.
        frame: the checkpointed part of the forward pass that must run again before `kept` is there.
    """

    name: str
    shape: Shape
    owner: str
    stretch: str = ""
    number: int = 0
    edges: tuple[Edge, ...] = ()
    kept: tuple[Storage, ...] = ()
    scratch: tuple[Shape, ...] = ()
    needs_dense: bool = False
    copied_layouts: frozenset[str] = frozenset()
    dtype: str = ""
    is_view: bool = False
    workspace_bytes: int = 0
    frame: "Frame | None" = None


@dataclass(eq=False, slots=True)
class Value:
    """A tensor on paper: a shape, the storage that holds it, and the operation that made it (None: no gradient).

    `slot`: which of the operation's results it is. `is_shown`: its heads are one, shown to all by a stride of 0.
    """

    shape: Shape
    storage: Storage
    node: Node | None = None
    slot: int = 0
    is_shown: bool = False

    @property
    def dtype(self) -> str:
        """Dtype of its numbers, as torch spells it."""
        return self.storage.record.dtype


class Frame(ABC):
    """A part of the forward pass that keeps nothing and runs again in backward (see `checkpointing`)."""

    @property
    @abstractmethod
    def drops(self) -> bool:
        """Whether what would be kept is dropped: in the first run."""

    @abstractmethod
    def take(self, node: Node, kept: tuple[Storage, ...]) -> None:
        """Take note of an operation that ran inside, and of what it would keep."""

    @abstractmethod
    def recompute(self) -> None:
        """Run the part again, unless it has run, and hand its operations what they keep."""


@dataclass(slots=True)
class Stretch:
    """A part of the step, with the most bytes alive in it, the tick when they were, and that of its beginning."""

    label: str
    peak_bytes: int
    peak_tick: int
    begin_tick: int


@dataclass
class Tape:
    """The clock, the stretches and the records of one step.

    Args:
        grad_enabled: whether operations are remembered for backward (False in a prefill).
        device: whose kernels run ("cpu" or "cuda"); operations differ.
        autocast_dtype: the dtype to which autocast casts products now, or None where it is off.
        weight_casts: what autocast has cast of the weights, kept for further readers while it is on.
        lora: adapters that learn in place of the weights, or None.
        embeddings_learn: frozen token embeddings pass for a leaf that needs a gradient, as transformers makes them
            where it checkpoints.
        frame: the checkpointed part of the forward pass that is running, or None.
        gradients: those of parameters, as they are left for the optimizer.
        last_tick: the end of the step; what lives longer lives on.
        accumulates: gradients of earlier passes are there, and new ones are added to them in place.
    """

    grad_enabled: bool = True
    device: str = "cpu"
    autocast_dtype: str | None = None
    weight_casts: "dict[Storage, Value]" = field(default_factory=dict)
    lora: Lora | None = None
    embeddings_learn: bool = False
    frame: Frame | None = None
    records: list[Record] = field(default_factory=list)
    stretches: list[Stretch] = field(default_factory=list)
    gradients: list[Storage] = field(default_factory=list)
    accumulates: bool = False
    first_backward_tick: int | None = None
    last_tick: int = 0
    owner: str = "step"
    current_bytes: int = 0
    tick: int = 0
    num_nodes: int = 0

    @property
    def keeps(self) -> bool:
        """Whether what operations keep for backward stays alive from now on."""
        return self.grad_enabled and (self.frame is None or not self.frame.drops)

    def begin(self, label: str) -> None:
        """Begin the next stretch of the step."""
        self.stretches.append(Stretch(label, self.current_bytes, self.tick, self.tick))

    @contextmanager
    def owned_by(self, owner: str) -> Iterator[None]:
        """Give what is made inside to this owner."""
        before, self.owner = self.owner, owner
        try:
            yield
        finally:
            self.owner = before

    def new(
        self,
        name: str,
        shape: Shape,
        dtype: str = "float32",
        *,
        kind: Kind = "temporary",
        layout: str = "tokens",
        is_expanded: bool = False,
    ) -> Storage:
        """Allocate a tensor. An expanded one has this shape but holds a single number."""
        num_bytes = BYTES_OF_DTYPE[dtype] * (1 if is_expanded else prod(shape))
        self.tick += 1
        record = Record(name, kind, shape, dtype, self.owner, num_bytes, self.tick)
        self.records.append(record)
        self.current_bytes += num_bytes
        stretch = self.stretches[-1]
        if self.current_bytes > stretch.peak_bytes:
            stretch.peak_bytes, stretch.peak_tick = self.current_bytes, self.tick
        return Storage(self, record, layout, is_expanded)

    def stand(self, name: str, shape: Shape, dtype: str, *, kind: Kind, layout: str = "tokens") -> Storage:
        """Put a tensor on the tape that has been there since before it began, whenever it is found out."""
        num_bytes = BYTES_OF_DTYPE[dtype] * prod(shape)
        record = Record(name, kind, shape, dtype, self.owner, num_bytes, 0)
        self.records.append(record)
        self.current_bytes += num_bytes
        for stretch in self.stretches:  # all grow alike, so that the worst instant of each stays
            stretch.peak_bytes += num_bytes
        return Storage(self, record, layout, is_expanded=False)

    def _free(self, record: Record) -> None:
        self.tick += 1
        record.freed = self.tick
        self.current_bytes -= record.bytes

    def parameter(
        self, name: str, shape: Shape, dtype: str = "float32", *, is_frozen: bool = False, is_adapter: bool = False
    ) -> Value:
        """Allocate a weight, which learns unless it is frozen: where there are adapters, they alone learn."""
        learns = self.grad_enabled and not is_frozen and (self.lora is None or is_adapter)
        node = Node(name, shape, self.owner, dtype=dtype) if learns else None
        return Value(shape, self.new(name, shape, dtype, kind="parameter"), node)

    def apply(
        self,
        name: str,
        shape: Shape,
        *,
        fresh: Sequence[Value] = (),
        passed: Sequence[Value] = (),
        kept: Sequence[Storage] = (),
        dtype: str | None = None,
        storage: Storage | None = None,
        keeps_result: bool = False,
        keeps_statistics: bool = False,
        scratch: Sequence[Shape] = (),
        workspace_bytes: int = 0,
        needs_dense: bool = False,
        layout: str = "tokens",
        gradient_layouts: Sequence[str] = (),
        copied_layouts: frozenset[str] = frozenset(),
    ) -> Value:
        """Run one operation and return its result.

        Args:
            name: name of the result.
            shape: shape of the result.
            fresh: inputs whose gradient backward makes anew, in their shape.
            passed: inputs whose gradient is the result's own (of a sum, of a view).
            kept: storages that backward needs.
            dtype: of the result. Default: that of the first input.
            storage: memory of the result where it is a view; None = new memory.
            keeps_result: backward needs the result too.
            keeps_statistics: some of `kept` is made by the operation itself, together with the result.
            scratch: shapes of what backward needs while it runs.
            workspace_bytes: bytes that its kernel takes for itself in backward.
            needs_dense: backward copies a gradient that is a single number spread out, or in the order "places".
            layout: order of the result in memory: "tokens" (B, T, H, D), "heads" (B, H, T, D), "places" (B, E, T),
                "sequence" (T, B, H, D).
            gradient_layouts: order of each fresh gradient in memory; also "columns" (B, H, D, T), "turned" (a weight
                used as its transpose), "same" (as the result's own gradient, the default) and "view" (the same, but a
                view, as of an input that is flattened first).
            copied_layouts: orders in which a gradient that is passed on must be copied first.
        """
        layouts = gradient_layouts or ("same",) * len(fresh)
        edges = [
            Edge(one.node, one.slot, one.shape, one.dtype, False, edge_layout)
            for one, edge_layout in zip(fresh, layouts, strict=True)
            if one.node is not None
        ]
        edges += [
            Edge(one.node, one.slot, one.shape, one.dtype, True, "same") for one in passed if one.node is not None
        ]
        node = None
        if edges:
            self.num_nodes += 1
            label = self.stretches[-1].label
            into = tuple(edges)
            node = Node(
                name, shape, self.owner, label, self.num_nodes, into, (), tuple(scratch), needs_dense, copied_layouts
            )
            node.is_view = storage is not None
            node.workspace_bytes = workspace_bytes
            if not (keeps_result or keeps_statistics):
                self._keep(node, tuple(kept))
        if storage is None:
            storage = self.new(name, shape, dtype or next(iter((*fresh, *passed))).dtype, layout=layout)
        if node is not None and (keeps_result or keeps_statistics):
            self._keep(node, (*kept, storage) if keeps_result else tuple(kept))
        return Value(shape, storage, node)

    def keep_gradient(self, parameter: Node, gradient: Storage) -> None:
        """Leave a gradient for the optimizer, or add it to the one that is there."""
        if self.accumulates:
            return
        record = gradient.record
        record.name, record.owner, record.kind = f"gradient of {parameter.name}", parameter.owner, "gradient"
        self.gradients.append(gradient)

    def hold_earlier_gradients(self, parameters: Sequence[Node]) -> None:
        """Put gradients of earlier passes on the tape: they have been alive since before it began."""
        self.accumulates = True
        for node in parameters:
            with self.owned_by(node.owner):
                self.gradients.append(self.stand(f"gradient of {node.name}", node.shape, node.dtype, kind="gradient"))

    def _keep(self, node: Node, kept: tuple[Storage, ...]) -> None:
        if self.frame is not None:
            self.frame.take(node, kept)
            return
        node.kept = kept
        for one in kept:
            one.record.is_kept = True

    def lives(self) -> Iterator[tuple[Record, int, int | None]]:
        """Give each record that is alive at the worst instant of some stretch, with the first and last such stretch.

        The last one is None for what is alive at the end.
        """
        ticks = [stretch.peak_tick for stretch in self.stretches]
        for record in self.records:
            born = bisect_left(ticks, record.born)
            last = None if record.freed is None else bisect_left(ticks, record.freed) - 1
            if born < len(ticks) and (last is None or born <= last):
                yield record, born, last
