"""KeyRecall: a list of keys with values, of any length, and some keys again whose values are asked for."""

from dataclasses import dataclass

import torch

from headwise.config.checks import require_size
from headwise.errors import ConfigError
from headwise.experiments.examples import IGNORED, Examples, Split, TokenTask, draw_distinct, draw_ids, generator_of
from headwise.experiments.sequence_tasks import NUM_MARKS, PAD, SEPARATOR


@dataclass(frozen=True, kw_only=True)
class KeyRecall(TokenTask):
    """Say the values of keys of a list: `k1 v1 ... kn vn SEPARATOR q1 q2 ...`, where each q is one of the keys.

    Each key of a list is another one; those that are asked for are drawn with replacement. After the marks keys are
    from the lower half of the other tokens, values from the upper half. A text's length is that of its list, 2 n
    tokens.

    Args:
        min_pairs, max_pairs: keys n, all numbers alike in probability.
        num_questions: keys that are asked for.
        vocab_size: tokens, the marks among them.
    """

    min_pairs: int = 1
    max_pairs: int = 20
    num_questions: int = 4
    vocab_size: int = 64

    def __post_init__(self) -> None:
        require_size("min_pairs", self.min_pairs)
        require_size("num_questions", self.num_questions)
        require_size("vocab_size", self.vocab_size)
        if self.max_pairs < self.min_pairs:
            raise ConfigError(f"max_pairs must be at least min_pairs = {self.min_pairs}; got {self.max_pairs}")
        if self.num_keys < self.max_pairs:
            raise ConfigError(
                f"vocab_size must hold {self.max_pairs} different keys and as many values after {NUM_MARKS} marks: at "
                f"least {NUM_MARKS + 2 * self.max_pairs}; got {self.vocab_size}"
            )

    @property
    def num_keys(self) -> int:
        """Return how many tokens are keys; all after them are values."""
        return (self.vocab_size - NUM_MARKS) // 2

    @property
    def max_len(self) -> int:
        """Return the length of the longest text: its list, a separator and the questions."""
        return 2 * self.max_pairs + 1 + self.num_questions

    def draw(self, num_examples: int, *, seed: int, split: Split = "train") -> Examples:
        """Return examples; shorter texts are padded on the right."""
        generator = generator_of(seed)
        counts = draw_ids((num_examples,), self.min_pairs, self.max_pairs + 1, generator)
        keys = NUM_MARKS + draw_distinct(num_examples, self.max_pairs, self.num_keys, generator)
        first_value = NUM_MARKS + self.num_keys
        values = draw_ids((num_examples, self.max_pairs), first_value, self.vocab_size, generator)
        asked = (torch.rand(num_examples, self.num_questions, generator=generator) * counts[:, None]).long()
        lengths = 2 * counts
        ids = torch.full((num_examples, self.max_len), PAD)
        ids[:, : 2 * self.max_pairs] = torch.stack((keys, values), dim=-1).flatten(1)
        ids.scatter_(1, lengths[:, None], SEPARATOR)
        places = lengths[:, None] + 1 + torch.arange(self.num_questions)
        ids.scatter_(1, places, keys.gather(1, asked))
        real = torch.arange(self.max_len) <= places[:, -1:]
        targets = torch.full((num_examples, self.max_len), IGNORED).scatter(1, places, values.gather(1, asked))
        return Examples(ids.masked_fill(~real, PAD), targets.unsqueeze(-1), lengths, real)
