"""What is known of the blocks of a mask before any pair is looked at."""

from collections.abc import Callable
from itertools import product
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Int, Int8
from torch import Tensor

from headwise.masks.patterns import Mask

NONE, PARTIAL, FULL = 0, 1, 2  # how much of a block is allowed; in this order, so that more is larger

Known = Int8[Tensor, "#batch #num_heads #query_blocks #key_blocks"]


class Cover(NamedTuple):
    """How much of each block is allowed: from `low` to `high`, each NONE, PARTIAL or FULL.

    Single masks know their blocks: `low` is `high`. Where two masks are joined and both allow a block in part, what the
    two parts have in common, or are together, stays open until the pairs are looked at.
    """

    low: Known
    high: Known

    def __and__(self, other: "Cover") -> "Cover":
        """Return what is known of the pairs that both masks allow."""
        smaller, larger = torch.minimum(self.low, other.low), torch.maximum(self.low, other.low)
        # Two parts need have no pair in common; a part and the whole have the part.
        return Cover(smaller * (larger == FULL), torch.minimum(self.high, other.high))

    def __or__(self, other: "Cover") -> "Cover":
        """Return what is known of the pairs that either mask allows."""
        return ~(~self & ~other)

    def __invert__(self) -> "Cover":
        """Return what is known of the pairs that the mask forbids."""
        return Cover(FULL - self.high, FULL - self.low)


class Blocks(NamedTuple):
    """Blocks of pairs: some rows of blocks, cut alike, with all their columns. Places are indices in the stream.

    Args:
        batch: (B, 1, 1, 1) batch rows.
        head: (1, H, 1, 1) query heads.
        first_query, last_query: (1, 1, R, 1) ends of the rows, the last one included.
        first_key, last_key: (1, 1, 1, C) ends of the columns.
        query_block, key_block: number of queries and keys of each but the last ones.
    """

    batch: Int[Tensor, "batch 1 1 1"]
    head: Int[Tensor, "1 num_heads 1 1"]
    first_query: Int[Tensor, "1 1 query_blocks 1"]
    last_query: Int[Tensor, "1 1 query_blocks 1"]
    first_key: Int[Tensor, "1 1 1 key_blocks"]
    last_key: Int[Tensor, "1 1 1 key_blocks"]
    query_block: int
    key_block: int

    @property
    def num_pairs(self) -> Int[Tensor, "1 1 query_blocks key_blocks"]:
        """Number of pairs in each block; the last ones may have fewer than the others."""
        return (self.last_query - self.first_query + 1) * (self.last_key - self.first_key + 1)

    def known(self, any_allowed: Bool[Tensor, "..."], all_allowed: Bool[Tensor, "..."]) -> Cover:
        """Return the cover of a mask that knows in which blocks any and in which all pairs are allowed."""
        state = any_allowed.to(torch.int8) + all_allowed.to(torch.int8)
        return Cover(state, state)

    def unknown(self) -> Cover:
        """Return the cover of a mask that knows nothing of blocks."""
        low = torch.full((1, 1, 1, 1), NONE, dtype=torch.int8, device=self.batch.device)
        return Cover(low, low + FULL)

    def by_distance(self, mask: Mask) -> Cover:
        """Return the cover of a mask that looks at distances alone: a block holds all from its smallest to its largest.

        The mask is asked once for each distance that occurs; allowed ones are counted from the smallest on.
        """
        smallest, largest = self.first_query - self.last_key, self.last_query - self.first_key
        start = int(smallest.min())
        distances = torch.arange(start, int(largest.max()) + 1, device=self.batch.device)
        allowed = torch.as_tensor(mask.allows(0, 0, distances, 0), device=distances.device).expand(distances.shape)
        before = torch.nn.functional.pad(allowed.cumsum(0), (1, 0))
        count = before[largest + 1 - start] - before[smallest - start]
        return self.known(count > 0, count == largest - smallest + 1)

    def in_cells(self, allows: Callable[[Any, Any, Any, Any], Tensor], size: int) -> Cover:
        """Return the cover of a mask that says the same of all pairs of a cell, `size` queries by `size` keys.

        Args:
            allows: as `Mask.allows`; it is asked for one pair of each cell that a block meets.
            size: indices to a side of a cell; cells begin at the multiples of it.
        """
        any_allowed = torch.zeros((1, 1, 1, 1), dtype=torch.bool, device=self.batch.device)
        all_allowed = ~any_allowed
        queries = _one_of_each_cell(self.first_query, self.last_query, self.query_block, size)
        keys = _one_of_each_cell(self.first_key, self.last_key, self.key_block, size)
        for query, key in product(queries, keys):
            allowed = allows(self.batch, self.head, query, key)
            any_allowed = any_allowed | allowed
            all_allowed = all_allowed & allowed
        return self.known(any_allowed, all_allowed)

    def in_rows(self, any_query: Bool[Tensor, "b h rows keys"], all_queries: Bool[Tensor, "b h rows keys"]) -> Cover:
        """Return the cover of a mask that knows for each row of blocks which keys any and which all queries may read.

        Keys beyond the last column of the two are read by nobody.
        """
        any_key, all_keys = (self._by_column(keys) for keys in (any_query, all_queries))
        return self.known(any_key.any(-1), all_keys.all(-1))

    def _by_column(self, keys: Tensor) -> Tensor:
        """Cut the last dimension into columns; what the last column lacks repeats its last key."""
        num_columns, num_keys = self.last_key.numel(), int(self.last_key[..., -1]) + 1
        keys = torch.nn.functional.pad(keys[..., :num_keys], (0, max(0, num_keys - keys.shape[-1])))
        lack = num_columns * self.key_block - num_keys
        keys = torch.cat([keys, keys[..., -1:].expand(*keys.shape[:-1], lack)], dim=-1)
        return keys.reshape(*keys.shape[:-1], num_columns, self.key_block)


def cut_blocks(
    query_block: int,
    key_block: int,
    query_len: int,
    key_len: int,
    *,
    rows: Int[Tensor, " rows"],
    batch_size: int,
    num_heads: int,
) -> Blocks:
    """Return some rows of the blocks that queries at the end of the keys and those keys are cut into.

    Args:
        query_block, key_block: size of a block, at least 1.
        query_len, key_len: number of queries and of keys.
        rows: which rows of blocks, counted from 0; the others are made on their device.
        batch_size, num_heads: number of batch rows and of heads.
    """
    device = rows.device
    offset = key_len - query_len
    first_query = rows * query_block
    last_query = (first_query + query_block).clamp(max=query_len) - 1
    first_key = torch.arange(0, key_len, key_block, device=device)
    return Blocks(
        batch=torch.arange(batch_size, device=device).view(-1, 1, 1, 1),
        head=torch.arange(num_heads, device=device).view(1, -1, 1, 1),
        first_query=(first_query + offset).view(1, 1, -1, 1),
        last_query=(last_query + offset).view(1, 1, -1, 1),
        first_key=first_key.view(1, 1, 1, -1),
        last_key=((first_key + key_block).clamp(max=key_len) - 1).view(1, 1, 1, -1),
        query_block=query_block,
        key_block=key_block,
    )


def _one_of_each_cell(first: Tensor, last: Tensor, block: int, size: int) -> list[Tensor]:
    """Return indices of which each block has one in every cell that it meets: steps of a cell from the first on."""
    smaller, larger = sorted((block, size))
    fits = larger % smaller == 0 and not bool((first % smaller).any())
    steps = max(1, block // size) if fits else (block + size - 2) // size + 1
    return [torch.minimum(first + step * size, last) for step in range(steps)]
