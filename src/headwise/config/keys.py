"""Keys: typed access to the settings of a config.json, where any key may be missing or hold anything."""

from collections.abc import Mapping

from headwise.config.checks import (
    MAX_SIZE,
    require_positive,
    require_probability,
    require_size,
    require_text,
    shown,
)
from headwise.config.dtypes import require_dtype
from headwise.errors import ConfigError


class Keys:
    """The settings that a family knows, each the config's value or the family's default.

    Every method raises ConfigError, naming the key as it is spelt in the file, when the value is not of its kind.

    Args:
        config: the config as it was written; keys that the family does not know are not looked at.
        defaults: what the family does where a key is missing.
        aliases: other spellings, each with the key that it stands for; the other spelling wins.
    """

    def __init__(
        self, config: Mapping[str, object], defaults: Mapping[str, object], aliases: Mapping[str, str] | None = None
    ):
        self._defaults = defaults
        self._values = {key: config.get(key, default) for key, default in defaults.items()}
        self._spellings = {key: key for key in defaults}
        for alias, key in (aliases or {}).items():
            if alias in config:
                self._values[key] = config[alias]
                self._spellings[key] = alias

    def spelt(self, key: str) -> str:
        """Return how the file spells a key: the key itself, or the other spelling that it uses."""
        return self._spellings[key]

    def has(self, key: str) -> bool:
        """Return whether the family has this key at all."""
        return key in self._values

    def default(self, key: str) -> object:
        """Return what the family does where the key is missing."""
        return self._defaults[key]

    def size(self, key: str, *, minimum: int = 1, maximum: int = MAX_SIZE) -> int:
        """Return a whole number."""
        value = self._values[key]
        require_size(self.spelt(key), value, minimum=minimum, maximum=maximum)
        assert isinstance(value, int)
        return value

    def size_or_none(self, key: str) -> int | None:
        """Return a whole number from 1, or None for null."""
        return None if self._values[key] is None else self.size(key)

    def require_multiple(self, key: str, of: str, *, advice: str = "") -> None:
        """Raise ConfigError unless one size is a multiple of another; `advice` ends the text."""
        size, divisor = self.size(key), self.size(of)
        if size % divisor:
            raise ConfigError(
                f"{self.spelt(key)} must be a multiple of {self.spelt(of)}; got {size} and {divisor}{advice}"
            )

    def positive(self, key: str) -> float:
        """Return a finite number above 0."""
        value = self._values[key]
        require_positive(self.spelt(key), value)
        assert isinstance(value, int | float)
        return float(value)

    def positive_or_none(self, key: str) -> float | None:
        """Return a finite number above 0, or None for null."""
        return None if self._values[key] is None else self.positive(key)

    def probability(self, key: str, *, null: float | None = None) -> float:
        """Return a probability below 1; `null`, if given, is what null stands for."""
        value = self._values[key]
        if value is None and null is not None:
            return null
        require_probability(self.spelt(key), value)
        assert isinstance(value, int | float)
        return float(value)

    def flag(self, key: str, *, null: bool | None = None) -> bool:
        """Return true or false; `null`, if given, is what null stands for."""
        value = self._values[key]
        if value is None and null is not None:
            return null
        if not isinstance(value, bool):
            raise ConfigError(f"{self.spelt(key)} must be true or false; got {shown(value)}")
        return value

    def text(self, key: str) -> str:
        """Return a string that holds something."""
        value = self._values[key]
        require_text(self.spelt(key), value)
        assert isinstance(value, str)
        return value

    def text_or_none(self, key: str) -> str | None:
        """Return a string, or None for null."""
        return None if self._values[key] is None else self.text(key)

    def mapping(self, key: str) -> Mapping[str, object]:
        """Return an object with keys of its own; null stands for an empty one."""
        value = self._values[key]
        if value is None:
            return {}
        if not isinstance(value, Mapping):
            raise ConfigError(f"{self.spelt(key)} must be an object with keys; got {shown(value)}")
        return value

    def texts(self, key: str) -> list[str] | None:
        """Return a list of strings, or None for null."""
        value = self._values[key]
        if value is None:
            return None
        if not isinstance(value, list | tuple) or not all(isinstance(item, str) for item in value):
            raise ConfigError(f"{self.spelt(key)} must be a list of strings; got {shown(value)}")
        return list(value)

    def whole_numbers(self, key: str) -> list[int]:
        """Return a list of whole numbers from 0; null stands for an empty one."""
        value = self._values[key]
        if value is None:
            return []
        if not isinstance(value, list | tuple):
            raise ConfigError(f"{self.spelt(key)} must be a list of whole numbers; got {shown(value)}")
        for item in value:
            require_size(f"a number in {self.spelt(key)}", item, minimum=0)
        return list(value)


def read_dtype(config: Mapping[str, object]) -> str | None:
    """Return the dtype that a config.json says its weights have, or None; `torch_dtype` is the key's older name."""
    key = "dtype" if config.get("dtype") is not None else "torch_dtype"
    name = Keys(config, {key: None}).text_or_none(key)
    if name is not None:
        require_dtype(key, name)
    return name
