"""BlockedPart: what of a call of attention by blocks is computed at a time, on a tape: its sizes, and its copies."""

from typing import NamedTuple

from headwise.config.position import ALiBi, T5Bias
from headwise.cost.step.grid import Grid
from headwise.cost.step.score_bias import Places
from headwise.cost.step.tape import Storage, Tape
from headwise.masks.patterns import Mask
from headwise.masks.rows import Sizes
from headwise.masks.visits import Parts, Visit

SUMS = "float32"
"""Dtype of the logsumexp, of tiles, and of the sums of gradients of keys and values."""


class BlockedCase(NamedTuple):
    """A call of `ops.blocked`, as far as its memory depends on it.

    `by_tokens`: whether queries, keys and values each lie in memory as (B, T, H, D), as the output's gradient does in
    any case. `position`: what adds to the scores by distance, from a table of `table_dtype` where it is T5's.
    """

    mask: Mask
    sizes: Sizes
    head_dim: int
    v_head_dim: int
    dtype: str
    has_dropout: bool
    learns: bool
    by_tokens: tuple[bool, bool, bool]
    has_softcap: bool = False
    has_sink: bool = False
    position: ALiBi | T5Bias | None = None
    table_dtype: str = SUMS
    learns_bias: bool = False

    @property
    def is_fused(self) -> bool:
        """Whether torch's kernel computes the parts (`ops.blocked.fused.can_fuse`)."""
        is_square = self.v_head_dim == self.head_dim
        return is_square and not (self.has_dropout or self.has_softcap or self.learns_bias)

    @property
    def group(self) -> int:
        """Number of query heads that read one key/value head."""
        return self.sizes.num_heads // self.sizes.num_kv_heads


class BlockedPart:
    """A bundle of visits, or a strip: its sizes, and which tensors are copied to take it.

    Args:
        tape: where it is computed.
        case: the call.
        plan: the parts of the call.
        visits: those of this part.
    """

    def __init__(self, tape: Tape, case: BlockedCase, plan: Parts, visits: tuple[Visit, ...]):
        self._tape, self._case, sizes = tape, case, case.sizes
        self.visit, self.num_visits = visits[0], len(visits)
        self.is_whole = all(visit.is_whole for visit in visits)
        self.is_strip = plan.are_strips and len(visits) > 1
        self.is_bundle = not self.is_strip and len(visits) > 1
        self.num_batch = sizes.batch if self.visit.batch is None else 1
        self.num_heads = sizes.num_kv_heads if self.visit.kv_head is None else 1
        heads = self.num_heads * self.num_batch if not self.is_bundle else self.num_batch
        units = heads * self.num_visits
        self.rows = units * case.group * self.visit.num_queries
        self.keys = units * self.visit.num_keys
        self.matrix = case.group * self.visit.num_queries * self.visit.num_keys
        per_visit = 1 + self.visit.num_queries + 2 * self.visit.num_keys
        self._indices = self._new(self.num_visits * per_visit, "int64") if self.is_bundle else None

    def take_queries(self, dim: int, *, by_tokens: bool | None = None, dtype: str | None = None) -> list[Storage]:
        """Copy queries, or what lies as they do, where a view cannot show them."""
        case, sizes = self._case, self._case.sizes
        by_tokens = case.by_tokens[0] if by_tokens is None else by_tokens
        is_apart = self.is_strip and by_tokens and sizes.batch > 1 and sizes.num_kv_heads > 1
        if self.is_bundle or is_apart or (case.group > 1 and self.visit.num_queries < sizes.query_len):
            return [self._new(self.rows * dim, dtype or case.dtype)]
        return []

    def take_keys(self) -> list[Storage]:
        """Copy keys and values where a view cannot show them."""
        case = self._case
        if self.is_bundle or len(self.visit.keys) > 1:
            return [self._new(self.keys * dim, case.dtype) for dim in (case.head_dim, case.v_head_dim)]
        return []

    def places(self) -> Places:
        """Make the batch rows, heads, and indices of queries and keys."""
        tape = self._tape
        num_visits = self.num_visits if self.is_bundle else 1
        heads = self.num_visits if self.is_bundle else self.num_heads
        batch = Grid(tape, (self.num_batch, 1, 1, 1, 1))
        head = Grid(tape, (1, heads, self._case.group, 1, 1))
        query = Grid(tape, (1, num_visits, 1, self.visit.num_queries, 1))
        key = Grid(tape, (1, num_visits, 1, 1, self.visit.num_keys))
        return Places(batch, head, query, key)

    def _new(self, numbers: int, dtype: str) -> Storage:
        return self._tape.new("", (numbers,), dtype)
