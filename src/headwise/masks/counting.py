"""What is counted of any mask: its allowed pairs, and the queries that may read no key."""

from math import isqrt

import torch
from jaxtyping import Bool
from torch import Tensor

from headwise.masks.cover import FULL, NONE
from headwise.masks.patterns import Mask
from headwise.masks.tiles import count_in_blocks, cut_in_chunks, find_states, home_of, require_values, told_apart

BLOCK_SIZE = 64  # at lengths of some 10,000, diagonals cost as many looks at pairs as there are blocks


def count_allowed(mask: Mask, batch_size: int, num_heads: int, query_len: int, key_len: int) -> int:
    """Count the allowed pairs of any mask: whole blocks by their size, the others by looking at their pairs.

    Args:
        mask: the mask.
        batch_size: number of batch rows.
        num_heads: number of query heads.
        query_len: number of queries; they stand at the end of the keys.
        key_len: number of keys.

    Raises:
        ConfigError: the mask was made for other batch rows or heads, or its tensors have no values to read.
    """
    require_values(mask, batch_size, num_heads)
    if 0 in (batch_size, num_heads, query_len, key_len):
        return 0
    if mask.looks_at_distance_alone:
        return batch_size * num_heads * _count_by_distance(mask, query_len, key_len)
    block = (min(BLOCK_SIZE, query_len), min(BLOCK_SIZE, key_len))
    rows = torch.arange(-(-query_len // block[0]), device=home_of(mask))
    total = alike = 0
    for chunk in cut_in_chunks(mask, block, query_len, key_len, rows=rows, batch_size=batch_size, num_heads=num_heads):
        alike = batch_size * num_heads // (chunk.shape[0] * chunk.shape[1])
        low, high = mask.cover(chunk.blocks)
        total += int(((low == FULL).expand(chunk.shape) * chunk.blocks.num_pairs).sum())
        places = ((low != FULL) & (high != NONE)).expand(chunk.shape).nonzero()
        total += int(count_in_blocks(mask, chunk.blocks, places).sum())
    return alike * total


def _count_by_distance(mask: Mask, query_len: int, key_len: int) -> int:
    """Count the pairs of one head by their distances, each of which is asked for once."""
    offset = key_len - query_len  # index of the first query
    distance = torch.arange(1 - query_len, key_len, device=home_of(mask))
    first, last = distance.clamp(min=offset), (distance + key_len).clamp(max=key_len) - 1  # queries at that distance
    return int(((last - first + 1) * mask.allows(0, 0, distance, 0)).sum())


def find_empty_rows(
    mask: Mask, batch_size: int, num_heads: int, query_len: int, key_len: int
) -> Bool[Tensor, "#batch #num_heads query_len"]:
    """Return which queries may read no key; see `Mask.empty_rows`.

    Most queries read themselves or the first key. Where one does not, in some batch row and head, its keys are looked
    at in blocks of about the root of their number.

    Raises:
        ConfigError: the mask was made for other batch rows or heads, or its tensors hold no values.
    """
    require_values(mask, batch_size, num_heads)
    if 0 in (batch_size, num_heads, query_len, key_len):
        return torch.ones(1, 1, query_len, dtype=torch.bool, device=home_of(mask))
    empty = torch.ones(*told_apart(mask, batch_size, num_heads), query_len, dtype=torch.bool, device=home_of(mask))
    batch = torch.arange(batch_size, device=home_of(mask)).view(-1, 1, 1)
    head = torch.arange(num_heads, device=home_of(mask)).view(1, -1, 1)
    query = torch.arange(key_len - query_len, key_len, device=home_of(mask))
    for key in (query.clamp(min=0), torch.zeros_like(query)):
        empty &= torch.as_tensor(mask.allows(batch, head, query, key), device=home_of(mask)) ^ True
    rows = empty.any(0).any(0).nonzero()[:, 0]
    block = (1, isqrt(key_len))
    for chunk in cut_in_chunks(mask, block, query_len, key_len, rows=rows, batch_size=batch_size, num_heads=num_heads):
        empty[:, :, chunk.rows] = (find_states(mask, chunk) == NONE).all(-1)
    return empty
