"""Attention by blocks on a tape: what `ops.blocked` keeps, and what its largest part takes while it is computed.

The parts are those of the very plan that `ops.blocked` follows. What each makes is played in the order of the code
there, on a tape of its own, whose peak is what the whole takes beside its results.
"""

from functools import lru_cache
from typing import NamedTuple

from headwise.cost.step.grid import Grid
from headwise.cost.step.tape import BYTES_OF_DTYPE, Storage, Tape, Value
from headwise.masks.form import simplest_form
from headwise.masks.patterns import Mask
from headwise.masks.rows import Sizes
from headwise.masks.visits import Parts, TileKey, Visit, plan_parts, tile_key

SUMS = "float32"
"""Dtype of the logsumexp, of tiles, and of the sums of gradients of keys and values."""


class BlockedCase(NamedTuple):
    """A call of `ops.blocked`, as far as its memory depends on it.

    `by_tokens`: whether queries, keys and values each lie in memory as (B, T, H, D), as the output's gradient does in
    any case.
    """

    mask: Mask
    sizes: Sizes
    head_dim: int
    v_head_dim: int
    dtype: str
    has_dropout: bool
    learns: bool
    by_tokens: tuple[bool, bool, bool]

    @property
    def is_fused(self) -> bool:
        """Whether torch's kernel computes the parts (`ops.blocked.fused.can_fuse`)."""
        return self.v_head_dim == self.head_dim and not self.has_dropout


def attend_by_blocks(query: Value, key: Value, value: Value, mask: Mask, *, dropout_p: float) -> Value:
    """Attention by blocks: keeps query, key, value, its output and one logsumexp per row.

    Args:
        query, key, value: (B, H, T, D), (B, K, S, D), (B, K, S, V).
        mask: the layer's.
        dropout_p: probability with which a weight is dropped.
    """
    tape = query.storage.tape
    batch, num_heads, query_len, head_dim = query.shape
    num_kv_heads, key_len, v_head_dim = value.shape[1:]
    case = BlockedCase(
        mask=mask,
        sizes=Sizes(batch, num_heads, num_kv_heads, query_len, key_len),
        head_dim=head_dim,
        v_head_dim=v_head_dim,
        dtype=query.dtype,
        has_dropout=dropout_p > 0,
        learns=tape.grad_enabled and any(one.node is not None for one in (query, key, value)),
        by_tokens=(_is_by_tokens(query), _is_by_tokens(key), _is_by_tokens(value)),
    )
    logsumexp = tape.new("attention logsumexp", (batch, num_heads, query_len))
    output = tape.apply(
        "attention output",
        (batch, num_heads, query_len, v_head_dim),
        fresh=(query, key, value),
        kept=(query.storage, key.storage, value.storage, logsumexp),
        keeps_result=True,
        layout="heads",
        gradient_layouts=("heads",) * 3,
        workspace_bytes=backward_bytes(case),
    )
    workspace = tape.new("workspace of attention by blocks", (forward_bytes(case),), "uint8")
    del workspace
    return output


def _is_by_tokens(x: Value) -> bool:
    return x.storage.layout == "tokens"


@lru_cache(64)
def forward_bytes(case: BlockedCase) -> int:
    """Return what the forward pass takes beside output and logsumexp."""
    play = _Play(case)
    for visits in play.plan.largest():
        play.forward(visits)
    return play.peak_bytes


@lru_cache(64)
def backward_bytes(case: BlockedCase) -> int:
    """Return what the backward pass takes beside the gradients of query, key and value."""
    play = _Play(case)
    sizes = case.sizes
    numbers = [sizes.batch * sizes.num_kv_heads * sizes.key_len * dim for dim in (case.head_dim, case.v_head_dim)]
    if case.dtype == SUMS:
        for visits in play.plan.largest():
            play.backward(visits)
        return play.peak_bytes
    sums = play.new(sum(numbers), SUMS)
    for visits in play.plan.largest():
        play.backward(visits)
    # Gradients in the dtype of keys and values are made at the end; the caller counts them all along.
    at_the_end = play.current_bytes
    del sums
    return max(at_the_end, play.peak_bytes - BYTES_OF_DTYPE[case.dtype] * sum(numbers))


