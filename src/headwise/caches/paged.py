"""PagedCache: keys and values in blocks of a pool, which rows share until one of them writes."""

from collections import Counter
from collections.abc import Sequence
from itertools import chain
from typing import NamedTuple

import torch
from jaxtyping import Bool, Int, Shaped
from torch import Tensor

from headwise.caches.base import CacheView, Held, KVCache, Lengths, no_tokens_of
from headwise.caches.rows import are_equal, index_of_slots, longer, longest_of
from headwise.config.checks import require_size
from headwise.errors import ConfigError

GROWTH = 1 / 32  # blocks that a full pool without a bound gets, beyond those it needs: each call copies all, anyway
MIN_BLOCKS = 8
NO_GRAPH = "a PagedCache cannot be part of a graph; compile without fullgraph=True, or use a GrowingCache"


class _Plan(NamedTuple):
    """What the lists of blocks are to be, and which blocks are to be copied before, from where to where."""

    tables: list[list[int]]
    num_users: list[int]
    free: list[int]
    copies: list[tuple[int, int]]


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

    @property
    def spelled(self) -> str:
        """The call that builds a cache like this one."""
        return f"{type(self).__name__}(block_size={self.block_size}, num_blocks={self.num_blocks})"

    def view(self) -> CacheView:
        """Return all that is held, gathered into new tensors."""
        self._require_use()
        return self._gather(self._slots(self.seq_len), self._new_view(self.lengths))

    def update(
        self,
        keys: Shaped[Tensor, "batch num_kv_heads num_tokens head_dim"],
        values: Shaped[Tensor, "batch num_kv_heads num_tokens v_head_dim"],
        *,
        real_tokens: Bool[Tensor, "batch num_tokens"] | None = None,
        positions: Int[Tensor, "... num_tokens"] | None = None,
    ) -> CacheView:
        """Take in the keys and values of the next tokens, and return what their queries attend to.

        Between the graphs of a compiled model: which blocks there are is known to Python alone.
        """
        take = super().update
        if torch.compiler.is_compiling():
            torch._dynamo.graph_break(msg=NO_GRAPH)
            take = torch._dynamo.disable(take)  # type: ignore[no-untyped-call]
        return take(keys, values, real_tokens=real_tokens, positions=positions)

    def crop(self, lengths: Lengths) -> None:
        """Forget all but the first tokens of each stream; blocks that no row needs any more are free."""
        self._lengths = self.check_crop(lengths)
        for table, length in zip(self._tables, self._lengths, strict=True):
            while len(table) > self._blocks_of(length):
                self._let_go(table.pop())

    def reorder(self, rows: Sequence[int] | Int[Tensor, " new_batch"]) -> None:
        """Make row `i` a copy of what row `rows[i]` was, which shares its blocks."""
        chosen = self.check_reorder(rows)
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
        before = self.lengths or (0,) * batch
        if not self.lengths:
            self._keys = self._values = None
            self._tables, self._num_users, self._free = [[] for _ in after], [], []
        self._grow(self.num_used_blocks + self._num_missing(before, after), keys, values)
        plan = self._plan(before, after)
        slots, view = self._slots(longest_of(after), plan.tables), self._new_view(after)
        for source, target in plan.copies:
            self._copy_block(source, target)
        self._write(keys, values, index, slots)
        self._tables, self._num_users, self._free, self._lengths = plan.tables, plan.num_users, plan.free, after
        return self._gather(slots, view)

    def _write(self, keys: Tensor, values: Tensor, index: Tensor, slots: Int[Tensor, "batch longest"]) -> None:
        """Write each token into the slot of its index."""
        assert self._keys is not None and self._values is not None
        rows, places = (index >= 0).nonzero(as_tuple=True)
        where = slots[rows, index[rows, places]]
        new_keys, new_values = (tokens[rows, :, places].transpose(0, 1) for tokens in (keys, values))
        self._keys[:, where], self._values[:, where] = new_keys, new_values

    def _check_room(self, before: tuple[int, ...], counts: tuple[int, ...]) -> None:
        if self.num_blocks is None:
            return
        needed = self._num_missing(before, tuple(old + new for old, new in zip(before, counts, strict=True)))
        available = self.num_blocks - self.num_used_blocks
        if needed > available:
            raise ConfigError(
                f"num_blocks must be at least {self.num_blocks - available + needed} to take these tokens; got "
                f"{self.num_blocks}, of which {available} are free"
            )

    def _num_missing(self, before: tuple[int, ...], after: tuple[int, ...]) -> int:
        """Return how many free blocks are needed."""
        rows = list(zip(self._tables or [[] for _ in before], before, after, strict=True))
        needed = sum(self._blocks_of(new) - len(table) for table, _, new in rows)
        writers = Counter(table[-1] for table, old, new in rows if self._must_copy(table, old, new, self._num_users))
        # The last of those who share a block may keep it.
        return needed + sum(count - (count == self._num_users[block]) for block, count in writers.items())

    def _must_copy(self, table: list[int], old: int, new: int, num_users: list[int]) -> bool:
        """Tell whether a row is to write into a block that others read."""
        return new > old and old % self.block_size > 0 and num_users[table[-1]] > 1

    def _plan(self, before: tuple[int, ...], after: tuple[int, ...]) -> "_Plan":
        """Give each row the blocks that it needs, and a last one of its own to write into, in new lists."""
        tables, num_users, free = [list(table) for table in self._tables], list(self._num_users), list(self._free)
        copies = []
        for table, old, new in zip(tables, before, after, strict=True):
            if self._must_copy(table, old, new, num_users):
                shared = table.pop()
                num_users[shared] -= 1
                copies.append((shared, free[-1]))
            for _ in range(self._blocks_of(new) - len(table)):
                table.append(free.pop())
                num_users[table[-1]] = 1
        return _Plan(tables, num_users, free, copies)

    def _take_block(self) -> int:
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

    def _grow(self, needed: int, keys: Tensor, values: Tensor) -> None:
        """See to it that there is a pool for heads like these, of so many blocks and a little more."""
        held = len(self._num_users)
        if self._keys is not None and needed <= held:
            return
        num_blocks = self.num_blocks or max(needed + int(held * GROWTH), MIN_BLOCKS)
        num_slots = num_blocks * self.block_size
        if self._keys is None or self._values is None:
            self._keys, self._values = (one.new_empty(one.shape[1], num_slots, one.shape[3]) for one in (keys, values))
        else:  # one after the other, so that of one alone there are two for a while
            self._keys = longer(self._keys, num_slots)
            self._values = longer(self._values, num_slots)
        self._num_users += [0] * (num_blocks - held)
        self._free += range(num_blocks - 1, held - 1, -1)  # the first is taken first

    def _blocks_of(self, length: int) -> int:
        return -(-length // self.block_size)

    def _slots(self, longest: int, tables: list[list[int]] | None = None) -> Int[Tensor, "batch longest"]:
        """Return where in the pool each token of each row is; for what a shorter row has not, a slot of block 0."""
        tables = self._tables if tables is None else tables
        width = self._blocks_of(longest)
        assert self._keys is not None
        table = torch.tensor(
            [row[:width] + [0] * (width - len(row)) for row in tables], dtype=torch.long, device=self._keys.device
        ).view(len(tables), width, 1)
        places = torch.arange(self.block_size, device=table.device)
        return (table * self.block_size + places).flatten(1)[:, :longest]

    def _new_view(self, lengths: tuple[int, ...]) -> CacheView:
        """Return tensors for the view of rows of these lengths, to be filled by `_gather`."""
        assert self._keys is not None and self._values is not None
        longest = longest_of(lengths)
        keys, values = (
            pool.new_empty(pool.shape[0], len(lengths), longest, pool.shape[2]).transpose(0, 1)
            for pool in (self._keys, self._values)
        )
        return CacheView(
            keys, values, None if are_equal(lengths) else index_of_slots(lengths, longest, self._keys.device)
        )

    def _gather(self, slots: Int[Tensor, "batch longest"], view: CacheView) -> CacheView:
        """Fill a view with what is in these slots."""
        assert self._keys is not None and self._values is not None
        for pool, target in ((self._keys, view.keys), (self._values, view.values)):
            torch.index_select(pool, 1, slots.flatten(), out=target.transpose(0, 1).flatten(1, 2))
        return view

    def _hold(self) -> Held:
        view = self.view()
        index = index_of_slots(self.lengths, self.seq_len, view.keys.device)
        is_empty = (index < 0)[:, None, :, None]
        numbers = {block: number for number, block in enumerate(dict.fromkeys(chain(*self._tables)))}
        width = self._blocks_of(self.seq_len)
        blocks = [[numbers[block] for block in table] + [-1] * (width - len(table)) for table in self._tables]
        return Held(
            view.keys.masked_fill(is_empty, 0),
            view.values.masked_fill(is_empty, 0),
            index,
            None,
            torch.tensor(blocks, dtype=torch.long, device=index.device).view(len(blocks), width),
        )

    def _restore(self, held: Held, lengths: tuple[int, ...], dtype: torch.dtype) -> None:
        if held.blocks is None:
            raise ConfigError("blocks must be told, to be shared as they were; got none")
        tables = [[number for number in table if number >= 0] for table in held.blocks.tolist()]
        if [len(table) for table in tables] != [self._blocks_of(length) for length in lengths]:
            raise ConfigError("blocks must be as many as the tokens of each row fill; got others")
        users = Counter(chain(*tables))
        if self.num_blocks is not None and len(users) > self.num_blocks:
            raise ConfigError(f"num_blocks must be at least {len(users)} to take these tokens; got {self.num_blocks}")
        fresh = PagedCache(self.block_size, num_blocks=self.num_blocks)
        fresh._like = no_tokens_of(held.keys), no_tokens_of(held.values)
        fresh._grow(len(users), held.keys, held.values)
        block_of = {number: fresh._take_block() for number in users}
        for number, block in block_of.items():
            fresh._num_users[block] = users[number]
        fresh._tables = [[block_of[number] for number in table] for table in tables]
        fresh._write(held.keys, held.values, held.key_index, fresh._slots(longest_of(lengths)))
        fresh._lengths = lengths
        self.__dict__.update(fresh.__dict__)
