"""Attention maps of one text as bytes, small enough to keep for every head, and the exact largest weights beside."""

import torch
from jaxtyping import Bool, Float, UInt8
from torch import Tensor

from headwise.inspection.results import AttentionMap, TopKeys
from headwise.inspection.statistics.counted import CountedBlock

MAX_MAP_TOKENS = 512  # a map is a square of bytes: 256 KiB a head at this length


class LayerMaps:
    """Maps of all heads of a layer on one text: its first tokens one by one.

    Args:
        number: number of the layer.
        row: which text of the batch.
        real: which of its tokens are no padding.
        max_tokens: how many of them a map covers at most.
    """

    def __init__(self, number: int, *, row: int, real: Bool[Tensor, " seq_len"], max_tokens: int):
        self.number = number
        self.row = row
        self.own = real.nonzero().flatten()[:max_tokens]
        self.blocks: list[UInt8[Tensor, "num_heads rows keys"]] = []

    def add(self, block: CountedBlock) -> None:
        """Add the queries of a block."""
        self.blocks.append(weights_to_bytes(_own_weights(block, self.row, self.own)))

    def to_maps(self) -> tuple[AttentionMap, ...]:
        """Return the map of every head."""
        size = len(self.own)
        return tuple(
            AttentionMap(
                layer=self.number, head=head, num_queries=size, num_keys=size, weights=square.numpy().tobytes()
            )
            for head, square in enumerate(torch.cat(self.blocks, dim=1))
        )


class LayerOverviews:
    """Maps of all heads of a layer on one text, whole and down-sampled: the means over squares of `tile` tokens.

    A cell is `sum_ij w_ij / n`, over the n queries i and the keys j of its square: the weight that such a query gives
    the keys of the square together, on average (the mean over pairs, times the keys). So the cells of a row add up to
    what its queries' weights do, and a long text does not fade.

    Args:
        number: number of the layer.
        num_heads: its heads.
        row: which text of the batch.
        real: which of its tokens are no padding.
        max_cells: how many cells a map's side has at most.
    """

    def __init__(self, number: int, num_heads: int, *, row: int, real: Bool[Tensor, " seq_len"], max_cells: int):
        self.number = number
        self.row = row
        self.own = real.nonzero().flatten()
        self.tile = -(-len(self.own) // max_cells)
        self.num_cells = -(-len(self.own) // self.tile)
        self.sums = torch.zeros(num_heads, self.num_cells, self.num_cells)

    def add(self, block: CountedBlock) -> None:
        """Add the queries of a block."""
        weights = _own_weights(block, self.row, self.own)
        num_heads, num_rows, num_keys = weights.shape
        weights = torch.nn.functional.pad(weights, (0, self.num_cells * self.tile - num_keys))
        over_keys = weights.view(num_heads, num_rows, self.num_cells, self.tile).sum(dim=-1).float().cpu()
        places = torch.arange(len(self.own))[_queries_of(block, self.own)]
        self.sums.index_add_(1, places // self.tile, over_keys)

    def to_maps(self) -> tuple[AttentionMap, ...]:
        """Return the map of every head."""
        num_queries = torch.full((self.num_cells,), self.tile)
        num_queries[-1] = len(self.own) - self.tile * (self.num_cells - 1)
        cells = weights_to_bytes(self.sums / num_queries.view(1, -1, 1))
        return tuple(
            AttentionMap(
                layer=self.number,
                head=head,
                num_queries=self.num_cells,
                num_keys=self.num_cells,
                weights=square.numpy().tobytes(),
                tile=self.tile,
            )
            for head, square in enumerate(cells)
        )


class LayerTopKeys:
    """The keys with the largest weights of every query of one text, in every head of a layer.

    Args:
        number: number of the layer.
        row: which text of the batch.
        real: which of its tokens are no padding.
        count: keys of each query, fewer in a text that has fewer.
    """

    def __init__(self, number: int, *, row: int, real: Bool[Tensor, " seq_len"], count: int):
        self.number = number
        self.row = row
        self.own = real.nonzero().flatten()
        self.count = min(count, len(self.own))
        self.keys: list[Tensor] = []
        self.weights: list[Tensor] = []

    def add(self, block: CountedBlock) -> None:
        """Add the queries of a block."""
        largest = _own_weights(block, self.row, self.own).topk(self.count, dim=-1)
        self.weights.append(largest.values.float().cpu())
        # a key without weight is none of them: a query may see fewer keys than are asked for
        self.keys.append(largest.indices.where(largest.values > 0, -1).int().cpu())

    def to_top_keys(self) -> tuple[TopKeys, ...]:
        """Return the keys of every head."""
        keys, weights = torch.cat(self.keys, dim=1), torch.cat(self.weights, dim=1)
        return tuple(
            TopKeys(
                layer=self.number,
                head=head,
                num_queries=len(self.own),
                num_keys=self.count,
                keys=keys[head].numpy().astype("<i4").tobytes(),
                weights=weights[head].numpy().astype("<f4").tobytes(),
            )
            for head in range(len(keys))
        )


def weights_to_bytes(weights: Float[Tensor, "*shape"]) -> UInt8[Tensor, "*shape"]:
    """Write weights in 8 bits each: `round(255 * sqrt(weight))`."""
    return (weights.clamp(0, 1).sqrt() * 255).round().to("cpu", torch.uint8)


def _queries_of(block: CountedBlock, own: Tensor) -> Tensor:
    """Tell which of a text's tokens are queries of the block."""
    return (own >= block.start) & (own < block.start + block.weights.shape[2])


def _own_weights(block: CountedBlock, row: int, own: Tensor) -> Float[Tensor, "num_heads rows keys"]:
    """Return the weights of those of a text's tokens that are queries of the block, on those tokens."""
    device = block.weights.device
    queries = own[_queries_of(block, own)] - block.start
    return block.weights[row].index_select(1, queries.to(device)).index_select(2, own.to(device))
