"""What the tokens of a batch are: padding, separators."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Bool
from torch import Tensor, nn

from headwise.inspection.capture.quiet_passes import Inputs
from headwise.integrations.transformers_attention import is_transformers_model


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


def told_padding(module: nn.Module, inputs: Inputs) -> Bool[Tensor, "batch seq_len"] | None:
    """Return which tokens are no padding, where a Hugging Face model is told so by its `attention_mask`; else None."""
    if isinstance(inputs, Mapping) and is_transformers_model(module):
        attention_mask = inputs.get("attention_mask")
        if isinstance(attention_mask, Tensor) and attention_mask.dim() == 2:
            return attention_mask.bool()
    return None
