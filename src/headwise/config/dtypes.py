"""The dtypes that weights and caches are stored in, and their bytes."""

from headwise.config.checks import shown
from headwise.errors import ConfigError

DTYPE_BYTES = {
    "float64": 8,
    "float32": 4,
    "bfloat16": 2,
    "float16": 2,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
    "int8": 1,
}


def require_dtype(name: str, value: object) -> None:
    """Raise ConfigError unless `value` is a dtype of `DTYPE_BYTES`, as torch spells it."""
    if not isinstance(value, str) or value not in DTYPE_BYTES:
        raise ConfigError(f"{name} must be one of {', '.join(DTYPE_BYTES)}; got {shown(value)}")
