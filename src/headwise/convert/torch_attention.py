"""`torch.nn.MultiheadAttention` <-> MultiHeadAttention, packed and separate."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from headwise.config.attention import AttentionConfig
from headwise.convert.fused import split_fused
from headwise.convert.weights import build_layer, copy_weights, name_projections, require_settings, weights_of
from headwise.errors import UnsupportedError
from headwise.nn.multihead import MultiHeadAttention


def from_torch(module: nn.MultiheadAttention) -> MultiHeadAttention:
    """Make the layer that computes what torch's module computes, with a copy of its weights.

    Tokens come as (batch, seq_len, width) whatever the module's `batch_first`; masks are the call's, there and here
    (`headwise.mask_from_torch` converts them).

    Args:
        module: with packed weights (`in_proj_weight`) or separate ones (`kdim`, `vdim`).

    Returns:
        A layer in the module's mode (training or not), on its device and in its dtype.

    Raises:
        UnsupportedError: the module adds keys of its own (`add_bias_kv`, `add_zero_attn`).
    """
    return build_layer(config_of(module), _views_of(module), training=module.training)


def to_torch(layer: MultiHeadAttention) -> nn.MultiheadAttention:
    """Make the module of torch's that computes what a layer computes, with a copy of its weights.

    Args:
        layer: one with as many key/value heads as query heads, which share the width evenly, and with neither mask,
            positions, norms nor scale of its own; its biases are on all projections or on none.

    Returns:
        A `batch_first` module in the layer's mode, on its device and in its dtype, packed if query, key and value have
        one width.

    Raises:
        UnsupportedError: the layer has a setting that torch's module has not.
    """
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
    copy_weights(weights_of(layer), _views_of(module))
    return module.train(layer.training)


def config_of(module: nn.MultiheadAttention) -> AttentionConfig:
    """Read the settings of torch's module.

    Raises:
        UnsupportedError: it adds keys of its own.
    """
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


def _views_of(module: nn.MultiheadAttention) -> dict[str, Float[Tensor, "..."]]:
    """Return the module's weights under our names, as views."""
    if module.in_proj_weight is not None:
        weights = split_fused(module.in_proj_weight.detach())
    else:
        weights = module.q_proj_weight.detach(), module.k_proj_weight.detach(), module.v_proj_weight.detach()
    out = module.out_proj
    if module.in_proj_bias is None:
        return name_projections([*weights, out.weight.detach()], [None] * 4)
    biases = split_fused(module.in_proj_bias.detach())
    return name_projections([*weights, out.weight.detach()], [*biases, out.bias.detach()])
