"""Attention maps as bytes: small enough to keep for every head of one text."""

import torch
from jaxtyping import Bool, Float, UInt8
from torch import Tensor

from headwise.inspection.results import AttentionMap
from headwise.integrations.layer_weights import LayerWeights

MAX_MAP_TOKENS = 512  # a map is a square of bytes: 256 KiB a head at this length


def maps_of_layer(
    number: int, layer: LayerWeights, *, row: int, real: Bool[Tensor, " seq_len"], max_tokens: int
) -> tuple[AttentionMap, ...]:
    """Return the maps of all heads of a layer on one text: its first `max_tokens` real tokens.

    Args:
        number: number of the layer.
        layer: its weights on a batch.
        row: which text of the batch.
        real: which of its tokens are no padding.
        max_tokens: how many of them a map covers at most.
    """
    own = real.nonzero().flatten()[:max_tokens]
    blocks = []
    for start, weights, _ in layer.blocks():
        queries = own[(own >= start) & (own < start + weights.shape[2])] - start
        heads = weights[row].index_select(1, queries.to(weights.device)).index_select(2, own.to(weights.device))
        blocks.append(weights_to_bytes(heads))
    return tuple(
        AttentionMap(layer=number, head=head, num_queries=len(own), num_keys=len(own), weights=square.numpy().tobytes())
        for head, square in enumerate(torch.cat(blocks, dim=1))
    )


def weights_to_bytes(weights: Float[Tensor, "*shape"]) -> UInt8[Tensor, "*shape"]:
    """Write weights in 8 bits each: `round(255 * sqrt(weight))`."""
    return (weights.clamp(0, 1).sqrt() * 255).round().to("cpu", torch.uint8)
