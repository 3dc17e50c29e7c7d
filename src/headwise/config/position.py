"""How a layer knows where a token is: Rotary, ALiBi, T5Bias. What a model adds to its embeddings is in ModelConfig."""

from dataclasses import dataclass
from typing import Literal, get_args, no_type_check

from headwise.config.checks import require_choice, require_flag, require_positive, require_size, shown
from headwise.config.scaling import DynamicNTKScaling, LongRoPEScaling, RotaryScaling, YaRNScaling
from headwise.errors import ConfigError


@no_type_check  # values of any type must reach the checks below
@dataclass(frozen=True, kw_only=True)
class Rotary:
    """Rotary position embedding: query and key are turned by an angle that grows with the position.

    Pair `i` of the `D` dimensions of a head at position `p` turns by `p * theta ** (-2 i / D)`.

    Args:
        theta: base of the geometric row of frequencies (10000 in the paper).
        pairing: which dimensions form a pair: `"half"` (i, i + D/2), as Hugging Face stores weights, or
            `"interleaved"` (2i, 2i + 1), as the paper writes it and Meta stores weights.
        scaling: the published rule that stretches the frequencies, with its numbers (`Llama3Scaling(...)`,
            `YaRNScaling(...)`, ...; see `headwise.config.scaling`); None = plain.
        rotary_dim: how many of a head's first dimensions are turned, D above (GPT-NeoX a quarter); None = all.

    Source: Su et al. 2021, "RoFormer", section 3.2.2.
    """

    theta: float = 10000.0
    pairing: Literal["half", "interleaved"] = "half"
    scaling: RotaryScaling | None = None
    rotary_dim: int | None = None

    def __post_init__(self) -> None:
        require_positive("theta", self.theta)
        require_choice("pairing", self.pairing, ("half", "interleaved"))
        if self.scaling is not None and not isinstance(self.scaling, RotaryScaling):
            names = ", ".join(rule.__name__ for rule in get_args(RotaryScaling))
            raise ConfigError(f"scaling must be None or one of {names}; got {shown(self.scaling)}")
        if isinstance(self.scaling, YaRNScaling) and self.theta <= 1:
            raise ConfigError(f"theta must be above 1 for YaRN, which counts turns in its powers; got {self.theta}")
        if self.rotary_dim is not None:
            require_size("rotary_dim", self.rotary_dim)
            if self.rotary_dim % 2:
                raise ConfigError(f"rotary_dim must be even, since pairs are turned; got {self.rotary_dim}")

    @property
    def reads_length(self) -> bool:
        """Whether the frequencies depend on the length of the text (dynamic NTK, LongRoPE).

        Keys that were turned for one length are then of no use at another: a stream of tokens must keep one length.
        """
        return isinstance(self.scaling, DynamicNTKScaling | LongRoPEScaling)


@dataclass(frozen=True, kw_only=True)
class ALiBi:
    """Attention with linear biases: the score of a key falls with its distance, by a slope that each head has.

    Nothing is learned. Source: Press et al. 2021, "Train Short, Test Long", section 3.
    """


@no_type_check  # values of any type must reach the checks below
@dataclass(frozen=True, kw_only=True)
class T5Bias:
    """A learned bias on the scores for each bucket of distances and each head.

    Args:
        num_buckets: rows of the table; near distances have a bucket each, far ones share.
        max_distance: from here on all distances share the last bucket.
        is_bidirectional: half of the buckets are for keys that come later.
        owns_table: the layer holds the table; False: it adds the biases that the stack's first layer looked up.

    Source: Raffel et al. 2019, "Exploring the Limits of Transfer Learning with a Unified Text-to-Text Transformer",
    section 2.1.
    """

    num_buckets: int = 32
    max_distance: int = 128
    is_bidirectional: bool = True
    owns_table: bool = True

    def __post_init__(self) -> None:
        require_size("num_buckets", self.num_buckets)
        require_size("max_distance", self.max_distance)
        for name in ("is_bidirectional", "owns_table"):
            require_flag(name, getattr(self, name))
