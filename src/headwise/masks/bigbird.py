"""BigBird: blocks in a window, global blocks, and blocks drawn by a hash, the same wherever they are asked for."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headwise.errors import ConfigError
from headwise.masks.patterns import Causal, Mask, require_whole_number

if TYPE_CHECKING:
    from headwise.masks.cover import Blocks, Cover

_BITS = 2**31 - 1  # a product of two such numbers fits 63 bits, so that ints and tensors give the same
_FACTOR = 1_103_515_245  # odd


@dataclass(frozen=True)
class BigBird(Mask):
    """Each query sees the blocks around its own, the first and the last block, and blocks that are drawn at random.

    The stream is cut into `num_blocks` blocks of `block_size` tokens, whatever the length of a call, so that a query
    sees the same in a full pass and in a part of it. The first `num_global` blocks, and the last of the bidirectional
    form, see all and are seen by all. Random blocks are drawn for each head and block of queries: the blocks to draw
    from are cut into `num_random` equal parts, and a hash of seed, head, block and part draws one of each. A drawn
    block may be one that is seen anyway.

    Tokens beyond the last block are in no block: they see nothing, and nobody sees them.

    Args:
        num_blocks: number of blocks, at least 1.
        block_size: tokens of a block, at least 1.
        num_random: blocks that are drawn for a block of queries, 0 or more.
        window_blocks: blocks of the window, the query's own in the middle; odd.
        num_global: number of the first blocks that are global, 0 or more.
        seed: of the hash; from 0 to 2^31 - 1.
        causal: whether only earlier blocks are drawn, and no query sees a later token. The bidirectional form needs the
            whole stream at once: what a token sees may come after it.

    Source: Zaheer et al. 2020, "Big Bird: Transformers for Longer Sequences", section 2 and appendix D.
    """

    is_structural = True

    num_blocks: int
    block_size: int
    num_random: int = 3
    window_blocks: int = 3
    num_global: int = 1
    seed: int = 0
    causal: bool = False

    def __post_init__(self) -> None:
        for name, minimum in (("num_blocks", 1), ("block_size", 1), ("num_random", 0), ("num_global", 0), ("seed", 0)):
            require_whole_number(name, getattr(self, name), minimum=minimum)
        require_whole_number("window_blocks", self.window_blocks, minimum=1)
        if self.window_blocks % 2 == 0:
            raise ConfigError(f"window_blocks must be odd, the query's own in the middle; got {self.window_blocks}")
        if self.seed > _BITS:
            raise ConfigError(f"seed must be at most {_BITS}; got {self.seed}")

    def allows(self, batch: Any, head: Any, query_index: Any, key_index: Any) -> Any:
        """Return whether the key's block is near the query's, global, or drawn."""
        seen = self._allows_block(batch, head, query_index, key_index)
        return seen & (key_index <= query_index) if self.causal else seen

    @property
    def typical_lens(self) -> tuple[int, int]:
        """All blocks."""
        length = self.num_blocks * self.block_size
        return length, length

    def cover(self, blocks: "Blocks") -> "Cover":
        """Look at one pair of each block of the stream, and of the causal form at the distances."""
        seen = blocks.in_cells(self._allows_block, self.block_size)
        return seen & blocks.by_distance(Causal()) if self.causal else seen

    def _allows_block(self, batch: Any, head: Any, query_index: Any, key_index: Any) -> Any:
        """Return what is said of all pairs of a block alike."""
        query_block, key_block = query_index // self.block_size, key_index // self.block_size
        reach = self.window_blocks // 2
        seen = (key_block - query_block <= reach) & (query_block - key_block <= reach)
        seen = seen | (query_block < self.num_global) | (key_block < self.num_global)
        if not self.causal:
            seen = seen | (query_block == self.num_blocks - 1) | (key_block == self.num_blocks - 1)
        for part in range(self.num_random):
            seen = seen | self._draws(part, head, query_block, key_block)
        is_inside = (query_index >= 0) & (query_block < self.num_blocks) & (key_block < self.num_blocks)
        return seen & is_inside & (key_index >= 0)

    def _draws(self, part: int, head: Any, query_block: Any, key_block: Any) -> Any:
        """Return whether a block of keys is the one that is drawn of a part of the blocks."""
        count = query_block if self.causal else self.num_blocks
        first, end = part * count // self.num_random, (part + 1) * count // self.num_random
        size = end - first
        some = size + (size == 0)  # no division by 0 where the part is empty
        drawn = first + _hash(self.seed, head, query_block, part) % some
        return (size > 0) & (key_block == drawn)


def _hash(*numbers: Any) -> Any:
    """Mix ints or integer tensors, of which the last two are 0 or more where they matter, into one below 2^31."""
    state = 0
    for number in numbers:
        state = ((state ^ (number & _BITS)) * _FACTOR + 12_345) & _BITS
        state = state ^ (state >> 15)
        state = (state * _FACTOR) & _BITS
        state = state ^ (state >> 13)
    return state
