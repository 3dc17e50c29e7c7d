"""Listening to headwise's own attention layers."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from headwise.integrations.layer_weights import CallCount, GivenWeights, is_self_attention
from headwise.masks.dense import dense_mask
from headwise.masks.patterns import Mask
from headwise.nn.multihead import MultiHeadAttention

Observer = Callable[[nn.Module, GivenWeights], None]


@contextmanager
def observe_own_attention(module: nn.Module, observer: Observer) -> Iterator[CallCount]:
    """Show every self-attention call of the `MultiHeadAttention`s in `module` to `observer`.

    Each layer is asked for its weights beside the call that it was about to answer, which stays as it is. A token that
    no query may read counts as padding. Calls whose keys are another text (cross-attention) are only counted.

    Args:
        module: any module.
        observer: called with the layer and its weights.

    Yields:
        The count of calls.
    """

    def before_forward(layer: nn.Module, args: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        assert isinstance(layer, MultiHeadAttention)
        query, key = _query_and_key(*args, **keywords)
        if is_self_attention(query, key):
            observer(layer, _read_call(layer, query, args, keywords))
            count.calls += 1
        else:
            count.cross_calls += 1

    count = CallCount()
    layers = [part for part in module.modules() if isinstance(part, MultiHeadAttention)]
    handles = [layer.register_forward_pre_hook(before_forward, with_kwargs=True) for layer in layers]
    try:
        yield count
    finally:
        for handle in handles:
            handle.remove()


def _query_and_key(query: Tensor, key: Tensor | None = None, *_: Any, **__: Any) -> tuple[Tensor, Tensor | None]:
    return query, key


def _read_call(
    layer: MultiHeadAttention, query: Tensor, args: tuple[Any, ...], keywords: dict[str, Any]
) -> GivenWeights:
    batch, seq_len, _ = query.shape
    weights = _weights(layer, args, keywords)
    mask: Mask = layer.config.mask
    if keywords.get("mask") is not None:
        mask = mask & keywords["mask"]
    visible = dense_mask(
        mask,
        batch_size=batch,
        num_heads=layer.config.num_heads,
        query_len=seq_len,
        key_len=seq_len,
        device=query.device,
    ).expand(batch, -1, seq_len, seq_len)
    return GivenWeights(
        weights=weights.to(torch.promote_types(weights.dtype, torch.float32)),
        visible=visible,
        real_tokens=visible.flatten(1, 2).any(dim=1),
    )


def _weights(layer: MultiHeadAttention, args: tuple[Any, ...], keywords: dict[str, Any]) -> Tensor:
    """Ask the layer for its weights by an impl that can return them, whichever it computes its output with."""
    impl, layer.impl = layer.impl, "auto"
    try:
        weights = layer.attend(*args, **keywords, return_weights=True).weights
    finally:
        layer.impl = impl
    assert weights is not None
    return weights
