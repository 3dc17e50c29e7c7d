"""The attention weights of one layer on one batch, read a block of queries at a time."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

BLOCK_ELEMENTS = 2**22  # weights in one block: 16 MiB in float32, and a few copies of it while statistics are taken


class WeightBlock(NamedTuple):
    """Weights of the queries `start`, `start + 1`, ... of one layer, and which keys they may read."""

    start: int
    weights: Float[Tensor, "batch num_heads rows key_len"]
    visible: Bool[Tensor, "batch mask_heads rows key_len"]


@dataclass(frozen=True, eq=False, kw_only=True)
class ProjectedWeights:
    """Weights recomputed from queries and keys: `softmax(scale * query @ key^T + bias)` over the visible keys.

    The softmax runs in float32 or better, whatever the model's dtype. A query that sees no key has weights 0.

    Args:
        query: (B, H, T, D), positions already applied.
        key: (B, K, S, D); query head h reads key head `h // (H // K)`.
        scale: factor on the scores.
        mask: True = may attend; None = no mask.
        bias: added to the scaled scores.
        is_causal: query i sees keys up to i as well as what `mask` says (torch's top-left alignment).
        real_tokens: which tokens are no padding, where the layer was told.
    """

    query: Float[Tensor, "batch num_heads query_len head_dim"]
    key: Float[Tensor, "batch num_kv_heads key_len head_dim"]
    scale: float
    mask: Bool[Tensor, "mask_batch mask_heads mask_rows key_len"] | None = None
    bias: Float[Tensor, "bias_batch bias_heads bias_rows key_len"] | None = None
    is_causal: bool = False
    real_tokens: Bool[Tensor, "batch key_len"] | None = None

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """Return (batch, query heads, queries, keys)."""
        batch, num_heads, query_len, _ = self.query.shape
        return batch, num_heads, query_len, self.key.shape[2]

    def blocks(self) -> Iterator[WeightBlock]:
        """Yield the weights from the first query to the last, as many queries at a time as a block holds."""
        for start, stop in block_ranges(self.shape):
            visible = self._visible(start, stop)
            scores = self._scores(start, stop).masked_fill_(~visible, -torch.inf)
            # a row without a visible key is nan after the softmax; its weights are 0 by definition
            weights = torch.softmax(scores, dim=-1).masked_fill_(~visible, 0.0)
            yield WeightBlock(start, weights, visible)

    def _scores(self, start: int, stop: int) -> Tensor:
        precise = torch.promote_types(self.query.dtype, torch.float32)
        batch, num_heads, _, key_len = self.shape
        num_kv_heads = self.key.shape[1]
        # grouped heads: the queries of one key head stand side by side, so that keys need no copy
        q = self.query[:, :, start:stop].to(precise).reshape(batch, num_kv_heads, -1, self.query.shape[-1])
        scores = (q @ self.key.to(precise).transpose(-2, -1)).view(batch, num_heads, stop - start, key_len)
        scores *= self.scale
        if self.bias is not None:
            scores += _rows(self.bias, start, stop)
        return scores

    def _visible(self, start: int, stop: int) -> Tensor:
        batch, _, _, key_len = self.shape
        visible = torch.ones(1, 1, stop - start, key_len, dtype=torch.bool, device=self.query.device)
        if self.is_causal:
            visible = visible.tril(diagonal=start)
        if self.mask is not None:
            visible = visible & _rows(self.mask, start, stop)
        return visible.expand(batch, -1, -1, -1)


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

    def blocks(self) -> Iterator[WeightBlock]:
        """Yield the weights from the first query to the last, as many queries at a time as a block holds."""
        for start, stop in block_ranges(self.shape):
            visible = self.visible[:, :, start:stop]
            yield WeightBlock(start, self.weights[:, :, start:stop].masked_fill(~visible, 0.0), visible)


LayerWeights = ProjectedWeights | GivenWeights
"""What an observer gets of each layer."""


@dataclass
class CallCount:
    """How many attention calls a pass made: those that were shown, and those of cross-attention, which were not."""

    calls: int = 0
    cross_calls: int = 0


def is_self_attention(query: Tensor, key: Tensor | None) -> bool:
    """Tell whether a layer's queries and keys are of the same tokens; no key stands for the query."""
    return key is None or query is key or (query.shape == key.shape and torch.equal(query, key))


def block_ranges(shape: tuple[int, int, int, int]) -> Iterator[tuple[int, int]]:
    """Yield (start, stop) of blocks of queries that hold at most BLOCK_ELEMENTS weights, one query at the least."""
    batch, num_heads, query_len, key_len = shape
    rows = max(1, BLOCK_ELEMENTS // max(1, batch * num_heads * key_len))
    for start in range(0, query_len, rows):
        yield start, min(start + rows, query_len)


def _rows(tensor: Tensor, start: int, stop: int) -> Tensor:
    """Return the rows of a mask or bias that one block needs; a single row stands for all queries."""
    return tensor if tensor.shape[2] == 1 else tensor[:, :, start:stop]
