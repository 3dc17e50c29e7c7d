"""LinearAttentionConfig: a layer that keeps a state of fixed size in place of keys and values (gated delta net)."""

from dataclasses import dataclass
from typing import no_type_check

from headwise.config.checks import require_positive, require_size, require_text
from headwise.errors import ConfigError
from headwise.masks.patterns import Causal, Mask


@no_type_check  # values of any type must reach the checks below
@dataclass(frozen=True, kw_only=True)
class LinearAttentionConfig:
    """One gated delta net layer on paper.

    Each value head keeps a matrix S of (key_head_dim, value_head_dim). At each token
    `S = decay S + beta k (v - decay k^T S)` and the output is `q^T S`, normed and gated. Queries, keys and values pass
    through a short causal convolution first.

    Args:
        embed_dim: width E of the residual stream.
        num_key_heads: number of query and key heads.
        num_value_heads: number of value heads, each with a state; a multiple of `num_key_heads`.
        key_head_dim: width of one query or key head.
        value_head_dim: width of one value head.
        conv_kernel_size: tokens that the convolution sees, the token itself included.
        chunk_size: tokens that are computed at once where there are many.
        activation: non-linearity after the convolution.
        norm_eps: the small number under the root of the output's norm.

    Source: Yang et al. 2024, "Gated Delta Networks", section 3; as laid out in Qwen3-Next.
    """

    embed_dim: int
    num_key_heads: int
    num_value_heads: int
    key_head_dim: int
    value_head_dim: int
    conv_kernel_size: int = 4
    chunk_size: int = 64
    activation: str = "silu"
    norm_eps: float = 1e-6

    def __post_init__(self) -> None:
        for name in ("embed_dim", "num_key_heads", "num_value_heads", "key_head_dim", "value_head_dim"):
            require_size(name, getattr(self, name))
        for name in ("conv_kernel_size", "chunk_size"):
            require_size(name, getattr(self, name))
        require_text("activation", self.activation)
        require_positive("norm_eps", self.norm_eps)
        if self.num_value_heads % self.num_key_heads:
            raise ConfigError(
                "num_value_heads must be a multiple of num_key_heads, so that each key head serves the same number of "
                f"states; got {self.num_value_heads} and {self.num_key_heads}"
            )

    @property
    def key_width(self) -> int:
        """Width of all queries, and of all keys."""
        return self.num_key_heads * self.key_head_dim

    @property
    def value_width(self) -> int:
        """Width of all values, of the gate and of what goes into the output projection."""
        return self.num_value_heads * self.value_head_dim

    @property
    def conv_width(self) -> int:
        """Channels of the convolution: queries, keys and values side by side."""
        return 2 * self.key_width + self.value_width

    # What readers of any kind of layer ask for.

    @property
    def num_heads(self) -> int:
        """Number of heads with a state of their own."""
        return self.num_value_heads

    @property
    def num_kv_heads(self) -> int:
        """Number of query and key heads."""
        return self.num_key_heads

    @property
    def queries_per_kv(self) -> int:
        """Number of states that one key head serves."""
        return self.num_value_heads // self.num_key_heads

    @property
    def head_dim(self) -> int:
        """Width of one query or key head."""
        return self.key_head_dim

    @property
    def v_head_dim(self) -> int:
        """Width of one value head."""
        return self.value_head_dim

    @property
    def mask(self) -> Mask:
        """Every token sees what came before it, through the state."""
        return Causal()

    @property
    def position(self) -> None:
        """The order of the tokens is in the state; no position is added."""

    @property
    def dropout_p(self) -> float:
        """There are no weights to drop."""
        return 0.0
