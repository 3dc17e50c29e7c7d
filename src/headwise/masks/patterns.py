"""Mask and its structural kinds: which keys a query may read, as a predicate on indices.

One expression serves Python ints, tensors and FlexAttention's `mask_mod`. Hence in every `allows`: a mask is negated
with `^ True` (`~True` is -2 in Python), and no comparison is chained (a chain asks a tensor for its truth). True = may
attend. Without explicit indices query `i` of `T` stands at index `S - T + i` of the `S` keys: the last query sees the
last key.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from headwise.errors import ConfigError
from headwise.masks.distances import EVERY_DISTANCE, INFINITY, Distances


class GlobalAndLocal(NamedTuple):
    """A mask whose first `num_global` tokens see all and are seen by all, and that elsewhere allows some distances."""

    num_global: int
    distances: Distances

    def count_pairs(self, query_len: int, key_len: int) -> int:
        """Count the allowed pairs, the queries standing at the end of the keys."""
        rest = max(key_len - self.num_global, 0)  # keys that are not global

        def count_last(num_queries: int) -> int:
            """Count the pairs of so many last queries with keys that are not global, by their distances."""
            return self.distances.count_pairs(num_queries, rest)

        inside, behind = min(query_len, key_len), min(query_len, rest)  # queries of the stream, and behind the tokens
        num_global = inside - behind
        by_distance = count_last(query_len) - count_last(inside) + count_last(behind)
        return num_global * key_len + (query_len - num_global) * (key_len - rest) + by_distance


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

    def count_pairs(self, query_len: int, key_len: int, *, batch_size: int = 1, num_heads: int = 1) -> int:
        """Count the allowed (query, key) pairs over the whole batch and all query heads.

        Args:
            query_len: number T of queries; they stand at the end of the keys.
            key_len: number S of keys.
            batch_size: number of batch rows.
            num_heads: number of query heads.

        Raises:
            ConfigError: a size is no whole number or negative, the mask was made for another batch size, or its tensors
                have no values to read (the meta device).
        """
        for name, value in (
            ("query_len", query_len),
            ("key_len", key_len),
            ("batch_size", batch_size),
            ("num_heads", num_heads),
        ):
            require_whole_number(name, value, minimum=0)
        count = self._count_pairs(query_len, key_len)
        if count is not None:
            return batch_size * num_heads * count
        from headwise.masks.dense import count_allowed

        return count_allowed(self, batch_size, num_heads, query_len, key_len)

    def _count_pairs(self, query_len: int, key_len: int) -> int | None:
        """Count the pairs of one head of one row in closed form; None: there is none, or they differ."""
        form = self.global_and_local()
        return None if form is None else form.count_pairs(query_len, key_len)

    def __and__(self, other: "Mask") -> "Mask":
        require_mask(other)
        if isinstance(self, Full):
            return other
        return self if isinstance(other, Full) else And(self, other)

    def __or__(self, other: "Mask") -> "Mask":
        require_mask(other)
        return Or(self, other)

    def __invert__(self) -> "Mask":
        return self.mask if isinstance(self, Not) else Not(self)

    # A mask as operand of something else (`tensor & mask`) must fail with our words too.
    __rand__ = __and__
    __ror__ = __or__

    def __bool__(self) -> bool:
        raise ConfigError(f"a mask has no truth value; got {self!r} (combine masks with & | ~, not with and, or, not)")

    def _repr_html_(self) -> str:
        from headwise.masks.dense import draw

        return f"<pre>{self!r}\n{draw(self, 8, 8)}</pre>"


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


@dataclass(frozen=True, repr=False)
class _Pair(Mask):
    """Two masks and the operator that joins what they say."""

    left: Mask
    right: Mask

    sign: ClassVar[str]

    @property
    def is_structural(self) -> bool:
        """Whether both are."""
        return self.left.is_structural and self.right.is_structural

    @property
    def batch_size(self) -> int | None:
        """The batch size that both describe."""
        batch_size: int | None = self._shared("batch_size", "describe the same batch")
        return batch_size

    @property
    def device(self) -> Any:
        """The device that the tensors of both are on."""
        return self._shared("device", "be on the same device")

    def allows(self, batch: Any, head: Any, query_index: Any, key_index: Any) -> Any:
        """Join what the two masks allow."""
        return self._join(
            self.left.allows(batch, head, query_index, key_index),
            self.right.allows(batch, head, query_index, key_index),
        )

    def distances(self) -> Distances | None:
        """Join the distances that the two masks allow."""
        left, right = self.left.distances(), self.right.distances()
        return None if left is None or right is None else self._join(left, right)

    @staticmethod
    def _join(left: Any, right: Any) -> Any:
        raise NotImplementedError

    def _shared(self, name: str, demand: str) -> Any:
        left, right = getattr(self.left, name), getattr(self.right, name)
        if left is not None and right is not None and left != right:
            raise ConfigError(
                f"masks that are combined must {demand}; got {self.left!r} ({name} {left}) "
                f"and {self.right!r} ({name} {right})"
            )
        return right if left is None else left

    def __repr__(self) -> str:
        return f"({self.left!r} {self.sign} {self.right!r})"


class And(_Pair):
    """What both masks allow; written `left & right`."""

    sign = "&"

    @staticmethod
    def _join(left: Any, right: Any) -> Any:
        return left & right


class Or(_Pair):
    """What either mask allows; written `left | right`."""

    sign = "|"

    def global_and_local(self) -> "GlobalAndLocal | None":
        """Join the tokens and the distances of the two masks."""
        left, right = self.left.global_and_local(), self.right.global_and_local()
        if left is None or right is None:
            return None
        return GlobalAndLocal(max(left.num_global, right.num_global), left.distances | right.distances)

    @staticmethod
    def _join(left: Any, right: Any) -> Any:
        return left | right


@dataclass(frozen=True, repr=False)
class Not(Mask):
    """What a mask forbids; written `~mask`."""

    mask: Mask

    @property
    def is_structural(self) -> bool:
        """Whether the mask is."""
        return self.mask.is_structural

    @property
    def batch_size(self) -> int | None:
        """The batch size that the mask describes."""
        return self.mask.batch_size

    @property
    def device(self) -> Any:
        """The device of the mask's tensors."""
        return self.mask.device

    def allows(self, batch: Any, head: Any, query_index: Any, key_index: Any) -> Any:
        """Return whether the mask forbids the pair."""
        return self.mask.allows(batch, head, query_index, key_index) ^ True

    def distances(self) -> Distances | None:
        """Return the distances that the mask forbids."""
        distances = self.mask.distances()
        return None if distances is None else ~distances

    def __repr__(self) -> str:
        return f"~{self.mask!r}"


def require_mask(mask: object) -> None:
    """Raise ConfigError unless the object is a Mask."""
    if not isinstance(mask, Mask):
        kind = f"{getattr(mask, 'dtype', '')} {type(mask).__name__}".strip()
        raise ConfigError(
            "mask must be a headwise Mask, such as Causal(), SlidingWindow(window_size), KeyPadding(lengths) or their "
            f"combination with & | ~; got a {kind} (other libraries disagree on whether True keeps or drops a pair)"
        )


def require_batch_size(mask: Mask, batch_size: int) -> None:
    """Raise ConfigError if the mask describes another number of batch rows."""
    if mask.batch_size is not None and mask.batch_size != batch_size:
        raise ConfigError(
            f"a mask that holds one length a row must have as many rows as the batch; got {mask!r} "
            f"for a batch of {batch_size}"
        )


def require_whole_number(name: str, value: object, *, minimum: int) -> None:
    """Raise ConfigError unless `value` is a whole number of at least `minimum`."""
    if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
        raise ConfigError(f"{name} must be a whole number, at least {minimum}; got {value!r}")
