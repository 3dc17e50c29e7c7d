"""What a task asks: token ids, and at which places which classes are right."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Bool, Int
from torch import Tensor

IGNORED = -100  # target of a place that is not asked about: torch's `ignore_index`

Split = Literal["train", "validation", "test"]


@dataclass(frozen=True, eq=False)
class Examples:
    """Texts of tokens and what is to be said of them.

    A text's one answer, where it has one, is asked for at its last real token, an end mark: a model that reads both
    ways, one that reads forwards only and a recurrent one are then asked alike.

    Args:
        ids: (N, T) tokens.
        targets: (N, T, K) right class of each of K answers at each place; IGNORED where none is asked for.
        lengths: (N,) how long each text is for its task, what results are told apart by: tokens to copy, say.
        real: (N, T) which tokens are no padding; texts are padded on the right. Default: all are real, or no model that
            is asked reads later tokens.
    """

    ids: Int[Tensor, "texts seq_len"]
    targets: Int[Tensor, "texts seq_len answers"]
    lengths: Int[Tensor, " texts"]
    real: Bool[Tensor, "texts seq_len"] | None = None

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def num_answers(self) -> int:
        """Return how many answers are asked for in all."""
        return int((self.targets != IGNORED).sum())

    def take(self, index: Int[Tensor, " taken"] | slice) -> "Examples":
        """Return some of the texts."""
        real = None if self.real is None else self.real[index]
        return Examples(self.ids[index], self.targets[index], self.lengths[index], real)

    def to(self, device: torch.device) -> "Examples":
        """Return the same texts on a device."""
        real = None if self.real is None else self.real.to(device)
        return Examples(self.ids.to(device), self.targets.to(device), self.lengths.to(device), real)


class TokenTask(ABC):
    """Something to learn: as many examples as are wanted, the same for the same seed.

    Its fields are `vocab_size`, the number of different tokens, and where all texts are as long `seq_len`. Made-up
    texts are drawn anew for every seed, whatever they are for. A corpus has three fixed splits: of its training texts a
    batch is drawn by the seed, of the others the first ones are returned whatever the seed.
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

    @property
    def classifies(self) -> bool:
        """Return whether answers are classes of texts, of which the F1 score is told, too, and no tokens."""
        return self.num_classes != self.vocab_size

    @property
    def asks_ahead(self) -> bool:
        """Return whether answers stand later in the text itself, where a model that reads later tokens sees them."""
        return False

    @property
    def data_version(self) -> str | None:
        """Return what tells the data of a corpus from any other; None where the task's numbers and a seed decide."""
        return None

    @abstractmethod
    def draw(self, num_examples: int, *, seed: int, split: Split = "train") -> Examples:
        """Return examples.

        Args:
            num_examples: how many; of a corpus's validation or test texts all, where they are fewer.
            seed: of what is drawn.
            split: what they are for; made-up texts do not depend on it.
        """


def generator_of(seed: int) -> torch.Generator:
    """Return torch's generator of that seed, on the CPU."""
    return torch.Generator().manual_seed(seed)


def draw_ids(shape: tuple[int, ...], first: int, stop: int, generator: torch.Generator) -> Int[Tensor, "..."]:
    """Draw tokens `first`, ..., `stop - 1`, all alike in probability."""
    return torch.randint(first, stop, shape, generator=generator)


def draw_distinct(num_rows: int, count: int, total: int, generator: torch.Generator) -> Int[Tensor, "rows count"]:
    """Draw `count` different numbers below `total` for each row, in random order."""
    return torch.rand(num_rows, total, generator=generator).argsort(dim=-1)[:, :count]
