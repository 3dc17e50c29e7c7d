"""Figures of the heads of one layer from a few of its queries, in float32 and on the layer's device."""

from dataclasses import replace

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from headwise.inspection.monitoring.drawn_rows import DrawnRows
from headwise.inspection.monitoring.results import WEIGHT_EDGES
from headwise.inspection.statistics.counted import CountedBlock, count_block
from headwise.inspection.statistics.kinds import TokenKinds
from headwise.inspection.statistics.spread import spread_of
from headwise.integrations.layer_weights import LayerWeights, ProjectedWeights, WeightBlock, fill_hidden

MEANS = ("entropy", "normalized_entropy", "sparsity", "sink_mass", "padding_mass")
SCORES = ("mean_abs_score", "max_abs_score", "largest_product")
FIGURES = (*MEANS, *SCORES, "choosers")
"""Names of the rows that `measure_heads` returns, before those of the histogram."""

Sums = dict[str, Tensor]


def measure_heads(
    layer: LayerWeights, drawn: DrawnRows, real_keys: Bool[Tensor, "batch key_len"]
) -> Float[Tensor, "figures num_heads"]:
    """Return the `FIGURES` of every head, then its histogram over `WEIGHT_EDGES`.

    A query counts if it is real and sees a real key. Of its weights, those on visible real keys count, but for the
    weight on padding. Means over such queries are unbiased where every real query sees a real key, itself at least;
    those over queries that see two keys are ratios of two unbiased sums. `largest_product` is the largest
    |query . key| before it is scaled, which a half-precision dtype must hold; scores and it are NaN where they are not
    known. `choosers` is how many queries see two keys or more.

    Args:
        layer: weights of the drawn queries alone.
        drawn: which they are and for how many each stands.
        real_keys: which keys are no padding.
    """
    is_drawn = drawn.weight > 0
    kinds = TokenKinds(is_drawn, torch.zeros_like(is_drawn), real_keys=real_keys)
    sums: Sums = {}
    largest = {name: torch.zeros(layer.shape[1], device=drawn.weight.device) for name in SCORES[1:]}
    for block in layer.blocks():
        stands_for = drawn.weight[:, None, block.start : block.start + block.weights.shape[2]]
        counted = count_block(block, kinds)
        _add(sums, _sums_of_weights(counted, stands_for))
        if block.scores is not None and isinstance(layer, ProjectedWeights):
            sizes = fill_hidden(block.scores, counted.visible, 0.0).abs()
            mean = sizes.sum(dim=-1) / counted.num_visible.clamp(min=1)
            _add(sums, {"mean_abs_score": (mean * stands_for).sum(dim=(0, 2))})
            products = fill_hidden(_products(layer, block), counted.visible, 0.0)
            for name, values in (("max_abs_score", sizes), ("largest_product", products.abs())):
                largest[name] = torch.maximum(largest[name], values.amax(dim=(0, 2, 3)))
    figures = {
        name: sums[name] / sums["choosers" if name == "normalized_entropy" else "queries"].clamp(min=1)
        for name in (*MEANS, "mean_abs_score")
        if name in sums
    }
    is_scored = "mean_abs_score" in sums
    figures |= largest if is_scored else dict.fromkeys(SCORES, torch.full_like(sums["queries"], torch.nan))
    figures["choosers"] = sums["choosers"]
    return torch.cat([torch.stack([figures[name] for name in FIGURES]), sums["histogram"]])


def _products(layer: ProjectedWeights, block: WeightBlock) -> Tensor:
    """Return query . key of each pair of a block, which a bias moves and a cap bounds only afterwards."""
    assert block.scores is not None
    if layer.bias is None and layer.softcap is None:
        return block.scores / (layer.scale or 1.0)
    plain = replace(layer, bias=None, softcap=None, scale=1.0)
    scores = plain.block(block.start, block.start + block.weights.shape[2]).scores
    assert scores is not None
    return scores


def _sums_of_weights(block: CountedBlock, stands_for: Tensor) -> Sums:
    """Sum what weights say over the queries that count, each as many times as it stands for."""
    weights = block.weights
    num_visible = block.num_visible.expand(weights.shape[:3])
    stands_for = stands_for * (num_visible > 0)
    per_query = {
        "queries": torch.ones_like(stands_for),
        "choosers": num_visible >= 2,
        **spread_of(block),
        "sink_mass": block.on_first_token(),
        "padding_mass": block.padding_mass,
    }
    sums = {name: (values * stands_for).sum(dim=(0, 2)) for name, values in per_query.items()}
    at_least = [num_visible, *((weights >= edge).sum(dim=-1) for edge in WEIGHT_EDGES[1:-1])]
    above = [*at_least[1:], torch.zeros_like(num_visible)]
    bins = [(lower - upper) * stands_for for lower, upper in zip(at_least, above, strict=True)]
    sums["histogram"] = torch.stack(bins).sum(dim=(1, 3))
    return sums


def _add(sums: Sums, more: Sums) -> None:
    for name, values in more.items():
        sums[name] = values if name not in sums else sums[name] + values
