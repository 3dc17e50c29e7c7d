"""PagedCache: keys and values in blocks of a pool, which rows share until one of them writes."""

from collections import Counter
from collections.abc import Sequence

import torch
from jaxtyping import Int
from torch import Tensor

from headwise.caches.base import CacheView, Held, KVCache, Lengths
from headwise.caches.rows import index_of_slots, longest_of
from headwise.config.checks import require_size
from headwise.errors import ConfigError

GROWTH = 1 / 32  # blocks that a full pool without a bound gets, beyond those it needs: each call copies all, anyway
MIN_BLOCKS = 8


class PagedCache(KVCache):
    """Each row has a table of blocks; token i is in place `i % block_size` of the row's block `i // block_size`.

    Rows that `reorder` makes of one row share its blocks, and a block that is shared is copied for the row that writes
    to it. Prompts with one beginning so keep it once: give the cache a batch of one with it, `reorder([0] * batch)`,
    then each row's own tokens. What a call attends to is gathered from the blocks into new tensors.

    Args:
        block_size: tokens in a block.
        num_blocks: blocks in the pool. Default: as many as are needed.

    Raises:
        ConfigError: sizes that are no whole numbers above 0; (from `update`) the pool has too few blocks.

    Source: Kwon et al. 2023, "Efficient Memory Management for Large Language Model Serving with PagedAttention",
    section 4.
    """

    def __init__(self, block_size: int = 16, *, num_blocks: int | None = None):
        require_size("block_size", block_size)
        if num_blocks is not None:
            require_size("num_blocks", num_blocks)
        super().__init__()
        self.block_size, self.num_blocks = block_size, num_blocks
        self._tables: list[list[int]] = []
        self._num_users: list[int] = []  # rows that have each block in their table
        self._free: list[int] = []
        self._keys: Tensor | None = None  # (num_kv_heads, blocks * block_size, head_dim)
        self._values: Tensor | None = None

    @property
    def settings(self) -> dict[str, int]:
        """The size of a block and of the pool; 0 stands for a pool without a bound."""
        return {"block_size": self.block_size, "num_blocks": self.num_blocks or 0}

    @property
    def num_used_blocks(self) -> int:
        """Number of blocks that some row has in its table."""
        return len(self._num_users) - len(self._free)

    @property
    def num_bytes(self) -> int:
        """Bytes of the keys and values in used blocks, each counted once, whole."""
        return self.num_used_blocks * self.block_size * self._token_bytes

    @property
    def allocated_bytes(self) -> int:
        """Bytes of the pool."""
        return len(self._num_users) * self.block_size * self._token_bytes

    def view(self) -> CacheView:
        """Return all that is held, gathered into new tensors."""
        self._require_use()
        assert self._keys is not None and self._values is not None
        longest, device = self.seq_len, self._keys.device
        slots = self._slots(longest)
        keys, values = (pool[:, slots].transpose(0, 1) for pool in (self._keys, self._values))
        return CacheView(keys, values, None if self.is_even else index_of_slots(self.lengths, longest, device))

    def crop(self, lengths: Lengths) -> None:
        """Forget all but the first tokens of each stream; blocks that no row needs any more are free."""
        self._lengths = self.check_crop(lengths)
        for table, length in zip(self._tables, self._lengths, strict=True):
            while len(table) > self._blocks_of(length):
                self._let_go(table.pop())

    def reorder(self, rows: Sequence[int] | Int[Tensor, " new_batch"]) -> None:
        """Make row `i` a copy of what row `rows[i]` was, which shares its blocks."""
        chosen = self._read_rows(rows)
        tables = [list(self._tables[row]) for row in chosen]
        for block in (block for table in tables for block in table):
            self._num_users[block] += 1
        for block in (block for table in self._tables for block in table):
            self._let_go(block)
        self._tables = tables
        self._lengths = tuple(self.lengths[row] for row in chosen)

    def _take(
        self,
        keys: Tensor,
        values: Tensor,
        after: tuple[int, ...],
        real_tokens: Tensor | None,
        positions: Tensor | None,
    ) -> CacheView:
        batch, _, num_tokens, _ = keys.shape
        index = self.next_index(batch, num_tokens, real_tokens=real_tokens, device=keys.device).expand(batch, -1)
        self._make_writable(after)
        assert self._keys is not None and self._values is not None
        table = self._table_tensor(longest_of(after))
        rows, places = (index >= 0).nonzero(as_tuple=True)
        at = index[rows, places]
        slots = table[rows, at // self.block_size] * self.block_size + at % self.block_size
        for pool, tokens in ((self._keys, keys), (self._values, values)):
            pool[:, slots] = tokens[rows, :, places].transpose(0, 1)
        self._lengths = after
        return self.view()

    def _check_room(self, before: tuple[int, ...], counts: tuple[int, ...]) -> None:
        if self.num_blocks is None:
            return
        after = tuple(old + new for old, new in zip(before, counts, strict=True))
        tables = self._tables or [[] for _ in before]
        needed = sum(self._blocks_of(new) - len(table) for table, new in zip(tables, after, strict=True))
        writers = Counter(
            table[-1] for table, old, new in zip(tables, before, after, strict=True) if self._must_copy(table, old, new)
        )
        # The last of those who share a block may keep it.
        needed += sum(count - (count == self._num_users[block]) for block, count in writers.items())
        available = self.num_blocks - self.num_used_blocks
        if needed > available:
            raise ConfigError(
                f"num_blocks must be at least {self.num_blocks - available + needed} to take these tokens; got "
                f"{self.num_blocks}, of which {available} are free"
            )

    def _must_copy(self, table: list[int], old: int, new: int) -> bool:
        """Tell whether a row is to write into a block that others read."""
        return new > old and old % self.block_size > 0 and self._num_users[table[-1]] > 1

    def _make_writable(self, after: tuple[int, ...]) -> None:
        """Give each row the blocks that it needs, and a last one of its own to write into."""
        if not self._tables:
            self._tables = [[] for _ in after]
        before = self.lengths or (0,) * len(after)
        for table, old, new in zip(self._tables, before, after, strict=True):
            if self._must_copy(table, old, new):
                shared = table.pop()
                table.append(self._take_block())
                self._copy_block(shared, table[-1])
                self._let_go(shared)
            while len(table) < self._blocks_of(new):
                table.append(self._take_block())
        self._grow()  # a pool there must be, also for no tokens

    def _take_block(self) -> int:
        if not self._free:
            self._grow(len(self._num_users) + 1)
        block = self._free.pop()
        self._num_users[block] = 1
        return block

    def _let_go(self, block: int) -> None:
        self._num_users[block] -= 1
        if not self._num_users[block]:
            self._free.append(block)

    def _copy_block(self, source: int, target: int) -> None:
        for pool in (self._keys, self._values):
            assert pool is not None
            blocks = pool.view(pool.shape[0], -1, self.block_size, pool.shape[2])
            blocks[:, target] = blocks[:, source]

    def _grow(self, needed: int = 0) -> None:
        """See to it that the pool has so many blocks, and a little more."""
        assert self._like is not None
        held = len(self._num_users)
        if self._keys is not None and needed <= held:
            return
        num_blocks = self.num_blocks or max(needed + int(held * GROWTH), MIN_BLOCKS)
        for name, like in zip(("_keys", "_values"), self._like, strict=True):
            old = getattr(self, name)
            new = like.new_empty(like.shape[1], num_blocks * self.block_size, like.shape[3])
            if old is not None:
                new[:, : old.shape[1]] = old
            setattr(self, name, new)
        self._num_users += [0] * (num_blocks - held)
        self._free += range(num_blocks - 1, held - 1, -1)  # the first is taken first

    def _blocks_of(self, length: int) -> int:
        return -(-length // self.block_size)

    def _table_tensor(self, longest: int) -> Int[Tensor, "batch num_blocks"]:
        """Return the tables, filled up with block 0, which a row that is shorter does not read."""
        width = self._blocks_of(longest)
        assert self._keys is not None
        return torch.tensor(
            [table[:width] + [0] * (width - len(table)) for table in self._tables],
            dtype=torch.long,
            device=self._keys.device,
        ).view(len(self._tables), width)

    def _slots(self, longest: int) -> Int[Tensor, "batch longest"]:
        """Return where in the pool each token of each row is."""
        table = self._table_tensor(longest)
        places = torch.arange(self.block_size, device=table.device)
        return (table.unsqueeze(-1) * self.block_size + places).flatten(1)[:, :longest]

    def _hold(self) -> Held:
        view = self.view()
        index = index_of_slots(self.lengths, self.seq_len, view.keys.device)
        is_empty = (index < 0)[:, None, :, None]
        return Held(view.keys.masked_fill(is_empty, 0), view.values.masked_fill(is_empty, 0), index, None)

    def _restore(self, held: Held, lengths: tuple[int, ...], dtype: torch.dtype) -> None:
        fresh = PagedCache(self.block_size, num_blocks=self.num_blocks)
        fresh.update(held.keys, held.values, real_tokens=held.key_index >= 0)
        self.__dict__.update(fresh.__dict__)
