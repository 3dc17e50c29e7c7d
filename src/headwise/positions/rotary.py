"""Rotary positions: turn queries and keys by angles that grow with the position."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.compiler import is_compiling

from headwise.config.attention import Rotary
from headwise.config.checks import require_instance, require_size
from headwise.errors import ConfigError
from headwise.positions.checks import described, is_whole, require_heads, require_positions
from headwise.positions.scaling import attention_factor, require_factor_per_pair, rotary_frequencies

Tables = tuple[Tensor, Tensor]
_shared: ContextVar[dict[tuple[Any, ...], tuple[Tensor, Tables]] | None] = ContextVar("_shared", default=None)


@contextmanager
def shared_tables() -> Iterator[None]:
    """Let layers that are called inside with the same tensor of positions share its cosines and sines.

    A token that is decoded is turned by the same angles in each layer, and to compute them takes as long as to turn by
    them. The positions must not change inside; nothing is kept afterwards.
    """
    token = _shared.set({})
    try:
        yield
    finally:
        _shared.reset(token)


class RotaryPositions(nn.Module):
    """Turn each pair of dimensions of a head by an angle proportional to the token's position.

    Pair `i` of a vector at position p is multiplied, as a complex number, by `exp(1j * p * f_i)`, with the plain
    frequency `f_i = theta**(-2i/D)` of the D dimensions that are turned, or what the config's rule of scaling makes of
    it. The product of a query and a key then depends on the two vectors and on the distance of their positions only.

    The module holds no tensor that a change of dtype could round: frequencies are computed from the config at each
    call, in float64, and the turning is done in float32 or better. In bfloat16 neighbouring positions beyond 256 would
    be one and the same.

    Args:
        config: theta, pairing, scaling, and how many of the first dimensions are turned; the others stay as they are.
        head_dim: size of a head; even, unless the config says how much of it is turned.

    Raises:
        ConfigError: `head_dim` is odd or smaller than what is turned; a rule that lists factors lists too few or many.

    Source: Su et al. 2021, "RoFormer", section 3.4.2; a part of a head: Black et al. 2022, "GPT-NeoX-20B", section 2.1.
    """

    def __init__(self, config: Rotary, head_dim: int):
        super().__init__()
        require_instance("config", config, Rotary)
        require_size("head_dim", head_dim)
        rotary_dim = config.rotary_dim or head_dim
        if rotary_dim % 2:
            raise ConfigError(f"head_dim must be even for rotary positions, which turn pairs; got {head_dim}")
        if rotary_dim > head_dim:
            raise ConfigError(f"rotary_dim must not exceed head_dim; got {rotary_dim} and {head_dim}")
        require_factor_per_pair(config, rotary_dim)
        self.config = config
        self.head_dim = head_dim
        self.rotary_dim = rotary_dim

    def forward(
        self,
        vectors: Float[Tensor, "batch num_heads seq_len head_dim"],
        positions: Int[Tensor, "batch seq_len"] | Int[Tensor, " seq_len"],
        *,
        text_len: int | Int[Tensor, "..."] | None = None,
    ) -> Float[Tensor, "batch num_heads seq_len head_dim"]:
        """Turn queries or keys.

        Args:
            vectors: queries or keys, per head.
            positions: position of each token, the same for all texts or one row per text.
            text_len: length of the text of each token, read by rules whose frequencies depend on it
                (`config.reads_length`), and by no other: one number, or whole numbers that broadcast to `positions`,
                so (batch, 1) for one a row and (batch, seq_len) for one a token. Default: the
                largest position of each row, plus 1. Give it where that is not the text's length: to a stream of
                tokens with a cache, whose keys must all be turned by the same frequencies, and to rows that hold
                several texts.

        Returns:
            The turned vectors, in the dtype that came.

        Raises:
            ConfigError: vectors are not those of heads of this size; positions are not one whole number a token;
                lengths are below 1 or do not broadcast to positions. Numbers in tensors are not looked at.
        """
        require_heads(vectors, self.head_dim)
        batch_size, _, seq_len, _ = vectors.shape
        require_positions(positions, vectors, batch_size=batch_size, seq_len=seq_len)
        if text_len is not None:
            _require_lengths(text_len, positions)
        cos, sin = self._tables(positions, text_len)
        return rotate(vectors, cos.unsqueeze(-3), sin.unsqueeze(-3), self.config.pairing)

    def _tables(self, positions: Int[Tensor, "*batch seq_len"], text_len: int | Int[Tensor, "..."] | None) -> Tables:
        """Return cosines and sines, those that another layer has made where layers share."""
        shared = None if is_compiling() else _shared.get()
        if shared is None or text_len is not None:
            return self._make_tables(positions, text_len)
        key = (self.config, self.rotary_dim, id(positions))
        if key not in shared:
            shared[key] = positions, self._make_tables(positions, None)  # which keeps the tensor, and so its id
        return shared[key][1]

    def _make_tables(
        self, positions: Int[Tensor, "*batch seq_len"], text_len: int | Int[Tensor, "..."] | None
    ) -> Tables:
        lengths = self._lengths(positions, text_len) if self.config.reads_length else positions
        frequencies = rotary_frequencies(self.config, self.rotary_dim, lengths)
        return rotary_tables(positions, frequencies, attention_factor(self.config))

    def _lengths(
        self, positions: Int[Tensor, "*batch seq_len"], text_len: int | Int[Tensor, "..."] | None
    ) -> Int[Tensor, "..."]:
        """Return the length of the text of each token, with axes that broadcast to those of positions."""
        if text_len is None:
            if not positions.shape[-1]:
                return positions
            return positions.long().amax(-1, keepdim=True) + 1
        if not isinstance(text_len, Tensor):
            return torch.full_like(positions[..., :1], text_len, dtype=torch.int64)
        return text_len.to(positions.device)

    def extra_repr(self) -> str:
        """Show the config in the module's print."""
        parts = [f"head_dim={self.head_dim}, theta={self.config.theta}, pairing={self.config.pairing!r}"]
        parts += [f"scaling={self.config.scaling}"] if self.config.scaling is not None else []
        parts += [f"rotary_dim={self.rotary_dim}"] if self.rotary_dim != self.head_dim else []
        return ", ".join(parts)