class _Play:
    """A forward or a backward pass, part by part."""

    def __init__(self, case: BlockedCase):
        self.case, self.sizes = case, case.sizes
        self.group = case.sizes.num_heads // case.sizes.num_kv_heads
        shows = case.sizes.batch == 1 or not any(case.by_tokens[1:])
        self.plan: Parts = plan_parts(
            case.mask,
            case.sizes,
            is_fused=case.is_fused,
            has_bias=False,
            head_dim=case.head_dim,
            learns=case.learns,
            may_show=shows,
        )
        self._tape = Tape(grad_enabled=False)
        self._tape.begin("parts")
        self._known: dict[TileKey, Storage] = {}
        self._buffers: dict[str, Storage] = {}
        self._may_be_empty = simplest_form(case.mask, case.sizes.query_len, case.sizes.key_len).has_idle
        lie_apart = self.plan.gathers and case.sizes.num_kv_heads > 1
        dims = zip((case.head_dim, case.v_head_dim), case.by_tokens[1:], strict=True)
        per_number = case.sizes.batch * case.sizes.num_kv_heads * case.sizes.key_len
        self._laid_out = [self.new(per_number * dim, case.dtype) for dim, by_tokens in dims if lie_apart and by_tokens]

    @property
    def peak_bytes(self) -> int:
        """The most bytes that were alive so far."""
        return self._tape.stretches[-1].peak_bytes

    @property
    def current_bytes(self) -> int:
        """What is alive."""
        return self._tape.current_bytes

    def new(self, numbers: int, dtype: str) -> Storage:
        """Make a tensor."""
        return self._tape.new("", (numbers,), dtype)

    def forward(self, visits: tuple[Visit, ...]) -> None:
        """Compute a part."""
        case = self.case
        part = _Part(self, visits)
        taken = [*part.take_queries(case.head_dim), *part.take_keys()]
        tile, tile_rows = self._tile(part)
        if case.is_fused:
            made = [self.new(part.rows * case.v_head_dim, case.dtype), self.new(part.rows, SUMS)]
            if tile is not None and self._may_be_empty:
                made.append(self.new(tile_rows, "bool"))
                made += [self.new(part.rows * case.v_head_dim, case.dtype), self.new(part.rows, SUMS)]
        else:
            made = [self.new(part.rows * case.v_head_dim, SUMS), self.new(part.rows, SUMS)]
            kept = self._kept(part)
            self._make_buffers("scores")
            self._scores(part)
            self._weigh_kept(part)
            del kept
            if case.dtype != SUMS:
                made.append(self.new(part.rows * case.v_head_dim, case.dtype))
        del taken, tile, made

    def backward(self, visits: tuple[Visit, ...]) -> None:
        """Compute the gradients of a part."""
        case = self.case
        part = _Part(self, visits)
        taken = [*part.take_queries(case.head_dim), *part.take_keys()]
        taken += part.take_queries(case.v_head_dim, by_tokens=True)  # the gradient
        taken += part.take_queries(case.v_head_dim, by_tokens=False)  # the output
        tile, _ = self._tile(part)
        numbers = [part.rows * case.head_dim, part.keys * case.head_dim, part.keys * case.v_head_dim]
        if not case.is_fused:
            product = self.new(part.rows * case.v_head_dim, case.dtype)
            taken.append(self.new(part.rows, SUMS))
            del product
        taken += part.take_queries(1, by_tokens=False, dtype=SUMS)
        if case.is_fused:
            is_empty = self.new(part.rows, "bool")
            taken.append(self.new(part.rows, SUMS))
            del is_empty
            made = [self.new(count, case.dtype) for count in numbers]
            if part.is_bundle and case.dtype != SUMS:  # gradients of keys, then of values, as they are added up
                widened = self.new(max(numbers[1:]), SUMS)
                del widened
        else:
            made = [self.new(count, SUMS) for count in numbers]
            is_empty = self.new(part.rows, "bool")
            taken.append(self.new(part.rows, SUMS))
            del is_empty
            kept = self._kept(part)
            self._make_buffers("scores", "changes", *(["used"] if case.has_dropout else []))
            casts = self._cast_matrix(part)
            self._scores(part)
            self._weigh_kept(part)
            del casts, kept
            if case.dtype != SUMS:
                made.append(self.new(numbers[0], case.dtype))
        del taken, tile, made

    def _tile(self, part: "_Part") -> tuple[Storage | None, int]:
        """Make what hides the pairs of a part, and tell its number of rows."""
        if part.is_whole:
            return None, 0
        key = tile_key(part.visit)
        if key in self._known:
            return self._known[key], self.group * part.visit.num_queries
        places = part.places(self._tape)
        allowed = self.case.mask.allows(*places)
        assert isinstance(allowed, Grid), "a mask that allows all has no part with a tile"
        tile = self.new(allowed.size, SUMS)
        inverse = Grid(self._tape, allowed.shape, "bool")
        del inverse
        rows = allowed.size // part.visit.num_keys
        if self.group > 1 and allowed.shape[2] == 1:
            rows *= self.group
            tile = self.new(rows * part.visit.num_keys, SUMS)
        if key is not None and key in self.plan.shared_tiles:
            self._known[key] = tile
        return tile, rows

    def _kept(self, part: "_Part") -> list[Storage]:
        """Draw the numbers of the queries and keys of a part, of which dropout is made."""
        if not self.case.has_dropout:
            return []
        rows = self.new(part.rows, "int32")
        mixed = self.new(part.rows, "int32")
        del mixed
        return [rows, self.new(part.visit.num_keys * (part.num_visits if part.is_bundle else 1), "int32")]

    def _scores(self, part: "_Part") -> None:
        """Multiply the queries, scaled, and keys of one head into memory that all heads share."""
        case = self.case
        scaled = [self.new(self.group * part.visit.num_queries * case.head_dim, SUMS)]
        if case.dtype != SUMS:
            scaled.append(self.new(part.visit.num_keys * case.head_dim, SUMS))
        del scaled

    def _weigh_kept(self, part: "_Part") -> None:
        """Say of each pair of one head whether its weight is kept."""
        if self.case.has_dropout:
            state = self.new(part.matrix, "int32")
            shifted = self.new(part.matrix, "int32")
            del shifted
            kept = self.new(part.matrix, "bool")
            del state
            dropped = self.new(part.matrix, "bool")
            del kept, dropped

    def _cast_matrix(self, part: "_Part") -> list[Storage]:
        case = self.case
        if case.dtype == SUMS:
            return []
        rows, num_keys = self.group * part.visit.num_queries, part.visit.num_keys
        both = case.head_dim + case.v_head_dim
        return [self.new(rows * both, SUMS), self.new(num_keys * both, SUMS)]

    def _make_buffers(self, *names: str) -> None:
        for name in names:
            if name not in self._buffers:
                self._buffers[name] = self.new(self.group * self.plan.most_pairs, SUMS)


