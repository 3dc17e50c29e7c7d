"""Attention maps of one text as bytes, small enough to keep for every head, and the exact largest weights beside."""

from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float, Int, UInt8
from torch import Tensor

from headwise.inspection.results import AttentionMap, TopKeys
from headwise.inspection.statistics.counted import CountedBlock
from headwise.inspection.statistics.kinds import TokenKinds

MAX_MAP_TOKENS = 512  # a map is a square of bytes: 256 KiB a head at this length


class LayerMaps:
    """Maps of all heads of a layer on one text: its first tokens one by one.

    Args:
        number: number of the layer.
        row: which text of the batch.
        kinds: which tokens of the batch are no padding.
        max_tokens: how many of them a map covers at most, of queries and of keys.
    """

    def __init__(self, number: int, *, row: int, kinds: TokenKinds, max_tokens: int):
        self.number = number
        self.text = _Text.of(row, kinds).first(max_tokens)
        self.blocks: list[UInt8[Tensor, "num_heads rows keys"]] = []

    def add(self, block: CountedBlock) -> None:
        """Add the queries of a block."""
        self.blocks.append(weights_to_bytes(self.text.weights(block)))

    def to_maps(self) -> tuple[AttentionMap, ...]:
        """Return the map of every head."""
        return tuple(
            AttentionMap(
                layer=self.number,
                head=head,
                num_queries=len(self.text.queries),
                num_keys=len(self.text.keys),
                weights=square.numpy().tobytes(),
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
        kinds: which tokens of the batch are no padding.
        max_cells: how many cells a map's longer side has at most.
    """

    def __init__(self, number: int, num_heads: int, *, row: int, kinds: TokenKinds, max_cells: int):
        self.number = number
        self.text = _Text.of(row, kinds)
        num_queries, num_keys = len(self.text.queries), len(self.text.keys)
        self.tile = -(-max(num_queries, num_keys) // max_cells)
        self.num_rows, self.num_columns = -(-num_queries // self.tile), -(-num_keys // self.tile)
        self.sums = torch.zeros(num_heads, self.num_rows, self.num_columns)

    def add(self, block: CountedBlock) -> None:
        """Add the queries of a block."""
        weights = self.text.weights(block)
        num_heads, num_rows, num_keys = weights.shape
        weights = torch.nn.functional.pad(weights, (0, self.num_columns * self.tile - num_keys))
        over_keys = weights.view(num_heads, num_rows, self.num_columns, self.tile).sum(dim=-1).float().cpu()
        places = torch.arange(len(self.text.queries))[self.text.queries_of(block)]
        self.sums.index_add_(1, places // self.tile, over_keys)

    def to_maps(self) -> tuple[AttentionMap, ...]:
        """Return the map of every head."""
        num_queries = torch.full((self.num_rows,), self.tile)
        num_queries[-1] = len(self.text.queries) - self.tile * (self.num_rows - 1)
        cells = weights_to_bytes(self.sums / num_queries.view(1, -1, 1))
        return tuple(
            AttentionMap(
                layer=self.number,
                head=head,
                num_queries=self.num_rows,
                num_keys=self.num_columns,
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
        kinds: which tokens of the batch are no padding.
        count: keys of each query, fewer in a text that has fewer.
    """

    def __init__(self, number: int, *, row: int, kinds: TokenKinds, count: int):
        self.number = number
        self.text = _Text.of(row, kinds)
        self.count = min(count, len(self.text.keys))
        self.keys: list[Tensor] = []
        self.weights: list[Tensor] = []

    def add(self, block: CountedBlock) -> None:
        """Add the queries of a block."""
        largest = self.text.weights(block).topk(self.count, dim=-1)
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
                num_queries=len(self.text.queries),
                num_keys=self.count,
                keys=keys[head].numpy().astype("<i4").tobytes(),
                weights=weights[head].numpy().astype("<f4").tobytes(),
            )
            for head in range(len(keys))
        )


def weights_to_bytes(weights: Float[Tensor, "*shape"]) -> UInt8[Tensor, "*shape"]:
    """Write weights in 8 bits each: `round(255 * sqrt(weight))`."""
    return (weights.clamp(0, 1).sqrt() * 255).round().to("cpu", torch.uint8)


@dataclass(frozen=True, eq=False)
class _Text:
    """One text of a batch: which queries and keys are its own."""

    row: int
    queries: Int[Tensor, " num_queries"]
    keys: Int[Tensor, " num_keys"]

    @classmethod
    def of(cls, row: int, kinds: TokenKinds) -> "_Text":
        return cls(row, kinds.real[row].nonzero().flatten().cpu(), kinds.keys[row].nonzero().flatten().cpu())

    def first(self, count: int) -> "_Text":
        return replace(self, queries=self.queries[:count], keys=self.keys[:count])

    def queries_of(self, block: CountedBlock) -> Bool[Tensor, " num_queries"]:
        """Tell which of the queries are in the block."""
        return (self.queries >= block.start) & (self.queries < block.start + block.weights.shape[2])

    def weights(self, block: CountedBlock) -> Float[Tensor, "num_heads rows num_keys"]:
        """Return the weights of those queries that are in the block, on the keys."""
        device = block.weights.device
        return block.of_text(self.row, self.queries[self.queries_of(block)].to(device), self.keys.to(device))
