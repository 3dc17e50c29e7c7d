"""GrowingCache and StaticCache: slot i of a row holds its token i."""

from abc import abstractmethod
from collections.abc import Sequence

import torch
from jaxtyping import Int
from torch import Tensor
from torch.nn import functional

from headwise.caches.base import CacheView, Held, KVCache, Lengths, no_tokens_of
from headwise.caches.rows import are_equal, index_of_slots, longer, longest_of, write_tokens
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
        self._positions: Tensor | None = None  # (batch, 1, slots, 1), as if they were heads

    @property
    def allocated_bytes(self) -> int:
        """Bytes of the buffers of keys and values."""
        return sum(one.numel() * one.element_size() for one in (self._keys, self._values) if one is not None)

    @property
    def num_slots(self) -> int:
        """Number of slots a row that there is memory for."""
        return 0 if self._values is None else self._values.shape[2]

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
        if self.seq_len > 0 and (positions is None) != (self._positions is None):
            raise ConfigError("positions must come with every update of a cache or with none")
        num_tokens, longest = keys.shape[2], longest_of(after)
        slots = None
        if real_tokens is not None or not self.is_even:
            slots = self.next_index(keys.shape[0], num_tokens, real_tokens=real_tokens, device=keys.device)
        self._reserve(longest, keys, values, positions)
        assert self._keys is not None and self._values is not None
        view = self._show(after)
        written = [(self._keys, keys), (self._values, values)]
        if self._positions is not None and positions is not None:
            written.append((self._positions, positions[:, None, :, None]))
        for buffer, tokens in written:
            if slots is None:
                buffer[:, :, longest - num_tokens : longest] = tokens
            else:
                write_tokens(buffer, tokens, slots)
        self._lengths = after
        return view

    def view(self) -> CacheView:
        """Return all that is held; keys and values are views of the buffers."""
        self._require_use()
        return self._show(self.lengths)

    def _show(self, lengths: tuple[int, ...]) -> CacheView:
        """Return the view of rows of these lengths, also before their last tokens are written."""
        assert self._keys is not None and self._values is not None
        longest = longest_of(lengths)
        index = None if are_equal(lengths) else index_of_slots(lengths, longest, self._keys.device)
        positions = None if self._positions is None else self._positions[:, 0, :longest, 0]
        return CacheView(self._keys[:, :, :longest], self._values[:, :, :longest], index, positions)

    def crop(self, lengths: Lengths) -> None:
        """Forget all but the first tokens of each stream; their slots are free again."""
        self._lengths = self.check_crop(lengths)

    def reorder(self, rows: Sequence[int] | Int[Tensor, " new_batch"]) -> None:
        """Make row `i` a copy of what row `rows[i]` was."""
        chosen = self.check_reorder(rows)
        if not self.lengths:
            return
        assert self._keys is not None and self._values is not None
        where = torch.tensor(chosen, dtype=torch.long, device=self._keys.device)
        positions = None if self._positions is None else self._positions[where]
        self._keys, self._values, self._positions = self._keys[where], self._values[where], positions
        self._lengths = tuple(self.lengths[row] for row in chosen)

    def _hold(self) -> Held:
        assert self._keys is not None and self._values is not None
        longest, device = self.seq_len, self._keys.device
        index = index_of_slots(self.lengths, longest, device)
        is_empty = (index < 0)[:, None, :, None]
        keys, values = (one[:, :, :longest].masked_fill(is_empty, 0) for one in (self._keys, self._values))
        positions = None if self._positions is None else self._positions[:, 0, :longest, 0].masked_fill(index < 0, 0)
        return Held(keys, values, index, positions)

    def _restore(self, held: Held, lengths: tuple[int, ...], dtype: torch.dtype) -> None:
        self._check_room((0,) * len(lengths), lengths)
        num_slots = self._choose_num_slots(longest_of(lengths))
        self._keys, self._values = (longer(one, num_slots) for one in (held.keys, held.values))
        self._positions = None
        if held.positions is not None:
            self._positions = longer_by_zeros(held.positions[:, None, :, None], num_slots)
        self._like, self._lengths = (no_tokens_of(held.keys), no_tokens_of(held.values)), lengths

    def _reserve(self, needed: int, keys: Tensor, values: Tensor, positions: Tensor | None) -> None:
        """See to it that there are so many slots a row for tokens like these.

        Where memory ends in between, what is held is still held: at first by nothing, later by buffers of which the
        first are longer than the rest.
        """
        num_slots = self.num_slots
        if not self.lengths or needed > num_slots:
            num_slots = self._choose_num_slots(needed)
        if not self.lengths:
            self._keys, self._values = (
                one.new_empty(*one.shape[:2], num_slots, one.shape[3]) for one in (keys, values)
            )
        assert self._keys is not None and self._values is not None
        if self.seq_len == 0 and positions is None:
            self._positions = None
        elif self.seq_len == 0 and positions is not None:
            self._positions = positions.new_zeros(positions.shape[0], 1, num_slots, 1, dtype=torch.long)
        if num_slots > self.num_slots:  # one after the other, so that of one alone there are two for a while
            if self._positions is not None:
                self._positions = longer_by_zeros(self._positions, num_slots)
            self._keys = longer(self._keys, num_slots)
            self._values = longer(self._values, num_slots)


def longer_by_zeros(positions: Int[Tensor, "batch 1 _ 1"], num_slots: int) -> Tensor:
    """Return `longer` positions, with zeros behind them: a bias reads also those of empty slots."""
    return functional.pad(positions, (0, 0, 0, max(0, num_slots - positions.shape[2])))


class GrowingCache(SlotCache):
    """Takes any number of tokens: full buffers are copied to ones half as large again.

    A token is so copied about twice over a stream of any length. Each row has as many slots as the longest, which has
    at least 64, and at most half as many again as it had tokens when it was longest.

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
    """Takes the keys and values of a source text once, which every step of a decoder reads. `reset` lets another in.

    Raises:
        ConfigError: (from `update`) it is filled already.
    """

    def _choose_num_slots(self, needed: int) -> int:
        return needed

    def _check_room(self, before: tuple[int, ...], counts: tuple[int, ...]) -> None:
        if any(before):
            raise ConfigError("a cross-attention cache takes one source text; got a second (reset it, or make another)")

    def reset(self) -> None:
        """Be as new, for a source text of any size, and of as many rows."""
        self._lengths, self._like = (), None
        self._keys = self._values = self._positions = None
