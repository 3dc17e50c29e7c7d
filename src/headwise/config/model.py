"""ModelConfig: a whole Transformer on paper, layer by layer."""

from dataclasses import dataclass
from typing import Literal, no_type_check

from headwise.config.attention import AttentionConfig
from headwise.config.block import BlockConfig, FeedForwardConfig, group_blocks
from headwise.config.checks import (
    require_choice,
    require_flag,
    require_instance,
    require_positive,
    require_probability,
    require_size,
    shown,
)
from headwise.errors import ConfigError

__all__ = ["BlockConfig", "EncoderConfig", "FeedForwardConfig", "ModelConfig", "OutputHead", "PatchConfig"]

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
        softcap: scores become `softcap * tanh(scores / softcap)` (Gemma 2); None = off.
    """

    kind: Literal["language_model", "classifier"]
    num_outputs: int
    per_token: bool = True
    tied: bool = False
    bias: bool = False
    transform: bool = False
    dropout_p: float = 0.0
    softcap: float | None = None

    def __post_init__(self) -> None:
        require_choice("kind of a head", self.kind, ("language_model", "classifier"))
        require_size("num_outputs", self.num_outputs)
        for name in ("per_token", "tied", "bias", "transform"):
            require_flag(name, getattr(self, name))
        require_probability("dropout_p", self.dropout_p)
        if self.softcap is not None:
            require_positive("softcap", self.softcap)


@no_type_check  # values of any type must reach the checks below
@dataclass(frozen=True, kw_only=True)
class PatchConfig:
    """How an image becomes tokens: square patches, each projected with a bias, after a learned class token.

    Args:
        image_size: pixels along one side of the square image.
        patch_size: pixels along one side of a patch; pixels of the image beyond whole patches are not read.
        num_channels: numbers a pixel.

    Source: Dosovitskiy et al. 2020, "An Image is Worth 16x16 Words", section 3.1.
    """

    image_size: int
    patch_size: int
    num_channels: int = 3

    def __post_init__(self) -> None:
        for name in ("image_size", "patch_size", "num_channels"):
            require_size(name, getattr(self, name))
        if self.patch_size > self.image_size:
            raise ConfigError(f"patch_size must not exceed image_size; got {self.patch_size} and {self.image_size}")

    @property
    def num_patches(self) -> int:
        """Number of patches of an image."""
        return (self.image_size // self.patch_size) ** 2

    @property
    def num_tokens(self) -> int:
        """Number of tokens of an image: its patches and the class token."""
        return self.num_patches + 1

    @property
    def patch_dim(self) -> int:
        """Numbers in a patch, which its projection reads."""
        return self.num_channels * self.patch_size**2


@no_type_check  # values of any type must reach the checks below
@dataclass(frozen=True, kw_only=True)
class EncoderConfig:
    """The encoder of an encoder-decoder: it reads the source text, through the token table that the decoder has too.

    Args:
        blocks: its layers, first to last.
        position_table_size: rows of its own learned position table; 0 = none.
        embedding_norm: a norm stands after the sum of the embeddings (BART).
        final_norm: a norm stands after the last block (T5).
    """

    blocks: tuple[BlockConfig, ...]
    position_table_size: int = 0
    embedding_norm: bool = False
    final_norm: bool = False

    def __post_init__(self) -> None:
        _check_blocks(self.blocks)
        require_size("position_table_size", self.position_table_size, minimum=0)
        for name in ("embedding_norm", "final_norm"):
            require_flag(name, getattr(self, name))
        if any(block.cross_attention is not None for block, _ in self.block_groups):
            raise ConfigError("a layer of an encoder must have no cross_attention; got one")

    @property
    def block_groups(self) -> tuple[tuple[BlockConfig, int], ...]:
        """Each distinct block object with the number of layers that it describes, in order of appearance."""
        return group_blocks(self.blocks)


@no_type_check  # values of any type must reach the checks below
@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """A Transformer on paper.

    Args:
        name: what to call it.
        model_type: whose implementation this describes: Hugging Face's `model_type` ("bert", "gpt2", "llama", ...), or
            "headwise" for our own modules.
        kind: "encoder" (every token sees every token; no KV cache), "decoder", or "encoder-decoder" (`blocks` is the
            decoder, whose layers have a cross_attention, and `encoder` the rest).
        embed_dim: width of the residual stream.
        vocab_size: rows of the token embedding; 0 where `patches` stand in its place.
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
        encoder: the encoder of an encoder-decoder.
        patches: how an image becomes tokens, for a model that reads images.
    """

    name: str
    model_type: str
    kind: Literal["encoder", "decoder", "encoder-decoder"]
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
    encoder: EncoderConfig | None = None
    patches: PatchConfig | None = None

    def __post_init__(self) -> None:
        for name in ("name", "model_type"):
            require_instance(name, getattr(self, name), str)
        require_choice("kind of a model", self.kind, ("encoder", "decoder", "encoder-decoder"))
        for name in ("embed_dim", "max_positions"):
            require_size(name, getattr(self, name))
        if self.patches is not None:
            require_instance("patches", self.patches, PatchConfig)
        require_size("vocab_size", self.vocab_size, minimum=0 if self.patches else 1)
        for name in ("position_table_size", "num_token_types"):
            require_size(name, getattr(self, name), minimum=0)
        require_probability("embedding_dropout_p", self.embedding_dropout_p)
        for name in ("embedding_norm", "final_norm", "pooler"):
            require_flag(name, getattr(self, name))
        if self.head is not None:
            require_instance("head", self.head, OutputHead)
        _check_blocks(self.blocks)
        if self.dtype is not None:
            require_dtype("dtype", self.dtype)
        if self.head is not None and self.head.tied and self.head.num_outputs != self.vocab_size:
            raise ConfigError(
                "a tied head has the token embedding's rows, so num_outputs must equal vocab_size; "
                f"got {self.head.num_outputs} and {self.vocab_size}"
            )
        self._check_layers()

    def _check_layers(self) -> None:
        if self.encoder is not None:
            require_instance("encoder", self.encoder, EncoderConfig)
        if (self.encoder is not None) != (self.kind == "encoder-decoder"):
            raise ConfigError(
                f'encoder must be given for kind "encoder-decoder" and for no other; got {shown(self.encoder)} '
                f"for {self.kind!r}"
            )
        groups = (*self.block_groups, *(self.encoder.block_groups if self.encoder else ()))
        for block, _ in groups:
            if block.attention.embed_dim != self.embed_dim:
                index = next(index for index, layer in enumerate((*self.blocks, *_of(self.encoder))) if layer is block)
                raise ConfigError(
                    f"every layer must have the model's embed_dim {self.embed_dim}; "
                    f"layer {index} has {block.attention.embed_dim}"
                )
            if block.cross_attention is not None and self.kind != "encoder-decoder":
                raise ConfigError(f"a layer with cross_attention needs an encoder; got kind {self.kind!r}")
        _check_sources(self.blocks)

    @property
    def num_layers(self) -> int:
        """Number of blocks; of an encoder-decoder, those of the decoder."""
        return len(self.blocks)

    @property
    def block_groups(self) -> tuple[tuple[BlockConfig, int], ...]:
        """Each distinct block object with the number of layers that it describes, in order of appearance.

        Readers share one object among equal layers, so that a sum over the groups costs the same at any depth.
        """
        return group_blocks(self.blocks)


def _check_blocks(blocks: object) -> None:
    require_instance("blocks", blocks, tuple)
    assert isinstance(blocks, tuple)
    require_size("number of layers", len(blocks), maximum=MAX_LAYERS)
    for index, block in enumerate(blocks):
        require_instance(f"layer {index}", block, BlockConfig)


def _of(encoder: EncoderConfig | None) -> tuple[BlockConfig, ...]:
    return encoder.blocks if encoder else ()


def _check_sources(blocks: tuple[BlockConfig, ...]) -> None:
    """Raise ConfigError unless every layer that reads the keys and values of another can."""
    for index, block in enumerate(blocks):
        reader = block.attention
        if not isinstance(reader, AttentionConfig) or reader.kv_layer is None:
            continue
        source = blocks[reader.kv_layer].attention if reader.kv_layer < index else None
        if not isinstance(source, AttentionConfig) or source.kv_layer is not None:
            raise ConfigError(
                "kv_layer must be the index of an earlier attention layer with keys and values of its own; "
                f"layer {index} has {reader.kv_layer}"
            )
        shape, own = ((c.num_kv_heads, c.head_dim, c.v_head_dim) for c in (source, reader))
        if shape != own:
            raise ConfigError(
                "a layer must have the key/value heads of its kv_layer (number, key width, value width); "
                f"layer {index} has {own}, layer {reader.kv_layer} has {shape}"
            )
