"""Attention layers of Hugging Face's transformers <-> MultiHeadAttention.

What a layer is follows from its model's config, as everywhere in headwise; where its weights are stands in
`huggingface_weights`.
"""

from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Shaped
from torch import Tensor, nn

from headwise.config.attention import ALiBi, AttentionConfig, T5Bias
from headwise.config.huggingface import read_config
from headwise.convert.huggingface_weights import LAYOUTS, TABLE, LayerWeights
from headwise.convert.plain import require_one_dtype
from headwise.convert.weights import build_layer, require_settings, view_of, weights_of
from headwise.errors import UnsupportedError
from headwise.nn.multihead import MultiHeadAttention


def from_huggingface(attention: nn.Module, *, table_from: nn.Module | None = None) -> MultiHeadAttention:
    """Make the layer that computes what one of a Hugging Face model computes, with a copy of its weights.

    It has the layer's own mask: a decoder's is causal, with the window that the layer has; padding comes with the call
    (`headwise.mask_from_huggingface`). It has rotary positions where the model has them, paired by halves, and norms of
    queries and keys, caps and sinks. It ends with the output projection: BERT's residual connection and norm, and every
    family's dropout behind that projection, belong to the block.

    T5's layers share one table of biases, which the first of a stack owns. Each layer made here has a copy of its own:
    outputs are equal, but tables that are trained go apart, unless all layers are given the same module
    (`layer.relative_bias = first.relative_bias`). Gemma 3's norms multiply by 1 plus their weight; ours hold
    the sum.

    Args:
        attention: the module of one layer that holds the output projection, too: `model.encoder.layer[0].attention` of
            BERT, RoBERTa and XLM-RoBERTa, `model.transformer.layer[0].attention` of DistilBERT, `model.h[0].attn` of
            GPT-2, `model.h[0].self_attention` of Falcon, `model.layers[0].attention` of GPT-NeoX and ViT,
            `model.decoder.layers[0].self_attn` of OPT and BART (and `.encoder_attn` of BART),
            `model.encoder.block[0].layer[0].SelfAttention` of T5 (and
            `model.decoder.block[0].layer[1].EncDecAttention`), and `model.layers[0].self_attn` of Llama, Mistral,
            Mixtral, Qwen2, Qwen2-MoE, Qwen3, Qwen3-MoE, Gemma, Gemma 2, Gemma 3, Phi-3, gpt-oss, SmolLM3 and
            StarCoder2.
        table_from: for self-attention of T5 after a stack's first layer: that first layer's attention.

    Returns:
        A layer in the module's mode (training or not), on its device and in its dtype, frozen where it is.

    Raises:
        UnsupportedError: another family, another part of a model, cross-attention of a model without an encoder,
            weights that are no plain ones (in several dtypes, quantised, offloaded, with an adapter, a weight norm or a
            parametrization) or are not known here, a setting that `MultiHeadAttention` cannot have, `table_from` where
            there is nothing to take or none where there is, or norms of Gemma 3 in bfloat16 or float16, which would
            round the sum.
        ConfigError: the model's config cannot be read.

    Example:
        >>> layer = from_huggingface(model.encoder.layer[0].attention)
    """
    config = _config_of(attention)
    table = _table_of(attention, config, table_from)
    weights = LayerWeights(attention, _family_of(attention), config, table).read()
    require_one_dtype(weights)
    return build_layer(_with_table(config), weights, training=attention.training)


def to_huggingface(layer: MultiHeadAttention, attention: nn.Module, *, table_from: nn.Module | None = None) -> None:
    """Write a layer's weights into an attention layer of a Hugging Face model: the inverse of `from_huggingface`.

    Args:
        layer: with the settings that `from_huggingface(attention)` has. Where the stack's first layer owns T5's table,
            the layer's must be equal to it: write the first layer before.
        attention: as of `from_huggingface`; its parameters are overwritten in place, in their own dtype.
        table_from: as of `from_huggingface`.

    Raises:
        UnsupportedError: as `from_huggingface`, or the two have another setting, whose name is given, or another table.
            Nothing is written then.
        ConfigError: the model's config cannot be read.
    """
    weights, config = weights_of(layer), _config_of(attention)
    require_settings(layer.config, _with_table(config), where=f"this {type(attention).__name__}")
    table = _table_of(attention, config, table_from)
    if table_from is not None and table is not None and not torch.equal(weights[TABLE].to(table), table):
        raise UnsupportedError(
            f"{TABLE} must be the one that the layers of a T5 stack share to be written into another layer than the "
            "first, which owns it; got other numbers (write the first layer before, and give each the same table)"
        )
    LayerWeights(attention, _family_of(attention), config, table).write(weights)


