"""GrowingCache and StaticCache: slot i of a row holds its token i."""

from abc import abstractmethod
from collections.abc import Sequence

import torch
from jaxtyping import Int
from torch import Tensor

from headwise.caches.base import CacheView, Held, KVCache, Lengths, no_tokens_of
from headwise.caches.rows import index_of_slots, longest_of, write_tokens
from headwise.config.checks import require_size
from headwise.errors import ConfigError

MIN_GROWTH = 64  # slots
GROWTH = 1.5  # how many times as many slots there are after each copy


class SlotCache(KVCache):
    """A buffer of slots in the order of the tokens; what is read is its beginning, as far as the longest row goes."""

    keeps_positions = True

    def __init__(self) -> None:
        super().__init__()
        self._keys: Tensor | None = None
        self._values: Tensor | None = None
        self._positions: Tensor | None = None

    @property
    def allocated_bytes(self) -> int:
        """Bytes of the buffers of keys and values."""
        return sum(one.numel() * one.element_size() for one in (self._keys, self._values) if one is not None)

    @property
    def num_slots(self) -> int:
        """Number of slots a row that there is memory for."""
        return 0 if self._keys is None else self._keys.shape[2]

    @abstractmethod
    def _choose_num_slots(self, needed: int) -> int:
        """Return how many slots to have, at least so many."""

    def _take(
        self,
        keys: Tensor,
        values: Tensor,
        after: tuple[int, ...],
        real_tokens: Tensor | None,
        positions: Tensor | None,
    ) -> CacheView:
        num_tokens, longest = keys.shape[2], longest_of(after)
        self._check_positions(positions, keys)
        is_even = real_tokens is None and self.is_even
        slots = None
        if not is_even:
            slots = self.next_index(keys.shape[0], num_tokens, real_tokens=real_tokens, device=keys.device)
        self._reserve(longest)
        assert self._keys is not None and self._values is not None
        for buffer, tokens in ((self._keys, keys), (self._values, values)):
            if slots is None:
                buffer[:, :, longest - num_tokens : longest] = tokens
            else:
                write_tokens(buffer, tokens, slots)
        if self._positions is not None and positions is not None:
            if slots is None:
                self._positions[:, longest - num_tokens : longest] = positions
            else:
                write_tokens(self._positions[:, None, :, None], positions[:, None, :, None], slots)
        self._lengths = after
        return self.view()

    def view(self) -> CacheView:
        """Return all that is held; keys and values are views of the buffers."""
        self._require_use()
        assert self._keys is not None and self._values is not None
        longest = self.seq_len
        index = None if self.is_even else index_of_slots(self.lengths, longest, self._keys.device)
        positions = None if self._positions is None else self._positions[:, :longest]
        return CacheView(self._keys[:, :, :longest], self._values[:, :, :longest], index, positions)

    def crop(self, lengths: Lengths) -> None:
        """Forget all but the first tokens of each stream; their slots are free again."""
        self._lengths = self.check_crop(lengths)

    def reorder(self, rows: Sequence[int] | Int[Tensor, " new_batch"]) -> None:
        """Make row `i` a copy of what row `rows[i]` was."""
        chosen = self._read_rows(rows)
        if self._keys is None or self._values is None or self._like is None:
            return
        where = torch.tensor(chosen, dtype=torch.long, device=self._keys.device)
        self._keys, self._values = self._keys[where], self._values[where]
        self._positions = None if self._positions is None else self._positions[where]
        self._lengths = tuple(self.lengths[row] for row in chosen)

    def _hold(self) -> Held:
        assert self._keys is not None and self._values is not None
        longest, device = self.seq_len, self._keys.device
        index = index_of_slots(self.lengths, longest, device)
        is_empty = (index < 0)[:, None, :, None]
        keys, values = (one[:, :, :longest].masked_fill(is_empty, 0) for one in (self._keys, self._values))
        positions = None if self._positions is None else self._positions[:, :longest].masked_fill(index < 0, 0)
        return Held(keys, values, index, positions)

    def _restore(self, held: Held, lengths: tuple[int, ...], dtype: torch.dtype) -> None:
        longest = longest_of(lengths)
        self._check_room((0,) * len(lengths), lengths)
        self._like = no_tokens_of(held.keys), no_tokens_of(held.values)
        self._keys = self._values = self._positions = None
        self._lengths = (0,) * len(lengths)
        self._check_positions(held.positions, held.keys)
        self._reserve(longest)
        assert self._keys is not None and self._values is not None
        self._keys[:, :, :longest], self._values[:, :, :longest] = held.keys, held.values
        if self._positions is not None:
            self._positions[:, :longest] = held.positions
        self._lengths = lengths

    def _check_positions(self, positions: Tensor | None, keys: Tensor) -> None:
        """Take memory for positions where the first tokens have some; then all must."""
        if positions is not None and self._positions is None and self.seq_len == 0:
            self._positions = torch.zeros(keys.shape[0], self.num_slots, dtype=torch.long, device=keys.device)
        elif positions is None and self._positions is not None and self.seq_len == 0:
            self._positions = None
        if (positions is None) != (self._positions is None):
            raise ConfigError("positions must come with every update of a cache or with none")

    def _reserve(self, needed: int) -> None:
        """See to it that there are so many slots a row."""
        if self._keys is not None and needed <= self.num_slots:
            return
        assert self._like is not None
        num_slots, held = self._choose_num_slots(needed), self.seq_len
        for name, like in zip(("_keys", "_values"), self._like, strict=True):
            old = getattr(self, name)
            batch = like.shape[0] if old is None else old.shape[0]  # rows may have been reordered since
            new = like.new_empty(batch, like.shape[1], num_slots, like.shape[3])
            if old is not None:
                new[:, :, :held] = old[:, :, :held]
            setattr(self, name, new)
            del old
        if self._positions is not None:
            grown = self._positions.new_zeros(self._positions.shape[0], num_slots)
            grown[:, :held] = self._positions[:, :held]
            self._positions = grown


