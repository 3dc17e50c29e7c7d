"""Mask and its structural kinds: which keys a query may read, as a predicate on indices.

One expression serves Python ints, tensors and FlexAttention's `mask_mod`. Hence in every `allows`: a mask is negated
with `^ True` (`~True` is -2 in Python), and no comparison is chained (a chain asks a tensor for its truth). True = may
attend. Without explicit indices query `i` of `T` stands at index `S - T + i` of the `S` keys: the last query sees the
last key.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headwise.errors import ConfigError
from headwise.masks.distances import EVERY_DISTANCE, INFINITY, Distances, GlobalAndLocal

if TYPE_CHECKING:
    from torch import Tensor

    from headwise.masks.cover import Blocks, Cover
    from headwise.masks.layout import BlockLayout

SHORT_LEN = 12  # of a picture whose mask has no length of its own


class Mask:
    """Which keys a query may read; True = may attend.

    Masks combine with `&`, `|` and `~`. Structural masks are frozen, compare and hash by how they are written (`a & b`
    allows the same as `b & a` and differs from it), and may stand in a config; data masks hold tensors and compare by
    identity.
    """

    @property
    def is_structural(self) -> bool:
        """Whether the mask is a frozen value without tensors and may stand in a config; False unless a kind says so."""
        return False

    @property
    def batch_size(self) -> int | None:
        """Number of batch rows that the mask describes; None: it is the same for any."""
        return None

    @property
    def device(self) -> Any:
        """The torch.device of the tensors that the mask holds; None: it holds none."""
        return None

    @property
    def num_heads(self) -> int | None:
        """Number of query heads that the mask describes; None: it serves any number."""
        return None

    @property
    def typical_lens(self) -> tuple[int, int]:
        """Number of queries and keys at which a picture shows the pattern."""
        form = self.global_and_local()
        if form is None:
            return SHORT_LEN, SHORT_LEN
        ends = [abs(int(end)) for interval in form.distances.intervals for end in interval if abs(end) < INFINITY]
        length = max([SHORT_LEN, *(4 * end for end in (*ends, form.num_global))])
        return length, length

    def allows(self, batch: Any, head: Any, query_index: Any, key_index: Any) -> Any:
        """Say whether a query may read a key.

        Args:
            batch: row of the batch; an int or an integer tensor, as the other three, which broadcast together.
            head: query head.
            query_index: place of the query in its stream.
            key_index: place of the key in its stream.

        Returns:
            bool, or a bool tensor of the broadcast shape; a mask that does not look at an argument ignores its shape.
        """
        raise NotImplementedError

    def distances(self) -> Distances | None:
        """Return the distances `query_index - key_index` that are allowed; None if the mask looks at more than that."""
        return None

    def global_and_local(self) -> "GlobalAndLocal | None":
        """Return the mask as global tokens and distances elsewhere; None if it is not of this form."""
        distances = self.distances()
        return None if distances is None else GlobalAndLocal(0, distances)

    @property
    def look_back(self) -> int | None:
        """How many keys a query may look back on, itself included and at least; None where nothing bounds it."""
        distances = self.distances()
        if distances is None or not distances.intervals:
            return None
        farthest = distances.intervals[-1][1]  # one past the largest distance that is allowed
        return None if farthest == INFINITY else max(1, int(farthest))

    @property
    def looks_at_distance_alone(self) -> bool:
        """Whether `query_index - key_index` decides, whatever the set of allowed distances looks like."""
        return self.distances() is not None

    def cover(self, blocks: "Blocks") -> "Cover":
        """Return what the kind knows of blocks without a look at their pairs.

        What it leaves open is looked up pair by pair.
        """
        return blocks.by_distance(self) if self.looks_at_distance_alone else blocks.unknown()

    def count_pairs(self, query_len: int, key_len: int, *, batch_size: int = 1, num_heads: int = 1) -> int:
        """Count the allowed (query, key) pairs over the whole batch and all query heads.

        Args:
            query_len: number T of queries; they stand at the end of the keys.
            key_len: number S of keys.
            batch_size: number of batch rows.
            num_heads: number of query heads.

        Raises:
            ConfigError: a size is no whole number or negative, the mask was made for other batch rows or heads, or its
                tensors have no values to read (the meta device).
        """
        require_sizes(query_len, key_len, batch_size, num_heads)
        count = self._count_pairs(query_len, key_len)
        if count is not None:
            return batch_size * num_heads * count
        from headwise.masks.counting import count_allowed

        return count_allowed(self, batch_size, num_heads, query_len, key_len)

    def density(self, query_len: int, key_len: int, *, batch_size: int = 1, num_heads: int = 1) -> float:
        """Return the part of all (query, key) pairs that is allowed, from 0 to 1; 0 where there is no pair at all.

        Arguments and errors are those of `count_pairs`.
        """
        allowed = self.count_pairs(query_len, key_len, batch_size=batch_size, num_heads=num_heads)
        every = batch_size * num_heads * query_len * key_len
        return allowed / every if every else 0.0

    def empty_rows(self, query_len: int, key_len: int, *, batch_size: int = 1, num_heads: int = 1) -> "Tensor":
        """Return which queries may read no key.

        Arguments and errors are those of `count_pairs`.

        Returns:
            A bool tensor (b, h, T) on the mask's device; b and h are 1 where the mask does not look at them.
        """
        require_sizes(query_len, key_len, batch_size, num_heads)
        from headwise.masks.counting import find_empty_rows

        return find_empty_rows(self, batch_size, num_heads, query_len, key_len)

    def block_layout(
        self,
        block_size: int | tuple[int, int],
        query_len: int,
        key_len: int,
        *,
        batch_size: int = 1,
        num_heads: int = 1,
    ) -> "BlockLayout":
        """Return which blocks of pairs are allowed in part and which in whole, exactly.

        Blocks are cut from query row 0 and key 0; the last ones end with the queries and keys. No table of all pairs is
        made, whatever the mask.

        Args:
            block_size: number of queries and of keys to a block, at least 1; or the two apart.
            query_len, key_len, batch_size, num_heads: as of `count_pairs`.

        Raises:
            ConfigError: as of `count_pairs`, or another block size.
        """
        require_sizes(query_len, key_len, batch_size, num_heads)
        from headwise.masks.layout import find_layout

        return find_layout(self, block_size, batch_size, num_heads, query_len, key_len)

    def _count_pairs(self, query_len: int, key_len: int) -> int | None:
        """Count the pairs of one head of one row in closed form; None: there is none, or they differ."""
        form = self.global_and_local()
        return None if form is None else form.count_pairs(query_len, key_len)

    def draw(self, query_len: int, key_len: int, *, batch: int = 0, head: int = 0) -> str:
        """Draw the mask as text: a line a query, a sign a key, ■ = may attend; a long mask by blocks.

        Args:
            query_len: number of queries; they stand at the end of the keys.
            key_len: number of keys.
            batch: batch row that is drawn.
            head: head that is drawn.
        """
        from headwise.masks.picture import draw

        return draw(self, query_len, key_len, batch=batch, head=head)

    def __and__(self, other: "Mask") -> "Mask":
        require_mask(other)
        if isinstance(self, Full):
            return other
        if isinstance(other, Full):
            return self
        from headwise.masks.combined import And

        return And(self, other)

    def __or__(self, other: "Mask") -> "Mask":
        require_mask(other)
        from headwise.masks.combined import Or

        return Or(self, other)

    def __invert__(self) -> "Mask":
        from headwise.masks.combined import Not

        return Not(self)

    # A mask as operand of something else (`tensor & mask`) must fail with our words too.
    __rand__ = __and__
    __ror__ = __or__

    def __bool__(self) -> bool:
        raise ConfigError(f"a mask has no truth value; got {self!r} (combine masks with & | ~, not with and, or, not)")

    def _repr_html_(self) -> str:
        from headwise.masks.picture import figure_of

        return figure_of(self)


@dataclass(frozen=True)
class Full(Mask):
    """Every query sees every key."""

    is_structural = True

    def allows(self, batch: Any, head: Any, query_index: Any, key_index: Any) -> Any:
        """Return True."""
        return True

    def distances(self) -> Distances:
        """Return every distance."""
        return EVERY_DISTANCE


@dataclass(frozen=True)
class Causal(Mask):
    """Each query sees itself and all keys before it."""

    is_structural = True

    def allows(self, batch: Any, head: Any, query_index: Any, key_index: Any) -> Any:
        """Return whether the key stands at or before the query."""
        return key_index <= query_index

    def distances(self) -> Distances:
        """Return 0 and above."""
        return Distances(((0, INFINITY),))


@dataclass(frozen=True)
class SlidingWindow(Mask):
    """Each query sees itself and the `window_size - 1` keys just before it.

    Args:
        window_size: number of keys that a query sees, itself included; at least 1.

    Source: Beltagy et al. 2020, "Longformer", section 3.1 (two-sided there, causal here). flash-attn writes the same
    window as `(window_size - 1, 0)`.
    """

    is_structural = True

    window_size: int

    def __post_init__(self) -> None:
        require_whole_number("window_size counts the query itself, so it", self.window_size, minimum=1)

    def allows(self, batch: Any, head: Any, query_index: Any, key_index: Any) -> Any:
        """Return whether the key is the query's own or one of the `window_size - 1` before it."""
        return (key_index <= query_index) & (query_index - key_index < self.window_size)

    def distances(self) -> Distances:
        """Return 0 up to `window_size - 1`."""
        return Distances(((0, self.window_size),))


