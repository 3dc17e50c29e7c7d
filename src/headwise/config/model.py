"""ModelConfig: a whole Transformer on paper, layer by layer."""

from dataclasses import dataclass
from typing import Literal, no_type_check

from headwise.config.attention import AttentionConfig
from headwise.config.block import MAX_LAYERS, BlockConfig, FeedForwardConfig, check_blocks, group_blocks
from headwise.config.checks import (
    require_choice,
    require_flag,
    require_instance,
    require_number,
    require_probability,
    require_size,
    shown,
)
from headwise.config.dtypes import require_dtype
from headwise.config.encoder import EncoderConfig
from headwise.config.head import OutputHead
from headwise.config.patches import PatchConfig
from headwise.errors import ConfigError

__all__ = [
    "MAX_LAYERS",
    "BlockConfig",
    "EncoderConfig",
    "FeedForwardConfig",
    "ModelConfig",
    "OutputHead",
    "PatchConfig",
]


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
        sinusoid_scale: factor on sinusoidal positions that are added to the token embeddings; 0 = none are.
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
    sinusoid_scale: float = 0.0
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
        require_number("sinusoid_scale", self.sinusoid_scale)
        if self.sinusoid_scale and self.position_table_size:
            raise ConfigError(
                "a model must have sinusoidal positions or a table of them, not both; got sinusoid_scale "
                f"{self.sinusoid_scale} and position_table_size {self.position_table_size}"
            )
        require_probability("embedding_dropout_p", self.embedding_dropout_p)
        for name in ("embedding_norm", "final_norm", "pooler"):
            require_flag(name, getattr(self, name))
        if self.head is not None:
            require_instance("head", self.head, OutputHead)
        check_blocks(self.blocks)
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
        if self.encoder is not None and any(block.cross_attention is None for block, _ in self.block_groups):
            raise ConfigError(
                "every layer of an encoder-decoder's decoder must have a cross_attention; got one without"
            )
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
