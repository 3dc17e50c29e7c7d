"""Vision Transformers' attention with one matrix for query, key and value, as timm lays it out <-> MultiHeadAttention.

The layout is that of `timm.layers.Attention` (`qkv`, then heads, then `proj`), and of DINO's and of many others that
began with it. No library is imported for it: a module is known by its parts.
"""

from typing import Any, Literal

from jaxtyping import Shaped
from torch import Tensor, nn

from headwise.config.attention import AttentionConfig
from headwise.config.checks import shown
from headwise.convert.plain import kind_of, require_nothing_else, require_one_dtype, require_plain
from headwise.convert.weights import (
    build_layer,
    copy_weights,
    name_projections,
    require_settings,
    view_of,
    views_of_fused,
    weights_of,
)
from headwise.errors import UnsupportedError
from headwise.nn.multihead import MultiHeadAttention


def from_timm(attention: nn.Module) -> MultiHeadAttention:
    """Make the layer that computes what a Vision Transformer's attention computes, with a copy of its weights.

    The dropout behind the output projection (`proj_drop`) belongs to the block.

    Args:
        attention: with the parts `num_heads`, `qkv` (a `Linear` from E to 3E) and `proj` (from E to E); dropout of the
            weights is `attn_drop`.

    Returns:
        A layer in the module's mode (training or not), on its device and in its dtype, frozen where it is.

    Raises:
        UnsupportedError: a part is missing or of another kind, or there is any other part, parameter or buffer (norms,
            gates, tables of relative positions); weights that are no plain ones: in several dtypes, quantised,
            offloaded, with an adapter, a weight norm or a parametrization.
    """
    config, weights = _config_of(attention), _views_of(attention)
    require_one_dtype(weights)
    return build_layer(config, weights, training=attention.training)


def to_timm(layer: MultiHeadAttention, attention: nn.Module) -> None:
    """Write a layer's weights into a Vision Transformer's attention: the inverse of `from_timm`.

    Args:
        layer: with the settings that `from_timm(attention)` has.
        attention: as of `from_timm`; its parameters are overwritten in place, in their own dtype.

    Raises:
        UnsupportedError: as `from_timm`, or the two have another setting, whose name is given. Nothing is written then.
    """
    weights = weights_of(layer)
    require_settings(layer.config, _config_of(attention), where=f"this {type(attention).__name__}")
    copy_weights(weights, _views_of(attention))


def _config_of(attention: Any) -> AttentionConfig:
    """Read the settings of a layer from its parts."""
    name = type(attention).__name__
    for part in ("qkv", "proj"):
        require_plain(part, getattr(attention, part, None), [nn.Linear], whole=attention)
    for part, module in attention.named_children():
        if part not in ("qkv", "proj") and type(module) not in (nn.Identity, nn.Dropout):
            raise UnsupportedError(f"{part} must be Identity or Dropout to convert {name}; got {kind_of(module)}")
    require_nothing_else(attention, {"qkv.weight", "qkv.bias", "proj.weight", "proj.bias"})
    buffers = [buffer for buffer, _ in attention.named_buffers()]
    if buffers:
        raise UnsupportedError(f"there must be no buffers to convert {name}; got {', '.join(buffers)}")
    num_heads, embed_dim = getattr(attention, "num_heads", None), attention.qkv.in_features
    if type(num_heads) is not int or num_heads < 1 or embed_dim % num_heads:
        raise UnsupportedError(f"num_heads must divide the width {embed_dim} to convert {name}; got {shown(num_heads)}")
    scale = getattr(attention, "scale", None)
    if scale is not None and type(scale) not in (int, float):
        raise UnsupportedError(f"scale must be a number to convert {name}; got {shown(scale)}")
    for part, widths in (("qkv", (embed_dim, 3 * embed_dim)), ("proj", (embed_dim, embed_dim))):
        got = getattr(attention, part)
        if (got.in_features, got.out_features) != widths:
            raise UnsupportedError(
                f"{part} must map {widths[0]} features to {widths[1]} to convert {name}; "
                f"got {got.in_features} to {got.out_features}"
            )
    has_biases = attention.qkv.bias is not None, attention.proj.bias is not None
    if has_biases == (False, True):
        raise UnsupportedError(f"qkv must have a bias where proj has one to convert {name}; got none")
    projection_bias: bool | Literal["qkv"] = "qkv" if has_biases == (True, False) else all(has_biases)
    drop = getattr(attention, "attn_drop", 0.0)  # a module, which may be an Identity, or a probability
    return AttentionConfig.from_keywords(
        embed_dim=embed_dim,
        num_heads=num_heads,
        projection_bias=projection_bias,
        scale=scale,
        dropout_p=float(getattr(drop, "p", 0.0) if isinstance(drop, nn.Module) else drop),
    )


def _views_of(attention: Any) -> dict[str, Shaped[Tensor, "..."]]:
    """Return the layer's weights under our names, as views."""
    qkv, proj = attention.qkv, attention.proj
    biases = (None, None, None) if qkv.bias is None else views_of_fused(qkv.bias)
    return name_projections(
        [*views_of_fused(qkv.weight), view_of(proj.weight)],
        [*biases, None if proj.bias is None else view_of(proj.bias)],
    )
