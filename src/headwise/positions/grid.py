"""Rotary positions of an image's patches: half of the pairs turn by the row, half by the column."""

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from headwise.config.attention import Rotary
from headwise.config.checks import require_instance, require_size
from headwise.errors import ConfigError, UnsupportedError
from headwise.positions.checks import described, is_whole, require_heads
from headwise.positions.rotary import rotary_tables, rotate
from headwise.positions.scaling import rotary_frequencies


class GridRotaryPositions(nn.Module):
    """Turn the first half of a head's pairs by angles proportional to the row, the second by the column.

    Each half has the frequencies of a head of half the size: pair `i` of the D/4 pairs of a half turns by
    `row * theta**(-4i/D)`, or by the column in place of the row. The product of a query and a key then depends on
    their distances along both axes only.

    Args:
        config: theta and pairing, and how many of the first dimensions are turned.
        head_dim: size D of a head, a multiple of 4, unless the config says how much of it is turned.

    Raises:
        ConfigError: what is turned is no multiple of 4, or more than there is.
        UnsupportedError: the config has scaled frequencies, which are rules for texts.

    Source: Wang et al. 2024, "Qwen2-VL", section 2.1; the pairs of the two axes as in its image encoder's code.
    """

    def __init__(self, config: Rotary, head_dim: int):
        super().__init__()
        require_instance("config", config, Rotary)
        require_size("head_dim", head_dim)
        rotary_dim = config.rotary_dim or head_dim
        if config.scaling is not None:
            raise UnsupportedError(
                f"rotary frequencies of a grid must be unscaled (scaling=None); got {config.scaling}; "
                "rules that stretch them are for texts: use RotaryPositions there"
            )
        if rotary_dim % 4:
            raise ConfigError(
                f"the dimensions that are turned must be a multiple of 4, half of their pairs for each axis; "
                f"got {rotary_dim}"
            )
        if rotary_dim > head_dim:
            raise ConfigError(f"rotary_dim must not exceed head_dim; got {rotary_dim} and {head_dim}")
        self.config = config
        self.head_dim = head_dim
        self.rotary_dim = rotary_dim

    def forward(
        self,
        vectors: Float[Tensor, "batch num_heads seq_len head_dim"],
        positions: Int[Tensor, "batch seq_len 2"] | Int[Tensor, "seq_len 2"],
    ) -> Float[Tensor, "batch num_heads seq_len head_dim"]:
        """Turn queries or keys.

        Args:
            vectors: queries or keys, per head.
            positions: row and column of each patch, the same for all images or one list per image; `grid_positions`
                makes them.

        Returns:
            The turned vectors, in the dtype that came.

        Raises:
            ConfigError: vectors are not those of heads of this size; positions are not two whole numbers a patch.
        """
        require_heads(vectors, self.head_dim)
        batch_size, _, seq_len, _ = vectors.shape
        shapes = ((seq_len, 2), (batch_size, seq_len, 2))
        if not isinstance(positions, Tensor) or not is_whole(positions) or positions.shape not in shapes:
            raise ConfigError(
                f"positions must hold row and column of each patch, whole numbers of shape ({seq_len}, 2) or "
                f"({batch_size}, {seq_len}, 2); got {described(positions)}"
            )
        if positions.device != vectors.device:
            raise ConfigError(
                f"positions must be on the device of the tokens, {vectors.device}; got {positions.device}"
            )
        frequencies = rotary_frequencies(self.config, self.rotary_dim // 2, positions)
        tables = (rotary_tables(places, frequencies) for places in positions.unbind(-1))
        cos, sin = (torch.cat(parts, dim=-1) for parts in zip(*tables, strict=True))
        return rotate(vectors, cos.unsqueeze(-3), sin.unsqueeze(-3), self.config.pairing)

    def extra_repr(self) -> str:
        """Show the config in the module's print."""
        part = f", rotary_dim={self.rotary_dim}" if self.rotary_dim != self.head_dim else ""
        return f"head_dim={self.head_dim}, theta={self.config.theta}, pairing={self.config.pairing!r}{part}"


def grid_positions(
    num_rows: int, num_columns: int, *, device: torch.device | str | None = None
) -> Int[Tensor, "num_patches 2"]:
    """Return row and column of each patch of a grid, row after row, as images are cut into patches.

    Args:
        num_rows: patches from top to bottom.
        num_columns: patches from left to right.
        device: where the numbers shall be.

    Raises:
        ConfigError: a number of patches is no whole number, or negative.
    """
    for name, number in (("num_rows", num_rows), ("num_columns", num_columns)):
        if not isinstance(number, torch.SymInt | Tensor):  # in a graph sizes stand for numbers
            require_size(name, number, minimum=0)
    rows, columns = torch.arange(num_rows, device=device), torch.arange(num_columns, device=device)
    return torch.cartesian_prod(rows, columns)
