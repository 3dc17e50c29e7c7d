"""KVCache: the keys and values of one attention, kept between calls, and the index of every slot."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Bool, Int, Shaped
from torch import Tensor

from headwise.caches.checks import (
    read_lengths,
    read_rows,
    require_alike,
    require_heads,
    require_positions,
    require_real_tokens,
)
from headwise.caches.rows import are_equal, in_words, longest_of
from headwise.errors import ConfigError, UnsupportedError

Lengths = int | Sequence[int] | Tensor


class CacheView(NamedTuple):
    """What a call's queries attend to: all that the cache holds, the call's own tokens included.

    Attributes:
        keys: (batch, num_kv_heads, key_len, head_dim).
        values: (batch, num_kv_heads, key_len, v_head_dim).
        key_index: (key_len,) or (batch, key_len) place of each key in its row's stream, -1 = an empty slot, which can
            hold anything. None: the keys are in order, without a gap, and the last is the last query's own, so that the
            default indices of `attention` are as far apart as the true ones.
        key_positions: (batch, key_len) position of each key, if the cache was given positions; else None.
        first_index: index of the first key where `key_index` is None; 0 unless the beginning has been dropped.
        reach: the keys are, in any order, the last so many of each stream and no others. None: not known.
    """

    keys: Shaped[Tensor, "batch num_kv_heads key_len head_dim"]
    values: Shaped[Tensor, "batch num_kv_heads key_len v_head_dim"]
    key_index: Int[Tensor, "... key_len"] | None
    key_positions: Int[Tensor, "batch key_len"] | None = None
    first_index: int = 0
    reach: int | None = None


class Held(NamedTuple):
    """All that a cache holds, row by row: the form in which it is saved.

    Attributes:
        keys, values: (batch, num_kv_heads, key_len, ...), zeros in empty slots.
        key_index: (batch, key_len), -1 = an empty slot.
        positions: (batch, key_len) or None.
        blocks: (batch, num_blocks) number of the block that holds each run of tokens, -1 behind each row's last; rows
            that share a block have its number. None: rows share nothing.
    """

    keys: Shaped[Tensor, "batch num_kv_heads key_len head_dim"]
    values: Shaped[Tensor, "batch num_kv_heads key_len v_head_dim"]
    key_index: Int[Tensor, "batch key_len"]
    positions: Int[Tensor, "batch key_len"] | None
    blocks: Int[Tensor, "batch num_blocks"] | None = None


def no_tokens_of(heads: Tensor) -> Tensor:
    """Return heads without a token, of the same shape, dtype and device, that hold no memory."""
    return heads.new_empty(*heads.shape[:2], 0, heads.shape[3])


class KVCache(ABC):
    """Keys and values of one attention layer.

    Each row of the batch has a stream of its own: its tokens have the indices 0, 1, 2, ... whatever padding came
    between them, which is not kept. Memory is taken at the first `update`, whose tensors say how many rows and heads
    there are, of which size, dtype and device.

    A cache serves generation: it keeps no graph, and refuses tensors that ask for gradients.
    """

    keeps_positions = False  # whether positions of tokens can be kept, for a bias that reads them

    def __init__(self) -> None:
        self._lengths: tuple[int, ...] = ()
        self._like: tuple[Tensor, Tensor] | None = None  # keys and values without tokens: shape, dtype and device

    def __repr__(self) -> str:
        return f"{self.spelled}: {in_words(self.lengths)}"

    @property
    def lengths(self) -> tuple[int, ...]:
        """Number of tokens that each row's stream has had; empty before the first update."""
        return self._lengths

    @property
    def spare(self) -> int | None:
        """Number of tokens that are kept beyond the window, to be taken back with one more at any time; None: all."""
        return None

    @property
    def seq_len(self) -> int:
        """Number of tokens of the longest stream."""
        return longest_of(self.lengths)

    @property
    def is_even(self) -> bool:
        """Whether all rows have had as many tokens."""
        return are_equal(self.lengths)

    @property
    def num_bytes(self) -> int:
        """Bytes of the keys and values of all tokens held, without spare slots and padding."""
        return sum(self._held_lengths()) * self._token_bytes

    @property
    def window_size(self) -> int | None:
        """Number of the last tokens that a query is sure to find, itself included; None: all."""
        return None

    @property
    @abstractmethod
    def allocated_bytes(self) -> int:
        """Bytes of the memory taken for keys and values, spare slots included."""

    def next_index(
        self,
        batch_size: int,
        num_tokens: int,
        *,
        real_tokens: Bool[Tensor, "batch num_tokens"] | None = None,
        device: torch.device | str | None = None,
    ) -> Int[Tensor, "... num_tokens"]:
        """Return the index in its row's stream that each of the coming tokens will have.

        Args:
            batch_size: number of rows.
            num_tokens: tokens a row, padding included.
            real_tokens: (batch, num_tokens) which of them are no padding. Default: all.
            device: of the result.

        Returns:
            (num_tokens,) where it is the same for all rows, else (batch, num_tokens); -1 for padding.

        Raises:
            ConfigError: another number of rows than the cache has, `real_tokens` of another shape or dtype.
        """
        self._check_batch(batch_size)
        if real_tokens is not None:
            require_real_tokens(real_tokens, (batch_size, num_tokens))
            rank = real_tokens.cumsum(1) - 1
            return (rank + self._starts(batch_size, real_tokens.device)).masked_fill(~real_tokens, -1)
        if self.is_even:
            start = self.seq_len
            return torch.arange(start, start + num_tokens, device=device)
        return self._starts(batch_size, device) + torch.arange(num_tokens, device=device)

    def update(
        self,
        keys: Shaped[Tensor, "batch num_kv_heads num_tokens head_dim"],
        values: Shaped[Tensor, "batch num_kv_heads num_tokens v_head_dim"],
        *,
        real_tokens: Bool[Tensor, "batch num_tokens"] | None = None,
        positions: Int[Tensor, "... num_tokens"] | None = None,
    ) -> CacheView:
        """Take in the keys and values of the next tokens, and return what their queries attend to.

        Where this raises, also for want of memory, the cache goes on as it was.

        Args:
            keys: (batch, num_kv_heads, num_tokens, head_dim), positions already applied.
            values: (batch, num_kv_heads, num_tokens, v_head_dim).
            real_tokens: (batch, num_tokens) which tokens are no padding. Default: all.
            positions: (num_tokens,) or (batch, num_tokens) position of each token, for a bias that reads them: with
                every update or with none.

        Raises:
            ConfigError: no tensors, tensors unlike those before, `real_tokens` that are no booleans, positions that
                are no whole numbers or come with some updates alone, more tokens than the cache takes.
            UnsupportedError: tensors that ask for gradients, positions for a cache that keeps none.
        """
        self._check_update(keys, values, real_tokens, positions)
        if real_tokens is not None:
            counts = tuple(real_tokens.sum(1).tolist())
            if min(counts, default=0) == real_tokens.shape[1]:
                real_tokens = None
        if real_tokens is None:
            counts = (keys.shape[2],) * keys.shape[0]
        if positions is not None:
            positions = positions.expand(keys.shape[0], -1)
        before = self.lengths or (0,) * keys.shape[0]
        self._check_room(before, counts)
        like = (no_tokens_of(keys), no_tokens_of(values)) if self._like is None else self._like
        after = tuple(length + count for length, count in zip(before, counts, strict=True))
        view = self._take(keys.detach(), values.detach(), after, real_tokens, positions)
        self._like = like
        return view

    @abstractmethod
    def view(self) -> CacheView:
        """Return all that is held, as `update` does.

        Raises:
            ConfigError: there has been no update.
        """

    def check_crop(self, lengths: Lengths) -> tuple[int, ...]:
        """Return the length of each row after `crop`, which raises what this does.

        Raises:
            ConfigError: no whole number, one below 0, another number of rows, tokens that have been dropped already.
        """
        return read_lengths(lengths, self.lengths)

    @abstractmethod
    def crop(self, lengths: Lengths) -> None:
        """Forget all but the first tokens of each stream.

        Args:
            lengths: how many to keep, for all rows or (batch,) for each; a row that has fewer keeps all.

        Raises:
            ConfigError: as of `check_crop`.
        """

    def check_reorder(self, rows: Sequence[int] | Int[Tensor, " new_batch"]) -> list[int]:
        """Return the row that each is to be a copy of after `reorder`, which raises what this does.

        Raises:
            ConfigError: no list of whole numbers, or an empty one; a row that there is not.
        """
        return read_rows(rows, len(self.lengths))

    @abstractmethod
    def reorder(self, rows: Sequence[int] | Int[Tensor, " new_batch"]) -> None:
        """Make row `i` a copy of what row `rows[i]` was, as beam search does; there may be more or fewer than before.

        Raises:
            ConfigError: as of `check_reorder`.
        """

    def reset(self) -> None:
        """Forget everything; memory that is taken stays, for as many rows of the same kind."""
        self.crop(0)

    @abstractmethod
    def _take(
        self,
        keys: Tensor,
        values: Tensor,
        after: tuple[int, ...],
        real_tokens: Tensor | None,
        positions: Tensor | None,
    ) -> CacheView:
        """Store checked tokens; `after` are the lengths with them.

        The cache must go on as it was if this raises. So memory is taken before anything is written over.
        """

    @abstractmethod
    def _hold(self) -> Held:
        """Return all that is held."""

    @abstractmethod
    def _restore(self, held: Held, lengths: tuple[int, ...], dtype: torch.dtype) -> None:
        """Become a cache that holds this, and shows it in a dtype, in tensors and lists of its own."""

    @property
    def kind(self) -> str:
        """Name of the kind, of what is inside, too."""
        return type(self).__name__

    @property
    def settings(self) -> dict[str, int]:
        """What this cache was built with: a saved one can be loaded by its equals alone."""
        return {}

    @property
    def spelled(self) -> str:
        """The call that builds a cache like this one."""
        return f"{type(self).__name__}({', '.join(f'{name}={value}' for name, value in self.settings.items())})"

    @property
    def parts(self) -> tuple["KVCache", ...]:
        """The cache itself, and those inside it."""
        return (self,)

    @property
    def _dtype(self) -> torch.dtype:
        """Dtype of the keys and values that are shown."""
        assert self._like is not None
        return self._like[0].dtype

    def _held_lengths(self) -> tuple[int, ...]:
        """Return how many tokens each row holds."""
        return self.lengths

    def _check_room(self, before: tuple[int, ...], counts: tuple[int, ...]) -> None:  # noqa: B027  most take any
        """Raise ConfigError where the tokens cannot be taken in."""

    @property
    def _token_bytes(self) -> int:
        if self._like is None:
            return 0
        return sum(one.shape[1] * one.shape[3] * one.element_size() for one in self._like)

    def _starts(self, batch_size: int, device: torch.device | str | None) -> Int[Tensor, "batch 1"]:
        lengths = self.lengths or (0,) * batch_size
        return torch.tensor(lengths, device=device).unsqueeze(1)

    def _check_batch(self, batch_size: int) -> None:
        if self.lengths and batch_size != len(self.lengths):
            raise ConfigError(
                f"a cache of {len(self.lengths)} rows must be given as many; got {batch_size} (reorder changes their "
                "number, and a new cache takes any)"
            )

    def _is_of_inference_mode(self) -> bool:
        """Tell whether what is held was made under `torch.inference_mode` and is used outside of it."""
        assert self._like is not None
        return self._like[0].is_inference() and not torch.is_inference_mode_enabled()

    def _check_update(self, keys: Tensor, values: Tensor, real_tokens: Tensor | None, positions: Tensor | None) -> None:
        require_heads(keys, values)
        self._check_batch(keys.shape[0])
        if self._like is not None:
            if not torch.compiler.is_compiling() and self._is_of_inference_mode():
                raise ConfigError("a cache that was filled under torch.inference_mode() must be used under it, too")
            for name, new, old in (("keys", keys, self._like[0]), ("values", values, self._like[1])):
                require_alike(name, new, old)
        shape = (keys.shape[0], keys.shape[2])
        if real_tokens is not None:
            require_real_tokens(real_tokens, shape)
        if positions is not None:
            if not self.keeps_positions:
                raise UnsupportedError(
                    f"positions must be left out of a {type(self).__name__}, which keeps none; got some: use a "
                    "GrowingCache, or positions that are the indices"
                )
            require_positions(positions, shape)

    def _require_use(self) -> None:
        if not self.lengths:
            raise ConfigError("a cache must have had an update to be read; got an empty one")
