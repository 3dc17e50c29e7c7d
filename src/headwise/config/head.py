"""OutputHead: what stands on the last hidden state of a model."""

from dataclasses import dataclass
from typing import Literal, no_type_check

from headwise.config.checks import require_choice, require_flag, require_positive, require_probability, require_size


@no_type_check  # values of any type must reach the checks below
@dataclass(frozen=True, kw_only=True)
class OutputHead:
    """What stands on the last hidden state.

    Args:
        kind: "language_model" (one score per vocabulary entry) or "classifier" (one score per label).
        num_outputs: number of scores.
        per_token: it reads every token's state; False: the pooled state of the first token alone.
        tied: the weight is the token embedding's own (counted once).
        bias: whether the projection has a bias.
        transform: a dense layer with bias, an activation and a norm stand before the projection (BERT's masked head).
        dropout_p: dropout before the projection.
        softcap: scores become `softcap * tanh(scores / softcap)` (Gemma 2); None = off.
    """

    kind: Literal["language_model", "classifier"]
    num_outputs: int
    per_token: bool = True
    tied: bool = False
    bias: bool = False
    transform: bool = False
    dropout_p: float = 0.0
    softcap: float | None = None

    def __post_init__(self) -> None:
        require_choice("kind of a head", self.kind, ("language_model", "classifier"))
        require_size("num_outputs", self.num_outputs)
        for name in ("per_token", "tied", "bias", "transform"):
            require_flag(name, getattr(self, name))
        require_probability("dropout_p", self.dropout_p)
        if self.softcap is not None:
            require_positive("softcap", self.softcap)
