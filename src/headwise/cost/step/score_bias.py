"""ScoreBias: a term of the scores that is a function of positions, ALiBi's or T5's, on a tape.

What `positions.bias` makes on the way to a term is played in the order of the code there.
"""

from dataclasses import dataclass
from typing import NamedTuple

from headwise.config.attention import AttentionConfig
from headwise.config.position import ALiBi, T5Bias
from headwise.cost.step.grid import Grid
from headwise.cost.step.tape import Shape, Tape, Value


class Places(NamedTuple):
    """The batch rows, heads, and indices of queries and keys of a call or of a part, of as many dimensions each."""

    batch: Grid
    head: Grid
    query: Grid
    key: Grid


@dataclass(frozen=True)
class ScoreBias:
    """What a layer adds to its scores.

    Args:
        position: which term it is.
        table: of T5's, (buckets, heads); None of ALiBi's, which learns nothing.
    """

    position: ALiBi | T5Bias
    table: Value | None

    @property
    def learns(self) -> bool:
        """Whether a gradient of the table is wanted."""
        return self.table is not None and self.table.node is not None

    def look_up(self, places: Places) -> Value:
        """Return the term of each pair in its smallest shape: float32, or the table's dtype."""
        if isinstance(self.position, ALiBi):
            return _value_of(_alibi(places))
        assert self.table is not None, "a T5 bias of our own layers owns its table"
        tape = self.table.storage.tape
        buckets = _t5_buckets(places.key - places.query, self.position)
        return tape.apply(
            "bias on the scores",
            _joined(buckets, places.head),
            fresh=(self.table,),
            kept=(buckets.storage, places.head.storage),
            layout="heads",
        )


def bias_of(config: AttentionConfig, table: Value | None) -> ScoreBias | None:
    """Return the term that a layer adds to its scores, or None."""
    return ScoreBias(config.position, table) if isinstance(config.position, ALiBi | T5Bias) else None


def places_of(tape: Tape, batch: int, num_heads: int, query_len: int, key_len: int) -> Places:
    """Make the places of all pairs of a call, of four dimensions."""
    return Places(
        Grid(tape, (batch, 1, 1, 1)),
        Grid(tape, (1, num_heads, 1, 1)),
        Grid(tape, (1, 1, query_len, 1)),
        Grid(tape, (1, 1, 1, key_len)),
    )


def _alibi(places: Places) -> Grid:
    distance = abs(places.query - places.key).made("float32")
    slopes = places.head.made("float32")
    return slopes.made("float32", distance)


def _t5_buckets(distance: Grid, position: T5Bias) -> Grid:
    first = distance.made("int64")
    if position.is_bidirectional:
        first = first + (distance > 0) * 1
        distance = abs(distance)
    else:
        distance = abs(-distance)
    ratio = abs(distance).made("float32").made("float32").made("float32").made("float32")
    far = abs(ratio.made("float32").made("int64") + 0)
    return first + (distance < 0).made("int64", distance, far)


def _value_of(grid: Grid) -> Value:
    return Value(grid.shape, grid.storage)


def _joined(some: Grid, other: Grid) -> Shape:
    return tuple(max(pair) for pair in zip(some.shape, other.shape, strict=True))
