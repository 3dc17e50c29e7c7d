"""What a task asks: token ids, and at which places which classes are right."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from jaxtyping import Int
from torch import Tensor

IGNORED = -100  # target of a place that is not asked about: torch's `ignore_index`


@dataclass(frozen=True, eq=False)
class Examples:
    """Texts of tokens and what is to be said of them.

    Args:
        ids: (N, T) tokens.
        targets: (N, T, K) right class of each of K answers at each place; IGNORED where none is asked for.
        lengths: (N,) how long each text is for its task, what results are told apart by: tokens to copy, say.
    """

    ids: Int[Tensor, "texts seq_len"]
    targets: Int[Tensor, "texts seq_len answers"]
    lengths: Int[Tensor, " texts"]

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def num_answers(self) -> int:
        """Return how many answers are asked for in all."""
        return int((self.targets != IGNORED).sum())

    def take(self, index: Int[Tensor, " taken"] | slice) -> "Examples":
        """Return some of the texts."""
        return Examples(self.ids[index], self.targets[index], self.lengths[index])


class TokenTask(ABC):
    """Something to learn whose examples are drawn: as many as are wanted, and the same for the same seed.

    Its fields are `vocab_size`, the number of different tokens, and where all texts are as long `seq_len`.
    """

    vocab_size: int
    seq_len: int

    @property
    def num_classes(self) -> int:
        """Return how many classes an answer is chosen from: the tokens."""
        return self.vocab_size

    @property
    def num_answers(self) -> int:
        """Return the number K of answers at a place: one."""
        return 1

    @property
    def max_len(self) -> int:
        """Return the tokens of the longest text."""
        return self.seq_len

    @abstractmethod
    def draw(self, num_examples: int, *, seed: int) -> Examples:
        """Return examples."""


def generator_of(seed: int) -> torch.Generator:
    """Return torch's generator of that seed, on the CPU."""
    return torch.Generator().manual_seed(seed)


def draw_ids(shape: tuple[int, ...], first: int, stop: int, generator: torch.Generator) -> Int[Tensor, "..."]:
    """Draw tokens `first`, ..., `stop - 1`, all alike in probability."""
    return torch.randint(first, stop, shape, generator=generator)


def draw_distinct(num_rows: int, count: int, total: int, generator: torch.Generator) -> Int[Tensor, "rows count"]:
    """Draw `count` different numbers below `total` for each row, in random order."""
    return torch.rand(num_rows, total, generator=generator).argsort(dim=-1)[:, :count]
