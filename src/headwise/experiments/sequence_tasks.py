"""Tasks of made-up tokens that ask one thing of attention each: read places, find a key, repeat, turn round."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from headwise.config.checks import require_choice, require_positive, require_size, require_sizes, shown
from headwise.errors import ConfigError
from headwise.experiments.examples import IGNORED, Examples, Split, TokenTask, draw_distinct, draw_ids, generator_of

PAD, START, SEPARATOR, END = 0, 1, 2, 3  # of tasks whose texts differ in length
NUM_MARKS = 4


@dataclass(frozen=True, kw_only=True)
class MultiOffsetCopy(TokenTask):
    """Say at every token which tokens stood at several fixed distances before it.

    One softmax can put its weight on one of the places only, or mix them: with as many heads as offsets a single layer
    reads all of them, with one head it cannot. Places before the largest offset are not asked about.

    Args:
        vocab_size: different tokens, all alike in probability.
        seq_len: tokens of a text.
        offsets: distances, each at least 1; one answer each.
    """

    vocab_size: int = 32
    seq_len: int = 32
    offsets: tuple[int, ...] = (1, 3, 7)

    def __post_init__(self) -> None:
        require_size("vocab_size", self.vocab_size, minimum=2)
        require_size("seq_len", self.seq_len)
        require_sizes("offsets", self.offsets)
        if not self.offsets or max(self.offsets) >= self.seq_len:
            raise ConfigError(
                f"offsets must be distances from 1 to seq_len - 1 = {self.seq_len - 1}, at least one; "
                f"got {shown(self.offsets)}"
            )

    @property
    def num_answers(self) -> int:
        """Return one answer an offset."""
        return len(self.offsets)

    def draw(self, num_examples: int, *, seed: int, split: Split = "train") -> Examples:
        """Return examples."""
        ids = draw_ids((num_examples, self.seq_len), 0, self.vocab_size, generator_of(seed))
        answers = [ids.roll(offset, dims=1) for offset in self.offsets]
        targets = torch.stack(answers, dim=-1)
        targets[:, : max(self.offsets)] = IGNORED
        return Examples(ids, targets, torch.full((num_examples,), self.seq_len))


@dataclass(frozen=True, kw_only=True)
class AssociativeRecall(TokenTask):
    """Multi-query associative recall: keys with their values, then each key once more, where its value is asked for.

    `k1 v1 ... kn vn`, then places in pairs: at the first of n of these pairs, drawn without replacement with chances
    proportional to `power * i^(power - 1)` of the pair's number i from 1, stands a key; all other places hold random
    tokens but the first. Keys are from the lower half of the vocabulary without its first token, values from the upper
    half; in a text each key and each value is another one.

    Args:
        num_pairs: keys n, each another one.
        seq_len: tokens of a text, at least 4 n and even.
        vocab_size: tokens; more than twice the keys.
        power: below 1 most keys come again soon, 1 = anywhere alike.

    Source: Arora et al. 2023, "Zoology", section 3 and appendix A; there fillers are of all tokens, and
    depend on no seed.
    """

    num_pairs: int = 8
    seq_len: int = 64
    vocab_size: int = 256
    power: float = 0.01

    def __post_init__(self) -> None:
        require_size("num_pairs", self.num_pairs)
        if self.seq_len % 2 or self.seq_len < 4 * self.num_pairs:
            raise ConfigError(
                f"seq_len must be even and at least 4 * num_pairs = {4 * self.num_pairs}; got {self.seq_len}"
            )
        if self.vocab_size // 2 - 1 < self.num_pairs:
            raise ConfigError(
                f"vocab_size must hold {self.num_pairs} different keys in its lower half without its first token: at "
                f"least {2 * self.num_pairs + 2}; got {self.vocab_size}"
            )
        require_positive("power", self.power)

    def draw(self, num_examples: int, *, seed: int, split: Split = "train") -> Examples:
        """Return examples."""
        generator = generator_of(seed)
        half, pairs = self.vocab_size // 2, self.num_pairs
        keys = 1 + draw_distinct(num_examples, pairs, half - 1, generator)
        values = half + draw_distinct(num_examples, pairs, self.vocab_size - half, generator)
        ids = draw_ids((num_examples, self.seq_len), 1, self.vocab_size, generator)
        ids[:, 0 : 2 * pairs : 2] = keys
        ids[:, 1 : 2 * pairs : 2] = values
        numbers = torch.arange(1, (self.seq_len - 2 * pairs) // 2 + 1, dtype=torch.float64)
        chances = (self.power * numbers ** (self.power - 1)).expand(num_examples, -1)
        places = 2 * pairs + 2 * torch.multinomial(chances, pairs, replacement=False, generator=generator)
        targets = torch.full((num_examples, self.seq_len), IGNORED)
        return Examples(
            ids.scatter(1, places, keys),
            targets.scatter(1, places, values).unsqueeze(-1),
            torch.full((num_examples,), self.seq_len),
        )


@dataclass(frozen=True, kw_only=True)
class Needle(TokenTask):
    """Say the value of the one key of a long text: a marked pair at a random depth, and the mark again at the end.

    Args:
        seq_len: tokens of the longest text, at least 4.
        min_len: of the shortest. Default: all are as long.
        vocab_size: tokens, the mark among them.
    """

    seq_len: int = 128
    min_len: int | None = None
    vocab_size: int = 64

    def __post_init__(self) -> None:
        require_size("vocab_size", self.vocab_size, minimum=NUM_MARKS + 2)
        require_size("seq_len", self.seq_len, minimum=4)
        if self.min_len is not None and not 4 <= self.min_len <= self.seq_len:
            raise ConfigError(f"min_len must be from 4 to seq_len = {self.seq_len}; got {self.min_len}")

    def draw(self, num_examples: int, *, seed: int, split: Split = "train") -> Examples:
        """Return examples; shorter texts are padded on the right."""
        generator = generator_of(seed)
        shortest = self.seq_len if self.min_len is None else self.min_len
        lengths = draw_ids((num_examples,), shortest, self.seq_len + 1, generator)
        ids = draw_ids((num_examples, self.seq_len), NUM_MARKS, self.vocab_size, generator)
        # the mark stands anywhere but on the last two places, so that its value comes before the question
        depth = (torch.rand(num_examples, generator=generator) * (lengths - 2)).long()
        rows, last = torch.arange(num_examples), lengths - 1
        values = ids[rows, depth + 1]
        ids[rows, depth] = SEPARATOR
        ids[rows, last] = SEPARATOR
        ids = ids.masked_fill(torch.arange(self.seq_len) >= lengths[:, None], PAD)
        targets = torch.full((num_examples, self.seq_len, 1), IGNORED)
        targets[rows, last, 0] = values
        return Examples(ids, targets, lengths)


@dataclass(frozen=True, kw_only=True)
class Induction(TokenTask):
    """Continue random tokens that come a second time: every token of the second copy asks for the next one.

    Args:
        num_tokens: of one copy; a text is the start mark and two copies.
        vocab_size: tokens, the marks among them.

    Source: Olsson et al. 2022, "In-context Learning and Induction Heads".
    """

    num_tokens: int = 31
    vocab_size: int = 64

    def __post_init__(self) -> None:
        require_size("num_tokens", self.num_tokens, minimum=2)
        require_size("vocab_size", self.vocab_size, minimum=NUM_MARKS + 2)

    @property
    def max_len(self) -> int:
        """Return the length of every text."""
        return 2 * self.num_tokens + 1

    @property
    def asks_ahead(self) -> bool:
        """Return that answers are the next tokens of a text."""
        return True

    def draw(self, num_examples: int, *, seed: int, split: Split = "train") -> Examples:
        """Return examples."""
        copy = draw_ids((num_examples, self.num_tokens), NUM_MARKS, self.vocab_size, generator_of(seed))
        ids = torch.cat([torch.full((num_examples, 1), START), copy, copy], dim=1)
        targets = torch.full_like(ids, IGNORED)
        targets[:, self.num_tokens + 1 : -1] = copy[:, 1:]
        return Examples(ids, targets.unsqueeze(-1), torch.full((num_examples,), self.num_tokens))


@dataclass(frozen=True, kw_only=True)
class Transduction(TokenTask):
    """Write a text again, as it is, backwards, or sorted: `x SEPARATOR f(x) END`, token after token.

    From the separator on every token asks for the next. A text is right as a whole if each of its answers is: then
    greedy generation, too, writes it without a fault, for it reads what is right up to its first fault.

    Args:
        change: what f does.
        min_len, max_tokens: tokens of x, all lengths alike in probability.
        vocab_size: tokens, the marks among them.
    """

    change: Literal["copy", "reverse", "sort"] = "copy"
    min_len: int = 1
    max_tokens: int = 20
    vocab_size: int = 32

    def __post_init__(self) -> None:
        require_choice("change", self.change, ("copy", "reverse", "sort"))
        require_size("vocab_size", self.vocab_size, minimum=NUM_MARKS + 2)
        require_size("min_len", self.min_len)
        if self.max_tokens < self.min_len:
            raise ConfigError(f"max_tokens must be at least min_len = {self.min_len}; got {self.max_tokens}")

    @property
    def max_len(self) -> int:
        """Return the length of the longest text: twice x, a separator, and the end."""
        return 2 * self.max_tokens + 2

    @property
    def asks_ahead(self) -> bool:
        """Return that answers are the next tokens of a text."""
        return True

    def draw(self, num_examples: int, *, seed: int, split: Split = "train") -> Examples:
        """Return examples; shorter texts are padded on the right."""
        generator = generator_of(seed)
        lengths = draw_ids((num_examples,), self.min_len, self.max_tokens + 1, generator)
        x = draw_ids((num_examples, self.max_tokens), NUM_MARKS, self.vocab_size, generator)
        ids = torch.full((num_examples, self.max_len), PAD)
        targets = torch.full_like(ids, IGNORED)
        for row, length in enumerate(lengths.tolist()):
            text = x[row, :length]
            answer = torch.cat([self._changed(text), torch.tensor([END])])
            ids[row, :length] = text
            ids[row, length] = SEPARATOR
            ids[row, length + 1 : 2 * length + 2] = answer
            targets[row, length : 2 * length + 1] = answer
        return Examples(ids, targets.unsqueeze(-1), lengths)

    def _changed(self, text: Tensor) -> Tensor:
        match self.change:
            case "copy":
                return text
            case "reverse":
                return text.flip(0)
            case _:
                return text.sort().values
