"""What the tokens of a batch are: padding, separators."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int
from torch import Tensor


@dataclass(frozen=True, eq=False)
class TokenKinds:
    """What the tokens of a batch are.

    Args:
        real: False = padding, which counts neither as query nor as key. Every text has a real token.
        separators: tokens that stand between or after texts ([SEP]).
        places: row and column of each token's patch on the image that it is of; -1 and -1 of a token that is no patch.
            None: tokens are not of an image.
        real_keys: of cross-attention: which tokens of the other text, which the keys are of, are no padding; every
            text has a real one. Then all else is of the queries. None: the keys are of the same tokens.
    """

    real: Bool[Tensor, "batch seq_len"]
    separators: Bool[Tensor, "batch seq_len"]
    places: Int[Tensor, "seq_len 2"] | None = None
    real_keys: Bool[Tensor, "batch key_len"] | None = None

    @property
    def is_cross(self) -> bool:
        """Return whether the keys are of another text."""
        return self.real_keys is not None

    @property
    def keys(self) -> Bool[Tensor, "batch key_len"]:
        """Return which keys are no padding."""
        return self.real if self.real_keys is None else self.real_keys

    @property
    def shape(self) -> tuple[int, int, int]:
        """Return (texts, queries, keys)."""
        return len(self.real), self.real.shape[1], self.keys.shape[1]

    def to(self, device: torch.device) -> "TokenKinds":
        """Return the same on a device."""
        places = None if self.places is None else self.places.to(device)
        keys = None if self.real_keys is None else self.real_keys.to(device)
        return TokenKinds(self.real.to(device), self.separators.to(device), places, keys)
