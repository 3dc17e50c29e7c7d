"""BlockConfig: one layer of a model on paper, attention and feed-forward with their norms."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, no_type_check

from headwise.config.attention import AttentionConfig
from headwise.config.checks import (
    require_choice,
    require_flag,
    require_instance,
    require_positive,
    require_probability,
    require_size,
    require_text,
    shown,
)
from headwise.config.latent import LatentAttentionConfig
from headwise.config.linear import LinearAttentionConfig
from headwise.errors import ConfigError

MAX_LAYERS = 10_000  # deeper than any published Transformer by an order of magnitude

AnyAttention = AttentionConfig | LatentAttentionConfig | LinearAttentionConfig
"""The kinds of layer that mix tokens."""


@no_type_check  # values of any type must reach the checks below
@dataclass(frozen=True, kw_only=True)
class FeedForwardConfig:
    """The position-wise network of one block.

    Plain: `down(activation(up(x)))`. Gated: `down(activation(gate(x)) * up(x))`. A mixture of experts has
    `num_experts` such networks and a router; each token goes through `num_active_experts` of them, and through the
    shared one if there is one.

    Args:
        embed_dim: width of the residual stream.
        hidden_dim: width inside (of one expert).
        activation: name of the non-linearity as Hugging Face spells it ("gelu", "gelu_new", "silu", ...).
        gated: three projections instead of two.
        bias: whether the projections have biases.
        num_experts: 1 = a plain network, no router.
        num_active_experts: experts that a token goes through.
        router_bias: whether the router has a bias (gpt-oss).
        scaled_shares: the shares of a token's experts are scaled to add up to 1.
        shared_hidden_dim: width inside the expert that every token goes through (DeepSeek); 0 = none.
        shared_bias: whether the shared expert's projections have biases (DeepSeek-V2).
        shared_gate: a projection to one number, with its sigmoid, weighs what the shared expert adds (Qwen).
        dropout_p: dropout after the activation.

    Source: Vaswani et al. 2017, section 3.3; gated: Shazeer 2020, "GLU Variants"; experts: Jiang et al. 2024,
    "Mixtral of Experts", section 2.1.
    """

    embed_dim: int
    hidden_dim: int
    activation: str = "gelu"
    gated: bool = False
    bias: bool = True
    num_experts: int = 1
    num_active_experts: int = 1
    router_bias: bool = False
    scaled_shares: bool = True
    shared_hidden_dim: int = 0
    shared_bias: bool = False
    shared_gate: bool = False
    dropout_p: float = 0.0

    def __post_init__(self) -> None:
        for name in ("embed_dim", "hidden_dim", "num_experts", "num_active_experts"):
            require_size(name, getattr(self, name))
        require_text("activation", self.activation)
        for name in ("gated", "bias", "router_bias", "scaled_shares", "shared_bias", "shared_gate"):
            require_flag(name, getattr(self, name))
        require_size("shared_hidden_dim", self.shared_hidden_dim, minimum=0)
        require_probability("dropout_p", self.dropout_p)
        if self.num_active_experts > self.num_experts:
            raise ConfigError(
                f"num_active_experts must not exceed num_experts; got {self.num_active_experts} and {self.num_experts}"
            )
        if self.num_experts == 1 and (self.router_bias or self.shared_hidden_dim):
            raise ConfigError(
                "router_bias and shared_hidden_dim must be off where num_experts is 1: there is no router"
            )
        if self.shared_gate and not self.shared_hidden_dim:
            raise ConfigError("shared_gate must be False where shared_hidden_dim is 0: there is nothing to gate")
        if self.shared_bias and not self.shared_hidden_dim:
            raise ConfigError("shared_bias must be False where shared_hidden_dim is 0: there is no shared expert")


@no_type_check  # values of any type must reach the checks below
@dataclass(frozen=True, kw_only=True)
class BlockConfig:
    """One Transformer block: attention and feed-forward, each with its norms and a residual connection.

    Args:
        attention: the layer that mixes tokens.
        feed_forward: the feed-forward layer.
        cross_attention: a second attention, between the two, whose keys and values come from an encoder's output.
        norm: "layernorm" (weight and bias) or "rmsnorm" (weight).
        norm_placement: "pre": `x + f(norm(x))`; "post": `norm(x + f(x))`; "both": `x + norm(f(norm(x)))` (Gemma 2);
            "output": `x + norm(f(x))` (OLMo 2).
        norm_eps: the small number under the root of the norm.
        dropout_p: dropout on what is added to the residual stream.
        parallel: attention and feed-forward read the same x: `x + f(norm(x)) + g(norm(x))` (GPT-NeoX).
        shared_norm: in a parallel block, one norm serves both (Falcon).
    """

    attention: AnyAttention
    feed_forward: FeedForwardConfig
    cross_attention: AttentionConfig | None = None
    norm: Literal["layernorm", "rmsnorm"] = "layernorm"
    norm_placement: Literal["pre", "post", "both", "output"] = "pre"
    norm_eps: float = 1e-5
    dropout_p: float = 0.0
    parallel: bool = False
    shared_norm: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.attention, AnyAttention):
            raise ConfigError(
                "attention must be an AttentionConfig, LatentAttentionConfig or LinearAttentionConfig; "
                f"got {shown(self.attention)}"
            )
        require_instance("feed_forward", self.feed_forward, FeedForwardConfig)
        require_choice("norm", self.norm, ("layernorm", "rmsnorm"))
        require_choice("norm_placement", self.norm_placement, ("pre", "post", "both", "output"))
        require_positive("norm_eps", self.norm_eps)
        require_probability("dropout_p", self.dropout_p)
        if self.attention.embed_dim != self.feed_forward.embed_dim:
            raise ConfigError(
                "attention and feed_forward must have the same embed_dim; "
                f"got {self.attention.embed_dim} and {self.feed_forward.embed_dim}"
            )
        for name in ("parallel", "shared_norm"):
            require_flag(name, getattr(self, name))
        if self.parallel and self.norm_placement != "pre":
            raise ConfigError(f'a parallel block must have norm_placement "pre"; got {self.norm_placement!r}')
        if self.shared_norm and not self.parallel:
            raise ConfigError("shared_norm must be False where the block is not parallel; got True")
        if self.cross_attention is not None:
            self._check_cross_attention(self.cross_attention)

    def _check_cross_attention(self, cross: AttentionConfig) -> None:
        require_instance("cross_attention", cross, AttentionConfig)
        if self.parallel:
            raise ConfigError("a parallel block must have no cross_attention; got one")
        if cross.embed_dim != self.attention.embed_dim:
            raise ConfigError(
                "cross_attention must have the attention's embed_dim; "
                f"got {cross.embed_dim} and {self.attention.embed_dim}"
            )
        if cross.kv_layer is not None:
            raise ConfigError(f"cross_attention must have no kv_layer, it reads the encoder; got {cross.kv_layer}")

    @property
    def num_norms(self) -> int:
        """Number of norms as wide as the residual stream."""
        branches = 2 if self.cross_attention is None else 3
        if self.shared_norm:
            return 1
        return 2 * branches if self.norm_placement == "both" else branches


def group_blocks(blocks: Sequence[BlockConfig]) -> tuple[tuple[BlockConfig, int], ...]:
    """Return each distinct block object with the number of layers that it describes, in order of appearance."""
    counts: dict[int, int] = {}
    for block in blocks:
        counts[id(block)] = counts.get(id(block), 0) + 1
    distinct = {id(block): block for block in blocks}
    return tuple((distinct[key], count) for key, count in counts.items())


def check_blocks(blocks: object) -> None:
    """Raise ConfigError unless these are the layers of a model or of an encoder."""
    require_instance("blocks", blocks, tuple)
    assert isinstance(blocks, tuple)
    require_size("number of layers", len(blocks), maximum=MAX_LAYERS)
    for index, block in enumerate(blocks):
        require_instance(f"layer {index}", block, BlockConfig)
