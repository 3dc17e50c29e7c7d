"""How the frequencies of rotary positions are stretched for texts longer than those that a model was trained on.

One class for each published rule, with the numbers that the rule needs. Equations write `f_i` for the plain frequency
`theta ** (-2 i / D)` of pair i of the D dimensions that are turned, and `L` for `original_max_positions`, the length
that the model was trained on. `headwise.positions.scaling` computes what they say.
"""

import math
from dataclasses import dataclass
from typing import no_type_check

from headwise.config.checks import require_flag, require_number, require_positive, require_size, shown
from headwise.errors import ConfigError


@no_type_check  # values of any type must reach the checks below
@dataclass(frozen=True, kw_only=True)
class LinearScaling:
    """Every position is divided by one factor: `f_i / factor`.

    Args:
        factor: how many times as long texts become.

    Source: Chen et al. 2023, "Extending Context Window of Large Language Models via Positional Interpolation",
    section 2.3.
    """

    factor: float

    def __post_init__(self) -> None:
        require_positive("factor", self.factor)


@no_type_check
@dataclass(frozen=True, kw_only=True)
class NTKScaling:
    """A larger base: the fastest pair stays as it is, the slowest is slowed by the factor: `f_i * factor ** (-s_i)`.

    `s_i = 2 i / (D - 2)` is 0 for the first pair and 1 for the last; the base becomes
    `theta * factor ** (D / (D - 2))`.

    Args:
        factor: how many times as slow the last pair turns.

    Source: Peng et al. 2023, "YaRN: Efficient Context Window Extension of Large Language Models", section 3.1, after a
    note of bloc97.
    """

    factor: float

    def __post_init__(self) -> None:
        require_positive("factor", self.factor)


@no_type_check
@dataclass(frozen=True, kw_only=True)
class DynamicNTKScaling:
    """NTKScaling by what the text's length `n` needs: with `factor * max(n, L) / L - (factor - 1)` as its factor.

    Up to the original length nothing changes; beyond it all frequencies change with every token more.

    Args:
        factor: how fast the base grows beyond the original length.
        original_max_positions: the length up to which frequencies are plain.

    Source: Peng et al. 2023, "YaRN", section 3.3, after a note of emozilla; with this factor as transformers has it.
    """

    factor: float
    original_max_positions: int

    def __post_init__(self) -> None:
        require_positive("factor", self.factor)
        require_size("original_max_positions", self.original_max_positions)


@no_type_check
@dataclass(frozen=True, kw_only=True)
class YaRNScaling:
    """Fast pairs stay as they are, slow ones are divided by the factor, and those between go from one to the other.

    `f_i * (1 - r_i) + f_i / factor * r_i`, where the ramp `r_i` climbs from 0 to 1 between the pair that turns
    `beta_fast` times within the original length and the one that turns `beta_slow` times: pair number
    `D ln(L / (2 pi beta)) / (2 ln theta)`, which is seldom whole. Cosine and sine are multiplied by `attention_factor`,
    and scores by its square.

    Args:
        factor: how many times as long texts become.
        original_max_positions: the length that the model was trained on.
        beta_fast: pairs with at least so many turns within it stay as they are.
        beta_slow: pairs with at most so many turns are divided by the factor.
        truncate: whether the ends of the ramp are rounded to whole pairs, outwards.
        attention_factor: the factor on cosine and sine. Default: `0.1 ln(factor) + 1`, and 1 for factors below 1.

    Source: Peng et al. 2023, "YaRN", sections 3.2 and 3.4.
    """

    factor: float
    original_max_positions: int
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    attention_factor: float = None  # type: ignore[assignment]  # filled in by __post_init__, never None afterwards

    def __post_init__(self) -> None:
        require_positive("factor", self.factor)
        require_size("original_max_positions", self.original_max_positions)
        require_positive("beta_fast", self.beta_fast)
        require_positive("beta_slow", self.beta_slow)
        if self.beta_fast < self.beta_slow:
            raise ConfigError(f"beta_fast must be at least beta_slow; got {self.beta_fast} and {self.beta_slow}")
        require_flag("truncate", self.truncate)
        if self.attention_factor is None:
            object.__setattr__(self, "attention_factor", stretch_factor(float(self.factor)))
        require_positive("attention_factor", self.attention_factor)


