"""AttentionConfig: one attention layer on paper. Other kinds of layer are in `latent` and `linear`."""

from dataclasses import dataclass, fields
from typing import Any, Literal, no_type_check

from headwise.config.checks import (
    require_choice,
    require_flag,
    require_number,
    require_positive,
    require_probability,
    require_size,
    require_structural_mask,
    shown,
)
from headwise.config.position import ALiBi, Rotary, T5Bias
from headwise.errors import ConfigError
from headwise.masks.patterns import Full, Mask

__all__ = ["ALiBi", "AttentionConfig", "Rotary", "T5Bias"]


@no_type_check  # values of any type must reach the checks below
@dataclass(frozen=True, kw_only=True)
class AttentionConfig:
    """One multi-head attention layer on paper. All validation of a layer lives here.

    Args:
        embed_dim: width E of the residual stream; of the queries that come in and of the output.
        num_heads: number H of query heads.
        num_kv_heads: number K of key/value heads; query head h reads key/value head `h // (H // K)`. Default: H.
        head_dim: width D of one query or key head. Default: `embed_dim / num_heads`, which must then be whole.
        v_head_dim: width V of one value head. Default: `head_dim`.
        key_dim: width of the tokens that the keys are projected from (cross-attention). Default: `embed_dim`.
        value_dim: width of the tokens that the values are projected from. Default: `key_dim`.
        projection_bias: True: all four projections have a bias; "qkv": all but the output's; False: none.
        qk_norm: RMSNorm on queries and keys, before positions (Qwen3).
        qk_norm_eps: the small number under the root of that norm.
        qk_norm_over: what that norm reads: each "head" by itself, or the whole "projection" (OLMo 2).
        position: Rotary, ALiBi, T5Bias, or None.
        mask: structural mask that belongs to the layer (causal, a window); a call's own mask is combined with `&`.
        scale: factor on the scores before the softmax. Default: `1 / sqrt(head_dim)`.
        dropout_p: probability with which a weight is dropped in training.
        softcap: scores become `softcap * tanh(scores / softcap)` before the mask (Gemma 2); None = off.
        sink: each head has a learned extra logit in its softmax, which takes weight from the keys (gpt-oss).
        output_gate: a second projection as wide as the queries gates, by its sigmoid, what goes into the output
            projection (Qwen3-Next).
        kv_layer: index of the earlier layer whose keys and values this one reads; it then projects and caches none of
            its own (Gemma 3n). None = its own.

    Raises:
        ConfigError: a value is not of its kind, out of range, or contradicts another (heads that do not divide).

    Source: Vaswani et al. 2017, "Attention Is All You Need", section 3.2.2; grouped heads: Ainslie et al. 2023, "GQA".
    """

    embed_dim: int
    num_heads: int
    num_kv_heads: int = None  # type: ignore[assignment]  # filled in by __post_init__, never None afterwards
    head_dim: int = None  # type: ignore[assignment]
    v_head_dim: int = None  # type: ignore[assignment]
    key_dim: int = None  # type: ignore[assignment]
    value_dim: int = None  # type: ignore[assignment]
    projection_bias: bool | Literal["qkv"] = True
    qk_norm: bool = False
    qk_norm_eps: float = 1e-6
    qk_norm_over: Literal["head", "projection"] = "head"
    position: Rotary | ALiBi | T5Bias | None = None
    mask: Mask = Full()  # noqa: RUF009  a frozen value
    scale: float = None  # type: ignore[assignment]
    dropout_p: float = 0.0
    softcap: float | None = None
    sink: bool = False
    output_gate: bool = False
    kv_layer: int | None = None

    def __post_init__(self) -> None:
        require_size("embed_dim", self.embed_dim)
        require_size("num_heads", self.num_heads)
        self._default("num_kv_heads", self.num_heads)
        require_size("num_kv_heads", self.num_kv_heads)
        if self.num_heads % self.num_kv_heads:
            raise ConfigError(
                "num_heads must be a multiple of num_kv_heads, so that each key head serves the same number of "
                f"queries; got {self.num_heads} and {self.num_kv_heads}"
            )
        if self.head_dim is None and self.embed_dim % self.num_heads:
            raise ConfigError(
                "embed_dim must be a multiple of num_heads, so that the heads share it evenly; "
                f"got {self.embed_dim} and {self.num_heads} (or give head_dim)"
            )
        self._default("head_dim", self.embed_dim // self.num_heads)
        self._default("v_head_dim", self.head_dim)
        self._default("key_dim", self.embed_dim)
        self._default("value_dim", self.key_dim)
        for name in ("head_dim", "v_head_dim", "key_dim", "value_dim"):
            require_size(name, getattr(self, name))
        is_qkv = isinstance(self.projection_bias, str) and self.projection_bias == "qkv"
        if not isinstance(self.projection_bias, bool) and not is_qkv:  # 1 equals True, and is none
            raise ConfigError(f'projection_bias must be True, False or "qkv"; got {shown(self.projection_bias)}')
        for name in ("qk_norm", "sink", "output_gate"):
            require_flag(name, getattr(self, name))
        require_positive("qk_norm_eps", self.qk_norm_eps)
        require_choice("qk_norm_over", self.qk_norm_over, ("head", "projection"))
        if self.softcap is not None:
            require_positive("softcap", self.softcap)
        if self.kv_layer is not None:
            require_size("kv_layer", self.kv_layer, minimum=0)
        self._default("scale", self.head_dim**-0.5)
        require_number("scale", self.scale)
        require_probability("dropout_p", self.dropout_p)
        require_structural_mask(self.mask)
        self._check_position()

    def _check_position(self) -> None:
        if self.position is not None and not isinstance(self.position, Rotary | ALiBi | T5Bias):
            raise ConfigError(f"position must be Rotary, ALiBi, T5Bias or None; got {shown(self.position)}")
        if not isinstance(self.position, Rotary):
            return
        turned = self.position.rotary_dim or self.head_dim
        if turned % 2:
            raise ConfigError(f"head_dim must be even for rotary positions, which turn pairs; got {self.head_dim}")
        if turned > self.head_dim:
            raise ConfigError(f"rotary_dim must not exceed head_dim; got {turned} and {self.head_dim}")

    @property
    def queries_per_kv(self) -> int:
        """Number of query heads that read one key/value head."""
        return self.num_heads // self.num_kv_heads

    def _default(self, name: str, value: object) -> None:
        assert name in {field.name for field in fields(self)}
        if getattr(self, name) is None:
            object.__setattr__(self, name, value)

    @classmethod
    def from_keywords(cls, **keywords: Any) -> "AttentionConfig":
        """Build the config from settings that may be None, which asks for the default."""
        return cls(**keywords)
