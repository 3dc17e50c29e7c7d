"""ModelCache: one cache for each layer of a model, that go together."""

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import torch
from jaxtyping import Int
from torch import Tensor

from headwise.caches.base import KVCache, Lengths
from headwise.caches.rows import in_words
from headwise.caches.storage import load_caches, save_caches
from headwise.config.checks import shown
from headwise.errors import ConfigError


class ModelCache:
    """The caches of a model's layers, in their order.

    Args:
        layers: one cache a layer, which have had as many tokens.

    Raises:
        ConfigError: no layer, what is no cache, one cache for two layers (also within others), layers of other lengths.

    Example:
        >>> cache = ModelCache([GrowingCache() for _ in model.body.blocks])
    """

    def __init__(self, layers: Sequence[KVCache]):
        given = tuple(layers) if isinstance(layers, Iterable) else ()
        if not given or not all(isinstance(layer, KVCache) for layer in given):
            raise ConfigError(f"layers must be caches, one for each layer of a model; got {shown(layers)}")
        parts = [id(part) for layer in given for part in layer.parts]
        if len(set(parts)) != len(parts):
            raise ConfigError("each layer must have a cache of its own; got one twice")
        if any(layer.lengths != given[0].lengths for layer in given):
            raise ConfigError(
                f"layers must have had as many tokens; got {shown([layer.lengths for layer in given])} (new ones have "
                "had none)"
            )
        self.layers: tuple[KVCache, ...] = given

    def __repr__(self) -> str:
        kinds = ", ".join(
            f"{count} of {spelled}" for spelled, count in Counter(layer.spelled for layer in self.layers).items()
        )
        return f"ModelCache({kinds}): {in_words(self.lengths)}"

    @property
    def lengths(self) -> tuple[int, ...]:
        """Number of tokens that each row's stream has had; empty before the first call."""
        return self.layers[0].lengths

    @property
    def seq_len(self) -> int:
        """Number of tokens of the longest stream."""
        return self.layers[0].seq_len

    @property
    def num_bytes(self) -> int:
        """Bytes of the keys and values of all tokens held."""
        return sum(layer.num_bytes for layer in self.layers)

    @property
    def allocated_bytes(self) -> int:
        """Bytes of the memory taken, spare slots included."""
        return sum(layer.allocated_bytes for layer in self.layers)

    def __iter__(self) -> Iterator[KVCache]:
        return iter(self.layers)

    def __len__(self) -> int:
        return len(self.layers)

    def crop(self, lengths: Lengths) -> None:
        """Forget all but the first tokens of each stream, in every layer, or, where one cannot, in none.

        Raises:
            ConfigError: as of the layers' caches.
        """
        for layer in self.layers:
            layer.check_crop(lengths)
        for layer in self.layers:
            layer.crop(lengths)

    def reorder(self, rows: Sequence[int] | Int[Tensor, " new_batch"]) -> None:
        """Make row `i` a copy of what row `rows[i]` was, in every layer, or, where one cannot, in none.

        Raises:
            ConfigError: as of the layers' caches.
        """
        for layer in self.layers:
            layer.check_reorder(rows)
        for layer in self.layers:
            layer.reorder(rows)

    def reset(self) -> None:
        """Forget everything."""
        for layer in self.layers:
            layer.reset()

    def settle(self) -> None:
        """Crop all layers to the shortest: a call that was interrupted has reached some of them alone.

        Raises:
            ConfigError: a layer cannot be cropped; reset the cache then.
        """
        if any(layer.lengths != self.lengths for layer in self.layers):
            if not all(layer.lengths for layer in self.layers):
                self.reset()
            else:
                self.crop([min(row) for row in zip(*(layer.lengths for layer in self.layers), strict=True)])

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write all that is held to a safetensors file, whole or not at all.

        Raises:
            ConfigError: a layer that has had no call.
            OutputError: the file cannot be written.
        """
        return save_caches(self.layers, path)

    def load(self, path: str | os.PathLike[str], *, device: torch.device | str = "cpu") -> None:
        """Hold what was saved from a cache of the same kinds and settings, and forget everything else.

        Args:
            path: a file of `save`.
            device: where the tensors are to be.

        Raises:
            ConfigError: the file cannot be read, is no file of caches, is cut, or is of other caches; this one is then
                as it was.
        """
        load_caches(self.layers, path, device=device)
