"""SplitTape: heads and hidden units shared out over devices, and with "sequence" also the tokens in between.

A projection is split by its outputs ("column": queries, keys, values, gate, up) or by its inputs ("row": the output
projection, down). What a row projection gives is one device's share of a sum. This tape looks at the weight that an
operation reads, as torch's DTensor does, and adds what communication holds:

- "tensor" is torch's `parallelize_module` with transformers' plan: a row projection's result is summed over devices
  into a tensor of its own, a column projection's gradient too, for each projection by itself. The token table stays
  whole; a head that is not tied to it is split by its outputs, and its scores are gathered.
- "sequence" is Megatron's: the residual stream, norms and dropout see their device's tokens only. All tokens are
  gathered before a column projection (its backward gathers them again rather than keeps them) and shared out after a
  row projection. Token table and head are split along the vocabulary, and scores stay split for the loss.

Source: Shoeybi et al. 2019, "Megatron-LM", section 3; Korthikanti et al. 2022, section 4.2.2; torch 2.13,
distributed/tensor/parallel/style.py.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from headwise.cost.step.sends import SendingTape
from headwise.cost.step.tape import BYTES_OF_DTYPE, Record, Shape, Storage, Value

COLUMN = ("q_proj", "k_proj", "v_proj", "qkv_proj", "gate_proj", "up_proj", "gate_up_proj")
ROW = ("out_proj", "down_proj")
TABLES = ("token table", "position table", "type table")


@dataclass
class SplitTape(SendingTape):
    """A tape of one device's part of a model that is split by `part_of_config`.

    Args:
        num_devices: over how many devices.
        splits_tokens: "sequence" rather than "tensor".
        splits_head: the head gives scores of a vocabulary from a weight of its own, or `splits_tokens`.
    """

    num_devices: int = 1
    splits_tokens: bool = False
    splits_head: bool = False
    _vocab_size: int = 0
    _gathered: Record | None = None

    def parameter(self, name: str, shape: Shape, *args: Any, **keywords: Any) -> Value:
        """Allocate a weight; of the head's and, where tokens are split, of the token table's, this device's rows."""
        is_of_head = name in ("output weight", "output bias") and self.splits_head
        if is_of_head or (name == "token table" and self.splits_tokens):
            self._vocab_size = shape[0]
            shape = (-(-shape[0] // self.num_devices), *shape[1:])
        return super().parameter(name, shape, *args, **keywords)

    def apply(self, name: str, shape: Shape, *, fresh: Sequence[Value] = (), **keywords: Any) -> Value:
        """Run one operation on what this device has, and communicate before and after it as its weight asks."""
        if fresh and fresh[0].storage.record.name in TABLES:
            return self._look_up(name, shape, fresh, keywords)
        match self._role(fresh):
            case "column":
                return self._apply_column(name, shape, fresh, keywords)
            case "row":
                return self._sum(super().apply(name, shape, fresh=fresh, **keywords))
            case "head":
                scores = self._apply_column(name, shape, fresh, keywords)
                return scores if self.splits_tokens else self._gather_scores(scores)
        return super().apply(name, shape, fresh=fresh, **keywords)

    def _role(self, fresh: Sequence[Value]) -> str | None:
        """Return how the weight of a projection is split: it is the second thing that the projection reads."""
        weight = fresh[1].storage.record.name.split(",")[0] if len(fresh) > 1 else ""
        if weight.removesuffix(" weight") in COLUMN:
            return "column"
        if weight.removesuffix(" weight") in ROW:
            return "row"
        return "head" if self.splits_head and weight in ("output weight", "token table") else None

    def _apply_column(self, name: str, shape: Shape, fresh: Sequence[Value], keywords: dict[str, Any]) -> Value:
        x, *weights = fresh
        if not self.splits_tokens:
            if x.node is not None:
                self.send_in_backward("gradients of projections' inputs", "all-reduce", _bytes(x.shape, x.dtype))
                # What comes of it waits for its sum, and is a view that nothing is added to in place.
                x = super().apply(
                    x.storage.record.name, x.shape, fresh=(x,), storage=x.storage, gradient_layouts=("view",)
                )
            return super().apply(name, shape, fresh=(x, *weights), **keywords)
        is_first = x.storage.record is not self._gathered
        self._gathered = x.storage.record
        if is_first:  # projections of one input share what is gathered of it
            self._send_tokens(x, learns=any(one.node is not None for one in fresh))
        gathered = super().apply(
            f"{x.storage.record.name}, all tokens", self._all_tokens(x.shape), fresh=(x,), layout=x.storage.layout
        )
        scratch = (*keywords.pop("scratch", ()), gathered.shape)  # gathered again for the weight's gradient
        return super().apply(name, self._all_tokens(shape), fresh=(gathered, *weights), scratch=scratch, **keywords)

    def _sum(self, partial: Value) -> Value:
        """Add up the devices' shares of a sum: into a tensor of all tokens, or of this device's."""
        name = f"{partial.storage.record.name}, of all devices"
        size = _bytes(partial.shape, partial.dtype)
        if self.splits_tokens:
            self.send("embeddings and outputs of branches", "reduce-scatter", size)
            if partial.node is not None:
                self.send_in_backward("gradients of outputs of branches", "all-gather", size)
            return super().apply(name, self._own_tokens(partial.shape), fresh=(partial,))
        self.send("outputs of layers' branches", "all-reduce", size)
        return super().apply(name, partial.shape, passed=(partial,))

    def _send_tokens(self, x: Value, *, learns: bool) -> None:
        """Note that all tokens are gathered before a branch or the head, and once more for the weights' gradients."""
        size = _bytes(self._all_tokens(x.shape), x.dtype)
        self.send("tokens into branches and head", "all-gather", size)
        if learns:
            self.send_in_backward("tokens again, for weights' gradients", "all-gather", size)
        if x.node is not None:
            self.send_in_backward("gradients of tokens", "reduce-scatter", size)

    def _look_up(self, name: str, shape: Shape, fresh: Sequence[Value], keywords: dict[str, Any]) -> Value:
        if not self.splits_tokens:
            return super().apply(name, shape, fresh=fresh, **keywords)
        if fresh[0].storage.record.name == "token table":
            return self._sum(super().apply(name, shape, fresh=fresh, **keywords))
        return super().apply(name, self._own_tokens(shape), fresh=fresh, **keywords)

    def _gather_scores(self, scores: Value) -> Value:
        """Bring the scores of all words together: they come device by device, and are laid side by side.

        Of a vocabulary that the devices do not divide the last one has fewer, and pads them to what the others have.
        """
        name, shape = scores.storage.record.name, (*scores.shape[:-1], scores.shape[-1] * self.num_devices)
        self.send("scores of the vocabulary", "all-gather", _bytes(shape, scores.dtype))
        is_uneven = self._vocab_size != shape[-1]
        _padded = self.new(f"{name}, padded", scores.shape, scores.dtype) if is_uneven else None
        _gathered: Storage = self.new("scores of each device", shape, scores.dtype)
        gathered = super().apply(f"{name}, gathered", shape, fresh=(scores,))
        return Value((*shape[:-1], self._vocab_size), gathered.storage, gathered.node)

    def _all_tokens(self, shape: Shape) -> Shape:
        return (*shape[:-2], shape[-2] * self.num_devices, shape[-1])

    def _own_tokens(self, shape: Shape) -> Shape:
        return (*shape[:-2], shape[-2] // self.num_devices, shape[-1])


def _bytes(shape: Shape, dtype: str) -> int:
    return BYTES_OF_DTYPE[dtype] * prod(shape)
