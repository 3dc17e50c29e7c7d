"""Mask -> bool tensor of the smallest broadcastable shape, or FlexAttention's mask_mod."""

from collections.abc import Callable

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from headwise.masks.patterns import Mask, require_batch_size, require_num_heads


def dense_mask(
    mask: Mask,
    *,
    batch_size: int,
    num_heads: int,
    query_len: int,
    key_len: int,
    query_index: Int[Tensor, "... query_len"] | None = None,
    key_index: Int[Tensor, "... key_len"] | None = None,
    device: torch.device | str | None = None,
) -> Bool[Tensor, "#batch #num_heads #query_len #key_len"]:
    """Return the mask as a bool tensor; True = may attend.

    A dimension that the mask does not look at has size 1: Causal gives (1, 1, T, S), KeyPadding (B, 1, 1, S), Full
    (1, 1, 1, 1).

    Args:
        mask: the mask.
        batch_size: number B of batch rows.
        num_heads: number H of query heads.
        query_len: number T of queries.
        key_len: number S of keys.
        query_index: (T,) or (B, T) places of the queries. Default: the queries stand at the end of the keys.
        key_index: (S,) or (B, S) places of the keys; -1 = an empty slot, which nobody may read. Default: 0, 1, 2, ...
        device: where the tensor is made. Default: where the mask's own tensors are, or the CPU.

    Raises:
        ConfigError: the mask was made for another batch size or number of heads.
    """
    require_batch_size(mask, batch_size)
    require_num_heads(mask, num_heads)
    if device is None:
        device = mask.device or "cpu"
    batch = torch.arange(batch_size, device=device).view(-1, 1, 1, 1)
    head = torch.arange(num_heads, device=device).view(1, -1, 1, 1)
    if query_index is None:
        query_index = torch.arange(key_len - query_len, key_len, device=device)
    key_place = torch.arange(key_len, device=device) if key_index is None else key_index
    # (T,) -> (1, T, 1) or (B, T) -> (B, 1, T, 1); (S,) -> (1, 1, S) or (B, S) -> (B, 1, 1, S)
    query_place = query_index[..., None, :, None]
    key_place = key_place[..., None, None, :]
    allowed = mask.allows(batch, head, query_place, key_place)
    if key_index is not None:
        allowed = (key_place >= 0) & allowed
    if not isinstance(allowed, Tensor):
        allowed = torch.tensor(allowed, device=device)
    return allowed.reshape((1,) * (4 - allowed.ndim) + allowed.shape)


def flex_mask_mod(
    mask: Mask,
    *,
    query_len: int,
    key_len: int,
    query_index: Int[Tensor, "... query_len"] | None = None,
    key_index: Int[Tensor, "... key_len"] | None = None,
) -> Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]:
    """Return the mask as FlexAttention's `mask_mod(batch, head, query, key)`, whose last two are slots counted from 0.

    Args:
        mask: the mask.
        query_len: number T of queries.
        key_len: number S of keys.
        query_index: (T,) or (B, T) places of the queries. Default: the queries stand at the end of the keys.
        key_index: (S,) or (B, S) places of the keys; -1 = an empty slot, which nobody may read. Default: 0, 1, 2, ...
    """

    def mask_mod(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        query_place = query + (key_len - query_len) if query_index is None else _look_up(query_index, batch, query)
        key_place = key if key_index is None else _look_up(key_index, batch, key)
        allowed: Tensor = (key_place >= 0) & mask.allows(batch, head, query_place, key_place)
        return allowed

    return mask_mod


def _look_up(index: Tensor, batch: Tensor, slot: Tensor) -> Tensor:
    return index[slot] if index.ndim == 1 else index[batch, slot]