class _Part:
    """A bundle of visits, or a strip: its sizes, and which tensors are copied to take it."""

    def __init__(self, play: _Play, visits: tuple[Visit, ...]):
        self._play, sizes = play, play.sizes
        self.visit, self.num_visits = visits[0], len(visits)
        self.is_whole = all(visit.is_whole for visit in visits)
        self.is_strip = play.plan.are_strips and len(visits) > 1
        self.is_bundle = not self.is_strip and len(visits) > 1
        self.num_batch = sizes.batch if self.visit.batch is None else 1
        self.num_heads = sizes.num_kv_heads if self.visit.kv_head is None else 1
        heads = self.num_heads * self.num_batch if not self.is_bundle else self.num_batch
        units = heads * self.num_visits
        self.rows = units * play.group * self.visit.num_queries
        self.keys = units * self.visit.num_keys
        self.matrix = play.group * self.visit.num_queries * self.visit.num_keys
        per_visit = 1 + self.visit.num_queries + 2 * self.visit.num_keys
        self._indices = play.new(self.num_visits * per_visit, "int64") if self.is_bundle else None

    def take_queries(self, dim: int, *, by_tokens: bool | None = None, dtype: str | None = None) -> list[Storage]:
        """Copy queries, or what lies as they do, where a view cannot show them."""
        play = self._play
        by_tokens = play.case.by_tokens[0] if by_tokens is None else by_tokens
        is_apart = self.is_strip and by_tokens and play.sizes.batch > 1 and play.sizes.num_kv_heads > 1
        if self.is_bundle or is_apart or (play.group > 1 and self.visit.num_queries < play.sizes.query_len):
            return [play.new(self.rows * dim, dtype or play.case.dtype)]
        return []

    def take_keys(self) -> list[Storage]:
        """Copy keys and values where a view cannot show them."""
        case = self._play.case
        if self.is_bundle or len(self.visit.keys) > 1:
            return [self._play.new(self.keys * dim, case.dtype) for dim in (case.head_dim, case.v_head_dim)]
        return []

    def places(self, tape: Tape) -> tuple[Grid, Grid, Grid, Grid]:
        """Make the batch rows, heads, and indices of queries and keys."""
        num_visits = self.num_visits if self.is_bundle else 1
        heads = self.num_visits if self.is_bundle else self.num_heads
        batch = Grid(tape, (self.num_batch, 1, 1, 1, 1))
        head = Grid(tape, (1, heads, self._play.group, 1, 1))
        query = Grid(tape, (1, num_visits, 1, self.visit.num_queries, 1))
        key = Grid(tape, (1, num_visits, 1, 1, self.visit.num_keys))
        return batch, head, query, key
