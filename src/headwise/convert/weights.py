"""What all converters share: weights by our names, a layer made of them, and the settings that must agree.

Each foreign module is read as views of its weights under our names. The same views serve both ways: cloned into a layer
of ours, or written into from one. A view asks for gradients where its parameter does, so that what is frozen stays so.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import Any, TypeVar

import torch
from jaxtyping import Shaped
from torch import Tensor, nn

from headwise.config.attention import AttentionConfig
from headwise.convert.fused import split_fused
from headwise.convert.plain import require_kind, require_numbers, require_one_dtype, require_plain
from headwise.errors import UnsupportedError
from headwise.nn.multihead import MultiHeadAttention
from headwise.nn.projection import FusedProjection

Weights = Mapping[str, Shaped[Tensor, "..."]]
"""Weights by the names of `MultiHeadAttention`'s parameters; as a rule views, detached."""

Module = TypeVar("Module", bound=nn.Module)

_FUSED = ("q_proj", "k_proj", "v_proj")


def view_of(parameter: Shaped[Tensor, "..."]) -> Shaped[Tensor, "..."]:
    """Return a view of a parameter, outside of its graph, that asks for gradients where the parameter does."""
    return parameter.detach().requires_grad_(parameter.requires_grad)


def views_of_fused(
    fused: Shaped[Tensor, "rows ..."], sizes: Sequence[int] | None = None
) -> tuple[Shaped[Tensor, "..."], ...]:
    """Cut a fused weight or bias as `split_fused` does, into views like those of `view_of`."""
    return tuple(part.requires_grad_(fused.requires_grad) for part in split_fused(fused.detach(), sizes))


def name_projections(
    weights: Sequence[Shaped[Tensor, "_ _"]], biases: Sequence[Shaped[Tensor, " _"] | None]
) -> dict[str, Shaped[Tensor, "..."]]:
    """Name the weights and biases of query, key, value and output, leaving out those that are None."""
    named = {}
    for name, weight, bias in zip((*_FUSED, "out_proj"), weights, biases, strict=True):
        named[f"{name}.weight"] = weight
        if bias is not None:
            named[f"{name}.bias"] = bias
    return named


def parameters_of(module: nn.Module) -> dict[str, Shaped[Tensor, "..."]]:
    """Return the parameters of a module by name, as views."""
    return {name: view_of(parameter) for name, parameter in module.named_parameters()}


def weights_of(layer: MultiHeadAttention) -> dict[str, Shaped[Tensor, "..."]]:
    """Return the weights of a layer by name, as views; a fused projection as the three that it stands for.

    Raises:
        UnsupportedError: another kind of module, or one whose projections or norms are no longer what it was made with.
    """
    require_kind("layer", layer, [MultiHeadAttention], what="convert it")
    for name in (*_FUSED, "out_proj", "q_norm", "k_norm"):
        if getattr(layer, name, None) is not None:
            kinds = [nn.RMSNorm if name.endswith("norm") else nn.Linear]
            require_plain(name, getattr(layer, name), kinds, whole=layer)
    weights = parameters_of(layer)
    if layer.qkv_proj is not None:
        require_plain("qkv_proj", layer.qkv_proj, [FusedProjection], whole=layer)
        for kind in ("weight", "bias"):
            fused = weights.pop(f"qkv_proj.{kind}", None)
            if fused is not None:
                parts = views_of_fused(fused, layer.qkv_proj.sizes)
                weights |= {f"{name}.{kind}": part for name, part in zip(_FUSED, parts, strict=True)}
    return weights


def build_layer(
    config: AttentionConfig, weights: Weights, *, training: bool, fused_qkv: bool = False, impl: str = "auto"
) -> MultiHeadAttention:
    """Make the layer that a config describes and copy weights into it.

    Each parameter has the device and dtype of its weight and asks for gradients where that does, and torch's random
    state stays as it was.

    Raises:
        UnsupportedError: the layer cannot be built here, has other weights than those, or would hold weights of
            several dtypes in one projection, or frozen ones beside others.
    """
    require_numbers(weights)
    if fused_qkv:
        require_one_dtype({name: weight for name, weight in weights.items() if name.startswith(_FUSED)})
    with torch.random.fork_rng(devices=[]):  # what the layer draws at its start is thrown away
        layer = MultiHeadAttention.from_config(config, fused_qkv=fused_qkv, impl=impl)
    layer = layer.to(weights["q_proj.weight"]).train(training)
    for name, parameter in layer.named_parameters():
        like = weights.get(name.replace("qkv_proj", "q_proj"))
        if like is not None:
            parameter.data = parameter.data.to(like)
    fill(layer, weights, weights_of(layer))
    return layer


def build_empty(make: Callable[[], Module], *, like: Shaped[Tensor, "..."]) -> Module:
    """Make a module whose parameters have a weight's device and dtype and hold no numbers yet, in their memory alone.

    Args:
        make: what makes it, with parameters and no buffers.
        like: the weight.
    """
    with torch.device("meta"):  # where nothing is drawn, so that torch's random state stays as it was
        module = make()
    assert not list(module.buffers()), "what a buffer holds would be lost"
    return module.to(like.dtype).to_empty(device=like.device)


def fill(module: nn.Module, source: Weights, target: Weights) -> None:
    """Write weights into a module that was made for them, and freeze there what is frozen among them.

    Args:
        module: of ours or of torch's.
        source: the weights.
        target: views of the module's parameters, by the same names; several may be parts of one parameter.

    Raises:
        UnsupportedError: as `copy_weights`; or one parameter would hold frozen weights and others.
    """
    copy_weights(source, target)
    held: dict[int, list[str]] = {}
    for name, view in target.items():
        held.setdefault(view.untyped_storage().data_ptr(), []).append(name)
    for parameter in module.parameters():
        names = held.get(parameter.untyped_storage().data_ptr(), [])
        flags = {source[name].requires_grad for name in names}
        if len(flags) > 1:
            frozen = ", ".join(name for name in names if not source[name].requires_grad)
            raise UnsupportedError(
                f"{', '.join(names)} must all ask for gradients or none of them to be one parameter; "
                f"got requires_grad=False for {frozen} alone"
            )
        for flag in flags:
            parameter.requires_grad_(flag)


def copy_weights(source: Weights, target: Weights) -> None:
    """Write each weight of `source` into the one of `target` with the same name.

    Raises:
        UnsupportedError: they have not the same names and shapes, or one of them does not hold its numbers as they are.
            Nothing is written then.
    """
    alone = source.keys() ^ target.keys()
    if alone:
        raise UnsupportedError(f"both sides must have the same weights; got {', '.join(sorted(alone))} on one alone")
    for side in (source, target):
        require_numbers(side)
    for name, weight in source.items():
        if weight.shape != target[name].shape:
            raise UnsupportedError(
                f"{name} must have shape {tuple(target[name].shape)}; got {tuple(weight.shape)} "
                "(quantised weights are stored in other shapes)"
            )
    with torch.no_grad():
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
