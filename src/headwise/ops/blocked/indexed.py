"""The block layout of a call whose tokens have indices of their own: read off the pairs, some rows at a time."""

import torch
from torch import Tensor
from torch.nn import functional

from headwise.masks.layout import BlockLayout
from headwise.ops.call import Call
from headwise.ops.lowering import PAIRS_AT_ONCE, allowed_pairs
from headwise.ops.scores import places_of


def indexed_layout(call: Call, block: int) -> BlockLayout:
    """Return which blocks of a call's queries and keys, as they lie in their tensors, are allowed in part or whole."""
    batch_size, num_heads = call.query.shape[:2]
    key_len = call.key.shape[2]
    index = places_of(call).query_index[:, 0, :, 0]  # (B or 1, T)
    pairs_of_a_row = block * batch_size * num_heads * key_len
    rows = block * max(1, PAIRS_AT_ONCE // pairs_of_a_row)
    chunks = zip(torch.split(call.query, rows, dim=2), torch.split(index, rows, dim=1), strict=True)
    pieces = [
        allowed_pairs(call._replace(query=query, query_index=places)).expand(-1, -1, query.shape[2], -1)
        for query, places in chunks
    ]
    any_allowed = torch.cat([_over_blocks(piece, block, any_of=True) for piece in pieces], dim=2)
    all_allowed = torch.cat([_over_blocks(piece, block, any_of=False) for piece in pieces], dim=2)
    return BlockLayout(any_allowed, all_allowed)


def _over_blocks(allowed: Tensor, block: int, *, any_of: bool) -> Tensor:
    """(b, h, T, S) -> (b, h, blocks of T, blocks of S): any or all of the pairs of each block."""
    query_len, key_len = allowed.shape[2:]
    padded = functional.pad(allowed, (0, -key_len % block, 0, -query_len % block), value=not any_of)
    blocks = padded.view(*allowed.shape[:2], -1, block, padded.shape[3] // block, block)
    return blocks.any(5).any(3) if any_of else blocks.all(5).all(3)
