"""LatentAttentionConfig: attention whose keys and values are cached as one small vector a token (MLA)."""

from dataclasses import dataclass
from typing import no_type_check

from headwise.config.checks import (
    require_flag,
    require_instance,
    require_number,
    require_positive,
    require_probability,
    require_size,
    require_structural_mask,
)
from headwise.config.position import Rotary
from headwise.errors import ConfigError
from headwise.masks.patterns import Causal, Mask


@no_type_check  # values of any type must reach the checks below
@dataclass(frozen=True, kw_only=True)
class LatentAttentionConfig:
    """One multi-head latent attention layer on paper.

    `latent = norm(x A)` has `kv_lora_rank` numbers a token; every head's keys (but for their rotary part) and values
    are projections of it. The rotary part of the keys is one small head that all query heads share. Queries go through
    a rank of their own, `norm(x A_q) B_q`, or are projected at once.

    Args:
        embed_dim: width E of the residual stream.
        num_heads: number H of query heads; each has keys and values of its own.
        q_lora_rank: rank of the queries' projection; None = one full matrix, no norm.
        kv_lora_rank: width of the latent vector.
        qk_nope_head_dim: width of a query or key head's part without positions.
        qk_rope_head_dim: width of its rotary part.
        v_head_dim: width of one value head.
        projection_bias: the down-projections and the output projection have biases.
        norm_eps: the small number under the root of the latent norms.
        position: how the rotary parts are turned.
        mask: structural mask that belongs to the layer.
        scale: factor on the scores. Default: `1 / sqrt(qk_nope_head_dim + qk_rope_head_dim)`.
        dropout_p: probability with which a weight is dropped in training.

    Source: DeepSeek-AI 2024, "DeepSeek-V2", section 2.1.
    """

    embed_dim: int
    num_heads: int
    q_lora_rank: int | None
    kv_lora_rank: int
    qk_nope_head_dim: int
    qk_rope_head_dim: int
    v_head_dim: int
    projection_bias: bool = False
    norm_eps: float = 1e-6
    position: Rotary = Rotary(pairing="interleaved")  # noqa: RUF009  a frozen value
    mask: Mask = Causal()  # noqa: RUF009  a frozen value
    scale: float = None  # type: ignore[assignment]  # filled in by __post_init__, never None afterwards
    dropout_p: float = 0.0

    def __post_init__(self) -> None:
        for name in ("embed_dim", "num_heads", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"):
            require_size(name, getattr(self, name))
        if self.q_lora_rank is not None:
            require_size("q_lora_rank", self.q_lora_rank)
        require_flag("projection_bias", self.projection_bias)
        require_positive("norm_eps", self.norm_eps)
        require_instance("position", self.position, Rotary)
        if self.qk_rope_head_dim % 2:
            raise ConfigError(f"qk_rope_head_dim must be even, since pairs are turned; got {self.qk_rope_head_dim}")
        require_structural_mask(self.mask)
        if self.scale is None:
            object.__setattr__(self, "scale", self.head_dim**-0.5)
        require_number("scale", self.scale)
        require_probability("dropout_p", self.dropout_p)

    @property
    def head_dim(self) -> int:
        """Width of one query or key head as the scores see it, both parts together."""
        return self.qk_nope_head_dim + self.qk_rope_head_dim

    @property
    def num_kv_heads(self) -> int:
        """Number of key/value heads as the scores see them: one for each query head."""
        return self.num_heads

    @property
    def queries_per_kv(self) -> int:
        """Number of query heads that read one key/value head."""
        return 1

    @property
    def cached_dim(self) -> int:
        """Numbers cached for a token: the latent vector, which keys and values share, and the rotary key."""
        return self.kv_lora_rank + self.qk_rope_head_dim
