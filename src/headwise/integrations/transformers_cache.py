"""headwise's caches inside Hugging Face models, through transformers' public cache interface."""

from functools import cache
from typing import Any

from torch import Tensor

from headwise.caches.base import KVCache
from headwise.caches.model import ModelCache
from headwise.config.checks import require_instance
from headwise.errors import MissingExtraError, UnsupportedError


def to_transformers_cache(caches: ModelCache) -> Any:
    """Return a `transformers.Cache` whose layers are these caches, for a model's `cache` or for `generate`.

    The model's own attention reads what they hold; padding stays in the model's masks, and counts as tokens. A
    `QuantizedCache` so serves any model, a `PagedCache` shares prompts, and a `StaticCache` costs what its live tokens
    do.

    Args:
        caches: one cache a layer of attention, empty or with what the model itself put into them.

    Raises:
        UnsupportedError: a cache that drops old tokens (`RollingCache`), since models look for them by their places.
        MissingExtraError: transformers is not installed.

    Example:
        >>> caches = ModelCache([QuantizedCache(GrowingCache()) for _ in range(model.config.num_hidden_layers)])
        >>> model.generate(ids, cache=to_transformers_cache(caches))
    """
    require_instance("caches", caches, ModelCache)
    for layer in caches:
        if layer.window_size is not None:
            raise UnsupportedError(
                f"a cache must keep all tokens to serve a model of transformers; got {layer.kind} of the last "
                f"{layer.window_size} (leave such layers to transformers' own DynamicCache)"
            )
    try:
        from transformers import Cache
    except ModuleNotFoundError as error:
        if error.name != "transformers":
            raise
        raise MissingExtraError("transformers", "hf") from error
    return Cache(layers=[_layer_class()(layer) for layer in caches])


@cache
def _layer_class() -> Any:
    """Return the class of a layer; it is made here, so that nothing is imported before it is asked for."""
    from transformers import CacheLayerMixin

    class Layer(CacheLayerMixin):  # type: ignore[misc]
        """One of our caches with the methods that transformers asks of a layer's."""

        is_croppable = True
        is_sliding = False

        def __init__(self, own: KVCache):
            super().__init__()
            self.own = own
            self.is_initialized = bool(own.lengths)

        def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
            """Nothing: a cache takes memory as it is given tokens."""
            self.is_initialized = True

        def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
            """Take in the next tokens and return all."""
            view = self.own.update(key_states, value_states)
            self.is_initialized = True
            return view.keys, view.values

        def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
            """Return the number of keys with those of the queries, and the index of the first."""
            return self.own.seq_len + query_length, 0

        def get_seq_length(self) -> int:
            """Return the number of tokens held."""
            return self.own.seq_len

        def get_max_length(self) -> int:
            """Return the number of tokens that can be held, -1 for any."""
            return self.own.settings.get("capacity", -1)

        def reset(self) -> None:
            """Forget everything."""
            self.own.reset()

        def crop(self, tokens_to_remove: int) -> None:
            """Take back so many tokens, given as a negative number."""
            self.own.crop(max(0, self.own.seq_len + min(0, tokens_to_remove)))

        def reorder_cache(self, beam_idx: Tensor) -> None:
            """Make each row a copy of the one that it goes on from."""
            self.own.reorder(beam_idx)

        def batch_repeat_interleave(self, repeats: int) -> None:
            """Repeat each row so many times."""
            self.own.reorder([row for row in range(len(self.own.lengths)) for _ in range(repeats)])

        def batch_select_indices(self, indices: Tensor) -> None:
            """Keep these rows."""
            self.own.reorder(indices)

    return Layer
