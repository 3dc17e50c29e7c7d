"""What all converters share: weights by our names, a layer made of them, and the settings that must agree.

Each foreign module is read as views of its weights under our names. The same views serve both ways: cloned into a layer
of ours, or written into from one.
"""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from headwise.config.attention import AttentionConfig
from headwise.convert.fused import split_fused
from headwise.errors import UnsupportedError
from headwise.nn.multihead import MultiHeadAttention

Weights = Mapping[str, Float[Tensor, "..."]]
"""Weights by the names of `MultiHeadAttention`'s parameters; as a rule views, detached."""

_FUSED = ("q_proj", "k_proj", "v_proj")


def name_projections(
    weights: Sequence[Float[Tensor, "_ _"]], biases: Sequence[Float[Tensor, " _"] | None]
) -> dict[str, Float[Tensor, "..."]]:
    """Name the weights and biases of query, key, value and output, leaving out those that are None."""
    named = {}
    for name, weight, bias in zip((*_FUSED, "out_proj"), weights, biases, strict=True):
        named[f"{name}.weight"] = weight
        if bias is not None:
            named[f"{name}.bias"] = bias
    return named


def parameters_of(module: nn.Module) -> dict[str, Float[Tensor, "..."]]:
    """Return the parameters of a module by name, detached."""
    return {name: parameter.detach() for name, parameter in module.named_parameters()}


def weights_of(layer: MultiHeadAttention) -> dict[str, Float[Tensor, "..."]]:
    """Return the weights of a layer by name, as views; a fused projection as the three that it stands for."""
    weights = parameters_of(layer)
    if layer.qkv_proj is not None:
        for kind in ("weight", "bias"):
            fused = weights.pop(f"qkv_proj.{kind}", None)
            if fused is not None:
                parts = split_fused(fused, layer.qkv_proj.sizes)
                weights |= {f"{name}.{kind}": part for name, part in zip(_FUSED, parts, strict=True)}
    return weights


def build_layer(
    config: AttentionConfig, weights: Weights, *, training: bool, fused_qkv: bool = False, impl: str = "auto"
) -> MultiHeadAttention:
    """Make the layer that a config describes and copy weights into it.

    It has the device and dtype of the query's weight, and torch's random state stays as it was.

    Raises:
        UnsupportedError: the layer cannot be built here, or has other weights than those.
    """
    with torch.random.fork_rng(devices=[]):  # what the layer draws at its start is thrown away
        layer = MultiHeadAttention.from_config(config, fused_qkv=fused_qkv, impl=impl)
    layer = layer.to(weights["q_proj.weight"]).train(training)
    copy_weights(weights, weights_of(layer))
    return layer


def copy_weights(source: Weights, target: Weights) -> None:
    """Write each weight of `source` into the one of `target` with the same name.

    Raises:
        UnsupportedError: they have not the same names and shapes. Nothing is written then.
    """
    alone = source.keys() ^ target.keys()
    if alone:
        raise UnsupportedError(f"both sides must have the same weights; got {', '.join(sorted(alone))} on one alone")
    for name, weight in source.items():
        if weight.shape != target[name].shape:
            raise UnsupportedError(
                f"{name} must have shape {tuple(target[name].shape)}; got {tuple(weight.shape)} "
                "(quantised weights are stored in other shapes)"
            )
    for name, weight in source.items():
        target[name].copy_(weight)


def require_settings(config: Any, other: Any, *, where: str) -> None:
    """Raise UnsupportedError, by the name of the setting, unless two configs are equal.

    Args:
        config: of the layer of ours.
        other: what the other side can hold or holds.
        where: what the other side is, with its article.
    """
    for each in fields(config):
        ours, theirs = getattr(config, each.name), getattr(other, each.name)
        if ours != theirs:
            raise UnsupportedError(f"{each.name} must be {theirs!r} for {where}; got {ours!r}")
