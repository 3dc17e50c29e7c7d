"""How far from a query's patch a head's weight lies on the image."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from headwise.inspection.statistics.counted import CountedBlock


def patch_distances(
    block: CountedBlock,
) -> tuple[Float[Tensor, "batch num_heads rows"], Bool[Tensor, "batch num_heads rows"]]:
    """Return the mean distance on the grid from each query's patch to the patches that it reads, and who has one.

    `sum_j w_ij |p_i - p_j| / sum_j w_ij` over the keys j that are patches, with p the row and column of a patch and the
    Euclidean distance, in patches; 0 for a query that is no patch, does not count, or puts no weight on patches.
    Distance in tokens says little of an image: the patch below is as many tokens away as the image has columns.

    Args:
        block: a block with `places`.

    Source: Dosovitskiy et al. 2020, "An Image is Worth 16x16 Words", section 4.5 (mean attention distance, in pixels
    there).
    """
    assert block.places is not None
    is_patch = (block.places >= 0).all(dim=-1)
    places = block.places.double()
    distance = (places[block.rows].unsqueeze(1) - places[block.keys]).square().sum(dim=-1).sqrt()  # (rows, keys)
    weights = block.weights.double() * is_patch[block.keys]
    mass = weights.sum(dim=-1)
    has_one = is_patch[block.rows] & (mass != 0)  # a NaN is carried on
    mean = (weights * distance).sum(dim=-1) / mass
    return mean.where(has_one, torch.zeros_like(mean)), has_one
