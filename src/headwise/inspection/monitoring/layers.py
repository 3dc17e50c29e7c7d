"""What the training monitor keeps of one attention call, and what it makes of all of them when a step is done."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from headwise.inspection.capture.stacks import StackNames
from headwise.inspection.monitoring.alarms import is_collapsed
from headwise.inspection.monitoring.drawn_rows import draw_rows
from headwise.inspection.monitoring.figures import FIGURES, measure_heads
from headwise.inspection.monitoring.head_gradients import Slices, find_head_slices, head_gradient_norms
from headwise.inspection.monitoring.results import MonitoredHead
from headwise.integrations.layer_weights import AttentionCall, ProjectedWeights

DEAD_BELOW = 1e-6  # of the largest gradient norm of all heads: what rounding in float32 leaves of it


@dataclass(frozen=True, eq=False, kw_only=True)
class HeardLayer:
    """One attention call of a step.

    Args:
        module: the layer.
        is_cross: whether its keys are of other tokens than its queries.
        figures: as `measure_heads` returns them.
        num_queries: queries that were looked at.
        dtype: of queries and keys; None: the layer gave its weights whole.
        slices: which gradients belong to which head.
    """

    module: nn.Module | None
    is_cross: bool
    figures: Float[Tensor, "figures num_heads"]
    num_queries: int
    dtype: torch.dtype | None
    slices: Slices


class HeadAtStep(NamedTuple):
    """A head's figures, and what its scores had to fit in."""

    head: MonitoredHead
    largest_product: float
    dtype: torch.dtype | None


def look_at(
    model: nn.Module,
    call: AttentionCall,
    real: Bool[Tensor, "batch seq_len"] | None,
    *,
    real_source: Bool[Tensor, "batch key_len"] | None = None,
    num_rows: int,
    seed: int,
) -> HeardLayer:
    """Measure the heads of one call by queries drawn at random; the call's tensors are not kept.

    Args:
        model: holds the layer.
        call: what was heard.
        real: which tokens are no padding, as the model was told; None: what the layer was told, else all. Of
            cross-attention: which queries.
        real_source: of cross-attention: which keys are no padding; None: what the layer was told, else all.
        num_rows, seed: as of `draw_rows`.
    """
    weights = call.weights
    device = weights.device
    batch, num_heads, query_len, key_len = weights.shape
    told = real_source if call.is_cross else real
    if told is None or told.shape != (batch, key_len):
        told = weights.real_tokens
    real_keys = torch.ones(batch, key_len, dtype=torch.bool) if told is None else told
    real_keys = real_keys.to(device)
    real_queries = real_keys
    if call.is_cross or query_len != key_len:
        is_known = call.is_cross and real is not None and real.shape == (batch, query_len)
        real_queries = real if is_known and real is not None else torch.ones(batch, query_len, dtype=torch.bool)
        real_queries = real_queries.to(device)
    drawn = draw_rows(real_queries, num_rows, seed=seed)
    # explicit casts do not stop autocast from multiplying in half precision
    with torch.no_grad(), torch.autocast(device.type, enabled=False):
        figures = measure_heads(weights.of_rows(drawn.index), drawn, real_keys)
    slices: Slices = ()
    dtype = None
    if isinstance(weights, ProjectedWeights):
        dtype = weights.query.dtype
        slices = find_head_slices(model, call.module, (num_heads, weights.key.shape[1], weights.query.shape[-1]))
    return HeardLayer(
        module=call.module,
        is_cross=call.is_cross,
        figures=figures,
        num_queries=drawn.index.numel(),
        dtype=dtype,
        slices=slices,
    )


def heads_at_step(
    model: nn.Module, layers: Sequence[HeardLayer], *, grad_scale: float, collapse_below: float
) -> list[HeadAtStep]:
    """Return all heads that were heard, by stack, layer and head, with the gradients that they have now.

    Args:
        model: holds the layers.
        layers: what was heard, in order.
        grad_scale: what gradients are multiplied by.
        collapse_below: as of `is_collapsed`.
    """
    names = StackNames(model, by_path=any(layer.is_cross for layer in layers))
    places = [names.place_of(layer.module, layer.is_cross) for layer in layers]
    stacks = names.name_places(places)
    norms = [head_gradient_norms(layer.slices, grad_scale=grad_scale) for layer in layers]
    # everything that stands on a device is fetched here, once the step's work is on its way
    gradients = [None if norm is None else norm.tolist() for norm in norms]
    found = []
    for number, (layer, gradient) in enumerate(zip(layers, gradients, strict=True)):
        for head, values in enumerate(layer.figures.T.tolist()):
            figures = dict(zip(FIGURES, values, strict=False))
            product, choosers = figures.pop("largest_product"), figures.pop("choosers")
            mean_abs_score, max_abs_score = figures.pop("mean_abs_score"), figures.pop("max_abs_score")
            measured = MonitoredHead(
                stack=stacks[places[number]].name,
                layer=places[:number].count(places[number]),
                head=head,
                mean_abs_score=None if layer.dtype is None else mean_abs_score,
                max_abs_score=None if layer.dtype is None else max_abs_score,
                weight_counts=tuple(values[len(FIGURES) :]),
                gradient_norm=None if gradient is None else gradient[head],
                is_dead=False,
                is_collapsed=choosers > 0
                and is_collapsed(figures["normalized_entropy"], figures["sink_mass"], below=collapse_below),
                **figures,
            )
            found.append(HeadAtStep(measured, product, layer.dtype))
    return _find_dead(found)


def _find_dead(heads: list[HeadAtStep]) -> list[HeadAtStep]:
    norms = [each.head.gradient_norm for each in heads if each.head.gradient_norm is not None]
    largest = max(norms, default=0.0)

    def is_dead(head: MonitoredHead) -> bool:
        return head.gradient_norm is not None and largest > 0 and head.gradient_norm <= DEAD_BELOW * largest

    return [each._replace(head=replace(each.head, is_dead=is_dead(each.head))) for each in heads]
