"""Blocks of a mask that are looked at pair by pair: those that its cover leaves open. Memory is bounded throughout."""

from collections.abc import Iterator
from itertools import product
from typing import NamedTuple

import torch
from jaxtyping import Int, Int8
from torch import Tensor

from headwise.errors import ConfigError
from headwise.masks.cover import FULL, NONE, PARTIAL, Blocks, cut_blocks
from headwise.masks.patterns import Mask, require_batch_size, require_num_heads

CHUNK_BLOCKS = 2**18  # blocks covered together, over all batch rows and heads: some tensors of 2 MiB
LOOK_PAIRS = 2**19  # pairs looked at together: some tensors of 4 MiB

State = Int8[Tensor, "#batch #num_heads rows key_blocks"]


def home_of(mask: Mask) -> torch.device:
    """Return the device that a mask is looked at on: its tensors' own, else the CPU, whatever torch's default is."""
    return torch.device("cpu") if mask.device is None else torch.device(mask.device)


class Chunk(NamedTuple):
    """Some rows of blocks, which of all they are, and the shape of what is said of them."""

    rows: Int[Tensor, " rows"]
    blocks: Blocks
    shape: tuple[int, int, int, int]


def require_values(mask: Mask, batch_size: int, num_heads: int) -> None:
    """Raise ConfigError if the mask was made for other batch rows or heads, or its tensors hold no values."""
    require_batch_size(mask, batch_size)
    require_num_heads(mask, num_heads)
    if mask.device is not None and mask.device.type == "meta":
        raise ConfigError(f"a mask must hold values for its pairs to be counted; got {mask!r} on the meta device")


def told_apart(mask: Mask, batch_size: int, num_heads: int) -> tuple[int, int]:
    """Return how many batch rows and heads the mask tells apart: all, or 1 where it does not look at them."""
    batch = torch.arange(batch_size, device=home_of(mask)).view(-1, 1, 1, 1)
    head = torch.arange(num_heads, device=home_of(mask)).view(1, -1, 1, 1)
    place = torch.zeros(1, 1, 1, 1, dtype=torch.long, device=home_of(mask))
    shape = torch.as_tensor(mask.allows(batch, head, place, place)).shape
    rows, heads = ((1,) * (4 - len(shape)) + tuple(shape))[:2]
    return rows, heads


def cut_in_chunks(
    mask: Mask,
    block_size: tuple[int, int],
    query_len: int,
    key_len: int,
    *,
    rows: Int[Tensor, " rows"],
    batch_size: int,
    num_heads: int,
) -> Iterator[Chunk]:
    """Cut some rows of blocks into chunks of bounded size.

    Args:
        mask: the mask.
        block_size: number of queries and of keys to a block, each at least 1.
        query_len, key_len: number of queries, which stand at the end of the keys, and of keys, at least 1.
        rows: which rows of blocks, on the mask's device.
        batch_size, num_heads: number of batch rows and heads, at least 1.
    """
    apart = told_apart(mask, batch_size, num_heads)
    num_columns = -(-key_len // block_size[1])
    num_rows = max(1, CHUNK_BLOCKS // (apart[0] * apart[1] * num_columns))
    for first in range(0, len(rows), num_rows):
        some = rows[first : first + num_rows]
        sizes = {"batch_size": batch_size, "num_heads": num_heads}
        blocks = cut_blocks(*block_size, query_len, key_len, rows=some, **sizes)
        yield Chunk(some, blocks, (*apart, len(some), num_columns))


def find_states(mask: Mask, chunk: Chunk) -> State:
    """Return how much of each block is allowed: NONE, PARTIAL or FULL."""
    low, high = mask.cover(chunk.blocks)
    state: Tensor = low.expand(chunk.shape).clone()
    places = (low != high).expand(chunk.shape).nonzero()
    count = count_in_blocks(mask, chunk.blocks, places)
    is_full = count == chunk.blocks.num_pairs[0, 0, places[:, 2], places[:, 3]]
    state[tuple(places.T)] = torch.where(is_full, FULL, torch.where(count > 0, PARTIAL, NONE)).to(torch.int8)
    return state


def count_in_blocks(mask: Mask, blocks: Blocks, places: Int[Tensor, "num_places 4"]) -> Int[Tensor, " num_places"]:
    """Count the allowed pairs of single blocks by looking at each pair, a few blocks at a time.

    Args:
        mask: the mask.
        blocks: the blocks.
        places: the batch row, head, row and column of each block to look at.
    """
    count = torch.zeros(len(places), dtype=torch.long, device=places.device)
    # Of a block of more pairs than are looked at together, so many queries at a time.
    height = min(blocks.query_block, max(1, LOOK_PAIRS // blocks.key_block))
    width = max(1, LOOK_PAIRS // (height * blocks.key_block))
    key_step = torch.arange(blocks.key_block, device=places.device)
    for some, start in product(range(0, len(places), width), range(0, blocks.query_block, height)):
        batch, head, row, column = places[some : some + width].T[:, :, None, None]
        query_step = torch.arange(start, min(start + height, blocks.query_block), device=places.device)[:, None]
        query, key = blocks.first_query[0, 0, row, 0] + query_step, blocks.first_key[0, 0, 0, column] + key_step
        last_query, last_key = blocks.last_query[0, 0, row, 0], blocks.last_key[0, 0, 0, column]
        # The last blocks have fewer pairs: what lies outside is asked as if it were the last one, and not counted.
        allowed = mask.allows(batch, head, torch.minimum(query, last_query), torch.minimum(key, last_key))
        count[some : some + width] += ((query <= last_query) & (key <= last_key) & allowed).sum((1, 2))
    return count
