"""The attention weights of one layer on one batch, read a block of queries at a time."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from math import isqrt
from threading import get_ident
from typing import NamedTuple, overload

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor, nn

from headwise.ops.scores import cap_scores

BLOCK_ELEMENTS = 2**19  # weights in one block: 2 MiB in float32, so that statistics find them in a processor's cache


class WeightBlock(NamedTuple):
    """Weights of the queries `start`, `start + 1`, ... of one layer, which keys they may read, and what they are of.

    The keys are the first ones; those left off, if any, are hidden from every query of the block. `scores` are what the
    softmax reads, -inf on hidden keys; None where a layer gave its weights whole.
    """

    start: int
    weights: Float[Tensor, "batch num_heads rows key_len"]
    visible: Bool[Tensor, "batch mask_heads rows key_len"]
    scores: Float[Tensor, "batch num_heads rows key_len"] | None = None


RowsOf = Callable[[Tensor], Tensor]
"""Rows of a mask or bias, made when they are asked for, broadcastable to (B, H, rows, S).

They are asked for by their numbers, (rows,) for all texts or (B, rows) for each.
"""


@dataclass(frozen=True, eq=False, kw_only=True)
class ProjectedWeights:
    """Weights recomputed from queries and keys: softmax of the scores over the visible keys.

    `scores = softcap * tanh(scale * query @ key^T / softcap) + bias`; without a softcap `scale * query @ key^T + bias`.
    A sink joins the softmax as one more key of each head and is left out of the weights, which then sum to less than 1.
    The softmax runs in float32 or better, whatever the model's dtype. A query that sees no key has weights 0.

    Args:
        query: (B, H, T, D), positions already applied.
        key: (B, K, S, D); query head h reads key head `h // (H // K)`.
        scale: factor on the scores.
        mask: True = may attend; a function gives the rows of a block; None = no mask.
        bias: added to the scaled and capped scores; a function gives the rows of a block.
        is_causal: query i sees keys up to i as well as what `mask` says (torch's top-left alignment).
        softcap: bound of the scores before the bias; None = none.
        sink: (H,) one more logit of each head; None = none.
        real_tokens: which keys are no padding, where the layer was told.
        value: makes the (B, K, S, V) values when it is called; None = the layer did not tell them.

    Source: softcap: Gemma Team 2024, "Gemma 2", section 2; sink: OpenAI 2025, "gpt-oss model card", section 2.2.
    """

    query: Float[Tensor, "batch num_heads query_len head_dim"]
    key: Float[Tensor, "batch num_kv_heads key_len head_dim"]
    scale: float
    mask: Bool[Tensor, "mask_batch mask_heads mask_rows key_len"] | RowsOf | None = None
    bias: Float[Tensor, "bias_batch bias_heads bias_rows key_len"] | RowsOf | None = None
    is_causal: bool = False
    softcap: float | None = None
    sink: Float[Tensor, " num_heads"] | None = None
    real_tokens: Bool[Tensor, "batch key_len"] | None = None
    value: Callable[[], Tensor] | None = None

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """Return (batch, query heads, queries, keys)."""
        batch, num_heads, query_len, _ = self.query.shape
        return batch, num_heads, query_len, self.key.shape[2]

    @property
    def device(self) -> torch.device:
        """Return where the weights are computed."""
        return self.query.device

    def blocks(self) -> Iterator[WeightBlock]:
        """Yield the weights from the first query to the last, as many queries at a time as a block holds.

        Of a causal layer a block ends with the last key that its last query sees, which halves the work.
        """
        for start, stop in block_ranges(self.shape, is_causal=self.is_causal):
            yield self.block(start, stop, num_keys=stop if self.is_causal else None)

    def block(self, start: int, stop: int, *, num_keys: int | None = None) -> WeightBlock:
        """Return the weights of the queries `start`, ..., `stop - 1` on all keys, or on the first `num_keys`.

        The queries must see none of the keys that are left off.
        """
        key_len = self.shape[3] if num_keys is None else min(num_keys, self.shape[3])
        visible = self._visible(start, stop, key_len)
        scores = fill_hidden(self._scores(start, stop, key_len), visible, -torch.inf)
        if self.sink is not None:
            sink = self.sink.to(scores.dtype).view(1, -1, 1, 1).expand(*scores.shape[:3], 1)
            scores = torch.cat([scores, sink], dim=-1)
        # a row without a visible key is nan after the softmax; its weights are 0 by definition
        weights = fill_hidden(torch.softmax(scores, dim=-1)[..., :key_len], visible, 0.0)
        return WeightBlock(start, weights, visible, scores[..., :key_len])

    def of_head(self, text: int, head: int) -> "ProjectedWeights":
        """Return the same of one text and one query head, as a layer of that head alone."""
        kv_head = head // (self.shape[1] // self.key.shape[1])
        return replace(
            self,
            query=self.query[text : text + 1, head : head + 1],
            key=self.key[text : text + 1, kv_head : kv_head + 1],
            mask=None if self.mask is None else _of_head(self.mask, text, head),
            bias=None if self.bias is None else _of_head(self.bias, text, head),
            sink=None if self.sink is None else self.sink[head : head + 1],
            real_tokens=None if self.real_tokens is None else self.real_tokens[text : text + 1],
            value=None if self.value is None else partial(_value_of_head, self.value, text, kv_head),
        )

    def of_rows(self, index: Int[Tensor, "batch rows"]) -> "ProjectedWeights":
        """Return the same of some queries, those `index` of each text; nothing of (queries x keys) is made."""
        mask = None if self.mask is None else _of_rows(self.mask, index)
        if self.is_causal:
            keys = torch.arange(self.shape[3], device=index.device)
            mask = _both(mask, (keys <= index.unsqueeze(-1)).unsqueeze(1))
        return replace(
            self,
            query=take_rows(self.query, index),
            mask=mask,
            bias=None if self.bias is None else _of_rows(self.bias, index),
            is_causal=False,
        )

    def _scores(self, start: int, stop: int, key_len: int) -> Tensor:
        precise = torch.promote_types(self.query.dtype, torch.float32)
        batch, num_heads, _, _ = self.shape
        num_kv_heads = self.key.shape[1]
        # grouped heads: the queries of one key head stand side by side, so that keys need no copy
        q = self.query[:, :, start:stop].to(precise).reshape(batch, num_kv_heads, -1, self.query.shape[-1])
        scores = (q @ self.key[:, :, :key_len].to(precise).transpose(-2, -1)).view(
            batch, num_heads, stop - start, key_len
        )
        scores *= self.scale
        scores = cap_scores(scores, self.softcap)
        if self.bias is not None:
            scores += _rows(self.bias, start, stop)[..., :key_len]
        return scores

    def _visible(self, start: int, stop: int, key_len: int) -> Tensor:
        visible = torch.ones(1, 1, stop - start, key_len, dtype=torch.bool, device=self.query.device)
        if self.is_causal:
            visible = visible.tril(diagonal=start)
        if self.mask is not None:
            visible = visible & _rows(self.mask, start, stop)[..., :key_len]
        return visible.expand(self.shape[0], -1, -1, -1)


@dataclass(frozen=True, eq=False, kw_only=True)
class GivenWeights:
    """Weights that a layer returned whole.

    Args:
        weights: (B, H, T, S).
        visible: which keys each query may read, broadcastable over heads.
        real_tokens: which tokens are no padding, where the layer was told.
    """

    weights: Float[Tensor, "batch num_heads query_len key_len"]
    visible: Bool[Tensor, "batch mask_heads query_len key_len"]
    real_tokens: Bool[Tensor, "batch key_len"] | None = None

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """Return (batch, query heads, queries, keys)."""
        batch, num_heads, query_len, key_len = self.weights.shape
        return batch, num_heads, query_len, key_len

    @property
    def device(self) -> torch.device:
        """Return where the weights are."""
        return self.weights.device

    def blocks(self) -> Iterator[WeightBlock]:
        """Yield the weights from the first query to the last, as many queries at a time as a block holds."""
        for start, stop in block_ranges(self.shape):
            yield self.block(start, stop)

    def block(self, start: int, stop: int) -> WeightBlock:
        """Return the weights of the queries `start`, ..., `stop - 1`."""
        visible = self.visible[:, :, start:stop]
        return WeightBlock(start, fill_hidden(self.weights[:, :, start:stop], visible, 0.0), visible)

    def of_rows(self, index: Int[Tensor, "batch rows"]) -> "GivenWeights":
        """Return the same of some queries, those `index` of each text."""
        return replace(self, weights=take_rows(self.weights, index), visible=take_rows(self.visible, index))

    def of_head(self, text: int, head: int) -> "GivenWeights":
        """Return the same of one text and one head, as a layer of that head alone."""
        return replace(
            self,
            weights=self.weights[text : text + 1, head : head + 1],
            visible=_of_head(self.visible, text, head),
            real_tokens=None if self.real_tokens is None else self.real_tokens[text : text + 1],
        )


LayerWeights = ProjectedWeights | GivenWeights
"""What an observer gets of each layer."""


class AttentionCall(NamedTuple):
    """One attention call of a pass, as a listener hears of it.

    Attributes:
        module: the layer that made it; None: a function that no layer of a known kind called.
        weights: its weights.
        is_cross: whether its keys are of other tokens than its queries (cross-attention).
    """

    module: nn.Module | None
    weights: LayerWeights
    is_cross: bool


Listener = Callable[[AttentionCall], None]
"""Called at every attention call, in the order of the pass."""

OnError = Callable[[Exception], None]


def tell(listener: Listener, read: Callable[[], AttentionCall], on_error: OnError | None) -> None:
    """Read a call and show it to a listener; an error of either goes to `on_error`, where there is one, not further."""
    try:
        listener(read())
    except Exception as error:
        if on_error is None:
            raise
        on_error(error)


def in_thread(thread: int) -> bool:
    """Tell whether this is run by a thread, as `threading.get_ident` names it, and not inside a compiled graph.

    Calls in such a graph are not heard, and torch's compiler cannot follow a hook that asks for its thread.
    """
    return not torch.compiler.is_compiling() and get_ident() == thread


def is_self_attention(query: Tensor, key: Tensor | None) -> bool:
    """Tell whether a layer's queries and keys are of the same tokens; no key stands for the query."""
    return key is None or query is key or (query.shape == key.shape and torch.equal(query, key))


def fill_hidden(
    values: Float[Tensor, "batch num_heads rows key_len"],
    visible: Bool[Tensor, "mask_batch mask_heads rows key_len"],
    filler: float,
) -> Float[Tensor, "batch num_heads rows key_len"]:
    """Return the values with `filler` on hidden keys: the tensor itself where none is hidden, else a new one."""
    return values if is_known_full(visible) else torch.where(visible, values, filler)


def is_known_full(mask: Bool[Tensor, "*shape"]) -> bool:
    """Tell whether a mask is True everywhere and that is known at once: no other device than the CPU is waited for."""
    return mask.device.type == "cpu" and bool(mask.all())


def block_ranges(shape: tuple[int, int, int, int], *, is_causal: bool = False) -> Iterator[tuple[int, int]]:
    """Yield (start, stop) of blocks of queries that hold at most BLOCK_ELEMENTS weights, one query at the least.

    If `is_causal`, a block holds the weights on the keys up to its last query. Where those are few it has more queries,
    up to twice as many: what is kept of all keys stays small.
    """
    batch, num_heads, query_len, key_len = shape
    pairs = BLOCK_ELEMENTS // max(1, batch * num_heads)  # of a query and a key
    start = 0
    while start < query_len:
        rows = max(1, pairs // max(1, key_len))
        if is_causal:
            # rows * (start + rows) <= pairs
            rows = max(rows, min(2 * rows, (isqrt(start**2 + 4 * pairs) - start) // 2))
        stop = min(start + rows, query_len)
        yield start, stop
        start = stop


def _rows(tensor: Tensor | RowsOf, start: int, stop: int) -> Tensor:
    """Return the rows of a mask or bias that one block needs; a single row stands for all queries."""
    if not isinstance(tensor, Tensor):
        return tensor(torch.arange(start, stop))
    return tensor if tensor.shape[2] == 1 else tensor[:, :, start:stop]


def take_rows(tensor: Shaped[Tensor, "texts heads rows width"], index: Int[Tensor, "*texts taken"]) -> Tensor:
    """Return some rows of each text of a tensor: (rows,) the same of all texts, or (B, rows) others of each.

    One row that stands for all stays one; one text that stands for all does so too where it can.
    """
    if tensor.shape[2] == 1:
        return tensor
    if index.dim() == 1:
        return tensor[:, :, index]
    texts = torch.arange(len(index), device=index.device)
    texts = texts if tensor.shape[0] > 1 else torch.zeros_like(texts)
    return tensor[texts[:, None], :, index].transpose(1, 2)  # (B, rows, heads, width) -> (B, heads, rows, width)


def _of_rows(tensor: Tensor | RowsOf, index: Tensor) -> Tensor | RowsOf:
    if isinstance(tensor, Tensor):
        return take_rows(tensor, index)
    return lambda places: tensor(index[:, places.to(index.device)])


def _both(mask: Tensor | RowsOf | None, table: Tensor) -> Tensor | RowsOf:
    """Combine a mask with a table of pairs."""
    if mask is None or isinstance(mask, Tensor):
        return table if mask is None else mask & table
    return lambda places: mask(places) & take_rows(table, places)


def _value_of_head(value: Callable[[], Tensor], text: int, kv_head: int) -> Tensor:
    return value()[text : text + 1, kv_head : kv_head + 1]


@overload
def _of_head(tensor: Tensor, text: int, head: int) -> Tensor: ...
@overload
def _of_head(tensor: Tensor | RowsOf, text: int, head: int) -> Tensor | RowsOf: ...
def _of_head(tensor: Tensor | RowsOf, text: int, head: int) -> Tensor | RowsOf:
    """Return what a mask or bias says of one text and head; one that is the same for all of them says it of each."""
    if not isinstance(tensor, Tensor):
        rows_of = tensor
        # one text's own rows, (1, rows), may be asked of every text alike
        return lambda rows: _of_head(rows_of(rows.flatten()), text, head)
    if tensor.shape[0] > 1:
        tensor = tensor[text : text + 1]
    return tensor if tensor.shape[1] == 1 else tensor[:, head : head + 1]
