"""Structural masks of the sparse attentions: windows to both sides, with holes, with a stride, with global tokens."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headwise.masks.distances import INFINITY, NO_DISTANCE, Distances, GlobalAndLocal, count_multiples
from headwise.masks.patterns import SHORT_LEN, Mask, require_whole_number

if TYPE_CHECKING:
    from headwise.masks.cover import Blocks, Cover


@dataclass(frozen=True)
class LocalWindow(Mask):
    """Each query sees itself, the `left` keys just before it and the `right` keys just after it.

    Longformer's window of 512 is 256 to each side and the query itself: `LocalWindow(256, 256)`.

    Args:
        left: number of keys before the query, 0 or more.
        right: number of keys after the query, 0 or more.

    Source: Beltagy et al. 2020, "Longformer", section 3.1. flash-attn writes the same window as `(left, right)`.
    """

    is_structural = True

    left: int
    right: int

    def __post_init__(self) -> None:
        require_whole_number("left", self.left, minimum=0)
        require_whole_number("right", self.right, minimum=0)

    def allows(self, batch: Any, head: Any, query_index: Any, key_index: Any) -> Any:
        """Return whether the key stands at most `left` before and at most `right` after the query."""
        return (query_index - key_index <= self.left) & (key_index - query_index <= self.right)

    def distances(self) -> Distances:
        """Return `-right` up to `left`."""
        return Distances(((-self.right, self.left + 1),))


@dataclass(frozen=True)
class Dilated(Mask):
    """Each query sees itself and, going back, every `dilation`-th key: `window_size` keys in all.

    Args:
        window_size: number of keys that a query sees, itself included; at least 1.
        dilation: distance from one to the next; 1 is `SlidingWindow(window_size)`.

    Source: Beltagy et al. 2020, "Longformer", section 3.1 (two-sided there, causal here).
    """

    is_structural = True

    window_size: int
    dilation: int

    def __post_init__(self) -> None:
        require_whole_number("window_size counts the query itself, so it", self.window_size, minimum=1)
        require_whole_number("dilation", self.dilation, minimum=1)

    def allows(self, batch: Any, head: Any, query_index: Any, key_index: Any) -> Any:
        """Return whether the key stands a multiple of `dilation` before the query, the query's own being the first."""
        distance = query_index - key_index
        is_within = (distance >= 0) & (distance < self.window_size * self.dilation)
        return is_within & (distance % self.dilation == 0)

    @property
    def looks_at_distance_alone(self) -> bool:
        """True."""
        return True

    @property
    def typical_lens(self) -> tuple[int, int]:
        """Twice the distance of the farthest key."""
        length = max(SHORT_LEN, 2 * self.window_size * self.dilation)
        return length, length

    def _count_pairs(self, query_len: int, key_len: int) -> int:
        return count_multiples(query_len, key_len, step=self.dilation, first=0, end=self.window_size)


@dataclass(frozen=True)
class Strided(Mask):
    """Each query sees itself, the `stride - 1` keys just before it, and before them every `stride`-th key.

    Args:
        stride: at least 1; 1 is `Causal()`. A stride near the square root of the length costs least.

    Source: Child et al. 2019, "Generating Long Sequences with Sparse Transformers", section 4.3: both of its heads'
    patterns in one ("merged heads", section 5.2).
    """

    is_structural = True

    stride: int

    def __post_init__(self) -> None:
        require_whole_number("stride", self.stride, minimum=1)

    def allows(self, batch: Any, head: Any, query_index: Any, key_index: Any) -> Any:
        """Return whether the key stands less than `stride`, or a multiple of it, before the query."""
        distance = query_index - key_index
        return (distance >= 0) & ((distance < self.stride) | (distance % self.stride == 0))

    @property
    def looks_at_distance_alone(self) -> bool:
        """True."""
        return True

    @property
    def typical_lens(self) -> tuple[int, int]:
        """Four strides."""
        length = max(SHORT_LEN, 4 * self.stride)
        return length, length

    def _count_pairs(self, query_len: int, key_len: int) -> int:
        near = Distances(((0, self.stride),)).count_pairs(query_len, key_len)
        return near + count_multiples(query_len, key_len, step=self.stride, first=1, end=INFINITY)


@dataclass(frozen=True)
class GlobalTokens(Mask):
    """The first tokens see every key, and every query sees them; no other pair is allowed.

    Meant to be joined with a window: `LocalWindow(256, 256) | GlobalTokens(16)` is Longformer's attention.

    Args:
        num_tokens: number of the first tokens of the stream; 0 allows nothing.

    Source: Beltagy et al. 2020, "Longformer", section 3.1, where any tokens may be chosen.
    """

    is_structural = True

    num_tokens: int

    def __post_init__(self) -> None:
        require_whole_number("num_tokens", self.num_tokens, minimum=0)

    def allows(self, batch: Any, head: Any, query_index: Any, key_index: Any) -> Any:
        """Return whether the query or the key is one of the first tokens."""
        is_global = (query_index >= 0) & (query_index < self.num_tokens)
        return is_global | (key_index < self.num_tokens)

    def global_and_local(self) -> GlobalAndLocal:
        """Return the tokens, and no distance."""
        return GlobalAndLocal(self.num_tokens, NO_DISTANCE)

    def cover(self, blocks: "Blocks") -> "Cover":
        """Return which blocks hold such a query or key, and which hold only such queries or only such keys."""
        first, last = blocks.first_query, blocks.last_query
        some = (last >= 0) & (first < self.num_tokens) & (self.num_tokens > 0)
        every = (first >= 0) & (last < self.num_tokens)
        return blocks.known(
            some | (blocks.first_key < self.num_tokens),
            every | (blocks.last_key < self.num_tokens),
        )


@dataclass(frozen=True)
class PrefixLM(Mask):
    """The tokens of a prefix see one another; each later one sees itself and all before it.

    Args:
        prefix_len: number of tokens of the prefix, the same in every batch row; 0 is `Causal()`.

    Source: Raffel et al. 2020, "Exploring the Limits of Transfer Learning with a Unified Text-to-Text Transformer",
    section 3.2.1 ("causal with prefix").
    """

    is_structural = True

    prefix_len: int

    def __post_init__(self) -> None:
        require_whole_number("prefix_len", self.prefix_len, minimum=0)

    def allows(self, batch: Any, head: Any, query_index: Any, key_index: Any) -> Any:
        """Return whether the key is in the prefix, or stands at or before the query."""
        return (key_index < self.prefix_len) | (key_index <= query_index)

    def cover(self, blocks: "Blocks") -> "Cover":
        """Look at two corners: a later query sees more, and a later key is seen by fewer."""
        return blocks.known(
            self.allows(0, 0, blocks.last_query, blocks.first_key),
            self.allows(0, 0, blocks.first_query, blocks.last_key),
        )

    @property
    def typical_lens(self) -> tuple[int, int]:
        """Twice the prefix."""
        length = max(SHORT_LEN, 2 * self.prefix_len)
        return length, length

    def _count_pairs(self, query_len: int, key_len: int) -> int:
        causal = Distances(((0, INFINITY),)).count_pairs(query_len, key_len)
        prefix_len = min(self.prefix_len, key_len)
        first = key_len - query_len  # the first query's index
        # A query before the stream sees the prefix alone; one in it also sees what of the prefix stands behind it.
        longest = max(prefix_len - 1 - max(first, 0), 0)
        return causal + max(min(-first, query_len), 0) * prefix_len + longest * (longest + 1) // 2
