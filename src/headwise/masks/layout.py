"""Mask -> block layout: which blocks of pairs are skipped, looked at, or taken whole."""

from typing import NamedTuple

import torch
from jaxtyping import Bool
from torch import Tensor

from headwise.masks.cover import FULL, NONE
from headwise.masks.patterns import Mask, require_whole_number
from headwise.masks.tiles import cut_in_chunks, find_states, home_of, require_values, told_apart


class BlockLayout(NamedTuple):
    """Which blocks of pairs are allowed, True = yes; rows are blocks of queries and columns blocks of keys.

    `any_allowed`: some pair of the block is allowed; else the block can be skipped. `all_allowed`: every pair of it is,
    so that no mask need be looked at. The first two sizes are 1 where the mask does not tell batch rows or heads apart.
    """

    any_allowed: Bool[Tensor, "#batch #num_heads query_blocks key_blocks"]
    all_allowed: Bool[Tensor, "#batch #num_heads query_blocks key_blocks"]


def find_layout(
    mask: Mask,
    block_size: int | tuple[int, int],
    batch_size: int,
    num_heads: int,
    query_len: int,
    key_len: int,
) -> BlockLayout:
    """Return which blocks are allowed in part and which in whole; see `Mask.block_layout`.

    Each kind of mask knows its blocks from their ends. Combinations that leave some open, and kinds that know nothing,
    are looked at there, pair by pair.

    Raises:
        ConfigError: another block size, the mask was made for other batch rows or heads, or its tensors hold no values.
    """
    query_block, key_block = block_size if isinstance(block_size, tuple) else (block_size, block_size)
    require_whole_number("block_size", query_block, minimum=1)
    require_whole_number("block_size", key_block, minimum=1)
    require_values(mask, batch_size, num_heads)
    num_rows, num_columns = -(-query_len // query_block), -(-key_len // key_block)
    if 0 in (batch_size, num_heads, query_len, key_len):
        nothing = torch.zeros(1, 1, num_rows, num_columns, dtype=torch.bool, device=home_of(mask))
        return BlockLayout(nothing, nothing.clone())
    shape = (*told_apart(mask, batch_size, num_heads), num_rows, num_columns)
    any_allowed = torch.empty(shape, dtype=torch.bool, device=home_of(mask))
    all_allowed = torch.empty_like(any_allowed)
    blocks = (min(query_block, query_len), min(key_block, key_len))
    rows = torch.arange(num_rows, device=home_of(mask))
    sizes = {"batch_size": batch_size, "num_heads": num_heads}
    for chunk in cut_in_chunks(mask, blocks, query_len, key_len, rows=rows, **sizes):
        states = find_states(mask, chunk)
        any_allowed[:, :, chunk.rows] = states != NONE
        all_allowed[:, :, chunk.rows] = states == FULL
    return BlockLayout(any_allowed, all_allowed)
