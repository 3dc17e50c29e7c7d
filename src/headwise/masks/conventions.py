"""Masks of other libraries -> a headwise mask, and a bias where theirs holds one.

torch's `nn.MultiheadAttention` writes True = drop, Hugging Face 1 and True = keep, and both add floats to the scores.
Of a float tensor, minus infinity and the lowest number of its dtype (or of bfloat16, for a wider one that was cast from
it) drop a pair. A query that may then read no key gets 0 here; there, something that depends on the mode or the kernel.
Every other float is a bias, kept to the bit and with its gradient, however low: ALiBi too adds -10,000 somewhere.

What a float tensor holds decides whether there is a bias, so it is looked at; on a GPU that waits for the device. In a
compiled graph or a transform of `torch.func`, where nobody can look, it is taken as both a mask and a bias.
"""

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from headwise.errors import ConfigError
from headwise.masks.patterns import Causal, Full, Mask
from headwise.masks.tables import Explicit


class Converted(NamedTuple):
    """A mask of another library: which pairs are allowed, and what is added to the scores (None: nothing).

    Both are for `headwise.attention(query, key, value, mask=converted.mask, bias=converted.bias)`.
    """

    mask: Mask
    bias: Float[Tensor, "#batch #num_heads #query_len #key_len"] | None


def mask_from_torch(
    *,
    key_padding_mask: Tensor | None = None,
    attn_mask: Tensor | None = None,
    is_causal: bool = False,
    num_heads: int | None = None,
) -> Converted:
    """Convert the masks of a call of `torch.nn.MultiheadAttention`, where True = may not attend.

    A causal call is one with as many queries as keys: torch aligns them at the first key and headwise at the last one,
    which is then the same.

    Args:
        key_padding_mask: (batch, key_len), or (key_len,) without a batch. Bools, True = drop the key, or floats to add
            to its scores.
        attn_mask: (query_len, key_len), or (batch * num_heads, query_len, key_len), batch rows outermost. Bools, True =
            drop the pair, or floats to add to its score.
        is_causal: whether no query sees a later key. To torch it is a hint that may replace `attn_mask`; here both
            hold.
        num_heads: number of query heads, which an `attn_mask` of three dimensions needs.

    Raises:
        ConfigError: a mask of another dtype (ones and zeros: `Explicit.from_keep_mask`) or shape, NaN or infinity, a
            float mask of ones and zeros alone that is not learned, or a causal call with another number of queries than
            keys. In a compiled graph values are not checked.

    Example:
        >>> mask, bias = headwise.mask_from_torch(key_padding_mask=is_padding, is_causal=True)
        >>> headwise.attention(query, key, value, mask=mask, bias=bias)
    """
    parts = []
    if key_padding_mask is not None:
        _require_dimensions("key_padding_mask", key_padding_mask, {1: "(key_len,)", 2: "(batch, key_len)"})
        batch_size = 1 if key_padding_mask.ndim == 1 else key_padding_mask.shape[0]
        rows = key_padding_mask.reshape(batch_size, 1, 1, key_padding_mask.shape[-1])
        parts.append(_convert("key_padding_mask", rows, true_drops=True))
    if attn_mask is not None:
        shapes = {2: "(query_len, key_len)", 3: "(batch * num_heads, query_len, key_len)"}
        _require_dimensions("attn_mask", attn_mask, shapes)
        query_len, key_len = attn_mask.shape[-2:]
        if is_causal and query_len != key_len:
            raise ConfigError(
                "is_causal needs as many queries as keys (torch aligns them at the first key, headwise at the last "
                f"one); got an attn_mask of {query_len} queries and {key_len} keys: say all in the attn_mask instead"
            )
        if not (is_causal and _is_causal_table(attn_mask)):
            parts.append(_convert("attn_mask", _by_head(attn_mask, num_heads), true_drops=True))
    if is_causal:
        parts.append(Converted(Causal(), None))
    return _join(parts)


def mask_from_huggingface(attention_mask: Tensor | None, *, is_causal: bool = False) -> Converted:
    """Convert an `attention_mask` of Hugging Face's transformers, where 1 and True = may attend.

    Args:
        attention_mask: None; or (batch, key_len), 1 = a real token and 0 = padding, of any dtype; or (batch or 1,
            num_heads or 1, query_len, key_len): bools, True = keep the pair, or floats to add to its score.
        is_causal: whether, besides, no query sees a later key: what a decoder adds to a mask of two dimensions by
            itself. The last query sees the last key.

    Raises:
        ConfigError: another number of dimensions, another number than 0 and 1 in a mask of two (documents that are
            numbered: `Documents.from_segment_ids`), whole numbers in one of four (`Explicit.from_keep_mask`), NaN or
            infinity, or floats that are ones and zeros alone and not learned. In a compiled graph values are not
            checked.

    Example:
        >>> mask, bias = headwise.mask_from_huggingface(tokens["attention_mask"], is_causal=True)
    """
    parts = [Converted(Causal(), None)] if is_causal else []
    if attention_mask is not None:
        shapes = {2: "(batch, key_len)", 4: "(batch, num_heads, query_len, key_len)"}
        _require_dimensions("attention_mask", attention_mask, shapes)
        if attention_mask.ndim == 4:
            parts.insert(0, _convert("attention_mask", attention_mask, true_drops=False))
        else:
            keep = attention_mask != 0
            if _may_read(attention_mask) and bool((keep & (attention_mask != 1)).any()):
                other = attention_mask[keep & (attention_mask != 1)][0].item()
                raise ConfigError(
                    "attention_mask of shape (batch, key_len) must hold 1 (a token) and 0 (padding) alone; "
                    f"got {other} (rows that number their documents: Documents.from_segment_ids)"
                )
            parts.insert(0, Converted(Explicit(keep[:, None, None, :]), None))
    return _join(parts)


