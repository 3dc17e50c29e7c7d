"""ModelCache: one cache for each layer of a model, that go together."""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from jaxtyping import Int
from torch import Tensor

from headwise.caches.base import KVCache, Lengths
from headwise.caches.storage import load_caches, save_caches
from headwise.errors import ConfigError


class ModelCache:
    """The caches of a model's layers, in their order.

    Args:
        layers: one cache a layer, all empty.

    Raises:
        ConfigError: no layer, what is no cache, or one cache for two layers.

    Example:
        >>> cache = ModelCache([GrowingCache() for _ in model.body.blocks])
    """

    def __init__(self, layers: Sequence[KVCache]):
        self.layers = tuple(layers)
        if not self.layers or not all(isinstance(layer, KVCache) for layer in self.layers):
            raise ConfigError(f"layers must be caches, one for each layer of a model; got {layers!r}")
        if len(set(map(id, self.layers))) != len(self.layers):
            raise ConfigError("each layer must have a cache of its own; got one twice")

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
        """Make row `i` a copy of what row `rows[i]` was, in every layer."""
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
            used = [layer for layer in self.layers if layer.lengths]
            shortest = [min(row) for row in zip(*(layer.lengths for layer in used), strict=True)]
            if len(used) < len(self.layers):
                shortest = [0] * len(shortest)
            for layer in used:
                layer.check_crop(shortest)
            for layer in used:
                layer.crop(shortest)

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