def _require_lengths(text_len: object, positions: Tensor) -> None:
    """Raise ConfigError unless `text_len` is a size, or whole numbers that broadcast to positions."""
    if not isinstance(text_len, Tensor):
        require_size("text_len", text_len)
        return
    sizes = zip(reversed(text_len.shape), reversed(positions.shape), strict=False)  # axes are compared from the last on
    fits = text_len.dim() <= positions.dim() and all(mine in (1, theirs) for mine, theirs in sizes)
    if not fits or not is_whole(text_len):
        raise ConfigError(
            "text_len must be a whole number, or whole numbers that broadcast to positions, "
            f"{tuple(positions.shape)}; got {described(text_len)}"
        )


def rotary_tables(
    positions: Int[Tensor, "*batch seq_len"], frequencies: Float[Tensor, "*any num_pairs"], factor: float = 1.0
) -> tuple[Float[Tensor, "*batch seq_len num_pairs"], Float[Tensor, "*batch seq_len num_pairs"]]:
    """Return cosine and sine of the angle of each position and pair, in float64.

    Args:
        positions: position of each token.
        frequencies: float64; of each pair, the same for all tokens, or with axes that broadcast to those of positions.
        factor: what both are multiplied by.
    """
    angles = positions.unsqueeze(-1) * frequencies
    cos, sin = angles.cos(), angles.sin()
    return (cos, sin) if factor == 1 else (cos * factor, sin * factor)


def rotate(
    vectors: Float[Tensor, "batch num_heads seq_len head_dim"],
    cos: Float[Tensor, "*heads seq_len num_pairs"],
    sin: Float[Tensor, "*heads seq_len num_pairs"],
    pairing: str,
) -> Float[Tensor, "batch num_heads seq_len head_dim"]:
    """Turn the pairs of the last dimension: `(a, b) -> (a cos - b sin, a sin + b cos)`.

    Args:
        vectors: what to turn; of D dimensions more than there are pairs for, the last stay as they are.
        cos, sin: of the angle of each token and pair, broadcast over texts and heads.
        pairing: which of the dimensions R that are turned are a pair. "half": i and i + R/2; "interleaved": 2i and
            2i + 1.
    """
    num_pairs = cos.shape[-1]
    if vectors.shape[-1] > 2 * num_pairs:
        turned = rotate(vectors[..., : 2 * num_pairs], cos, sin, pairing)
        return torch.cat((turned, vectors[..., 2 * num_pairs :]), dim=-1)
    # The last dimension as a rectangle with the two of each pair along one axis.
    rectangle, axis = ((2, num_pairs), -2) if pairing == "half" else ((num_pairs, 2), -1)
    dtype = torch.promote_types(vectors.dtype, torch.float32)
    first, second = vectors.to(dtype).reshape(*vectors.shape[:-1], *rectangle).unbind(axis)
    cos, sin = cos.to(dtype), sin.to(dtype)
    turned = torch.stack((first * cos - second * sin, first * sin + second * cos), dim=axis)
    return turned.flatten(-2).to(vectors.dtype)
