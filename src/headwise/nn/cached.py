"""What an attention layer asks a cache: where its tokens stand, what they attend to, and which indices that needs."""

from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from headwise.caches.base import CacheView, KVCache
from headwise.caches.slots import CrossCache
from headwise.config.checks import shown
from headwise.config.position import Rotary
from headwise.errors import ConfigError, UnsupportedError
from headwise.masks.patterns import Full, Mask, require_mask
from headwise.ops.call import Call
from headwise.ops.choose import resolve_impl


class Remembered(NamedTuple):
    """What the queries of a call attend to, and how: arguments of `attention`."""

    key: Tensor
    value: Tensor
    mask: Mask | None
    query_index: Int[Tensor, "... query_len"] | None = None
    key_index: Int[Tensor, "... key_len"] | None = None
    key_positions: Int[Tensor, "batch key_len"] | None = None


def check_cache(
    cache: KVCache | None,
    mask: Mask | None,
    real_tokens: Bool[Tensor, "batch num_tokens"] | None,
    *,
    batch_size: int,
    num_tokens: int,
    position: object = None,
) -> None:
    """Raise unless a call goes with its cache.

    Args:
        cache: of the call, or None.
        mask: of the call, or None.
        real_tokens: which tokens are no padding.
        batch_size: number of rows.
        num_tokens: tokens a row that keys are made of.
        position: of the layer.

    Raises:
        ConfigError: no cache, a mask that holds tensors, no bool a token.
        UnsupportedError: rotary positions that depend on a text's length, which grows.
    """
    if cache is None:
        if real_tokens is not None:
            raise ConfigError("real_tokens are read with a cache; without one say padding by mask=KeyPadding(lengths)")
        return
    if not isinstance(cache, KVCache):
        raise ConfigError(f"cache must be a headwise cache, such as GrowingCache(); got {shown(cache)}")
    if isinstance(position, Rotary) and position.reads_length:
        raise UnsupportedError(
            "scaling must not depend on the length of a text (dynamic NTK, LongRoPE) beside a cache, since keys that "
            f"were turned for one length are of no use at another; got {position.scaling}"
        )
    if mask is not None:
        require_mask(mask)
    if mask is not None and not mask.is_structural:
        raise ConfigError(
            f"mask must hold no tensors beside a cache, which keeps no padding; got {mask!r} (say padding by "
            "real_tokens)"
        )
    if real_tokens is not None and (
        not isinstance(real_tokens, Tensor)
        or real_tokens.dtype != torch.bool
        or real_tokens.shape != (batch_size, num_tokens)
    ):
        is_tensor = isinstance(real_tokens, Tensor)
        got = f"{real_tokens.dtype} of shape {tuple(real_tokens.shape)}" if is_tensor else shown(real_tokens)
        raise ConfigError(f"real_tokens must hold a bool for each token, shape ({batch_size}, {num_tokens}); got {got}")


def require_possible(impl: str, query: Tensor, key: Tensor, value: Tensor, **wishes: Any) -> None:
    """Raise UnsupportedError if an implementation cannot do what a call wishes: before its cache has grown."""
    if impl != "auto":
        resolve_impl(Call(query, key, value, **wishes), impl)


def remember(
    cache: KVCache,
    key: Tensor,
    value: Tensor,
    *,
    mask: Mask,
    index: Int[Tensor, "... query_len"],
    positions: Int[Tensor, "... query_len"] | None = None,
    real_tokens: Bool[Tensor, "batch query_len"] | None = None,
    reads_places: bool = False,
) -> Remembered:
    """Give the tokens of a text to its cache, and return what their queries attend to.

    Args:
        cache: of the layer.
        key, value: (B, K, T, D) and (B, K, T, V) of the tokens.
        mask: the layer's and the call's.
        index: of each token, as `cache.next_index` says.
        positions: of each token, for a bias that reads them.
        real_tokens: which tokens are no padding.
        reads_places: whether a bias reads indices or positions.

    Raises:
        ConfigError: the cache is one of a source text, or drops tokens that the mask lets queries see.
    """
    if isinstance(cache, CrossCache):
        raise ConfigError("a cache of a text's own tokens must be no CrossCache, which takes one text; got one")
    look_back = mask.look_back
    if cache.window_size is not None and (look_back is None or look_back > cache.window_size):
        raise ConfigError(
            f"a cache that drops old tokens must keep all that the mask shows; got {mask!r} beside one of the last "
            f"{cache.window_size} (give a layer with SlidingWindow(w) a RollingCache(w), any other a GrowingCache())"
        )
    view = cache.update(key, value, real_tokens=real_tokens, positions=positions)
    return _read(view, mask, index, reads_places=reads_places)


def _read(view: CacheView, mask: Mask, index: Tensor, *, reads_places: bool) -> Remembered:
    """Return how queries of these indices read a view.

    Where keys stand in order behind each other up to the last query, and the mask looks at distances alone, no indices
    are needed: by default `attention` puts the queries at the end of the keys. A single query that its mask lets see
    all of a full ring needs no mask.
    """
    is_row = index.ndim == 1
    found = Remembered(view.keys, view.values, mask, key_positions=view.key_positions)
    if is_row and view.key_index is None and (view.first_index == 0 or mask.looks_at_distance_alone):
        return found
    if is_row and index.shape[0] == 1 and not reads_places and view.reach is not None and _sees_all(mask, view.reach):
        return found._replace(mask=None)
    key_index = view.key_index
    if key_index is None:
        key_index = torch.arange(view.first_index, view.first_index + view.keys.shape[2], device=index.device)
    return found._replace(query_index=index, key_index=key_index)


def remember_source(
    cache: KVCache, key: Tensor | None, value: Tensor | None, *, mask: Mask, real_tokens: Tensor | None
) -> Remembered:
    """Give the tokens of a source text to its cache, or None if it has them, and return what queries attend to.

    Raises:
        ConfigError: the cache is not one of a source text.
    """
    if not isinstance(cache, CrossCache):
        raise ConfigError(f"a cache of another text's tokens must be a CrossCache(); got a {type(cache).__name__}")
    view = cache.view() if key is None or value is None else cache.update(key, value, real_tokens=real_tokens)
    return Remembered(view.keys, view.values, mask, key_index=view.key_index)


def _sees_all(mask: Mask, reach: int) -> bool:
    """Tell whether a query sees itself and the `reach - 1` keys before it."""
    if isinstance(mask, Full):
        return True
    distances = mask.distances()
    return distances is not None and any(low <= 0 and high >= reach for low, high in distances.intervals)
