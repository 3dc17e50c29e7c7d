"""What must hold of positions, for whoever reads them."""

import torch
from torch import Tensor

from headwise.config.checks import shown
from headwise.errors import ConfigError


def require_positions(positions: object, tokens: Tensor, *, batch_size: int, seq_len: int) -> None:
    """Raise ConfigError unless `positions` holds one whole number a token, for all texts alike or for each.

    Args:
        positions: what came.
        tokens: what the positions are of; they must be on its device.
        batch_size: how many texts there are.
        seq_len: how many tokens each has.
    """
    shapes = ((seq_len,), (batch_size, seq_len))
    if not isinstance(positions, Tensor) or not is_whole(positions) or positions.shape not in shapes:
        raise ConfigError(
            f"positions must hold one whole number a token, shape ({seq_len},) or ({batch_size}, {seq_len}); "
            f"got {described(positions)}"
        )
    if positions.device != tokens.device:
        raise ConfigError(f"positions must be on the device of the tokens, {tokens.device}; got {positions.device}")


def require_whole(name: str, numbers: object) -> None:
    """Raise ConfigError unless `numbers` is a tensor of whole numbers."""
    if not isinstance(numbers, Tensor) or not is_whole(numbers):
        raise ConfigError(f"{name} must be a tensor of whole numbers; got {described(numbers)}")


def require_heads(vectors: object, head_dim: int) -> None:
    """Raise ConfigError unless `vectors` are queries or keys of heads of a size."""
    is_of_heads = isinstance(vectors, Tensor) and vectors.dim() == 4 and vectors.shape[-1] == head_dim
    if not (is_of_heads and vectors.is_floating_point()):  # type: ignore[attr-defined]
        raise ConfigError(
            f"vectors must be floating-point numbers of shape (batch, num_heads, seq_len, head_dim = {head_dim}); "
            f"got {described(vectors)}"
        )


def is_whole(numbers: Tensor) -> bool:
    """Tell whether a tensor holds whole numbers; bools are none."""
    return not (numbers.is_floating_point() or numbers.is_complex() or numbers.dtype == torch.bool)


def described(value: object) -> str:
    """Return dtype and shape of a tensor, or what else a value is, for the text of an error."""
    return f"{value.dtype} of shape {tuple(value.shape)}" if isinstance(value, Tensor) else shown(value)
