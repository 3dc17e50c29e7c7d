"""What an attention layer asks a cache: where its tokens stand, and which indices a call needs."""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from headwise.caches.base import CacheView, KVCache
from headwise.errors import ConfigError
from headwise.masks.patterns import Full, Mask


class Reading(NamedTuple):
    """How the queries of a call read a view: arguments of `attention`."""

    mask: Mask | None
    query_index: Int[Tensor, "... query_len"] | None
    key_index: Int[Tensor, "... key_len"] | None


def place_tokens(
    cache: KVCache,
    batch_size: int,
    num_tokens: int,
    *,
    real_tokens: Bool[Tensor, "batch num_tokens"] | None,
    device: torch.device,
) -> Int[Tensor, "... num_tokens"]:
    """Return the index that each of the coming tokens has in its row's stream, -1 for padding.

    Raises:
        ConfigError: `real_tokens` are no bools of shape (batch, num_tokens); another number of rows than the cache has.
    """
    if real_tokens is not None and (
        not isinstance(real_tokens, Tensor)
        or real_tokens.dtype != torch.bool
        or real_tokens.shape != (batch_size, num_tokens)
    ):
        kind = f"{real_tokens.dtype} of shape {tuple(real_tokens.shape)}" if isinstance(real_tokens, Tensor) else None
        raise ConfigError(
            f"real_tokens must hold a bool for each token, shape ({batch_size}, {num_tokens}); "
            f"got {kind or type(real_tokens).__name__}"
        )
    return cache.next_index(batch_size, num_tokens, real_tokens=real_tokens, device=device)


def read_view(view: CacheView, mask: Mask, index: Int[Tensor, "... query_len"]) -> Reading:
    """Return the mask and the indices by which queries of these indices read a view.

    Where keys stand in order behind each other up to the last query, and the mask looks at distances alone, no indices
    are needed: by default `attention` puts the queries at the end of the keys. A single query that its mask lets see
    all of a full ring needs no mask.
    """
    is_row = index.ndim == 1
    if is_row and view.key_index is None and (view.first_index == 0 or mask.looks_at_distance_alone):
        return Reading(mask, None, None)
    if is_row and index.shape[0] == 1 and view.reach is not None and _sees_all(mask, view.reach):
        return Reading(None, None, None)
    key_index = view.key_index
    if key_index is None:
        key_index = torch.arange(view.first_index, view.first_index + view.keys.shape[2], device=index.device)
    return Reading(mask, index, key_index)


def _sees_all(mask: Mask, reach: int) -> bool:
    """Tell whether a query sees itself and the `reach - 1` keys before it."""
    if isinstance(mask, Full):
        return True
    distances = mask.distances()
    return distances is not None and any(low <= 0 and high >= reach for low, high in distances.intervals)
