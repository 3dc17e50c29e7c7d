"""Rotary positions: turn queries and keys by angles that grow with the position."""

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from headwise.config.attention import Rotary
from headwise.errors import ConfigError, UnsupportedError


class RotaryPositions(nn.Module):
    """Turn each pair of dimensions of a head by an angle proportional to the token's position.

    Pair `i` of a vector of size D at position p is multiplied, as a complex number, by `exp(1j * p * theta**(-2i/D))`.
    The product of a query and a key then depends on the two vectors and on the distance of their positions only.

    The module holds no tensor that a change of dtype could round: frequencies are computed from the config at each
    call, in float64, and the turning is done in float32 or better. In bfloat16 neighbouring positions beyond 256 would
    be one and the same.

    Args:
        config: theta and pairing.
        head_dim: size D of a head; even.

    Raises:
        ConfigError: `head_dim` is odd.
        UnsupportedError: the config asks for scaled frequencies.

    Source: Su et al. 2021, "RoFormer", section 3.4.2.
    """

    def __init__(self, config: Rotary, head_dim: int):
        super().__init__()
        if head_dim % 2:
            raise ConfigError(f"head_dim must be even for rotary positions, which turn pairs; got {head_dim}")
        if config.scaling is not None:
            raise UnsupportedError(
                f"rotary frequencies must be unscaled (scaling=None) to be computed here; got {config.scaling!r}; "
                "run a model with scaled frequencies through transformers"
            )
        self.config = config
        self.head_dim = head_dim

    def forward(
        self,
        vectors: Float[Tensor, "batch num_heads seq_len head_dim"],
        positions: Int[Tensor, "batch seq_len"] | Int[Tensor, " seq_len"],
    ) -> Float[Tensor, "batch num_heads seq_len head_dim"]:
        """Turn queries or keys.

        Args:
            vectors: queries or keys, per head.
            positions: position of each token, the same for all texts or one row per text.

        Returns:
            The turned vectors, in the dtype that came.

        Raises:
            ConfigError: positions are not one whole number a token.
        """
        batch_size, _, seq_len, _ = vectors.shape
        is_other_kind = positions.is_floating_point() or positions.is_complex() or positions.dtype == torch.bool
        if positions.shape not in ((seq_len,), (batch_size, seq_len)) or is_other_kind:
            raise ConfigError(
                f"positions must hold one whole number a token, shape ({seq_len},) or ({batch_size}, {seq_len}); "
                f"got {positions.dtype} of shape {tuple(positions.shape)}"
            )
        cos, sin = rotary_tables(positions, self.head_dim, float(self.config.theta))
        return rotate(vectors, cos.unsqueeze(-3), sin.unsqueeze(-3), self.config.pairing)

    def extra_repr(self) -> str:
        """Show the config in the module's print."""
        return f"head_dim={self.head_dim}, theta={self.config.theta}, pairing={self.config.pairing!r}"


def rotary_tables(
    positions: Int[Tensor, "*batch seq_len"], head_dim: int, theta: float
) -> tuple[Float[Tensor, "*batch seq_len half_dim"], Float[Tensor, "*batch seq_len half_dim"]]:
    """Return cosine and sine of the angle of each position and pair, in float64.

    Args:
        positions: position of each token.
        head_dim: size of a head; there are half as many pairs.
        theta: base of the frequencies.
    """
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float64, device=positions.device) / head_dim
    angles = positions.unsqueeze(-1) * theta**-exponents
    return angles.cos(), angles.sin()


def rotate(
    vectors: Float[Tensor, "batch num_heads seq_len head_dim"],
    cos: Float[Tensor, "*heads seq_len half_dim"],
    sin: Float[Tensor, "*heads seq_len half_dim"],
    pairing: str,
) -> Float[Tensor, "batch num_heads seq_len head_dim"]:
    """Turn the pairs of the last dimension: `(a, b) -> (a cos - b sin, a sin + b cos)`.

    Args:
        vectors: what to turn.
        cos, sin: of the angle of each token and pair, broadcast over texts and heads.
        pairing: "half": the pair of dimension i is i + D/2; "interleaved": dimensions 2i and 2i + 1.
    """
    num_pairs = cos.shape[-1]
    # The last dimension as a rectangle with the two of each pair along one axis.
    rectangle, axis = ((2, num_pairs), -2) if pairing == "half" else ((num_pairs, 2), -1)
    dtype = torch.promote_types(vectors.dtype, torch.float32)
    first, second = vectors.to(dtype).reshape(*vectors.shape[:-1], *rectangle).unbind(axis)
    cos, sin = cos.to(dtype), sin.to(dtype)
    turned = torch.stack((first * cos - second * sin, first * sin + second * cos), dim=axis)
    return turned.flatten(-2).to(vectors.dtype)