def _family_of(attention: nn.Module) -> str:
    """Return the `model_type` of a layer's model, if it is one that is converted."""
    config = _first(attention, "config") if isinstance(attention, nn.Module) else None
    family = getattr(config, "model_type", None)
    if family not in LAYOUTS:
        raise UnsupportedError(
            f"an attention layer must be of one of {', '.join(LAYOUTS)} to be converted; "
            f"got a {type(attention).__name__} of {family}"
        )
    return str(family)


def _config_of(attention: nn.Module) -> AttentionConfig:
    """Read the settings of a layer from the config of its model."""
    name, family = type(attention).__name__, _family_of(attention)
    if _first(attention, "is_cross_attention"):
        raise UnsupportedError(
            f"an attention layer must be one of self-attention to be converted; got cross-attention: {name}"
        )
    # Which head stands on top has no bearing on a layer.
    settings = {key: value for key, value in _first(attention, "config").to_dict().items() if key != "architectures"}
    model = read_config(settings, name=name)
    index = _first(attention, "layer_idx") or 0
    is_encoder = model.encoder is not None and not _first(attention, "is_decoder")
    blocks = model.encoder.blocks if model.encoder is not None and is_encoder else model.blocks
    if index >= len(blocks):
        raise UnsupportedError(
            f"layer_idx must be below {len(blocks)}, the number of layers by the model's config, to convert {name}; "
            f"got {index} (layers were taken out? number the others anew)"
        )
    is_cross = model.encoder is not None and not is_encoder and not _first(attention, "is_causal")
    found: object = blocks[index].cross_attention if is_cross else blocks[index].attention
    assert isinstance(found, AttentionConfig), f"{family} has layers of one kind only"
    if isinstance(found.position, ALiBi):
        raise UnsupportedError(
            f"position must not be ALiBi to convert {name}, which scales that bias along with the scores; "
            f"got {found.position}"
        )
    return found


def _with_table(config: AttentionConfig) -> AttentionConfig:
    """Return the config of a layer that holds the table of its biases itself, if it has one."""
    position = config.position
    return replace(config, position=replace(position, owns_table=True)) if isinstance(position, T5Bias) else config


def _table_of(
    attention: Any, config: AttentionConfig, table_from: Any
) -> Shaped[Tensor, "num_buckets num_heads"] | None:
    """Return the table of biases that a layer of T5 reads, as a view; None for layers that read none."""
    position = config.position
    if (isinstance(position, T5Bias) and not position.owns_table) != (table_from is not None):
        got = "None" if table_from is None else f"a {type(table_from).__name__}"
        raise UnsupportedError(
            "table_from must be the attention of the stack's first layer where a layer of T5 reads the table of that "
            f"one, and None everywhere else; got {got} for a {type(attention).__name__}"
        )
    if not isinstance(position, T5Bias):
        return None
    table = getattr(attention if table_from is None else table_from, "relative_attention_bias", None)
    if table_from is not None and (table is None or table_from.is_decoder != attention.is_decoder):
        raise UnsupportedError(
            "table_from must be the attention of the first layer of the same stack, which holds a "
            f"relative_attention_bias; got a {type(table_from).__name__} that is not"
        )
    return None if table is None else view_of(table.weight)


def _first(module: nn.Module, name: str) -> Any:
    """Return an attribute of a module or of the first part of it that has one; None if none has."""
    return next((getattr(part, name) for part in module.modules() if hasattr(part, name)), None)