def require_mask(mask: object) -> None:
    """Raise ConfigError unless the object is a Mask."""
    if not isinstance(mask, Mask):
        kind = f"{getattr(mask, 'dtype', '')} {type(mask).__name__}".strip()
        raise ConfigError(
            "mask must be a headwise Mask, such as Causal(), SlidingWindow(window_size), KeyPadding(lengths) or their "
            f"combination with & | ~; got a {kind} (libraries disagree on whether True keeps or drops a pair: convert "
            "with mask_from_torch or mask_from_huggingface)"
        )


def require_sizes(query_len: int, key_len: int, batch_size: int, num_heads: int) -> None:
    """Raise ConfigError unless each is a whole number, 0 or more."""
    for name, value in (
        ("query_len", query_len),
        ("key_len", key_len),
        ("batch_size", batch_size),
        ("num_heads", num_heads),
    ):
        require_whole_number(name, value, minimum=0)


def require_batch_size(mask: Mask, batch_size: int) -> None:
    """Raise ConfigError if the mask describes another number of batch rows."""
    if mask.batch_size is not None and mask.batch_size != batch_size:
        raise ConfigError(
            f"a mask that holds one length a row must have as many rows as the batch; got {mask!r} "
            f"for a batch of {batch_size}"
        )


def require_num_heads(mask: Mask, num_heads: int) -> None:
    """Raise ConfigError if the mask describes another number of query heads."""
    if mask.num_heads is not None and mask.num_heads != num_heads:
        raise ConfigError(
            f"a mask that tells heads apart must have as many as there are query heads; got {mask!r} "
            f"with {mask.num_heads} heads for {num_heads}"
        )


def require_whole_number(name: str, value: object, *, minimum: int) -> None:
    """Raise ConfigError unless `value` is a whole number of at least `minimum`."""
    if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
        raise ConfigError(f"{name} must be a whole number, at least {minimum}; got {value!r}")
