"""GatheringTape: weights that are spread over devices, and gathered layer by layer where they are needed.

This is torch's FSDP2 with `fully_shard` on each layer and then on the model. Each weight is cut along its first
dimension, padded to whole rows. A layer's weights are gathered before its forward pass into one buffer, and copied out
of it; the buffer stays until the next layer's has come. In backward they are gathered again, and those of the layer
that comes next already travel. When a layer's backward is done its weights are dropped, its whole gradients are copied
into the input of a reduce-scatter and dropped, and this device's part comes out; the input stays until the next layer
gets there. What belongs to no layer (embeddings, last norm, head) is one group more: its weights stay gathered from
the first operation to the end of backward, and so do its whole gradients.

These are lives of tensors as torch's Python code holds them, the same on CPU and CUDA; what streams of CUDA then do to
the reserved bytes is not modelled.

Source: Zhao et al. 2023, "PyTorch FSDP", section 3; torch 2.13, distributed/fsdp/_fully_shard.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

from headwise.cost.step.optimizers import OPTIMIZER_STEP
from headwise.cost.step.play import LOSS
from headwise.cost.step.sends import Send, SendingTape
from headwise.cost.step.tape import BYTES_OF_DTYPE, Node, Record, Shape, Storage, Value

ROOT = "root"


@dataclass(eq=False)
class _Group:
    """Weights that travel together.

    `shards`: this device's part of each, which stays. `whole`: the weights while they are gathered. `buffer`: what
    they arrive in. `gradients`: whole ones, with the weight that each is of.
    """

    owner: str
    shards: list[Storage] = field(default_factory=list)
    whole: list[Storage] = field(default_factory=list)
    buffer: Storage | None = None
    gradients: list[tuple[Node, Storage]] = field(default_factory=list)


@dataclass
class GatheringTape(SendingTape):
    """A tape whose parameters are shards.

    Args:
        num_devices: over how many devices they are spread.
        gathers_again: weights of a layer are dropped after its forward pass, and gathered again for backward.
        shard_dtype: of the shards and of gradients on the way, where it is not that of the weights (FSDP2's mixed
            precision).
        has_loss_inside: the model's own forward pass ends with the loss, as transformers' does where it gets labels.
    """

    num_devices: int = 1
    gathers_again: bool = True
    shard_dtype: str | None = None
    has_loss_inside: bool = True
    _groups: dict[str, _Group] = field(default_factory=dict)
    _order: list[_Group] = field(default_factory=list)
    _dtype: str = "float32"
    _last_buffer: Storage | None = None
    _reduce_input: Storage | None = None
    _has_begun_backward: bool = False

    def parameter(
        self, name: str, shape: Shape, dtype: str = "float32", *, is_frozen: bool = False, is_adapter: bool = False
    ) -> Value:
        """Allocate this device's part of a weight; operations read the whole one, whose memory is its group's."""
        shard = super().parameter(
            name, self.shard_shape(shape), self.shard_dtype or dtype, is_frozen=is_frozen, is_adapter=is_adapter
        )
        self._group_of(self.owner).shards.append(shard.storage)
        self._dtype = dtype
        whole = Storage(self, Record(name, "parameter", shape, dtype, self.owner, 0, self.tick), "tokens", False)
        node = None if shard.node is None else Node(name, shape, self.owner, dtype=dtype)
        return Value(shape, whole, node)

    def shard_shape(self, shape: Shape) -> Shape:
        """Return the shape of a device's part: of the rows, as many as the first device has."""
        return (-(-shape[0] // self.num_devices), *shape[1:])

    def begin(self, label: str) -> None:
        """Begin a stretch of the step: drop what the one before had gathered, and gather what this one needs."""
        before = self.stretches[-1].label if self.stretches else ""
        way, group = self._place(before)
        if group is not None and way == "forward" and self.gathers_again:
            group.whole.clear()
        if group is not None and way == "backward":
            self._reduce(group)
        if label == OPTIMIZER_STEP:
            self._end_backward()
        begins_backward = label.startswith("backward") and not self._has_begun_backward
        if begins_backward or (label == LOSS and not self.has_loss_inside):
            self._last_buffer = None
        super().begin(label)
        if begins_backward:
            self._has_begun_backward = True
            self._prefetch(len(self._order))
        way, group = self._place(label)
        if group is not None:
            self._gather(group, is_forward=way == "forward")

    def apply(self, *args: Any, **keywords: Any) -> Value:
        """Run one operation; before the very first, gather what belongs to no layer."""
        root = self._groups.get(ROOT)
        if root is not None and not self._order:
            self._gather(root, is_forward=True)
        return super().apply(*args, **keywords)

    def keep_gradient(self, parameter: Node, gradient: Storage) -> None:
        """Hold a whole gradient until those of its group are reduced."""
        record = gradient.record
        record.name, record.owner, record.kind = f"whole gradient of {parameter.name}", parameter.owner, "gradient"
        self._group_of(parameter.owner).gradients.append((parameter, gradient))

    def hold_earlier_gradients(self, parameters: Sequence[Node]) -> None:
        """Put this device's parts of the gradients of earlier passes on the tape."""
        self.accumulates = True
        for node in parameters:
            with self.owned_by(node.owner):
                shape, dtype = self.shard_shape(node.shape), self.shard_dtype or node.dtype
                self.gradients.append(self.stand(f"gradient of {node.name}", shape, dtype, kind="gradient"))

    def _group_of(self, owner: str) -> _Group:
        match = re.match(r"(encoder )?layer \d+", owner)
        key = match[0] if match else ROOT
        return self._groups.setdefault(key, _Group(key))

    def _place(self, label: str) -> tuple[str, _Group | None]:
        """Return whether a stretch goes forward or backward, and the group of its layer, if it is one's."""
        way, _, place = label.partition(": ")
        return way, None if place == ROOT else self._groups.get(place)

    def _gather(self, group: _Group, *, is_forward: bool) -> None:
        if is_forward:
            self._order.append(group)
        if not group.whole:
            self._request(group)
            with self.owned_by(group.owner):
                for shard in group.shards:
                    shape = (shard.record.shape[0] * self.num_devices, *shard.record.shape[1:])
                    group.whole.append(self.new(f"gathered {shard.record.name}", shape, self._dtype))
            self._last_buffer = group.buffer if is_forward else None
            group.buffer = None
        if not is_forward:
            self._prefetch(self._order.index(group))

    def _prefetch(self, place: int) -> None:
        """Send for the weights of the group before the one in this place."""
        if place > 0 and not (group := self._order[place - 1]).whole:
            self._request(group)

    def _request(self, group: _Group) -> None:
        if group.buffer is not None:
            return
        numel = sum(prod(shard.record.shape) for shard in group.shards)
        with self.owned_by(group.owner):
            is_cast = self.shard_dtype not in (None, self._dtype)
            _sent = self.new("shards, cast", (numel,), self._dtype) if is_cast else None
            what = "weights of layers, for backward" if self._has_begun_backward else "weights, for forward"
            size = self.num_devices * numel * BYTES_OF_DTYPE[self._dtype]
            self.sends.append(Send(what, "all-gather", size, self.owner))
            group.buffer = self.new("weights on their way", (self.num_devices * numel,), self._dtype)

    def _reduce(self, group: _Group) -> None:
        """Drop a group's weights, and turn its whole gradients into this device's parts."""
        group.whole.clear()
        self._reduce_input = None  # of the layer before
        if not group.gradients:
            return
        nodes = [node for node, _ in group.gradients]
        shapes = [self.shard_shape(node.shape) for node in nodes]
        dtype = self.shard_dtype or nodes[0].dtype
        numel = sum(map(prod, shapes))
        with self.owned_by(group.owner):
            size = self.num_devices * numel * BYTES_OF_DTYPE[dtype]
            self.sends.append(Send("gradients", "reduce-scatter", size, self.owner))
            self._reduce_input = self.new("gradients on their way", (self.num_devices * numel,), dtype, kind="gradient")
            group.gradients.clear()
            if self.accumulates:
                self.new("gradients that came", (numel,), dtype, kind="gradient")
                return
        for node, shape in zip(nodes, shapes, strict=True):
            with self.owned_by(node.owner):
                self.gradients.append(self.new(f"gradient of {node.name}", shape, dtype, kind="gradient"))

    def _end_backward(self) -> None:
        for group in self._groups.values():
            group.buffer = None  # what was sent for and not needed, of frozen layers
            if group.whole or group.gradients:
                self._reduce(group)
        self._reduce_input = None
