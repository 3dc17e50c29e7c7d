"""A few queries of each text, drawn at random, that stand for all of them."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor


@dataclass(frozen=True, eq=False)
class DrawnRows:
    """Queries drawn from each text of a batch.

    Args:
        index: which queries; a text with fewer real tokens than rows repeats one of them with weight 0.
        weight: for how many real queries of its text each stands: (real tokens of the text) / (rows drawn from it).
    """

    index: Int[Tensor, "batch rows"]
    weight: Float[Tensor, "batch rows"]


def draw_rows(real: Bool[Tensor, "batch query_len"], num_rows: int, *, seed: int) -> DrawnRows:
    """Draw queries of each text uniformly from its real tokens, each at most once.

    `sum(weight * f(query))` over the drawn queries is then an unbiased estimate of the sum of f over all real ones
    (stratified sampling, the texts being the strata), and exact where a text has no more real tokens than rows. Neither
    the global random state nor the device is waited for.

    Args:
        real: which tokens are no padding.
        num_rows: queries to draw in the whole batch, shared among the texts; each text gives at least one.
        seed: of the choice.

    Source: Cochran 1977, "Sampling Techniques", section 5.3.
    """
    batch, query_len = real.shape
    rows = min(query_len, max(1, num_rows // max(1, batch)))
    noise = torch.rand(batch, query_len, generator=torch.Generator().manual_seed(seed)).to(real.device)
    drawn = noise.masked_fill(~real, -1.0).topk(rows, dim=1)
    is_real = drawn.values >= 0
    num_drawn = is_real.sum(dim=1, keepdim=True).clamp(min=1)
    return DrawnRows(
        index=torch.where(is_real, drawn.indices, drawn.indices[:, :1]),
        weight=is_real * (real.sum(dim=1, keepdim=True) / num_drawn),
    )
