"""`torch.nn.MultiheadAttention` <-> MultiHeadAttention, packed and separate."""

import torch
from jaxtyping import Shaped
from torch import Tensor, nn
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear

from headwise.config.attention import AttentionConfig
from headwise.convert.plain import require_kind, require_one_dtype, require_parameter, require_plain
from headwise.convert.weights import (
    build_layer,
    fill,
    name_projections,
    require_settings,
    view_of,
    views_of_fused,
    weights_of,
)
from headwise.errors import UnsupportedError
from headwise.nn.multihead import MultiHeadAttention
from headwise.nn.torch_multihead import TorchMultiheadAttention


def from_torch(module: nn.MultiheadAttention) -> MultiHeadAttention:
    """Make the layer that computes what torch's module computes, with a copy of its weights.

    Tokens come as (batch, seq_len, width) whatever the module's `batch_first`; masks are the call's, there and here
    (`headwise.mask_from_torch` converts them).

    Args:
        module: with packed weights (`in_proj_weight`) or separate ones (`kdim`, `vdim`).

    Returns:
        A layer in the module's mode (training or not), on its device and in its dtype, frozen where it is.

    Raises:
        UnsupportedError: another kind of module (a subclass too), one that adds keys of its own (`add_bias_kv`,
            `add_zero_attn`), or weights that are no plain ones: in several dtypes, quantised, offloaded, with an
            adapter, a weight norm or a parametrization.
    """
    config, weights = config_of(module), _views_of(module)
    require_one_dtype(weights)
    return build_layer(config, weights, training=module.training)


def to_torch(layer: MultiHeadAttention) -> nn.MultiheadAttention:
    """Make the module of torch's that computes what a layer computes, with a copy of its weights.

    Args:
        layer: one with as many key/value heads as query heads, which share the width evenly, and with neither mask,
            positions, norms nor scale of its own; its biases are on all projections or on none.

    Returns:
        A `batch_first` module in the layer's mode, on its device and in its dtype, frozen where it is, packed if query,
        key and value have one width.

    Raises:
        UnsupportedError: the layer has a setting that torch's module has not, weights in several dtypes, or frozen
            weights beside others that are packed with them; or something else than a layer came.
    """
    weights = weights_of(layer)
    require_one_dtype(weights)
    config = layer.config
    if config.num_heads * config.head_dim != config.embed_dim:
        raise UnsupportedError(
            f"head_dim must be embed_dim / num_heads for torch's module; got {config.head_dim}, "
            f"with {config.num_heads} heads in a width of {config.embed_dim}"
        )
    held = AttentionConfig(
        embed_dim=config.embed_dim,
        num_heads=config.num_heads,
        key_dim=config.key_dim,
        value_dim=config.value_dim,
        projection_bias=config.projection_bias is not False,
        dropout_p=config.dropout_p,
    )
    require_settings(config, held, where="torch's module")
    weight = layer.out_proj.weight
    with torch.random.fork_rng(devices=[]):
        module = nn.MultiheadAttention(
            config.embed_dim,
            config.num_heads,
            dropout=config.dropout_p,
            bias=held.projection_bias is True,
            kdim=config.key_dim,
            vdim=config.value_dim,
            batch_first=True,
            device=weight.device,
            dtype=weight.dtype,
        )
    fill(module, weights, _views_of(module))
    return module.train(layer.training)


def config_of(module: nn.MultiheadAttention) -> AttentionConfig:
    """Read the settings of torch's module.

    Raises:
        UnsupportedError: it is of another kind, or adds keys of its own.
    """
    require_kind("module", module, [nn.MultiheadAttention, TorchMultiheadAttention], what="convert it")
    for name, is_on in (("add_bias_kv", module.bias_k is not None), ("add_zero_attn", module.add_zero_attn)):
        if is_on:
            raise UnsupportedError(
                f"{name} must be False to convert the module, as a layer has no keys of its own; got True "
                "(TorchMultiheadAttention has them)"
            )
    return AttentionConfig(
        embed_dim=module.embed_dim,
        num_heads=module.num_heads,
        key_dim=module.kdim,
        value_dim=module.vdim,
        projection_bias=module.in_proj_bias is not None,
        dropout_p=float(module.dropout),
    )


def _views_of(module: nn.MultiheadAttention) -> dict[str, Shaped[Tensor, "..."]]:
    """Return the module's weights under our names, as views."""
    for name in ("in_proj_weight", "in_proj_bias", "q_proj_weight", "k_proj_weight", "v_proj_weight"):
        require_parameter(name, module, path=name, whole=module)
    out = module.out_proj
    require_plain("out_proj", out, [nn.Linear, NonDynamicallyQuantizableLinear], whole=module)
    weights: tuple[Tensor, ...]
    if module.in_proj_weight is not None:
        weights = views_of_fused(module.in_proj_weight)
    else:
        weights = view_of(module.q_proj_weight), view_of(module.k_proj_weight), view_of(module.v_proj_weight)
    if module.in_proj_bias is None:
        return name_projections([*weights, view_of(out.weight)], [None] * 4)
    return name_projections([*weights, view_of(out.weight)], [*views_of_fused(module.in_proj_bias), view_of(out.bias)])
