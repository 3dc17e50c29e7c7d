"""What the tokens of a batch are: padding, separators."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool
from torch import Tensor


@dataclass(frozen=True, eq=False)
class TokenKinds:
    """What the tokens of a batch are.

    Args:
        real: False = padding, which counts neither as query nor as key. Every text has a real token.
        separators: tokens that stand between or after texts ([SEP]).
    """

    real: Bool[Tensor, "batch seq_len"]
    separators: Bool[Tensor, "batch seq_len"]

    def to(self, device: torch.device) -> "TokenKinds":
        """Return the same on a device."""
        return TokenKinds(self.real.to(device), self.separators.to(device))