class GrowingCache(SlotCache):
    """Takes any number of tokens: full buffers are copied to ones half as large again.

    A token is so copied about twice over a stream of any length, and at most a third of the slots are spare.

    Example:
        >>> cache = GrowingCache()
        >>> with torch.no_grad():
        ...     layer(prompt, cache=cache)
        ...     layer(next_token, cache=cache)
    """

    def _choose_num_slots(self, needed: int) -> int:
        return max(needed, int(self.num_slots * GROWTH), MIN_GROWTH)


class StaticCache(SlotCache):
    """Takes a fixed number of tokens a row, for which memory is taken at once; what a step costs follows the tokens.

    Args:
        capacity: tokens that a row takes.

    Raises:
        ConfigError: a capacity that is no whole number above 0; (from `update`) more tokens than that.
    """

    def __init__(self, capacity: int):
        require_size("capacity", capacity)
        super().__init__()
        self.capacity = capacity

    @property
    def settings(self) -> dict[str, int]:
        """The capacity."""
        return {"capacity": self.capacity}

    def _choose_num_slots(self, needed: int) -> int:
        return self.capacity

    def _check_room(self, before: tuple[int, ...], counts: tuple[int, ...]) -> None:
        longest = longest_of([old + new for old, new in zip(before, counts, strict=True)])
        if longest > self.capacity:
            raise ConfigError(
                f"capacity must be at least {longest} to take these tokens; got {self.capacity}, of which "
                f"{longest_of(before)} are taken"
            )


class CrossCache(SlotCache):
    """Takes the keys and values of a source text once, which every step of a decoder reads.

    Raises:
        ConfigError: (from `update`) it is filled already.
    """

    def _choose_num_slots(self, needed: int) -> int:
        return needed

    def _check_room(self, before: tuple[int, ...], counts: tuple[int, ...]) -> None:
        if any(before):
            raise ConfigError("a cross-attention cache takes one source text; got a second (reset it, or make another)")