def _require_dimensions(name: str, mask: object, shapes: dict[int, str]) -> None:
    """Raise ConfigError unless a mask is a tensor with one of so many dimensions."""
    if not isinstance(mask, Tensor) or mask.ndim not in shapes:
        got = f"shape {tuple(mask.shape)}" if isinstance(mask, Tensor) else type(mask).__name__
        raise ConfigError(f"{name} must be a tensor of shape {' or '.join(shapes.values())}; got {got}")


def _by_head(attn_mask: Tensor, num_heads: int | None) -> Tensor:
    """Return torch's mask of two or three dimensions as (batch or 1, num_heads or 1, query_len, key_len)."""
    if attn_mask.ndim == 2:
        return attn_mask[None, None]
    if num_heads is None or num_heads < 1 or attn_mask.shape[0] % num_heads:
        raise ConfigError(
            "attn_mask of three dimensions must hold (batch * num_heads) tables, and num_heads be given; "
            f"got {attn_mask.shape[0]} tables and num_heads {num_heads}"
        )
    return attn_mask.reshape(attn_mask.shape[0] // num_heads, num_heads, *attn_mask.shape[1:])


def _convert(name: str, mask: Tensor, *, true_drops: bool) -> Converted:
    """Convert a mask of four dimensions: bools by what True means there, floats by what they add."""
    if mask.dtype == torch.bool:
        return Converted(Explicit(mask ^ true_drops), None)
    if not mask.is_floating_point():
        raise ConfigError(
            f"{name} must be bools, True = {'drop' if true_drops else 'keep'}, or floats to add to the scores; "
            f"got {mask.dtype} (for ones and zeros, 1 = keep: Explicit.from_keep_mask)"
        )
    values = mask.detach()
    dropped = values <= max(torch.finfo(mask.dtype).min, torch.finfo(torch.bfloat16).min)
    if not _may_read(values):
        return Converted(Explicit(~dropped), torch.where(dropped, 0, mask))
    if bool((values.isnan() | (values == float("inf"))).any()):
        raise ConfigError(f"{name} must hold numbers, or -inf to drop a pair; got NaN or infinity")
    if not mask.requires_grad and bool(((values == 0) | (values == 1)).all()) and bool((values == 1).any()):
        raise ConfigError(
            f"{name} of floats is added to the scores, so ones and zeros alone are no mask; got nothing else "
            "(where 1 = keep, give Explicit.from_keep_mask(mask.bool()))"
        )
    allowed: Mask = Explicit(~dropped) if bool(dropped.any()) else Full()
    has_bias = mask.requires_grad or bool((values[~dropped] != 0).any())
    return Converted(allowed, torch.where(dropped, 0, mask) if has_bias else None)


def _may_read(tensor: Tensor) -> bool:
    """Whether the tensor has values to look at: not fake, nor meta, nor in a graph or a transform of `torch.func`."""
    if torch.compiler.is_compiling() or type(tensor) is not Tensor or tensor.device.type == "meta":
        return False
    return not torch._C._functorch.is_functorch_wrapped_tensor(tensor)


def _is_causal_table(attn_mask: Tensor) -> bool:
    """Whether a mask drops the later keys and does nothing else, so that `Causal` says it all, and faster.

    Only where to look costs nothing that is not paid anyway: bools on a GPU are converted without waiting for it.
    """
    if attn_mask.ndim != 2 or attn_mask.requires_grad or not _may_read(attn_mask):
        return False
    if attn_mask.dtype == torch.bool and attn_mask.device.type == "cpu":
        return torch.equal(attn_mask, torch.ones_like(attn_mask).triu_(1))
    return attn_mask.is_floating_point() and torch.equal(attn_mask, torch.full_like(attn_mask, -float("inf")).triu_(1))


def _join(parts: list[Converted]) -> Converted:
    """Return what all masks allow and the sum of what they add."""
    mask: Mask = Full()
    bias: Tensor | None = None
    for part in parts:
        mask = mask & part.mask
        if part.bias is not None:
            bias = part.bias if bias is None else bias + part.bias
    return Converted(mask, bias)
