"""Attention by blocks on a tape: what `ops.blocked` keeps, and what its largest part takes while it is computed.

The parts are those of the very plan that `ops.blocked` follows. What each makes is played in the order of the code
there, on a tape of its own, whose peak is what the whole takes beside its results.
"""

from functools import lru_cache

from headwise.config.attention import AttentionConfig
from headwise.cost.step.autocast import cast
from headwise.cost.step.blocked_part import SUMS, BlockedCase, BlockedPart
from headwise.cost.step.grid import Grid
from headwise.cost.step.score_bias import ScoreBias
from headwise.cost.step.tape import BYTES_OF_DTYPE, Node, Storage, Tape, Value
from headwise.masks.form import simplest_form
from headwise.masks.rows import Sizes
from headwise.masks.visits import Parts, TileKey, Visit, plan_parts, tile_key


def attend_by_blocks(
    query: Value,
    key: Value,
    value: Value,
    config: AttentionConfig,
    *,
    dropout_p: float,
    bias: ScoreBias | None,
    sink: Value | None,
) -> Value:
    """Attention by blocks: keeps query, key, value, its output, a logsumexp per row, and a second one with a sink.

    Args:
        query, key, value: (B, H, T, D), (B, K, S, D), (B, K, S, V).
        config: the layer's.
        dropout_p: probability with which a weight is dropped.
        bias: what is added to the scores, or None.
        sink: one more logit of each head, (H,), float32, or None.
    """
    tape = query.storage.tape
    batch, num_heads, query_len, head_dim = query.shape
    num_kv_heads, key_len, v_head_dim = value.shape[1:]
    table = None if bias is None else bias.table
    learned = [query, key, value, *(one for one in (sink, table) if one is not None)]
    case = BlockedCase(
        mask=config.mask,
        sizes=Sizes(batch, num_heads, num_kv_heads, query_len, key_len),
        head_dim=head_dim,
        v_head_dim=v_head_dim,
        dtype=query.dtype,
        has_dropout=dropout_p > 0,
        learns=tape.grad_enabled and any(one.node is not None for one in learned),
        by_tokens=(_is_by_tokens(query), _is_by_tokens(key), _is_by_tokens(value)),
        has_softcap=config.softcap is not None,
        has_sink=sink is not None,
        position=None if bias is None else bias.position,
        table_dtype=SUMS if table is None else table.dtype,
        learns_bias=bias is not None and bias.learns,
    )
    rows = (batch, num_heads, query_len)
    sums = [tape.new("attention logsumexp", rows)]
    if sink is not None:
        sums.append(tape.new("attention logsumexp with the sink", rows))
    output = tape.apply(
        "attention output",
        (*rows, v_head_dim),
        fresh=learned,
        kept=(*(one.storage for one in learned), *sums),
        keeps_result=True,
        layout="heads",
        gradient_layouts=("heads",) * len(learned),
        workspace_bytes=backward_bytes(case),
    )
    workspace = tape.new("workspace of attention by blocks", (forward_bytes(case),), "uint8")
    del workspace
    return output


def _is_by_tokens(x: Value) -> bool:
    return x.storage.layout == "tokens"


@lru_cache(64)
def forward_bytes(case: BlockedCase) -> int:
    """Return what the forward pass takes beside output and logsumexp, both of them with a sink."""
    play = _Play(case)
    for visits in play.plan.largest():
        play.forward(visits)
    # The second one is made at the end; the caller counts it all along.
    return max(0, play.peak_bytes - case.has_sink * play.bytes_of_sums)


