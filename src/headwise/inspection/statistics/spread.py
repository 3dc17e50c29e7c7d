"""How widely a head spreads the weight of a query over its keys."""

import torch
from jaxtyping import Float
from torch import Tensor

from headwise.inspection.statistics.counted import CountedBlock

SPARSE_BELOW = 0.1  # of the uniform weight: below it a key counts as one that the head passes over
CARRIED = 0.9  # share of a query's weight that its heaviest keys carry
ROUNDING = 1e-6  # of a sum of float32 weights, each off by 6e-8 of itself: at 90 % but for rounding is at 90 %


def spread_of(block: CountedBlock) -> dict[str, Float[Tensor, "batch num_heads rows"]]:
    """Return the statistics of each query's weights as a distribution, 0 for queries that do not count.

    `entropy` H = -sum_j w_j log w_j; `normalized_entropy` = H / log n, with n visible keys; `num_effective_keys` =
    exp(H), the number of keys that share alike would have this entropy; `sparsity` = share of keys with w_j < 0.1 / n;
    `max_weight` = max_j w_j. The entropy carries a NaN on where a comparison hides it.
    """
    weights, num_visible = block.weights, block.num_visible
    key_len = weights.shape[-1]
    entropy = entropy_of(weights)
    # every key that does not count has weight 0 and is among the small ones
    smallest = (SPARSE_BELOW / num_visible.clamp(min=1)).unsqueeze(-1)
    num_small = torch.lt(weights, smallest, out=torch.empty_like(weights)).sum(dim=-1)  # a sum of bools is slow
    return {
        "entropy": entropy,
        # a query with one key has log n = 0, and an entropy above 0 if a sink or padding holds a part of its weight
        "normalized_entropy": entropy / num_visible.clamp(min=2).log() * (num_visible >= 2),
        "num_effective_keys": entropy.exp() * (num_visible > 0),
        "sparsity": (num_small - (key_len - num_visible)) / num_visible.clamp(min=1) + 0.0 * entropy,
        "max_weight": weights.amax(dim=-1),
    }


def entropy_of(weights: Float[Tensor, "*queries key_len"]) -> Float[Tensor, "*queries"]:
    """Return `-sum_j w_j log w_j`, in nats, 0 log 0 being 0; a NaN is carried on. `torch.special.entr` is slower."""
    log = weights.clamp(min=torch.finfo(weights.dtype).tiny).log_()
    return -log.mul_(weights).sum(dim=-1)


def carrying_keys(block: CountedBlock) -> Float[Tensor, "batch num_heads rows"]:
    """Return the least number of keys that hold 90 % of each query's weight; it sorts every row."""
    heaviest_first = block.weights.sort(dim=-1, descending=True).values
    carried = heaviest_first.cumsum(dim=-1, dtype=torch.float64)
    total = carried[..., -1:]
    num_before = torch.count_nonzero(carried < CARRIED * (1 - ROUNDING) * total, dim=-1)
    return (num_before + 1) * (block.num_visible > 0) + 0.0 * total.squeeze(-1)
