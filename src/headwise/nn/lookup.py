"""Lookup: what comes next, found where the text has had its last tokens before."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import no_type_check

from headwise.config.checks import require_size


@no_type_check  # values of any type must reach the checks below
@dataclass(frozen=True, kw_only=True)
class Lookup:
    """Proposes the tokens that followed the last ones where they stood before, the most recent place first.

    Args:
        num_tokens: how many are proposed at most.
        max_ngram: how many of the last tokens are looked for, at most; if they are not found, one less, down to one.

    Raises:
        ConfigError: numbers below 1.

    Source: Saxena 2023, "Prompt Lookup Decoding"; that checking several at once changes no token: Leviathan et al.
    2022, "Fast Inference from Transformers via Speculative Decoding", section 2.3.
    """

    num_tokens: int = 10
    max_ngram: int = 3

    def __post_init__(self) -> None:
        require_size("num_tokens", self.num_tokens)
        require_size("max_ngram", self.max_ngram)

    def propose(self, text: Sequence[int]) -> list[int]:
        """Return what may come after a text, none if its last token is new."""
        text = list(text)
        for length in range(min(self.max_ngram, len(text) - 1), 0, -1):
            last = text[-length:]
            for start in range(len(text) - length - 1, -1, -1):
                if text[start : start + length] == last:
                    return text[start + length : start + length + self.num_tokens]
        return []
