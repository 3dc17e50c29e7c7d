"""RollingCache: the last tokens alone, as many as a window sees, in a ring of slots."""

from collections.abc import Sequence

import torch
from jaxtyping import Int
from torch import Tensor

from headwise.caches.base import CacheView, Held, KVCache, Lengths, no_tokens_of
from headwise.caches.checks import read_lengths
from headwise.caches.rows import are_equal, longest_of, write_tokens
from headwise.config.checks import require_size
from headwise.errors import ConfigError


class RollingCache(KVCache):
    """Holds the last `window_size + spare` tokens of each row: token i in slot `i % num_slots`.

    For attentions that look back no further than a window: what a query sees is what it would see of a cache that
    holds all, to the bit of its inputs, for single tokens and for chunks of any length across the ring's end. What is
    older than the window is shown at times; the attention's own mask hides it.

    Args:
        window_size: number of keys that a query sees, itself included.
        spare: slots beyond the window. After the ring is full `crop` can take back `spare + 1` tokens, since the next
            query needs but the `window_size - 1` before it.

    Raises:
        ConfigError: sizes that are no whole numbers, a window below 1.

    Source: Jiang et al. 2023, "Mistral 7B", section 2, "Rolling buffer cache".
    """

    def __init__(self, window_size: int, *, spare: int = 0):
        require_size("window_size", window_size)
        require_size("spare", spare, minimum=0)
        super().__init__()
        self._window_size, self._spare = window_size, spare
        self._newest: tuple[int, ...] = ()  # length of each row when its ring was last written
        self._keys: Tensor | None = None
        self._values: Tensor | None = None

    @property
    def window_size(self) -> int:
        """Number of the last tokens that a query is sure to find, itself included."""
        return self._window_size

    @property
    def spare(self) -> int:
        """Number of slots beyond the window: one more token than these can be taken back after the ring is full."""
        return self._spare

    @property
    def settings(self) -> dict[str, int]:
        """The window and the spare slots."""
        return {"window_size": self.window_size, "spare": self.spare}

    @property
    def num_slots(self) -> int:
        """Number of slots in the ring."""
        return self.window_size + self.spare

    @property
    def allocated_bytes(self) -> int:
        """Bytes of the rings of keys and values."""
        return sum(one.numel() * one.element_size() for one in (self._keys, self._values) if one is not None)

    def _take(
        self,
        keys: Tensor,
        values: Tensor,
        after: tuple[int, ...],
        real_tokens: Tensor | None,
        positions: Tensor | None,
    ) -> CacheView:
        if not self.lengths:
            self._keys, self._values = (
                one.new_empty(*one.shape[:2], self.num_slots, one.shape[3]) for one in (keys, values)
            )
        num_tokens = keys.shape[2]
        is_even = real_tokens is None and self.is_even and are_equal(self._newest)
        index = self.next_index(keys.shape[0], num_tokens, real_tokens=real_tokens, device=keys.device)
        newest = tuple(map(max, self._newest, after)) if self.lengths else after
        has_wrapped = longest_of(newest) > self.num_slots
        if num_tokens == 1 or (is_even and not has_wrapped):  # what is written over is older than any window
            view = self._show(after, newest)
        else:
            view = self._join(keys, values, index, is_even)
        self._write(keys, values, index, after)
        self._lengths, self._newest = after, newest
        return view

    def view(self) -> CacheView:
        """Return all that is held, in the order of slots; keys and values are views of the ring."""
        self._require_use()
        return self._show(self.lengths, self._newest)

    def _show(self, lengths: tuple[int, ...], newest: tuple[int, ...]) -> CacheView:
        """Return the view of rows of these lengths, also before their last tokens are written."""
        assert self._keys is not None and self._values is not None
        has_wrapped = longest_of(newest) > self.num_slots
        read = slice(None) if has_wrapped else slice(longest_of(lengths))
        keys, values = self._keys[:, :, read], self._values[:, :, read]
        if not (are_equal(lengths) and are_equal(newest)):
            return CacheView(keys, values, self._index_of(lengths, newest)[:, read])
        if not has_wrapped:
            return CacheView(keys, values, None)
        is_full = lengths == newest
        return CacheView(keys, values, self._index_of(lengths, newest)[0], reach=self.num_slots if is_full else None)

    def _join(self, keys: Tensor, values: Tensor, index: Tensor, is_even: bool) -> CacheView:
        """Return the view of a chunk: what its first query looks back on, and the chunk."""
        assert self._keys is not None and self._values is not None
        if is_even:
            length = self.seq_len
            first = max(0, length - self.window_size + 1)
            slots = torch.arange(first, length, device=keys.device) % self.num_slots
            return CacheView(
                torch.cat([self._keys[:, :, slots], keys], dim=2),
                torch.cat([self._values[:, :, slots], values], dim=2),
                None,
                first_index=first,
            )
        index = index.expand(keys.shape[0], -1)
        return CacheView(
            torch.cat([self._keys, keys], dim=2),
            torch.cat([self._values, values], dim=2),
            torch.cat([self._index(), index], dim=1),
        )

    def _write(self, keys: Tensor, values: Tensor, index: Tensor, after: tuple[int, ...]) -> None:
        """Write the last tokens of a chunk into the ring."""
        assert self._keys is not None and self._values is not None
        if index.ndim == 1:
            last = slice(max(0, index.shape[0] - self.num_slots), None)
            slots = index[last] % self.num_slots
            self._keys[:, :, slots], self._values[:, :, slots] = keys[:, :, last], values[:, :, last]
            return
        oldest = torch.tensor(after, device=index.device).unsqueeze(1) - self.num_slots
        slots = torch.where((index >= 0) & (index >= oldest), index % self.num_slots, -1)
        write_tokens(self._keys, keys, slots)
        write_tokens(self._values, values, slots)

    def _index(self) -> Int[Tensor, "batch num_slots"]:
        """Return the index of each slot's token, -1 where there is none."""
        assert self._keys is not None
        none = (0,) * self._keys.shape[0]
        return self._index_of(self.lengths or none, self._newest or none)

    def _index_of(self, lengths: tuple[int, ...], newest: tuple[int, ...]) -> Int[Tensor, "batch num_slots"]:
        """Return the index of each slot's token, -1 where there is none, for rows of these lengths.

        It is the largest below the row's length that belongs in the slot, unless a later one, since taken back, has
        been written over it.
        """
        assert self._keys is not None
        device, num_slots = self._keys.device, self.num_slots
        last, written = (torch.tensor(numbers, device=device).unsqueeze(1) - 1 for numbers in (lengths, newest))
        index = last - (last - torch.arange(num_slots, device=device)) % num_slots
        return torch.where((index >= 0) & (index > written - num_slots), index, -1)

    def check_crop(self, lengths: Lengths) -> tuple[int, ...]:
        """Return the length of each row after `crop`.

        Raises:
            ConfigError: a length whose window has been written over: more than `spare + 1` tokens are taken back after
                the ring was full. 0 is always allowed.
        """
        wanted = read_lengths(lengths, self.lengths)
        for length, newest in zip(wanted, self._newest, strict=True):
            if 0 < length < newest - self.spare - 1 and newest > self.num_slots:
                raise ConfigError(
                    f"lengths must be at least {newest - self.spare - 1}, or 0, for a ring that has had {newest} "
                    f"tokens; got {length} (build it with more spare slots to take more back)"
                )
        return wanted

    def crop(self, lengths: Lengths) -> None:
        """Forget all but the first tokens of each stream, as far as `check_crop` allows."""
        wanted = self.check_crop(lengths)
        self._newest = tuple(0 if not length else old for length, old in zip(wanted, self._newest, strict=True))
        self._lengths = wanted

    def reorder(self, rows: Sequence[int] | Int[Tensor, " new_batch"]) -> None:
        """Make row `i` a copy of what row `rows[i]` was."""
        chosen = self.check_reorder(rows)
        if not self.lengths:
            return
        assert self._keys is not None and self._values is not None
        where = torch.tensor(chosen, dtype=torch.long, device=self._keys.device)
        self._keys, self._values = self._keys[where], self._values[where]
        self._lengths = tuple(self.lengths[row] for row in chosen)
        self._newest = tuple(self._newest[row] for row in chosen)

    def _held_lengths(self) -> tuple[int, ...]:
        written_over = (max(0, newest - self.num_slots) for newest in self._newest)
        return tuple(max(0, length - first) for length, first in zip(self.lengths, written_over, strict=True))

    def _hold(self) -> Held:
        assert self._keys is not None and self._values is not None
        index = self._index()
        is_empty = (index < 0)[:, None, :, None]
        return Held(self._keys.masked_fill(is_empty, 0), self._values.masked_fill(is_empty, 0), index, None)

    def _restore(self, held: Held, lengths: tuple[int, ...], dtype: torch.dtype) -> None:
        if held.keys.shape[2] != self.num_slots:
            raise ConfigError(f"keys must fill a ring of {self.num_slots} slots; got {held.keys.shape[2]}")
        self._like = no_tokens_of(held.keys), no_tokens_of(held.values)
        self._keys, self._values = held.keys.clone(), held.values.clone()
        # Where the ring is full its oldest token tells how far it was written, also what has been taken back since.
        # One that holds none of its tokens is as far behind its length as it can be.
        behind = torch.tensor(lengths, device=held.key_index.device).unsqueeze(1)
        oldest = torch.where(held.key_index < 0, behind, held.key_index).amin(1).tolist()
        self._lengths = lengths
        self._newest = tuple(
            max(length, first + self.num_slots) if length and first else length
            for length, first in zip(lengths, oldest, strict=True)
        )
