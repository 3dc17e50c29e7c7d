"""How large the scores are that the softmax of a head reads: what saturates it."""

import torch
from jaxtyping import Float
from torch import Tensor

from headwise.inspection.statistics.counted import CountedBlock
from headwise.integrations.layer_weights import fill_hidden


def scores_of(block: CountedBlock) -> dict[str, Float[Tensor, "batch num_heads rows"]]:
    """Return the scale of each query's scores over its n visible keys, 0 for queries that do not count.

    `mean_abs_score` = sum_j |s_j| / n and `max_abs_score` = max_j |s_j|; `score_spread` = the standard deviation
    sqrt(sum_j (s_j - mean)^2 / n), which alone shapes the weights: a constant on all scores changes nothing.

    Args:
        block: a block with scores.
    """
    assert block.scores is not None
    scores = fill_hidden(block.scores, block.visible, 0.0)
    count = block.num_visible.clamp(min=1).double()
    largest = torch.maximum(scores.amax(dim=-1), -scores.amin(dim=-1))
    mean = scores.sum(dim=-1) / count
    # around the mean and not around 0: the square of a constant on all scores would drown their spread
    centred = fill_hidden(scores - mean.to(scores.dtype).unsqueeze(-1), block.visible, 0.0)
    square = torch.linalg.vector_norm(centred, dim=-1, dtype=torch.float64).square()
    return {
        "mean_abs_score": scores.abs().sum(dim=-1) / count,
        "max_abs_score": largest,
        "score_spread": (square / count).sqrt(),
    }
