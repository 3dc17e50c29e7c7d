"""Checks of single settings: each names the setting, says what must hold and what came, on one short line."""

import reprlib
import unicodedata
from collections.abc import Sequence

from headwise.errors import ConfigError
from headwise.masks.patterns import Mask

TURNS = "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"  # of the direction of writing
MAX_SIZE = 2**31 - 1  # what a tensor dimension of a real model stays under; more is a mistake or an attack
MAX_SEED = 2**63 - 1  # what torch's generators take
MAX_NUMBER = 1e300  # far from where a float overflows
MAX_SHOWN = 100  # characters of a wrong value that an error repeats


def require_size(name: str, value: object, *, minimum: int = 1, maximum: int = MAX_SIZE) -> None:
    """Raise ConfigError unless `value` is a whole number from `minimum` to `maximum`."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise ConfigError(f"{name} must be a whole number; got {shown(value)}")
    if not minimum <= value <= maximum:
        raise ConfigError(f"{name} must be between {minimum} and {maximum}; got {shown(value)}")


def require_sizes(name: str, value: object, *, minimum: int = 1) -> None:
    """Raise ConfigError unless `value` is a tuple of whole numbers, each `minimum` or more."""
    if not isinstance(value, tuple):
        raise ConfigError(f"{name} must be whole numbers, one behind the other; got {shown(value)}")
    for one in value:
        require_size(name, one, minimum=minimum)


def require_number(name: str, value: object) -> None:
    """Raise ConfigError unless `value` is a finite number that a float can hold."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not -MAX_NUMBER <= value <= MAX_NUMBER:
        raise ConfigError(f"{name} must be a finite number; got {shown(value)}")


def require_positive(name: str, value: object) -> None:
    """Raise ConfigError unless `value` is a finite number above 0."""
    require_number(name, value)
    if value <= 0:  # type: ignore[operator]
        raise ConfigError(f"{name} must be positive; got {value}")


def require_probability(name: str, value: object) -> None:
    """Raise ConfigError unless `value` is a probability below 1."""
    require_number(name, value)
    if not 0 <= value < 1:  # type: ignore[operator]
        raise ConfigError(f"{name} must be at least 0 and below 1; got {value}")


def require_flag(name: str, value: object) -> None:
    """Raise ConfigError unless `value` is True or False; a number that equals one of them is not."""
    if not isinstance(value, bool):
        raise ConfigError(f"{name} must be True or False; got {shown(value)}")


def require_text(name: str, value: object) -> None:
    """Raise ConfigError unless `value` is a string that holds something, as of `require_words`."""
    require_words(name, value)
    if not value:
        raise ConfigError(f"{name} must not be empty")


def require_words(name: str, value: object) -> None:
    """Raise ConfigError unless `value` is a string without signs that nobody sees.

    Those are control characters, but for line breaks and tabs, and the marks that turn the direction of what follows:
    in a page or a terminal they change the words around them.
    """
    if not isinstance(value, str):
        raise ConfigError(f"{name} must be a string; got {shown(value)}")
    for sign in value:
        if (unicodedata.category(sign) in ("Cc", "Cs") and sign not in "\n\t") or sign in TURNS:
            raise ConfigError(f"{name} must hold no control characters; got {sign!a} in {shown(value)}")


def require_choice(name: str, value: object, choices: Sequence[str]) -> None:
    """Raise ConfigError unless `value` is one of the strings."""
    if not isinstance(value, str) or value not in choices:
        listed = " or ".join(f'"{choice}"' for choice in choices)
        raise ConfigError(f"{name} must be {listed}; got {shown(value)}")


def require_instance(name: str, value: object, kind: type) -> None:
    """Raise ConfigError unless `value` is an object of a class."""
    if not isinstance(value, kind):
        raise ConfigError(f"{name} must be of type {kind.__name__}; got {shown(value)}")


def require_structural_mask(value: object) -> None:
    """Raise ConfigError unless `value` is a mask that a layer can have for good, whatever the texts are."""
    if not isinstance(value, Mask) or not value.is_structural:
        raise ConfigError(
            "mask of a layer must be a structural mask (Full, Causal, SlidingWindow and their combinations); "
            f"got {shown(value)}; give data masks to the call"
        )


def shown(value: object) -> str:
    """Return the start of a value's repr, short and on one line whatever the value is, for the text of an error."""
    try:
        text = reprlib.repr(value)
    except ValueError:  # Python refuses to write a whole number of more than 4300 digits
        return "a whole number of thousands of digits"
    text = " ".join(text.split())
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}..."
