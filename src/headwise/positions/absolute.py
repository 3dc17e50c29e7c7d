"""Vectors that stand for positions, added to the tokens: sinusoids of any length, or a learned table."""

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor

from headwise.config.checks import require_positive, require_size, shown
from headwise.errors import ConfigError
from headwise.positions.checks import require_whole


class SinusoidalPositions(nn.Module):
    """Compute sines and cosines of a position: `PE[p, 2i] = sin(p f_i)` and `PE[p, 2i + 1] = cos(p f_i)`.

    The frequencies `f_i = theta**(-2i/E)` are a geometric row, and so are the wavelengths `2 pi / f_i`. A shift by `d`
    positions turns each pair by the angle `d f_i`: a linear map that does not depend on the place.

    Nothing is learned and nothing is held: vectors are computed at each call, for any position, in float64, and rounded
    once.

    Args:
        embed_dim: width E of the tokens; even.
        theta: base of the row of frequencies.

    Raises:
        ConfigError: `embed_dim` is odd; a value is out of range.

    Source: Vaswani et al. 2017, "Attention Is All You Need", section 3.5.
    """

    def __init__(self, embed_dim: int, *, theta: float = 10000.0):
        super().__init__()
        require_size("embed_dim", embed_dim)
        require_positive("theta", theta)
        if embed_dim % 2:
            raise ConfigError(f"embed_dim must be even for sinusoids, which come in pairs; got {embed_dim}")
        self.embed_dim = embed_dim
        self.theta = float(theta)

    def forward(
        self, positions: Int[Tensor, "*batch seq_len"], *, dtype: torch.dtype = torch.float32
    ) -> Float[Tensor, "*batch seq_len embed_dim"]:
        """Return the vector of each position, to be added to the token there.

        Args:
            positions: position of each token, any whole numbers.
            dtype: of the vectors; that of the tokens, so that the sum keeps it.

        Raises:
            ConfigError: positions are no whole numbers; another dtype than a floating-point one.
        """
        require_whole("positions", positions)
        if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
            raise ConfigError(f"dtype must be a floating-point dtype of torch; got {shown(dtype)}")
        places = torch.arange(0, self.embed_dim, 2, dtype=torch.float64, device=positions.device) / self.embed_dim
        angles = positions.unsqueeze(-1) * self.theta**-places
        return torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(-2).to(dtype)

    def extra_repr(self) -> str:
        """Show the settings in the module's print."""
        return f"embed_dim={self.embed_dim}, theta={self.theta}"


class LearnedPositions(nn.Module):
    """Look up a learned vector for each position: `table[p]`.

    A table knows the positions that it was trained on, and none beyond. `extend` stretches it.

    Args:
        max_positions: rows of the table: how many positions there are, counted from 0.
        embed_dim: width of the tokens.

    Attributes:
        table: (max_positions, embed_dim), as `position_embeddings.weight` of BERT or `wpe.weight` of GPT-2.

    Source: Gehring et al. 2017, "Convolutional Sequence to Sequence Learning", section 3.1.
    """

    def __init__(self, max_positions: int, embed_dim: int):
        super().__init__()
        require_size("max_positions", max_positions)
        require_size("embed_dim", embed_dim)
        self.table = nn.Parameter(torch.empty(max_positions, embed_dim))
        nn.init.normal_(self.table, std=0.02)  # as BERT and GPT-2 start

    @property
    def max_positions(self) -> int:
        """How many positions the table has."""
        return self.table.shape[0]

    @property
    def embed_dim(self) -> int:
        """Width of the vectors."""
        return self.table.shape[1]

    def forward(self, positions: Int[Tensor, "*batch seq_len"]) -> Float[Tensor, "*batch seq_len embed_dim"]:
        """Return the vector of each position, to be added to the token there, in the table's dtype.

        Args:
            positions: position of each token, from 0 to `max_positions - 1`.

        Raises:
            ConfigError: positions are no whole numbers, on another device than the table, or without a row. The
                numbers are looked at, which waits for the device; where there are none to look at, in a trace or a
                compiled graph, it is left to torch's indexing to refuse them.
        """
        require_whole("positions", positions)
        if positions.device != self.table.device:
            raise ConfigError(
                f"positions must be on the device of the table, {self.table.device}; got {positions.device}"
            )
        positions = positions.long()
        if positions.numel() and _has_numbers(positions):
            smallest, largest = (int(end) for end in torch.aminmax(positions))
            if smallest < 0:
                raise ConfigError(
                    f"positions must be at least 0, each the number of a row of the table; got {smallest}"
                )
            if largest >= self.max_positions:
                raise ConfigError(
                    f"positions must be below max_positions = {self.max_positions}: a learned table has a row for each "
                    f"position that it was trained on, and none beyond; got {largest}; shorten the text, or take "
                    f"extend({largest + 1}), which stretches the table by interpolation"
                )
        return nn.functional.embedding(positions, self.table)

    @torch.no_grad()
    def extend(self, max_positions: int) -> "LearnedPositions":
        """Return a new module with a longer table, stretched over the new positions; this one stays as it is.

        Row `j` of M new rows stands at place `j (N - 1) / (M - 1)` of the N old ones, on the straight line between its
        two neighbours there, computed in float32 or better. The first row and the last stay what they were; a position
        then means what an earlier one meant, so train on a little before you rely on it.

        Args:
            max_positions: rows of the new table, at least as many as now.

        Raises:
            ConfigError: fewer rows than now.

        Source: Dosovitskiy et al. 2021, "An Image is Worth 16x16 Words", section 3.2, which does so in two dimensions.
        """
        require_size("max_positions", max_positions)
        if max_positions < self.max_positions:
            raise ConfigError(
                f"max_positions must be at least the {self.max_positions} that the table has; got {max_positions}"
            )
        last = self.max_positions - 1
        steps = max(max_positions - 1, 1)
        # Whole numbers until the end: a row that falls on an old one is that row, to the bit.
        numerators = torch.arange(max_positions, device=self.table.device) * last
        before = numerators // steps
        after = (before + 1).clamp(max=last)
        dtype = torch.promote_types(self.table.dtype, torch.float32)
        shares = ((numerators % steps).to(dtype) / steps).unsqueeze(-1)
        table = self.table.to(dtype)
        longer = torch.lerp(table[before], table[after], shares).to(self.table.dtype)
        extended = LearnedPositions(1, self.embed_dim)
        extended.table = nn.Parameter(longer, requires_grad=self.table.requires_grad)
        return extended.train(self.training)

    def extra_repr(self) -> str:
        """Show the sizes in the module's print."""
        return f"max_positions={self.max_positions}, embed_dim={self.embed_dim}"


def _has_numbers(positions: Tensor) -> bool:
    """Tell whether there are numbers to look at: none in a trace, a compiled graph or a transform of `torch.func`."""
    is_plain = not isinstance(positions, FakeTensor) and positions.device.type != "meta"
    is_wrapped = torch._C._functorch.is_functorch_wrapped_tensor(positions)
    return is_plain and not is_wrapped and not torch.compiler.is_compiling()
