"""Sampling: from the scores of a vocabulary to the next token of each row."""

from dataclasses import dataclass
from typing import no_type_check

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from headwise.config.checks import require_number, require_positive, require_size
from headwise.errors import ConfigError, ModelError

MAX_SEED = 2**63 - 1


@no_type_check  # values of any type must reach the checks below
@dataclass(frozen=True, kw_only=True)
class Sampling:
    """How the next token is chosen; the default is greedy, the token of the highest score.

    In this order: the scores of tokens that stand in the row's prompt or have been generated in this call are divided
    by `repetition_penalty` if above 0 and multiplied by it if not; with a `temperature` of 0 the highest is taken; else
    scores are divided by it, all but the `top_k` highest are left out, then all but the fewest whose probabilities sum
    to `top_p` or more, then all whose probability is below `min_p` times the highest, and a token is drawn from what is
    left.

    Args:
        temperature: 0 is greedy; 1 draws from the model's own probabilities.
        top_k: how many tokens are kept at most. Default: all.
        top_p: probability that is kept at least, above 0 and at most 1. Default: 1.
        min_p: least probability that is kept, as a share of the highest, from 0 to 1. Default: 0.
        repetition_penalty: above 0; 1 changes nothing.
        seed: of the draws of a whole batch, from 0 to 2^63 - 1: a row draws otherwise beside others than alone.
            Default: torch's generator.

    Raises:
        ConfigError: a number out of range.

    Source: top-k: Fan et al. 2018, "Hierarchical Neural Story Generation", section 5.4; top-p: Holtzman et al. 2019,
    "The Curious Case of Neural Text Degeneration", section 3.1; min-p: Nguyen et al. 2024, "Turning Up the Heat",
    section 3; repetition: Keskar et al. 2019, "CTRL", section 4.1.
    """

    temperature: float = 0.0
    top_k: int | None = None
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    seed: int | None = None

    def __post_init__(self) -> None:
        require_number("temperature", self.temperature)
        if self.temperature < 0:
            raise ConfigError(f"temperature must be at least 0; got {self.temperature}")
        if self.top_k is not None:
            require_size("top_k", self.top_k)
        require_number("top_p", self.top_p)
        if not 0 < self.top_p <= 1:
            raise ConfigError(f"top_p must be above 0 and at most 1; got {self.top_p}")
        require_number("min_p", self.min_p)
        if not 0 <= self.min_p <= 1:
            raise ConfigError(f"min_p must be from 0 to 1; got {self.min_p}")
        require_positive("repetition_penalty", self.repetition_penalty)
        if self.seed is not None:
            require_size("seed", self.seed, minimum=0, maximum=MAX_SEED)

    @property
    def is_greedy(self) -> bool:
        """Whether the token of the highest score is taken."""
        return self.temperature == 0

    def make_generator(self, device: torch.device) -> torch.Generator | None:
        """Return the generator of the draws; None: torch's own."""
        return None if self.seed is None else torch.Generator(device).manual_seed(self.seed)


def choose_tokens(
    scores: Float[Tensor, "batch vocab_size"],
    sampling: Sampling,
    *,
    seen: Bool[Tensor, "batch vocab_size"] | None = None,
    generator: torch.Generator | None = None,
) -> Int[Tensor, " batch"]:
    """Return the next token of each row.

    Args:
        scores: (batch, vocab_size).
        sampling: how to choose.
        seen: (batch, vocab_size) the tokens that each row has had, for the repetition penalty.
        generator: of the draws.

    Raises:
        ModelError: a score is NaN, or all are -inf.
    """
    scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
    if not bool((scores.amax(-1) > -torch.inf).all()):  # false of NaN, which amax hands on
        raise ModelError("the model's scores must be numbers, at least one of them above -inf; got a row that has none")
    if sampling.is_greedy:
        return penalise(scores, sampling.repetition_penalty, seen).argmax(-1)
    return torch.multinomial(probabilities(scores, sampling, seen=seen), 1, generator=generator).squeeze(-1)


def probabilities(
    scores: Float[Tensor, "batch vocab_size"],
    sampling: Sampling,
    *,
    seen: Bool[Tensor, "batch vocab_size"] | None = None,
) -> Float[Tensor, "batch vocab_size"]:
    """Return the probabilities that a token is drawn with, in float32 or better; the temperature is above 0.

    Args:
        scores, sampling, seen: as of `choose_tokens`.
    """
    scores = penalise(scores.to(torch.promote_types(scores.dtype, torch.float32)), sampling.repetition_penalty, seen)
    # From the highest down: a very low temperature makes them very low, and not infinite.
    temperature = max(sampling.temperature, torch.finfo(scores.dtype).tiny)
    scores = (scores - scores.amax(-1, keepdim=True)) / temperature
    if sampling.top_k is not None and sampling.top_k < scores.shape[-1]:
        kept = torch.zeros_like(scores, dtype=torch.bool).scatter(-1, scores.topk(sampling.top_k).indices, True)
        scores = scores.masked_fill(~kept, -torch.inf)
    if sampling.top_p < 1:
        highest_first, order = scores.softmax(-1).sort(dim=-1, descending=True, stable=True)
        before = highest_first.cumsum(-1) - highest_first  # probability of the tokens that rank higher
        is_left_out = (before >= sampling.top_p).scatter(-1, order, before >= sampling.top_p)
        scores = scores.masked_fill(is_left_out, -torch.inf)
    probability = scores.softmax(-1)
    if sampling.min_p > 0:
        least = sampling.min_p * probability.amax(-1, keepdim=True)
        probability = scores.masked_fill(probability < least, -torch.inf).softmax(-1)
    return probability


def penalise(
    scores: Float[Tensor, "batch vocab_size"], penalty: float, seen: Bool[Tensor, "batch vocab_size"] | None
) -> Float[Tensor, "batch vocab_size"]:
    """Lower the scores of tokens that a row has had."""
    if penalty == 1 or seen is None:
        return scores
    return torch.where(seen, torch.where(scores > 0, scores / penalty, scores * penalty), scores)
