"""Watch attention calls as they are made, and add up what their masks leave out."""

import inspect
from collections.abc import Callable
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch._subclasses import FakeTensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

aten = torch.ops.aten


class AttentionObserver(TorchFunctionMode):
    """Sees every attention call before torch picks a kernel for it, and sums the FLOPs of the pairs it masks.

    Attributes:
        masked_flops: FLOPs, so far, of pairs that masks forbid; None where they are unknown, since no attention call
            was seen, a mask has no values to read, or a call was seen that hides what it attends to.
    """

    def __init__(self) -> None:
        super().__init__()
        self._masked_flops = 0
        self._num_attentions = 0
        self._is_readable = True

    @property
    def masked_flops(self) -> int | None:  # noqa: D102  described above
        return self._masked_flops if self._is_readable and self._num_attentions else None

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)  # first, so that a malformed call fails with torch's own words
        func = getattr(func, "overloadpacket", func)
        if func in UNREADABLE_CALLS:
            self._is_readable = False
        elif func in MASKED_FLOPS:
            self._num_attentions += 1
            try:
                self._masked_flops += MASKED_FLOPS[func](*args, **kwargs)
            except _UnreadableMaskError:
                self._is_readable = False
        return result


class _UnreadableMaskError(Exception):
    """A mask is a tensor without values, or a call stands for many at once."""


def _masked_of_call(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    **_: object,
) -> int:
    """FLOPs of masked pairs of `scaled_dot_product_attention`, where True in a bool mask = may attend."""
    if query.is_nested or torch._C._functorch.is_functorch_wrapped_tensor(query):  # torch.func, vmap
        raise _UnreadableMaskError
    query_len, key_len = query.shape[-2], key.shape[-2]
    num_squares = prod(map(max, query.shape[:-2], key.shape[:-2]))  # of two sizes that differ, one repeats
    masked = None
    if attn_mask is not None:
        masked = ~attn_mask if attn_mask.dtype == torch.bool else _is_lowest(attn_mask)
    if is_causal:  # torch aligns query 0 with key 0, also where the lengths differ
        future = torch.ones(query_len, key_len, dtype=torch.bool, device=query.device).triu(1)
        masked = future if masked is None else masked | future
    pairs = _count_masked(masked, num_squares * query_len * key_len)
    return 2 * pairs * (query.shape[-1] + value.shape[-1])


def _masked_of_cpu_kernel(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    attn_mask: Tensor | None = None,
    **_: object,
) -> int:
    return _masked_of_call(query, key, value, attn_mask, dropout_p, is_causal)


def _masked_of_layer_function(*args: object, **kwargs: object) -> int:
    """FLOPs of masked pairs of `multi_head_attention_forward`, where True in a bool mask = may not attend."""
    call = LAYER_SIGNATURE.bind(*args, **kwargs)
    call.apply_defaults()
    named = call.arguments
    query, padding, mask = named["query"], named["key_padding_mask"], named["attn_mask"]
    query_len, key_len = query.shape[0], named["key"].shape[0]
    batch_size = query.shape[1] if query.dim() == 3 else 1
    num_heads = named["num_heads"]
    pairs_shape = (batch_size, num_heads, query_len, key_len)
    masked: Tensor | None = None
    if named["is_causal"] and padding is None and not named["need_weights"]:  # the flag then replaces the mask
        masked = torch.ones(query_len, key_len, dtype=torch.bool, device=query.device).triu(1)
    elif mask is not None:
        masked = mask if mask.dtype == torch.bool else _is_lowest(mask)
        masked = masked.reshape(pairs_shape) if masked.dim() == 3 else masked
    if padding is not None:
        masked_keys = padding if padding.dtype == torch.bool else _is_lowest(padding)
        masked_keys = masked_keys.reshape(batch_size, 1, 1, key_len)
        masked = masked_keys if masked is None else masked | masked_keys
    head_dim: int = query.shape[-1] // num_heads
    return 2 * _count_masked(masked, prod(pairs_shape)) * 2 * head_dim


def _masked_of_flex(
    query: Tensor, key: Tensor, value: Tensor, score_mod: Any, block_mask: tuple[Any, ...], *_: object, **__: object
) -> int:
    """FLOPs of pairs that FlexAttention's mask function forbids, or whose score its other function makes -inf."""
    from torch.nn.attention.flex_attention import create_mask

    batch_size, num_heads, query_len = query.shape[:3]
    by_mask, by_score = (
        create_mask(function, batch_size, num_heads, query_len, key.shape[-2], device=query.device)
        for function in (block_mask[-1], score_mod)
    )
    return 2 * _count_masked(~(by_mask & by_score), by_mask.numel()) * (query.shape[-1] + value.shape[-1])


def _is_lowest(bias: Tensor) -> Tensor:
    return bias <= torch.finfo(bias.dtype).min


def _count_masked(masked: Tensor | None, num_pairs: int) -> int:
    """Count the masked ones of `num_pairs` pairs, over which `masked` repeats evenly."""
    if masked is None or masked.numel() == 0:
        return 0
    if masked.is_meta or isinstance(masked, FakeTensor):
        raise _UnreadableMaskError
    return int(masked.sum()) * (num_pairs // masked.numel())


LAYER_SIGNATURE = inspect.signature(functional.multi_head_attention_forward)
MASKED_FLOPS: dict[Any, Callable[..., int]] = {
    functional.scaled_dot_product_attention: _masked_of_call,
    aten.scaled_dot_product_attention: _masked_of_call,
    aten._scaled_dot_product_flash_attention_for_cpu: _masked_of_cpu_kernel,
    functional.multi_head_attention_forward: _masked_of_layer_function,
    torch.ops.higher_order.flex_attention: _masked_of_flex,
}
UNREADABLE_CALLS: set[Any] = {
    Tensor.backward,
    torch.autograd.backward,
    torch.autograd.grad,
    torch._native_multi_head_attention,
    torch._transformer_encoder_layer_fwd,
}