@no_type_check
@dataclass(frozen=True, kw_only=True)
class Llama3Scaling:
    """Pairs with many turns within the original length stay, those with few are divided by the factor, smoothly.

    With `t_i = L f_i / (2 pi)` turns and `m_i = (t_i - low_freq_factor) / (high_freq_factor - low_freq_factor)`, held
    between 0 and 1: `f_i * m_i + f_i / factor * (1 - m_i)`.

    Args:
        factor: how many times as slow the slowest pairs turn.
        original_max_positions: the length that the model was trained on.
        low_freq_factor: pairs with at most so many turns within it are divided by the factor.
        high_freq_factor: pairs with at least so many turns stay as they are.

    Source: Meta's code of Llama 3.1 (github.com/meta-llama/llama-models), function `apply_scaling`.
    """

    factor: float
    original_max_positions: int
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0

    def __post_init__(self) -> None:
        require_positive("factor", self.factor)
        require_size("original_max_positions", self.original_max_positions)
        require_positive("low_freq_factor", self.low_freq_factor)
        require_positive("high_freq_factor", self.high_freq_factor)
        if self.high_freq_factor <= self.low_freq_factor:
            raise ConfigError(
                "high_freq_factor must be above low_freq_factor; "
                f"got {self.high_freq_factor} and {self.low_freq_factor}"
            )


@no_type_check
@dataclass(frozen=True, kw_only=True)
class LongRoPEScaling:
    """A factor for each pair, one row of them for texts up to the original length and one for longer: `f_i / row_i`.

    Cosine and sine are multiplied by `attention_factor`, whatever the length, and scores by its square.

    Args:
        short_factors: one factor a pair, for texts of at most `original_max_positions` tokens.
        long_factors: one factor a pair, for longer texts.
        original_max_positions: the length that the model was trained on, 2 or more.
        factor: how many times as long texts become; read for the default below alone.
        attention_factor: the factor on cosine and sine. Default: `sqrt(1 + ln(factor) / ln(L))`, and 1 for factors
            below 1.

    Source: Ding et al. 2024, "LongRoPE: Extending LLM Context Window Beyond 2 Million Tokens", section 3; the default
    of `attention_factor` as in the code of Phi-3.
    """

    short_factors: tuple[float, ...]
    long_factors: tuple[float, ...]
    original_max_positions: int
    factor: float = 1.0
    attention_factor: float = None  # type: ignore[assignment]  # filled in by __post_init__, never None afterwards

    def __post_init__(self) -> None:
        for name in ("short_factors", "long_factors"):
            factors = getattr(self, name)
            if not isinstance(factors, tuple) or not factors:
                raise ConfigError(f"{name} must be a tuple of one number a pair; got {shown(factors)}")
            for factor in factors:
                require_positive(f"a number in {name}", factor)
        if len(self.short_factors) != len(self.long_factors):
            raise ConfigError(
                "short_factors and long_factors must hold one number a pair each; "
                f"got {len(self.short_factors)} and {len(self.long_factors)}"
            )
        require_size("original_max_positions", self.original_max_positions, minimum=2)
        require_positive("factor", self.factor)
        if self.attention_factor is None:
            object.__setattr__(
                self, "attention_factor", longrope_factor(float(self.factor), self.original_max_positions)
            )
        require_positive("attention_factor", self.attention_factor)


@no_type_check
@dataclass(frozen=True, kw_only=True)
class ProportionalScaling:
    """The first pairs turn, the others stand still: `f_i / factor` for the first `int(share * D / 2)`, then 0.

    Not the same as a `rotary_dim`, which makes one row of frequencies out of the dimensions that are turned.

    Args:
        share: which part of the pairs turns, above 0 and at most 1.
        factor: what all frequencies are divided by.

    Source: the rule "proportional" of transformers 5, for Gemma 4.
    """

    share: float
    factor: float = 1.0

    def __post_init__(self) -> None:
        require_number("share", self.share)
        if not 0 < self.share <= 1:
            raise ConfigError(f"share must be above 0 and at most 1; got {self.share}")
        require_positive("factor", self.factor)


RotaryScaling = (
    LinearScaling | NTKScaling | DynamicNTKScaling | YaRNScaling | Llama3Scaling | LongRoPEScaling | ProportionalScaling
)


def stretch_factor(factor: float, weight: float = 1.0) -> float:
    """Return YaRN's factor on cosine and sine, `0.1 * weight * ln(factor) + 1`, or 1 where nothing is stretched.

    Args:
        factor: how many times as long texts become.
        weight: DeepSeek's `mscale`.
    """
    return 0.1 * weight * math.log(factor) + 1.0 if factor > 1 else 1.0


def longrope_factor(factor: float, original_max_positions: int) -> float:
    """Return Phi-3's factor on cosine and sine, `sqrt(1 + ln(factor) / ln(L))`, or 1 where nothing is stretched.

    Args:
        factor: how many times as long texts become.
        original_max_positions: the length L that the model was trained on, 2 or more.
    """
    return math.sqrt(1 + math.log(max(factor, 1.0)) / math.log(original_max_positions))
