"""Tape: a training step played on paper, with sizes and lives of tensors but no numbers.

A forward pass is written in Python as a model is, on `Value`s instead of tensors. Lives need no bookkeeping: a `Value`
holds its `Storage`, an operation that needs a tensor for backward holds its storage too, and a storage is freed when
Python drops the last hold, just as in torch. `backward` then plays the autograd engine: newest operation first, kept
tensors dropped as soon as their operation is done, gradients of a tensor with several readers summed in place where
nothing else holds them.
"""

import heapq
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import prod

from headwise.cost.results import Kind

BYTES_OF_DTYPE = {
    "float32": 4,
    "bfloat16": 2,
    "float16": 2,
    "int64": 8,
    "int32": 4,
    "int8": 1,
    "uint8": 1,
    "bool": 1,
}

Shape = tuple[int, ...]


@dataclass(eq=False)
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

    __slots__ = ("is_expanded", "layout", "num_buffers", "record", "tape")

    def __init__(self, tape: "Tape", record: Record, layout: str, is_expanded: bool):
        self.tape = tape
        self.record = record
        self.layout = layout
        self.is_expanded = is_expanded
        self.num_buffers = 0  # gradients in flight that are this storage

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


@dataclass(eq=False, slots=True)
class Node:
    """An operation as backward sees it. Without edges it is a leaf: the parameter that the gradient belongs to.

    Args:
        name, shape, owner: of the result.
        stretch: the stretch of the forward pass that it ran in.
        number: its place in the order of the forward pass.
        edges: where its gradients go.
        kept: storages that it holds for its backward.
        scratch: shapes of what its backward needs while it runs.
        needs_dense: its backward copies a gradient that is one number spread out.
        copied_layouts: orders in memory in which its backward copies the gradient before it passes it on.
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


@dataclass(eq=False, slots=True)
class Value:
    """A tensor on paper: a shape, the storage that holds it, and the operation that made it (None: no gradient).

    `slot`: which of the operation's results it is.
    """

    shape: Shape
    storage: Storage
    node: Node | None = None
    slot: int = 0

    @property
    def dtype(self) -> str:
        """Dtype of its numbers, as torch spells it."""
        return self.storage.record.dtype


@dataclass(slots=True)
class Stretch:
    """A part of the step, with the most bytes alive in it and the tick when they were."""

    label: str
    peak_bytes: int
    peak_tick: int


@dataclass
class Tape:
    """The clock, the stretches and the records of one step.

    Args:
        grad_enabled: whether operations are remembered for backward (False in a prefill).
    """

    grad_enabled: bool = True
    records: list[Record] = field(default_factory=list)
    stretches: list[Stretch] = field(default_factory=list)
    gradients: list[Storage] = field(default_factory=list)
    first_backward_tick: int | None = None
    owner: str = "step"
    current_bytes: int = 0
    tick: int = 0
    num_nodes: int = 0

    def begin(self, label: str) -> None:
        """Begin the next stretch of the step."""
        self.stretches.append(Stretch(label, self.current_bytes, self.tick))

    @contextmanager
    def owned_by(self, owner: str) -> Iterator[None]:
        """Give what is made inside to this owner."""
        before, self.owner = self.owner, owner
        yield
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

    def _free(self, record: Record) -> None:
        self.tick += 1
        record.freed = self.tick
        self.current_bytes -= record.bytes

    def parameter(self, name: str, shape: Shape, dtype: str = "float32", *, is_frozen: bool = False) -> Value:
        """Allocate a weight, which learns unless it is frozen."""
        node = Node(name, shape, self.owner) if self.grad_enabled and not is_frozen else None
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
        scratch: Sequence[Shape] = (),
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
            scratch: shapes of what backward needs while it runs.
            needs_dense: backward copies a gradient that is a single number spread out.
            layout: order of the result in memory: "tokens" (B, T, H, D), "heads" (B, H, T, D).
            gradient_layouts: order of each fresh gradient in memory; also "columns" (B, H, D, T), "turned" (a weight
                used as its transpose) and "same" (as the result's own gradient, the default).
            copied_layouts: orders in which a gradient that is passed on must be copied first.
        """
        if storage is None:
            storage = self.new(name, shape, dtype or next(iter((*fresh, *passed))).dtype, layout=layout)
        layouts = gradient_layouts or ("same",) * len(fresh)
        edges = tuple(
            Edge(value.node, value.slot, value.shape, value.dtype, is_passed, edge_layout)
            for values, is_passed, edge_layouts in ((fresh, False, layouts), (passed, True, ("same",) * len(passed)))
            for value, edge_layout in zip(values, edge_layouts, strict=True)
            if value.node is not None
        )
        if not edges:
            return Value(shape, storage)
        held = (*kept, storage) if keeps_result else tuple(kept)
        for one in held:
            one.record.is_kept = True
        self.num_nodes += 1
        node = Node(
            name,
            shape,
            self.owner,
            self.stretches[-1].label,
            self.num_nodes,
            edges,
            held,
            tuple(scratch),
            needs_dense,
            copied_layouts,
        )
        return Value(shape, storage, node)

    def backward(self, loss: Value) -> None:
        """Play the autograd engine from a loss of one number; leaves the gradients of parameters alive."""
        assert loss.node is not None, "the loss depends on a parameter"
        self.first_backward_tick = self.tick
        waiting = _count_readers(loss.node)
        flows: dict[Node, dict[int, Storage]] = {}
        first = self.new("gradient of the loss", (), loss.dtype, is_expanded=True)
        self._add(flows, Edge(loss.node, 0, (), loss.dtype, True, "same"), first)
        del first
        ready = [(-loss.node.number, loss.node)]
        while ready:
            _, node = heapq.heappop(ready)
            if node.stretch != self.stretches[-1].label.replace("backward", "forward"):
                self.begin(node.stretch.replace("forward", "backward"))
            self.owner = node.owner
            outgoing = self._run(node, flows.pop(node))
            while outgoing:
                edge, storage = outgoing.pop(0)
                self._add(flows, edge, storage)
                del storage
                waiting[edge.node] -= 1
                if waiting[edge.node] == 0 and edge.node.edges:
                    heapq.heappush(ready, (-edge.node.number, edge.node))
                elif waiting[edge.node] == 0:
                    self._keep_gradient(edge.node, flows.pop(edge.node)[0])

    def _run(self, node: Node, flows: dict[int, Storage]) -> list[tuple[Edge, Storage]]:
        """Run one operation backward: make its gradients, then drop what it kept and the gradients that came."""
        for flow in flows.values():
            flow.num_buffers -= 1  # one that is passed on is counted again where it arrives
        gradient = next(iter(flows.values()))
        dtype = gradient.record.dtype
        scratch = [self.new(f"workspace of {node.name} backward", shape, dtype) for shape in node.scratch]
        if node.needs_dense and gradient.is_expanded:
            scratch.append(self.new(f"gradient of {node.name}, made dense", node.shape, dtype))
        is_copied = gradient.layout in node.copied_layouts
        outgoing: list[tuple[Edge, Storage]] = []
        for edge in node.edges:
            if edge.is_passed and not is_copied:
                outgoing.append((edge, gradient))
            else:
                layout = gradient.layout if edge.layout == "same" else edge.layout
                layout = "tokens" if is_copied else layout
                outgoing.append((edge, self.new(f"gradient before {node.name}", edge.shape, edge.dtype, layout=layout)))
        node.kept = ()
        return outgoing

    def _add(self, flows: dict[Node, dict[int, Storage]], edge: Edge, storage: Storage) -> None:
        """Bring a gradient to its node; a second one is added in place if nothing else holds the first one's memory.

        A "turned" gradient is a view whose base holds it too.
        """
        slots = flows.setdefault(edge.node, {})
        before = slots.get(edge.slot)
        if before is not None and before.num_buffers == 1 and before.layout != "turned":
            return
        if before is not None:
            before.num_buffers -= 1
            storage = self.new(f"sum of gradients of {edge.node.name}", edge.shape, edge.dtype, layout=before.layout)
        storage.num_buffers += 1
        slots[edge.slot] = storage

    def _keep_gradient(self, parameter: Node, gradient: Storage) -> None:
        record = gradient.record
        record.name, record.owner, record.kind = f"gradient of {parameter.name}", parameter.owner, "gradient"
        self.gradients.append(gradient)

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


def _count_readers(root: Node) -> dict[Node, int]:
    readers: dict[Node, int] = {root: 0}
    todo = [root]
    while todo:
        for edge in todo.pop().edges:
            if edge.node not in readers:
                readers[edge.node] = 0
                todo.append(edge.node)
            readers[edge.node] += 1
    return readers
