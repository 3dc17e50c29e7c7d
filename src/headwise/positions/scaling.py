"""The frequencies of rotary positions, plain or stretched by a rule of `headwise.config.scaling`."""

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor

from headwise.config.attention import Rotary
from headwise.config.scaling import (
    DynamicNTKScaling,
    LinearScaling,
    Llama3Scaling,
    LongRoPEScaling,
    NTKScaling,
    ProportionalScaling,
    YaRNScaling,
)
from headwise.errors import ConfigError


def rotary_frequencies(
    config: Rotary, rotary_dim: int, text_len: Int[Tensor, "*texts"]
) -> Float[Tensor, "*texts_or_none num_pairs"]:
    """Return by how much each pair turns from one position to the next, in radians, float64.

    Plain: `f_i = theta ** (-2 i / D)`; the docstring of each rule tells what it makes of that.

    Args:
        config: theta and the rule.
        rotary_dim: number D of dimensions that are turned; there are half as many pairs.
        text_len: length of each text. Where the rule reads it (`config.reads_length`) the frequencies are of each text,
            and have its axes before their own; elsewhere its device alone matters.
    """
    places = torch.arange(0, rotary_dim, 2, dtype=torch.float64, device=text_len.device) / rotary_dim
    plain = float(config.theta) ** -places
    match config.scaling:
        case None:
            found = plain
        case LinearScaling(factor=factor):
            found = plain / factor
        case NTKScaling(factor=factor):
            found = plain * factor ** -_shares(plain)
        case DynamicNTKScaling(factor=factor, original_max_positions=original):
            growth = factor * text_len.double().clamp(min=original) / original - (factor - 1)
            found = plain * growth.unsqueeze(-1) ** -_shares(plain)
        case YaRNScaling() as rule:
            found = torch.lerp(
                plain, plain / rule.factor, _yarn_ramp(rule, float(config.theta), rotary_dim, plain.device)
            )
        case Llama3Scaling() as rule:
            turns = rule.original_max_positions * plain / (2 * math.pi)
            kept = ((turns - rule.low_freq_factor) / (rule.high_freq_factor - rule.low_freq_factor)).clamp(0, 1)
            found = torch.lerp(plain / rule.factor, plain, kept)
        case LongRoPEScaling(original_max_positions=original) as rule:
            rows = torch.tensor([rule.short_factors, rule.long_factors], dtype=plain.dtype, device=plain.device)
            found = plain / rows[(text_len > original).long()]
        case ProportionalScaling(share=share, factor=factor):
            num_turned = int(share * rotary_dim / 2)
            found = torch.where(torch.arange(len(plain), device=plain.device) < num_turned, plain / factor, 0.0)
    return found


def attention_factor(config: Rotary) -> float:
    """Return the factor on cosine and sine, and so on turned vectors, that goes with the rule; scores take its square.

    Args:
        config: the rule.
    """
    is_with_factor = isinstance(config.scaling, YaRNScaling | LongRoPEScaling)
    return float(config.scaling.attention_factor) if is_with_factor else 1.0  # type: ignore[union-attr]


def require_factor_per_pair(config: Rotary, rotary_dim: int) -> None:
    """Raise ConfigError if the rule lists factors, and not one for each pair.

    Args:
        config: the rule.
        rotary_dim: number of dimensions that are turned.
    """
    if isinstance(config.scaling, LongRoPEScaling) and len(config.scaling.short_factors) != rotary_dim // 2:
        raise ConfigError(
            f"short_factors and long_factors must hold one number for each of the {rotary_dim // 2} pairs that are "
            f"turned; got {len(config.scaling.short_factors)}"
        )


def _shares(plain: Float[Tensor, " num_pairs"]) -> Float[Tensor, " num_pairs"]:
    """Return how much of a stretch each pair gets: from 0 for the first to 1 for the last, in even steps."""
    return torch.linspace(0, 1, len(plain), dtype=plain.dtype, device=plain.device)


def _yarn_ramp(rule: YaRNScaling, theta: float, rotary_dim: int, device: torch.device) -> Float[Tensor, " num_pairs"]:
    """Return which part of each pair's frequency is divided by the factor."""

    def pair_with(turns: float) -> float:
        """Return the number of the pair that turns so many times within the original length."""
        return rotary_dim * math.log(rule.original_max_positions / (2 * math.pi * turns)) / (2 * math.log(theta))

    start, end = pair_with(rule.beta_fast), pair_with(rule.beta_slow)
    if rule.truncate:
        start, end = math.floor(start), math.ceil(end)
    # The bounds are those of the paper's code: the end may lie beyond the last pair, at twice as many.
    start, end = max(start, 0), min(end, rotary_dim - 1)
    if start == end:
        end = start + 0.001  # a step, not a division by 0
    return ((torch.arange(rotary_dim // 2, dtype=torch.float64, device=device) - start) / (end - start)).clamp(0, 1)
