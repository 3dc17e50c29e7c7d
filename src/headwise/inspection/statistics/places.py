"""Where a head's weight lies: how far away, near the diagonal, inside a block, on the first token, on padding.

Between the tokens of two texts there is no distance: of cross-attention the first token and padding alone are known.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from headwise.inspection.statistics.counted import CountedBlock

DIAGONAL_REACH = 2  # keys before and after a query's own index that are its diagonal
BLOCK_TOKENS = 16  # tokens of a block, counted from the text's first token


def places_of(block: CountedBlock) -> dict[str, Float[Tensor, "batch num_heads rows"]]:
    """Return where each query's weight lies, 0 for queries that do not count.

    `distance` = sum_j w_j |i - j|; `distance_spread` = standard deviation of |i - j| under the weights, divided by
    their sum where a sink takes a part; `sink_mass` = weight on the first token; `diagonal_mass` = weight on keys with
    |i - j| <= 2; `block_mass` = weight on keys of the query's own block of 16 tokens; `uniform_diagonal_mass` and
    `uniform_block_mass` = what they would be for uniform weights; `padding_mass` = weight on padding. Of
    cross-attention there are `sink_mass`, on the other text's first token, and `padding_mass`, on its padding.
    """
    weights = block.weights
    first = block.first_token[:, None]
    on_known_keys = {
        "sink_mass": block.on_first_token(),
        "padding_mass": block.padding_mass,
    }
    if block.real_keys is not None:
        return on_known_keys
    distance = (block.rows[:, None] - block.keys).abs().double()
    # in float64: of a head that reads one key far away, the spread is a small difference of large numbers
    weighted = weights.double() * distance
    mean = weighted.sum(dim=-1)
    square = weighted.mul_(distance).sum(dim=-1)
    mass = weights.sum(dim=-1, dtype=torch.float64)
    mass = mass + (mass == 0)  # a query that does not count
    own_block = first + (block.rows - first).div(BLOCK_TOKENS, rounding_mode="floor") * BLOCK_TOKENS
    around = torch.arange(-DIAGONAL_REACH, DIAGONAL_REACH + 1, device=weights.device)
    inside = torch.arange(BLOCK_TOKENS, device=weights.device)
    diagonal = _mass_on(block, (block.rows[:, None] + around).unsqueeze(0))
    blocks = _mass_on(block, own_block.unsqueeze(-1) + inside)
    return {
        "distance": mean,
        "distance_spread": (square / mass - (mean / mass).square()).clamp(min=0).sqrt(),
        "diagonal_mass": diagonal[0],
        "uniform_diagonal_mass": diagonal[1],
        "block_mass": blocks[0],
        "uniform_block_mass": blocks[1],
        **on_known_keys,
    }


def _mass_on(block: CountedBlock, index: Int[Tensor, "text_rows rows num_keys"]) -> tuple[Tensor, Tensor]:
    """Return each query's weight on a few keys, and the share of its visible keys that they are."""
    batch, num_heads, _, key_len = block.weights.shape
    exists = ((index >= 0) & (index < key_len))[:, None]
    index = index.clamp(0, key_len - 1)[:, None]
    weight = block.weights.gather(-1, index.expand(batch, num_heads, -1, -1)).where(exists, 0.0).sum(dim=-1)
    visible = block.visible.gather(-1, index.expand(batch, block.visible.shape[1], -1, -1)) & exists
    share = visible.sum(dim=-1) / block.num_visible.clamp(min=1)
    return weight, share.expand(-1, num_heads, -1)
