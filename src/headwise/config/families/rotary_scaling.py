"""The rule of a config.json that stretches rotary frequencies, with its numbers, as transformers 5.24 reads them."""

from collections.abc import Mapping

from headwise.config.checks import require_flag, require_number, require_positive, require_size, shown
from headwise.config.keys import Keys
from headwise.config.scaling import (
    DynamicNTKScaling,
    LinearScaling,
    Llama3Scaling,
    LongRoPEScaling,
    ProportionalScaling,
    RotaryScaling,
    YaRNScaling,
    longrope_factor,
    stretch_factor,
)
from headwise.errors import ConfigError

ROPE_TYPES = ("default", "linear", "dynamic", "yarn", "longrope", "llama3", "proportional")
MAX_STRETCH_WEIGHT = 1000  # published: 0.707 and 1


def read_scaling(
    kind: str, outer: str, settings: Mapping[str, object], keys: Keys, *, num_pairs: int
) -> RotaryScaling | None:
    """Read the rule that a file asks for.

    Args:
        kind: one of `ROPE_TYPES`.
        outer: the key that holds the settings, for the text of an error.
        settings: the object behind that key; a null stands for a missing number.
        keys: with "max_position_embeddings", and Phi-3's "original_max_position_embeddings".
        num_pairs: how many pairs of a head are turned.
    """
    numbers = _Numbers(outer, settings, keys)
    found: RotaryScaling | None = None
    match kind:
        case "linear":
            found = LinearScaling(factor=numbers.positive("factor"))
        case "dynamic":  # the length that a file names beside the factor is not read
            found = DynamicNTKScaling(factor=numbers.positive("factor"), original_max_positions=numbers.longest)
        case "yarn":
            found = _read_yarn(numbers)
        case "longrope":
            found = _read_longrope(numbers, num_pairs)
        case "llama3":
            found = _read_llama3(numbers)
        case "proportional":
            share = numbers.positive("partial_rotary_factor", 1.0, maximum=1.0)
            found = ProportionalScaling(share=share, factor=numbers.positive("factor", 1.0))
    return found


def read_stretch_weight(settings: Mapping[str, object], name: str) -> float:
    """Return one of DeepSeek's two weights of the factor on queries and keys, 0 where there is none."""
    weight = settings.get(name)
    weight = 0 if weight is None else weight
    require_number(name, weight)
    assert isinstance(weight, int | float)
    if not 0 <= weight <= MAX_STRETCH_WEIGHT:
        raise ConfigError(f"{name} must be between 0 and {MAX_STRETCH_WEIGHT}; got {weight}")
    return float(weight)


def _read_yarn(numbers: "_Numbers") -> YaRNScaling:
    factor = numbers.positive("factor", numbers.longest / numbers.original)
    fast, slow = numbers.positive("beta_fast", 32.0), numbers.positive("beta_slow", 1.0)
    if fast < slow:
        raise ConfigError(f"beta_fast in {numbers.outer} must be at least beta_slow; got {fast} and {slow}")
    weight, weight_all = (read_stretch_weight(numbers.settings, name) for name in ("mscale", "mscale_all_dim"))
    default = stretch_factor(factor)
    if weight and weight_all:
        default = stretch_factor(factor, weight) / stretch_factor(factor, weight_all)
    truncate = numbers.settings.get("truncate", True)
    require_flag(f"truncate in {numbers.outer}", truncate)
    assert isinstance(truncate, bool)
    return YaRNScaling(
        factor=factor,
        original_max_positions=numbers.original,
        beta_fast=fast,
        beta_slow=slow,
        truncate=truncate,
        attention_factor=numbers.positive("attention_factor", default),
    )


def _read_longrope(numbers: "_Numbers", num_pairs: int) -> LongRoPEScaling:
    if numbers.original < 2:
        raise ConfigError("original_max_position_embeddings must be at least 2 for longrope; got 1")
    factor = numbers.positive("factor", numbers.longest / numbers.original)
    return LongRoPEScaling(
        short_factors=numbers.factors("short_factor", num_pairs),
        long_factors=numbers.factors("long_factor", num_pairs),
        original_max_positions=numbers.original,
        factor=factor,
        attention_factor=numbers.positive("attention_factor", longrope_factor(factor, numbers.original)),
    )


def _read_llama3(numbers: "_Numbers") -> Llama3Scaling:
    low, high = numbers.positive("low_freq_factor"), numbers.positive("high_freq_factor")
    if high <= low:
        raise ConfigError(f"high_freq_factor in {numbers.outer} must be above low_freq_factor; got {high} and {low}")
    return Llama3Scaling(
        factor=numbers.positive("factor"),
        original_max_positions=numbers.original,
        low_freq_factor=low,
        high_freq_factor=high,
    )


class _Numbers:
    """Typed access to the numbers of a rule, with errors that name them as the file does."""

    def __init__(self, outer: str, settings: Mapping[str, object], keys: Keys):
        self.outer, self.settings, self._keys = outer, settings, keys

    @property
    def longest(self) -> int:
        """The length that the file promises."""
        return self._keys.size("max_position_embeddings")

    @property
    def original(self) -> int:
        """The length that the model was trained on: Phi-3's key beside the rule, the rule's own, or all positions."""
        name = "original_max_position_embeddings"
        if self._keys.has(name):
            return self._keys.size(name)
        value = self.settings.get(name)
        if value is None:
            return self.longest
        require_size(f"{name} in {self.outer}", value)
        assert isinstance(value, int)
        return value

    def positive(self, name: str, default: float | None = None, *, maximum: float | None = None) -> float:
        """Return a number above 0, the default where there is none, if it has one."""
        value = self.settings.get(name)
        value = default if value is None else value
        require_positive(f"{name} in {self.outer}", value)
        assert isinstance(value, int | float)
        if maximum is not None and value > maximum:
            raise ConfigError(f"{name} in {self.outer} must be at most {maximum:g}; got {value}")
        return float(value)

    def factors(self, name: str, num_pairs: int) -> tuple[float, ...]:
        """Return one number above 0 for each pair that is turned."""
        values = self.settings.get(name)
        if not isinstance(values, list | tuple) or len(values) != num_pairs:
            got = f"{len(values)} of them" if isinstance(values, list | tuple) else shown(values)
            raise ConfigError(
                f"{name} in {self.outer} must be a list of one number for each of the {num_pairs} pairs that are "
                f"turned; got {got}"
            )
        for value in values:
            require_positive(f"a number of {name} in {self.outer}", value)
        return tuple(float(value) for value in values)
