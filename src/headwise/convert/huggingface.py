"""Attention layers of Hugging Face's transformers <-> MultiHeadAttention.

What a layer is follows from its model's config, as everywhere in headwise; here stands where its weights are.
"""

from typing import Any

from jaxtyping import Float
from torch import Tensor, nn

from headwise.config.attention import AttentionConfig
from headwise.config.huggingface import read_config
from headwise.convert.fused import split_fused
from headwise.convert.weights import build_layer, copy_weights, name_projections, require_settings, weights_of
from headwise.errors import UnsupportedError
from headwise.nn.multihead import MultiHeadAttention

_BERT = ("self.query", "self.key", "self.value", "output.dense")
_LLAMA = ("q_proj", "k_proj", "v_proj", "o_proj")

# model_type -> the projections of an attention layer in transformers 5.24: query, key, value and output, or one for the
# first three. Families whose norms or scores have another equation than ours (Gemma's norms add 1) must stay out.
_PROJECTIONS: dict[str, tuple[str, ...]] = {
    "bert": _BERT,
    "roberta": _BERT,
    "xlm-roberta": _BERT,
    "distilbert": ("q_lin", "k_lin", "v_lin", "out_lin"),
    "gpt2": ("c_attn", "c_proj"),
    "llama": _LLAMA,
    "mistral": _LLAMA,
    "qwen2": _LLAMA,
    "qwen3": _LLAMA,
    "vit": _LLAMA,
}


def from_huggingface(attention: nn.Module) -> MultiHeadAttention:
    """Make the layer that computes what one of a Hugging Face model computes, with a copy of its weights.

    It has the layer's own mask: a decoder's is causal, with Mistral's window; padding comes with the call
    (`headwise.mask_from_huggingface`). It has rotary positions where the model has them, paired by halves, and norms of
    queries and keys. It ends with the output projection: BERT's residual connection and norm, and every family's
    dropout behind that projection, belong to the block.

    Args:
        attention: the module of one layer that holds the output projection, too: `model.encoder.layer[0].attention` of
            BERT, RoBERTa and XLM-RoBERTa, `model.transformer.layer[0].attention` of DistilBERT,
            `model.h[0].attn` of GPT-2, `model.layers[0].self_attn` of Llama, Mistral, Qwen2 and Qwen3, and
            `model.layers[0].attention` of ViT.

    Returns:
        A layer in the module's mode (training or not), on its device and in its dtype.

    Raises:
        UnsupportedError: another family, another part of a model, cross-attention, a projection that is no plain matrix
            (quantised, with an adapter), or a setting that `MultiHeadAttention` cannot have.
        ConfigError: the model's config cannot be read.

    Example:
        >>> layer = from_huggingface(model.encoder.layer[0].attention)
    """
    config = _config_of(attention)
    return build_layer(config, _views_of(attention, config), training=attention.training)


def to_huggingface(layer: MultiHeadAttention, attention: nn.Module) -> None:
    """Write a layer's weights into an attention layer of a Hugging Face model: the inverse of `from_huggingface`.

    Args:
        layer: with the settings that `from_huggingface(attention)` has.
        attention: as of `from_huggingface`; its parameters are overwritten in place, in their own dtype.

    Raises:
        UnsupportedError: as `from_huggingface`, or the two have another setting, whose name is given. Nothing is
            written then.
        ConfigError: the model's config cannot be read.
    """
    config = _config_of(attention)
    require_settings(layer.config, config, where=f"this {type(attention).__name__}")
    copy_weights(weights_of(layer), _views_of(attention, config))


def _config_of(attention: nn.Module) -> AttentionConfig:
    """Read the settings of a layer from the config of its model."""
    name = type(attention).__name__
    config = _first(attention, "config")
    family = getattr(config, "model_type", None)
    if family not in _PROJECTIONS:
        raise UnsupportedError(
            f"an attention layer must be of one of {', '.join(_PROJECTIONS)} to be converted; got a {name} of {family}"
        )
    if _first(attention, "is_cross_attention"):
        raise UnsupportedError(
            f"an attention layer must be one of self-attention to be converted; got cross-attention: {name}"
        )
    # Which head stands on top has no bearing on a layer.
    settings = {key: value for key, value in config.to_dict().items() if key != "architectures"}
    blocks = read_config(settings, name=name).blocks
    index = _first(attention, "layer_idx") or 0
    found = blocks[index].attention
    assert isinstance(found, AttentionConfig)
    return found


def _views_of(attention: nn.Module, config: AttentionConfig) -> dict[str, Float[Tensor, "..."]]:
    """Return the layer's weights under our names, as views."""
    family = _first(attention, "config").model_type
    projections = [_read_projection(attention, path, family) for path in _PROJECTIONS[family]]
    if len(projections) == 2:
        (weight, bias), output = projections
        biases = (None, None, None) if bias is None else split_fused(bias)
        projections = [*zip(split_fused(weight), biases, strict=True), output]
    weights, biases = zip(*projections, strict=True)
    views = name_projections(weights, biases)
    if config.qk_norm:
        for norm in ("q_norm", "k_norm"):
            views[f"{norm}.weight"] = attention.get_submodule(norm).get_parameter("weight").detach()
    return views


def _read_projection(
    attention: nn.Module, path: str, family: str
) -> tuple[Float[Tensor, "out_dim in_dim"], Float[Tensor, " out_dim"] | None]:
    """Return weight and bias of one projection, as views, laid out as `nn.Linear`'s."""
    name = type(attention).__name__
    part: Any = attention
    for step in path.split("."):
        part = getattr(part, step, None)
    if part is None:
        raise UnsupportedError(
            f"an attention layer of {family} must have {', '.join(_PROJECTIONS[family])} to be converted; got a {name} "
            f"without {path} (give the module of one layer that holds the output projection, too)"
        )
    kind = type(part).__name__
    if type(part) is not nn.Linear and kind != "Conv1D":
        raise UnsupportedError(f"{path} must be a plain Linear or Conv1D to be converted; got a {kind}")
    weight = part.weight.detach()
    # Conv1D multiplies from the other side.
    return weight.T if kind == "Conv1D" else weight, None if part.bias is None else part.bias.detach()


def _first(module: nn.Module, name: str) -> Any:
    """Return an attribute of a module or of the first part of it that has one; None if none has."""
    return next((getattr(part, name) for part in module.modules() if hasattr(part, name)), None)
