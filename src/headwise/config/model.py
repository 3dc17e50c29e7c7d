"""ModelConfig: a whole Transformer on paper, layer by layer."""

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
from headwise.errors import ConfigError

MAX_LAYERS = 10_000  # deeper than any published Transformer by an order of magnitude

DTYPE_BYTES = {
    "float64": 8,
    "float32": 4,
    "bfloat16": 2,
    "float16": 2,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
    "int8": 1,
}


def require_dtype(name: str, value: object) -> None:
    """Raise ConfigError unless `value` is a dtype of `DTYPE_BYTES`, as torch spells it."""
    if not isinstance(value, str) or value not in DTYPE_BYTES:
        raise ConfigError(f"{name} must be one of {', '.join(DTYPE_BYTES)}; got {shown(value)}")


@no_type_check  # values of any type must reach the checks below
@dataclass(frozen=True, kw_only=True)
class FeedForwardConfig:
    """The position-wise network of one block.

    Plain: `down(activation(up(x)))`. Gated: `down(activation(gate(x)) * up(x))`. A mixture of experts has
    `num_experts` such networks and a router without bias; each token goes through `num_active_experts` of them.

    Args:
        embed_dim: width of the residual stream.
        hidden_dim: width inside (of one expert).
        activation: name of the non-linearity as Hugging Face spells it ("gelu", "gelu_new", "silu", ...).
        gated: three projections instead of two.
        bias: whether the projections have biases.
        num_experts: 1 = a plain network, no router.
        num_active_experts: experts that a token goes through.

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

    def __post_init__(self) -> None:
        for name in ("embed_dim", "hidden_dim", "num_experts", "num_active_experts"):
            require_size(name, getattr(self, name))
        require_text("activation", self.activation)
        for name in ("gated", "bias"):
            require_flag(name, getattr(self, name))
        if self.num_active_experts > self.num_experts:
            raise ConfigError(
                f"num_active_experts must not exceed num_experts; got {self.num_active_experts} and {self.num_experts}"
            )


@no_type_check  # values of any type must reach the checks below
@dataclass(frozen=True, kw_only=True)
class BlockConfig:
    """One Transformer block: attention and feed-forward, each with a norm and a residual connection.

    Args:
        attention: the attention layer.
        feed_forward: the feed-forward layer.
        norm: "layernorm" (weight and bias) or "rmsnorm" (weight).
        norm_placement: "pre": `x + f(norm(x))`; "post": `norm(x + f(x))`.
        norm_eps: the small number under the root of the norm.
        dropout_p: dropout on what is added to the residual stream.
    """

    attention: AttentionConfig
    feed_forward: FeedForwardConfig
    norm: Literal["layernorm", "rmsnorm"] = "layernorm"
    norm_placement: Literal["pre", "post"] = "pre"
    norm_eps: float = 1e-5
    dropout_p: float = 0.0

    def __post_init__(self) -> None:
        require_instance("attention", self.attention, AttentionConfig)
        require_instance("feed_forward", self.feed_forward, FeedForwardConfig)
        require_choice("norm", self.norm, ("layernorm", "rmsnorm"))
        require_choice("norm_placement", self.norm_placement, ("pre", "post"))
        require_positive("norm_eps", self.norm_eps)
        require_probability("dropout_p", self.dropout_p)
        if self.attention.embed_dim != self.feed_forward.embed_dim:
            raise ConfigError(
                "attention and feed_forward must have the same embed_dim; "
                f"got {self.attention.embed_dim} and {self.feed_forward.embed_dim}"
            )


@no_type_check  # values of any type must reach the checks below
@dataclass(frozen=True, kw_only=True)
class OutputHead:
    """What stands on the last hidden state.

    Args:
        kind: "language_model" (one score per vocabulary entry) or "classifier" (one score per label).
        num_outputs: number of scores.
        per_token: it reads every token's state; False: the pooled state of the first token alone.
        tied: the weight is the token embedding's own (counted once).
        bias: whether the projection has a bias.
        transform: a dense layer with bias, an activation and a norm stand before the projection (BERT's masked head).
        dropout_p: dropout before the projection.
    """

    kind: Literal["language_model", "classifier"]
    num_outputs: int
    per_token: bool = True
    tied: bool = False
    bias: bool = False
    transform: bool = False
    dropout_p: float = 0.0

    def __post_init__(self) -> None:
        require_choice("kind of a head", self.kind, ("language_model", "classifier"))
        require_size("num_outputs", self.num_outputs)
        for name in ("per_token", "tied", "bias", "transform"):
            require_flag(name, getattr(self, name))
        require_probability("dropout_p", self.dropout_p)


@no_type_check  # values of any type must reach the checks below
@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """A Transformer on paper.

    Args:
        name: what to call it.
        model_type: whose implementation this describes: Hugging Face's `model_type` ("bert", "gpt2", "llama", ...), or
            "headwise" for our own modules.
        kind: "encoder" (every token sees every token; no KV cache) or "decoder".
        embed_dim: width of the residual stream.
        vocab_size: rows of the token embedding.
        max_positions: longest length the model was made for.
        position_table_size: rows of a learned absolute position table; 0 = none.
        num_token_types: rows of a token-type (segment) table; 0 = none.
        embedding_norm: a norm stands after the sum of the embeddings (BERT).
        embedding_dropout_p: dropout after the embeddings.
        blocks: the layers, first to last.
        final_norm: a norm stands after the last block.
        pooler: a dense layer with bias on the first token (BERT).
        head: what stands on top, or None.
        dtype: the dtype that the checkpoint is stored in, as torch spells it, or None where it does not say.
    """

    name: str
    model_type: str
    kind: Literal["encoder", "decoder"]
    embed_dim: int
    vocab_size: int
    max_positions: int
    position_table_size: int = 0
    num_token_types: int = 0
    embedding_norm: bool = False
    embedding_dropout_p: float = 0.0
    blocks: tuple[BlockConfig, ...]
    final_norm: bool = False
    pooler: bool = False
    head: OutputHead | None = None
    dtype: str | None = None

    def __post_init__(self) -> None:
        for name in ("name", "model_type"):
            require_instance(name, getattr(self, name), str)
        require_choice("kind of a model", self.kind, ("encoder", "decoder"))
        for name in ("embed_dim", "vocab_size", "max_positions"):
            require_size(name, getattr(self, name))
        for name in ("position_table_size", "num_token_types"):
            require_size(name, getattr(self, name), minimum=0)
        require_probability("embedding_dropout_p", self.embedding_dropout_p)
        for name in ("embedding_norm", "final_norm", "pooler"):
            require_flag(name, getattr(self, name))
        if self.head is not None:
            require_instance("head", self.head, OutputHead)
        require_instance("blocks", self.blocks, tuple)
        require_size("number of layers", len(self.blocks), maximum=MAX_LAYERS)
        if self.dtype is not None:
            require_dtype("dtype", self.dtype)
        if self.head is not None and self.head.tied and self.head.num_outputs != self.vocab_size:
            raise ConfigError(
                "a tied head has the token embedding's rows, so num_outputs must equal vocab_size; "
                f"got {self.head.num_outputs} and {self.vocab_size}"
            )
        for index, block in enumerate(self.blocks):
            require_instance(f"layer {index}", block, BlockConfig)
            if block.attention.embed_dim != self.embed_dim:
                raise ConfigError(
                    f"every layer must have the model's embed_dim {self.embed_dim}; "
                    f"layer {index} has {block.attention.embed_dim}"
                )

    @property
    def num_layers(self) -> int:
        """Number of blocks."""
        return len(self.blocks)

    @property
    def block_groups(self) -> tuple[tuple[BlockConfig, int], ...]:
        """Each distinct block object with the number of layers that it describes, in order of appearance.

        Readers share one object among equal layers, so that a sum over the groups costs the same at any depth.
        """
        counts: dict[int, int] = {}
        for block in self.blocks:
            counts[id(block)] = counts.get(id(block), 0) + 1
        distinct = {id(block): block for block in self.blocks}
        return tuple((distinct[key], count) for key, count in counts.items())
