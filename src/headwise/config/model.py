"""ModelConfig: a whole Transformer on paper, layer by layer."""

from dataclasses import dataclass
from typing import Literal

from headwise.config.attention import AttentionConfig, require_probability, require_size
from headwise.errors import ConfigError

MAX_LAYERS = 10_000  # deeper than any published Transformer by an order of magnitude


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
        if self.num_active_experts > self.num_experts:
            raise ConfigError(
                f"num_active_experts must not exceed num_experts; got {self.num_active_experts} and {self.num_experts}"
            )


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
        if self.norm not in ("layernorm", "rmsnorm"):
            raise ConfigError(f'norm must be "layernorm" or "rmsnorm"; got {self.norm!r}')
        if self.norm_placement not in ("pre", "post"):
            raise ConfigError(f'norm_placement must be "pre" or "post"; got {self.norm_placement!r}')
        require_probability("dropout_p", self.dropout_p)
        if self.attention.embed_dim != self.feed_forward.embed_dim:
            raise ConfigError(
                "attention and feed_forward must have the same embed_dim; "
                f"got {self.attention.embed_dim} and {self.feed_forward.embed_dim}"
            )


@dataclass(frozen=True, kw_only=True)
class OutputHead:
    """What stands on the last hidden state.

    Args:
        kind: "language_model" (one score per vocabulary entry and token) or "classifier" (scores of the whole text).
        num_outputs: number of scores.
        tied: the weight is the token embedding's own (counted once).
        bias: whether the projection has a bias.
        transform: a dense layer with bias, an activation and a norm stand before the projection (BERT's masked head).
    """

    kind: Literal["language_model", "classifier"]
    num_outputs: int
    tied: bool = False
    bias: bool = False
    transform: bool = False

    def __post_init__(self) -> None:
        require_size("num_outputs", self.num_outputs)


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
        for name in ("embed_dim", "vocab_size", "max_positions"):
            require_size(name, getattr(self, name))
        for name in ("position_table_size", "num_token_types"):
            require_size(name, getattr(self, name), minimum=0)
        require_probability("embedding_dropout_p", self.embedding_dropout_p)
        require_size("number of layers", len(self.blocks), maximum=MAX_LAYERS)
        for index, block in enumerate(self.blocks):
            if block.attention.embed_dim != self.embed_dim:
                raise ConfigError(
                    f"every layer must have the model's embed_dim {self.embed_dim}; "
                    f"layer {index} has {block.attention.embed_dim}"
                )

    @property
    def num_layers(self) -> int:
        """Number of blocks."""
        return len(self.blocks)
