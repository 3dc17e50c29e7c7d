"""What a call to a cache gives it, read and checked at the door."""

import operator
from collections.abc import Sequence

import torch
from torch import Tensor

from headwise.config.checks import shown
from headwise.errors import ConfigError, UnsupportedError


def require_heads(keys: object, values: object) -> None:
    """Refuse keys and values that are not those of the same tokens of at least one row, or that ask for gradients."""
    if not isinstance(keys, Tensor) or not isinstance(values, Tensor):
        raise ConfigError(f"keys and values must be tensors; got {shown(keys)} and {shown(values)}")
    if keys.ndim != 4 or values.ndim != 4 or keys.shape[:3] != values.shape[:3]:
        raise ConfigError(
            "keys and values must have shapes (batch, num_kv_heads, num_tokens, head_dim), alike but for the last; "
            f"got {tuple(keys.shape)} and {tuple(values.shape)}"
        )
    if keys.shape[0] == 0:
        raise ConfigError("keys and values must have at least one row to be kept; got none")
    if torch.is_grad_enabled() and (keys.requires_grad or values.requires_grad):
        raise UnsupportedError(
            "keys and values must not ask for gradients to be kept: a cache serves generation; call the model "
            "under torch.no_grad(), or without a cache"
        )


def require_alike(name: str, new: Tensor, old: Tensor) -> None:
    """Refuse heads of another number, size, dtype or device than those that a cache has."""
    if (new.shape[1], new.shape[3], new.dtype, new.device) != (old.shape[1], old.shape[3], old.dtype, old.device):
        raise ConfigError(
            f"{name} must be like those in the cache, {old.shape[1]} heads of {old.shape[3]}, {old.dtype}, on "
            f"{old.device}; got {new.shape[1]} heads of {new.shape[3]}, {new.dtype}, on {new.device}"
        )


def require_real_tokens(real_tokens: object, shape: tuple[int, ...]) -> None:
    """Refuse all but a tensor of True and False of this shape."""
    if not isinstance(real_tokens, Tensor) or real_tokens.dtype != torch.bool:
        raise ConfigError(f"real_tokens must be a tensor of True and False; got {_tensor_or_value(real_tokens)}")
    if real_tokens.shape != shape:
        raise ConfigError(f"real_tokens must have shape {shape}; got {tuple(real_tokens.shape)}")


def require_positions(positions: object, shape: tuple[int, ...]) -> None:
    """Refuse all but a tensor of whole numbers, one for each token, for all rows or for each."""
    if not isinstance(positions, Tensor) or positions.dtype not in (torch.int64, torch.int32, torch.int16, torch.int8):
        raise ConfigError(f"positions must be a tensor of whole numbers; got {_tensor_or_value(positions)}")
    if positions.shape not in (shape, shape[1:]):
        raise ConfigError(f"positions must have shape {shape}; got {tuple(positions.shape)}")


def read_lengths(lengths: object, held: Sequence[int]) -> tuple[int, ...]:
    """Return the length that each row is to have, none above what it has.

    Args:
        lengths: one number for all rows, or one for each.
        held: what each row has.

    Raises:
        ConfigError: what is no whole number of at least 0, another number of rows.
    """
    given = lengths.tolist() if isinstance(lengths, Tensor) else lengths
    one = _whole(given)
    wanted = _wholes(given) if one is None else [one] * len(held)
    if wanted is None or any(length < 0 for length in wanted):
        raise ConfigError(f"lengths must be whole numbers of at least 0; got {shown(lengths)}")
    if len(wanted) != len(held):
        raise ConfigError(f"lengths must be one number or one a row, {len(held)}; got {len(wanted)}")
    return tuple(min(length, most) for length, most in zip(wanted, held, strict=True))


def read_rows(rows: object, num_rows: int) -> list[int]:
    """Return the numbers of the rows that are kept.

    Raises:
        ConfigError: what is no list of whole numbers, no row of a cache that has some, a row that there is not.
    """
    chosen = _wholes(rows.tolist() if isinstance(rows, Tensor) else rows)
    if chosen is None:
        raise ConfigError(f"rows must be a list of whole numbers; got {shown(rows)}")
    if not chosen and num_rows:
        raise ConfigError("rows must name at least one row that is kept; got none: make a new cache for other texts")
    if any(not 0 <= row < num_rows for row in chosen):
        raise ConfigError(f"rows must be from 0 to {num_rows - 1}; got {shown(chosen)}")
    return chosen


def _whole(value: object) -> int | None:
    """Return a whole number of any library as an int, None for anything else."""
    if isinstance(value, bool):
        return None
    try:
        return operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        return None


def _wholes(values: object) -> list[int] | None:
    try:
        read = [_whole(value) for value in values]  # type: ignore[attr-defined]
    except TypeError:
        return None
    found = [value for value in read if value is not None]
    return found if len(found) == len(read) else None


def _tensor_or_value(value: object) -> str:
    return f"{value.dtype}" if isinstance(value, Tensor) else shown(value)
