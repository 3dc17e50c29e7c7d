"""And, Or, Not: masks made of masks, written `a & b`, `a | b`, `~a`."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from headwise.errors import ConfigError
from headwise.masks.distances import Distances, GlobalAndLocal
from headwise.masks.patterns import Mask

if TYPE_CHECKING:
    from headwise.masks.cover import Blocks, Cover


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

    @property
    def num_heads(self) -> int | None:
        """The number of query heads that both describe."""
        num_heads: int | None = self._shared("num_heads", "describe the same heads")
        return num_heads

    @property
    def typical_lens(self) -> tuple[int, int]:
        """The longer of both."""
        left, right = self.left.typical_lens, self.right.typical_lens
        return max(left[0], right[0]), max(left[1], right[1])

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

    @property
    def looks_at_distance_alone(self) -> bool:
        """Whether both do."""
        return self.left.looks_at_distance_alone and self.right.looks_at_distance_alone

    def cover(self, blocks: "Blocks") -> "Cover":
        """Join what the two masks know of blocks."""
        if self.looks_at_distance_alone:
            return blocks.by_distance(self)
        cover: Cover = self._join(self.left.cover(blocks), self.right.cover(blocks))
        return cover

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

    @property
    def num_heads(self) -> int | None:
        """The number of query heads that the mask describes."""
        return self.mask.num_heads

    @property
    def typical_lens(self) -> tuple[int, int]:
        """Those of the mask."""
        return self.mask.typical_lens

    def allows(self, batch: Any, head: Any, query_index: Any, key_index: Any) -> Any:
        """Return whether the mask forbids the pair."""
        return self.mask.allows(batch, head, query_index, key_index) ^ True

    def distances(self) -> Distances | None:
        """Return the distances that the mask forbids."""
        distances = self.mask.distances()
        return None if distances is None else ~distances

    @property
    def looks_at_distance_alone(self) -> bool:
        """Whether the mask does."""
        return self.mask.looks_at_distance_alone

    def cover(self, blocks: "Blocks") -> "Cover":
        """Turn over what the mask knows of blocks."""
        return ~self.mask.cover(blocks)

    def __invert__(self) -> Mask:
        return self.mask

    def __repr__(self) -> str:
        return f"~{self.mask!r}"