@lru_cache(64)
def backward_bytes(case: BlockedCase) -> int:
    """Return what the backward pass takes beside the gradients of query, key and value."""
    play = _Play(case)
    sizes = case.sizes
    numbers = [sizes.batch * sizes.num_kv_heads * sizes.key_len * dim for dim in (case.head_dim, case.v_head_dim)]
    _of_sink = play.begin_backward()
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
        shows = case.sizes.batch == 1 or not any(case.by_tokens[1:])
        self.plan: Parts = plan_parts(
            case.mask,
            case.sizes,
            is_fused=case.is_fused,
            has_bias=case.position is not None,
            head_dim=case.head_dim,
            learns=case.learns,
            may_show=shows,
        )
        self._tape = Tape(grad_enabled=False)
        self._tape.begin("parts")
        self._bias = None if case.position is None else ScoreBias(case.position, self._table(None))
        self._known: dict[TileKey, Storage] = {}
        self._buffers: dict[str, Storage] = {}
        form = simplest_form(case.mask, case.sizes.query_len, case.sizes.key_len)
        self._may_be_empty = form.has_idle or case.position is not None
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
        part = BlockedPart(self._tape, case, self.plan, visits)
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

    @property
    def bytes_of_sums(self) -> int:
        """What one number for each row takes."""
        return BYTES_OF_DTYPE[SUMS] * self.sizes.batch * self.sizes.num_heads * self.sizes.query_len

    def begin_backward(self) -> list[Storage]:
        """Make what all parts of a backward pass read and write for the sake of a sink: its products, and its share."""
        num_tensors = self.case.has_sink * (1 if self.case.is_fused else 2)
        return [self.new(self.bytes_of_sums, "uint8") for _ in range(num_tensors)]

    def backward(self, visits: tuple[Visit, ...]) -> None:
        """Compute the gradients of a part."""
        case = self.case
        part = BlockedPart(self._tape, case, self.plan, visits)
        taken = [*part.take_queries(case.head_dim), *part.take_keys()]
        gradient = part.take_queries(case.v_head_dim, by_tokens=True)
        taken += part.take_queries(case.v_head_dim, by_tokens=False)  # the output
        tile, _ = self._tile(part)
        numbers = [part.rows * case.head_dim, part.keys * case.head_dim, part.keys * case.v_head_dim]
        if case.has_sink:
            _dots = self._dot(part)
            del _dots
        if not case.is_fused:
            taken.append(self._dot(part))
        if case.has_sink and not case.is_fused:
            shares = part.take_queries(1, by_tokens=False, dtype=SUMS)
            gradient = [self.new(part.rows * case.v_head_dim, SUMS)]
            taken[-1] = self.new(part.rows, SUMS)
            taken += shares
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
            made = self._multiply_back(part, numbers)
            if case.learns_bias:
                self._add_bias(part)
        del taken, tile, made, gradient

    def _multiply_back(self, part: BlockedPart, numbers: list[int]) -> list[Storage]:
        """Make the gradients of a part by products of matrices, and those of its scores where a bias learns."""
        case = self.case
        made = [self.new(count, SUMS) for count in numbers]
        if case.learns_bias:
            made.append(self.new(part.rows * part.visit.num_keys, SUMS))
        is_empty = self.new(part.rows, "bool")
        finite_sums = self.new(part.rows, SUMS)
        del is_empty
        kept = self._kept(part)
        uses = {"used": case.has_dropout, "slope": case.has_softcap}
        self._make_buffers("scores", "changes", *(name for name, is_used in uses.items() if is_used))
        casts = self._cast_matrix(part)
        self._scores(part)
        self._weigh_kept(part)
        del casts, kept, finite_sums
        if case.dtype != SUMS:
            made.append(self.new(numbers[0], case.dtype))
        return made

    def _dot(self, part: BlockedPart) -> Storage:
        """Multiply each row of the output with its gradient."""
        product = self.new(part.rows * self.case.v_head_dim, self.case.dtype)
        dots = self.new(part.rows, SUMS)
        del product
        return dots

    def _add_bias(self, part: BlockedPart) -> None:
        """Add the gradients of what a bias learns: it is looked up again, and what is kept for that is used."""
        case = self.case
        assert case.position is not None, "there is a bias that learns"
        node = Node("table", (), "")
        values = ScoreBias(case.position, self._table(node)).look_up(part.places())
        of_values = [values.storage]
        if case.sizes.batch > 1:
            of_values.append(self._tape.new("", values.shape, SUMS))
        if values.dtype != SUMS:
            of_values.append(self._tape.new("", values.shape, values.dtype))

    def _table(self, node: Node | None) -> Value:
        """Stand for the table of a bias, which is counted elsewhere."""
        return Value((), self.new(0, self.case.table_dtype), node)

    def _tile(self, part: BlockedPart) -> tuple[Storage | None, int]:
        """Make what is added to the scores of a part, and tell its number of rows."""
        if part.is_whole and self._bias is None:
            return None, 0
        key = tile_key(part.visit)
        if key in self._known:
            return self._known[key], self.case.group * part.visit.num_queries
        if self._bias is not None:
            return self._bias_tile(part, self._bias)
        allowed = self.case.mask.allows(*part.places())
        assert isinstance(allowed, Grid), "a mask that allows all has no part with a tile"
        tile = self.new(allowed.size, SUMS)
        inverse = Grid(self._tape, allowed.shape, "bool")
        del inverse
        rows = allowed.size // part.visit.num_keys
        if self.case.group > 1 and allowed.shape[2] == 1:
            rows *= self.case.group
            tile = self.new(rows * part.visit.num_keys, SUMS)
        if key is not None and key in self.plan.shared_tiles:
            self._known[key] = tile
        return tile, rows

    def _bias_tile(self, part: BlockedPart, bias: ScoreBias) -> tuple[Storage, int]:
        """Make the bias of a part, and -inf where the mask forbids; heads differ, so that no group has it in common."""
        places = part.places()
        allowed = None if part.is_whole else self.case.mask.allows(*places)
        tile = cast(bias.look_up(places), SUMS)
        if isinstance(allowed, Grid):
            tile = Value(tile.shape, self._tape.new("", tile.shape, SUMS))
        return tile.storage, tile.shape[1] * tile.shape[2] * tile.shape[3]

    def _kept(self, part: BlockedPart) -> list[Storage]:
        """Draw the numbers of the queries and keys of a part, of which dropout is made."""
        if not self.case.has_dropout:
            return []
        rows = self.new(part.rows, "int32")
        mixed = self.new(part.rows, "int32")
        del mixed
        return [rows, self.new(part.visit.num_keys * (part.num_visits if part.is_bundle else 1), "int32")]

    def _scores(self, part: BlockedPart) -> None:
        """Multiply the queries, scaled, and keys of one head into memory that all heads share."""
        case = self.case
        scaled = [self.new(case.group * part.visit.num_queries * case.head_dim, SUMS)]
        if case.dtype != SUMS:
            scaled.append(self.new(part.visit.num_keys * case.head_dim, SUMS))
        del scaled

    def _weigh_kept(self, part: BlockedPart) -> None:
        """Say of each pair of one head whether its weight is kept."""
        if self.case.has_dropout:
            state = self.new(part.matrix, "int32")
            shifted = self.new(part.matrix, "int32")
            del shifted
            kept = self.new(part.matrix, "bool")
            del state
            dropped = self.new(part.matrix, "bool")
            del kept, dropped

    def _cast_matrix(self, part: BlockedPart) -> list[Storage]:
        case = self.case
        if case.dtype == SUMS:
            return []
        rows, num_keys = case.group * part.visit.num_queries, part.visit.num_keys
        both = case.head_dim + case.v_head_dim
        return [self.new(rows * both, SUMS), self.new(num_keys * both, SUMS)]

    def _make_buffers(self, *names: str) -> None:
        for name in names:
            if name not in self._buffers:
                self._buffers[name] = self.new(self.case.group * self.plan.most_pairs, SUMS)
