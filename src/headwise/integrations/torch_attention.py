"""Listening to `nn.MultiheadAttention`, alone or inside torch's Transformer modules."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from headwise.errors import UnsupportedError
from headwise.integrations.fast_path import without_fast_path
from headwise.integrations.layer_weights import (
    AttentionCall,
    Listener,
    OnError,
    ProjectedWeights,
    is_self_attention,
    tell,
)


@contextmanager
def observe_multihead_attention(
    module: nn.Module,
    listener: Listener,
    *,
    without: tuple[type[nn.Module], ...] = (),
    on_error: OnError | None = None,
) -> Iterator[None]:
    """Show every call of the `nn.MultiheadAttention`s in `module` to `listener`.

    Weights are recomputed from the call's arguments and the layer's projections, so that what the layer computes and
    returns, `need_weights` or not, stays as it is. While the context is open torch's fused encoder path is off: it
    would pass the layers by.

    Args:
        module: any module.
        listener: called at each attention call.
        without: subclasses that are not listened to here.
        on_error: as of `tell`.

    Raises:
        UnsupportedError: (from inside the module's call) a layer adds keys that stand for no token
            (`add_bias_kv`, `add_zero_attn`).
    """
    layers = [
        part for part in module.modules() if isinstance(part, nn.MultiheadAttention) and not isinstance(part, without)
    ]
    if not layers:
        yield
        return

    def before_forward(layer: nn.Module, args: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        assert isinstance(layer, nn.MultiheadAttention)
        tell(listener, lambda: _hear(layer, _bind(*args, **keywords)), on_error)

    handles = [layer.register_forward_pre_hook(before_forward, with_kwargs=True) for layer in layers]
    try:
        with without_fast_path():
            yield
    finally:
        for handle in handles:
            handle.remove()


def _bind(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    key_padding_mask: Tensor | None = None,
    need_weights: bool = True,
    attn_mask: Tensor | None = None,
    average_attn_weights: bool = True,
    is_causal: bool = False,
) -> dict[str, Any]:
    """Name the arguments of `nn.MultiheadAttention.forward` that weights depend on."""
    return {
        "query": query,
        "key": key,
        "value": value,
        "key_padding_mask": key_padding_mask,
        "attn_mask": attn_mask,
        "is_causal": is_causal,
    }


def _hear(layer: nn.MultiheadAttention, call: dict[str, Any]) -> AttentionCall:
    is_cross = not is_self_attention(call["query"], call["key"])
    return AttentionCall(layer, _read_call(layer, call), is_cross)


def _read_call(layer: nn.MultiheadAttention, call: dict[str, Any]) -> ProjectedWeights:
    """Project queries and keys as the layer will, and read its masks, where True or -inf means hidden."""
    if layer.bias_k is not None or layer.add_zero_attn:
        raise UnsupportedError(
            "heads are shown on tokens, but add_bias_kv and add_zero_attn add keys that stand for none; "
            f"got add_bias_kv={layer.bias_k is not None}, add_zero_attn={layer.add_zero_attn}"
        )
    tokens, sources = (_batch_first(layer, call[name].detach()) for name in ("query", "key"))
    batch, key_len, _ = sources.shape
    weight, bias = _query_key_projection(layer)
    query, key = (
        nn.functional.linear(each, weight[i], bias[i]).view(batch, -1, layer.num_heads, layer.head_dim).transpose(1, 2)
        for i, each in enumerate((tokens, sources))
    )

    masks: list[Tensor] = []
    biases: list[Tensor] = []
    real_tokens = None
    if (padding := call["key_padding_mask"]) is not None:
        real_tokens = ~_split(padding.view(batch, 1, 1, key_len), masks, biases).view(batch, key_len)
    if (mask := call["attn_mask"]) is not None:
        if call["is_causal"] and type(layer).forward is nn.MultiheadAttention.forward:
            _require_causal(mask)
        _split(
            mask.view(1, 1, *mask.shape) if mask.dim() == 2 else mask.view(batch, -1, *mask.shape[1:]), masks, biases
        )
    return ProjectedWeights(
        query=query,
        key=key,
        scale=layer.head_dim**-0.5,
        mask=_all(masks),
        bias=sum(biases[1:], start=biases[0]) if biases else None,
        is_causal=call["is_causal"],
        real_tokens=real_tokens,
        value=partial(_project_values, layer, call["value"].detach()),
    )


def _project_values(layer: nn.MultiheadAttention, value: Tensor) -> Tensor:
    """Project the values as the layer will, (B, H, S, V); only who asks for them pays for it."""
    sources = _batch_first(layer, value)
    stacked = layer.in_proj_weight
    weight = (layer.v_proj_weight if stacked is None else stacked.chunk(3)[2]).detach()
    bias = None if layer.in_proj_bias is None else layer.in_proj_bias.detach().chunk(3)[2]
    heads = nn.functional.linear(sources, weight, bias).view(len(sources), -1, layer.num_heads, layer.head_dim)
    return heads.transpose(1, 2)


def _batch_first(layer: nn.MultiheadAttention, tokens: Tensor) -> Tensor:
    """Return tokens as (batch, seq_len, width); one text without a batch axis is a batch of one."""
    if tokens.dim() == 2:
        return tokens.unsqueeze(0)
    return tokens if layer.batch_first else tokens.transpose(0, 1)


def _query_key_projection(layer: nn.MultiheadAttention) -> tuple[tuple[Tensor, Tensor], tuple[Any, Any]]:
    """Return the (query, key) weights and biases of the layer's input projection."""
    if layer.in_proj_weight is not None:
        weight_q, weight_k, _ = layer.in_proj_weight.detach().chunk(3)
    else:
        weight_q, weight_k = layer.q_proj_weight.detach(), layer.k_proj_weight.detach()
    if layer.in_proj_bias is None:
        return (weight_q, weight_k), (None, None)
    bias_q, bias_k, _ = layer.in_proj_bias.detach().chunk(3)
    return (weight_q, weight_k), (bias_q, bias_k)


def _split(torch_mask: Tensor, masks: list[Tensor], biases: list[Tensor]) -> Tensor:
    """Sort one of torch's masks into what is visible and what is added to the scores; return what it hides."""
    if torch_mask.dtype == torch.bool:
        hidden = torch_mask
    else:
        hidden = torch_mask == -torch.inf
        biases.append(torch_mask.detach().masked_fill(hidden, 0.0))
    masks.append(~hidden)
    return hidden


def _require_causal(mask: Tensor) -> None:
    """Refuse a mask that is not what `is_causal=True` says it is: torch takes now the one, now the other."""
    hidden = mask if mask.dtype == torch.bool else mask == -torch.inf
    is_added = mask.dtype != torch.bool and bool((mask.masked_fill(hidden, 0.0) != 0).any())
    if is_added or not torch.equal(hidden, torch.ones_like(hidden).triu(1)):
        raise UnsupportedError(
            "is_causal=True is a hint that attn_mask hides the later tokens and nothing else, and this one does "
            "something else: torch takes the hint or the mask as other arguments have it. Leave is_causal out"
        )


def _all(masks: list[Tensor]) -> Tensor | None:
    """Combine masks of which True means visible."""
    if not masks:
        return None
    combined = masks[0]
    for mask in masks[1:]:
        combined = combined & mask
    return combined
