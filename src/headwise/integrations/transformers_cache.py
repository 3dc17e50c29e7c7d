"""headwise's caches inside Hugging Face models, through transformers' public cache interface."""

from collections.abc import Sequence
from functools import cache
from typing import Any

from torch import Tensor

from headwise.caches.base import KVCache
from headwise.caches.model import ModelCache
from headwise.config.checks import require_instance
from headwise.errors import ConfigError, MissingExtraError, UnsupportedError


def to_transformers_cache(caches: ModelCache) -> Any:
    """Return a `transformers.Cache` whose layers are these caches, for a model's `cache` or for `generate`.

    It serves models whose layers of attention give their keys and values to a cache and read them from it: the common
    decoders, windows included (their masks hide what is older), and, one for its own tokens and one for the source's in
    an `EncoderDecoderCache`, decoders like T5's. Models that keep something else (states of convolutions or recurrent
    layers, keys of an indexer) need caches of transformers' own. The model's own attention reads what is held; padding
    stays in the model's masks, and counts as tokens, so that all rows have as many.

    Args:
        caches: one cache for each layer of attention, empty or with what the model itself put into them.

    Raises:
        UnsupportedError: a cache that drops old tokens (`RollingCache`), since models look for them by their places;
            (also from a model's call) rows of unequal length, whose places models do not ask for.
        ConfigError: (from a model's call) the model has more layers than there are caches; a cache is full.
        MissingExtraError: transformers is not installed.

    Example:
        >>> caches = ModelCache([QuantizedCache(GrowingCache()) for _ in range(model.config.num_hidden_layers)])
        >>> model.generate(ids, cache=to_transformers_cache(caches))
        >>> t5.generate(ids, cache=EncoderDecoderCache(to_transformers_cache(own), to_transformers_cache(cross)))
    """
    require_instance("caches", caches, ModelCache)
    for layer in caches:
        if layer.window_size is not None:
            raise UnsupportedError(
                f"a cache must keep all tokens to serve a model of transformers; got {layer.kind} of the last "
                f"{layer.window_size} (leave such layers to transformers' own DynamicCache)"
            )
        _require_even(layer)
    return _cache_of([_layer_of(layer) for layer in caches])


def _require_even(own: KVCache) -> None:
    if not own.is_even:
        raise UnsupportedError(
            "rows must be of one length to serve a model of transformers, which reads no index of a key; got "
            f"{own.lengths} (crop them to {min(own.lengths)})"
        )


def _cache_of(layers: Sequence[Any]) -> Any:
    return _classes()[0](layers=list(layers))


def _layer_of(own: KVCache) -> Any:
    return _classes()[1](own)


@cache
def _classes() -> tuple[Any, Any]:
    """Return the classes of a cache and of a layer; made here, so that nothing is imported before it is asked for."""
    try:
        from transformers import Cache, CacheLayerMixin
    except ModuleNotFoundError as error:
        if error.name != "transformers":
            raise
        raise MissingExtraError("transformers", "hf") from error

    class LentCache(Cache):  # type: ignore[misc]
        """A cache with a fixed number of layers."""

        def update(self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any) -> Any:
            """Take in the next tokens of one layer and return all."""
            if layer_idx >= len(self.layers):
                raise ConfigError(
                    f"caches must be one for each layer of the model's attention; got {len(self.layers)}, and a call "
                    f"of layer {layer_idx + 1}"
                )
            return super().update(key_states, value_states, layer_idx, *args, **kwargs)

        def __reduce__(self) -> tuple[Any, ...]:
            return _cache_of, (self.layers,)  # by a function: the class has no name that pickle could find

    class LentLayer(CacheLayerMixin):  # type: ignore[misc]
        """One of our caches with the methods and attributes that transformers asks of a layer's."""

        is_croppable = True
        is_sliding = False

        def __init__(self, own: KVCache):  # not that of the base, which sets keys, values and is_initialized
            self.own = own

        def __reduce__(self) -> tuple[Any, ...]:
            return _layer_of, (self.own,)

        @property
        def is_initialized(self) -> bool:
            """Whether there are tokens."""
            return self.own.seq_len > 0

        @property
        def keys(self) -> Tensor | None:
            """All keys held: what a decoder that looks at a source reads after the first step."""
            return self.own.view().keys if self.is_initialized else None

        @property
        def values(self) -> Tensor | None:
            """All values held."""
            return self.own.view().values if self.is_initialized else None

        def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
            """Nothing: a cache takes memory as it is given tokens."""

        def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
            """Take in the next tokens and return all."""
            _require_even(self.own)
            batch = key_states.shape[0]
            if not self.is_initialized and len(self.own.lengths) not in (0, batch):  # reset, then another batch
                self.own.reorder([0] * batch)
            view = self.own.update(key_states, value_states)
            return view.keys, view.values

        def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
            """Return the number of keys with those of the queries, and the index of the first."""
            return self.own.seq_len + query_length, 0

        def get_seq_length(self) -> int:
            """Return the number of tokens held."""
            return self.own.seq_len

        def get_max_length(self) -> int:
            """Return the number of tokens that a row can have, -1 for any; rows of a pool of blocks share it."""
            settings = self.own.settings
            return settings.get("capacity") or settings.get("num_blocks", 0) * settings.get("block_size", 0) or -1

        def reset(self) -> None:
            """Forget everything; the next batch may have other rows."""
            self.own.reset()

        def crop(self, tokens_to_remove: int) -> None:
            """Take back so many tokens, given as a negative number."""
            if tokens_to_remove > 0:
                raise ConfigError(
                    f"tokens_to_remove must be a negative number, or 0; got {tokens_to_remove} (-{tokens_to_remove} "
                    "takes back so many tokens)"
                )
            self.own.crop(max(0, self.own.seq_len + tokens_to_remove))

        def reorder_cache(self, beam_idx: Tensor) -> None:
            """Make each row a copy of the one that it goes on from."""
            self.own.reorder(beam_idx)

        def batch_repeat_interleave(self, repeats: int) -> None:
            """Repeat each row so many times."""
            self.own.reorder([row for row in range(len(self.own.lengths)) for _ in range(repeats)])

        def batch_select_indices(self, indices: Tensor) -> None:
            """Keep these rows."""
            self.own.reorder(indices)

    return LentCache, LentLayer
