"""Weights of YOLOv5's C3TR and of the Transformer inside it, by the names of its checkpoints <-> our modules.

A checkpoint is what `model.state_dict()` gives there: tensors by names such as `model.9.cv1.conv.weight` and
`model.9.m.tr.0.ma.in_proj_weight`, whose first part, `model.9.`, is the prefix of a block. Read one with
`safetensors.torch.load_file` or `torch.load(path, weights_only=True)`; a `.pt` that holds the whole model runs code as
it is read, and must be saved as a state dict where YOLOv5 is at hand.
"""

import math
import re
from collections.abc import Mapping
from typing import TypeVar

import torch
from jaxtyping import Num
from torch import Tensor, nn

from headwise.config.checks import require_size, shown
from headwise.convert.plain import require_kind, require_numbers, require_plain
from headwise.convert.torch_attention import from_torch
from headwise.errors import ConfigError, UnsupportedError
from headwise.nn.c3tr import C3TR, PlainTransformerLayer, PlainTransformerStage
from headwise.nn.multihead import MultiHeadAttention

NUM_HEADS = 4  # of every C3TR there; no weight tells it
NORM_EPS = 1e-3  # of its batch norms, once YOLOv5 has made the model; a number that checkpoints do not hold

Checkpoint = Mapping[str, Num[Tensor, "..."]]
"""Tensors by name."""
Module = TypeVar("Module", bound=nn.Module)


def from_yolov5(weights: Checkpoint, *, num_heads: int = NUM_HEADS, norm_eps: float = NORM_EPS) -> dict[str, C3TR]:
    """Make every C3TR of a checkpoint, by its prefix.

    Args:
        weights: a whole model's state dict.
        num_heads: number of heads.
        norm_eps: what the batch norms add to the variance.

    Returns:
        What `c3tr_from_yolov5` makes of each prefix, in the order of the checkpoint.

    Raises:
        UnsupportedError: there is none, or one that cannot be read.
        ConfigError: something else than tensors by name; `num_heads` or `norm_eps` that no block can have.

    Example:
        >>> blocks = from_yolov5(safetensors.torch.load_file("yolov5s-transformer.safetensors"))
    """
    _require_checkpoint(weights)
    found = [re.fullmatch(r"((?:.*\.)?)m\.tr\.0\.ma\.in_proj_weight", name) for name in weights]
    prefixes = [match[1] for match in found if match is not None and f"{match[1]}cv3.conv.weight" in weights]
    if not prefixes:
        raise UnsupportedError(
            "weights must hold a C3TR, with names that end in cv3.conv.weight and m.tr.0.ma.in_proj_weight; "
            f"got {len(weights)} other names"
        )
    return {prefix: c3tr_from_yolov5(weights, prefix, num_heads=num_heads, norm_eps=norm_eps) for prefix in prefixes}


def c3tr_from_yolov5(
    weights: Checkpoint, prefix: str, *, num_heads: int = NUM_HEADS, norm_eps: float = NORM_EPS
) -> C3TR:
    """Make one C3TR of a checkpoint, with the sizes that its weights have and a copy of them.

    Args:
        weights: a state dict; names that do not begin with the prefix are not looked at.
        prefix: what the names of the block begin with, with the point behind: "model.9.". "" takes all names.
        num_heads: number of heads.
        norm_eps: what the batch norms add to the variance.

    Returns:
        A block with `compatible=True`, in evaluation, on the weights' device and in their dtype.

    Raises:
        UnsupportedError: a tensor is missing, is one too many, or has another shape or dtype than the others ask for.
        ConfigError: `num_heads` does not divide the width inside, or a prefix without its point.
    """
    own = _below(weights, prefix)
    inner, in_channels, *_ = _shape(own, "cv1.conv.weight", 4, prefix)
    out_channels = _shape(own, "cv3.conv.weight", 4, prefix)[0]
    if not inner or not out_channels:
        raise UnsupportedError(f"{prefix}cv1 and {prefix}cv3 must have channels; got {inner} and {out_channels}")
    expansion = inner / out_channels
    if int(out_channels * expansion) < inner:  # the quotient was rounded down: the next number above is not too small
        expansion = math.nextafter(expansion, math.inf)
    with torch.random.fork_rng(devices=[]):  # what a module draws at its start is thrown away
        block = C3TR(
            in_channels,
            out_channels,
            _count_layers(own, "m.tr", prefix),
            num_heads=num_heads,
            expansion=expansion,
            norm_eps=norm_eps,
            compatible=True,
        )
    return _load(block, own, prefix)


def stage_from_yolov5(weights: Checkpoint, prefix: str, *, num_heads: int = NUM_HEADS) -> PlainTransformerStage:
    """Make one TransformerBlock of a checkpoint, with as many channels in as out.

    Args:
        weights, prefix, num_heads: as of `c3tr_from_yolov5`; the prefix of the one inside a C3TR is "model.9.m.".

    Raises:
        UnsupportedError: as of `c3tr_from_yolov5`; a convolution before it, for another number of channels, is one
            tensor too many.
        ConfigError: as of `c3tr_from_yolov5`.
    """
    own = _below(weights, prefix)
    channels = _shape(own, "linear.weight", 2, prefix)[0]
    _require_heads(channels, num_heads)
    with torch.random.fork_rng(devices=[]):
        stage = PlainTransformerStage(channels, num_heads, _count_layers(own, "tr", prefix))
    return _load(stage, own, prefix)


def layer_from_yolov5(weights: Checkpoint, prefix: str, *, num_heads: int = NUM_HEADS) -> PlainTransformerLayer:
    """Make one TransformerLayer of a checkpoint.

    Args:
        weights, prefix, num_heads: as of `c3tr_from_yolov5`; the first inside a C3TR has the prefix "model.9.m.tr.0.".

    Raises:
        UnsupportedError, ConfigError: as of `stage_from_yolov5`.
    """
    own = _below(weights, prefix)
    channels = _shape(own, "q.weight", 2, prefix)[0]
    _require_heads(channels, num_heads)
    with torch.random.fork_rng(devices=[]):
        layer = PlainTransformerLayer(channels, num_heads)
    return _load(layer, own, prefix)


def to_yolov5(module: C3TR | PlainTransformerStage | PlainTransformerLayer, prefix: str = "") -> dict[str, Tensor]:
    """Give the weights of a module the names that they have in a checkpoint: the inverse of the three above.

    Args:
        module: a `C3TR` with `compatible=True`, or a part of one.
        prefix: what the names shall begin with, with the point behind.

    Returns:
        Tensors that share the module's memory, to be loaded there (`load_state_dict`) or saved.

    Raises:
        UnsupportedError: another kind of module; a `C3TR` of the default form, which no checkpoint can hold.
        ConfigError: a prefix without its point.
    """
    _require_prefix(prefix)
    require_kind("module", module, [C3TR, PlainTransformerStage, PlainTransformerLayer], what="convert it")
    if isinstance(module, C3TR) and not module.config.compatible:
        raise UnsupportedError(
            "compatible must be True for a C3TR to have names in YOLOv5's checkpoints; got False: its norms, positions "
            "and wider feed-forwards have no place there"
        )
    return dict(module.state_dict(prefix=prefix))


@torch.no_grad()
def merge_projections(layer: PlainTransformerLayer) -> MultiHeadAttention:
    """Make the attention of a plain layer with one projection each for queries, keys and values, in place of two.

    Nothing stands between `q` and the part of `ma.in_proj` that reads it, so that `W2 (W1 x) + b = (W2 W1) x + b`: the
    product is one matrix. It is computed in float64 and rounded once; the outputs are equal within rounding.

    Args:
        layer: stays as it is. Its `x + ...` and feed-forward stay, too, with whoever calls.

    Returns:
        The layer that computes `ma(q(x), k(x), v(x))` of tokens (batch, seq_len, channels), in the same mode, dtype and
        on the same device, frozen where both of two merged weights are.

    Raises:
        UnsupportedError: another kind of layer, or one whose projections are no longer plain, as of `from_torch`.
    """
    require_kind("layer", layer, [PlainTransformerLayer], what="merge its projections")
    for name in ("q", "k", "v"):
        require_plain(name, getattr(layer, name), [nn.Linear], whole=layer)
        require_numbers({f"{name}.weight": getattr(layer, name).weight})
    merged = from_torch(layer.ma)
    for second, first in ((merged.q_proj, layer.q), (merged.k_proj, layer.k), (merged.v_proj, layer.v)):
        second.weight.copy_(second.weight.double() @ first.weight.double())
        second.weight.requires_grad_(second.weight.requires_grad or first.weight.requires_grad)
    return merged


def _require_checkpoint(weights: object) -> None:
    if not isinstance(weights, Mapping):
        raise ConfigError(
            f"weights must be tensors by name, as model.state_dict() gives them; got a {type(weights).__name__}"
        )


def _require_prefix(prefix: str) -> None:
    if not isinstance(prefix, str):
        raise ConfigError(f"prefix must be a string; got {shown(prefix)}")
    if prefix and not prefix.endswith("."):
        raise ConfigError(f'prefix must be empty or end with a point, as "model.9." does; got {prefix!r}')


def _require_heads(channels: int, num_heads: int) -> None:
    require_size("num_heads", num_heads)
    if channels % num_heads:
        raise ConfigError(f"num_heads must divide the width of the weights, {channels}; got {num_heads}")


def _below(weights: Checkpoint, prefix: str) -> dict[str, Tensor]:
    """Return the tensors whose names begin with a prefix, by the rest of their names."""
    _require_checkpoint(weights)
    _require_prefix(prefix)
    own = {name.removeprefix(prefix): tensor for name, tensor in weights.items() if name.startswith(prefix)}
    for name, tensor in own.items():
        if not isinstance(tensor, Tensor):
            raise UnsupportedError(f"{prefix}{name} must be a tensor; got a {type(tensor).__name__}")
    return own


def _shape(own: Mapping[str, Tensor], name: str, num_axes: int, prefix: str) -> list[int]:
    if name not in own:
        raise UnsupportedError(f"{prefix}{name} must be among the weights; it is missing")
    if own[name].dim() != num_axes:
        raise UnsupportedError(f"{prefix}{name} must have {num_axes} axes; got shape {tuple(own[name].shape)}")
    return list(own[name].shape)


def _count_layers(own: Mapping[str, Tensor], stack: str, prefix: str) -> int:
    """Return how many layers a stack has; one that is left out makes itself known when weights are compared."""
    numbers = {match[1] for name in own if (match := re.match(rf"{re.escape(stack)}\.(\d+)\.", name))}
    if not numbers:
        raise UnsupportedError(f"{prefix}{stack}.0.ma.in_proj_weight must be among the weights; it is missing")
    return len(numbers)


def _load(module: Module, own: Mapping[str, Tensor], prefix: str) -> Module:
    """Copy tensors into a module that was built for them, in evaluation."""
    slots = module.state_dict()
    missing, odd = sorted(slots.keys() - own.keys()), sorted(own.keys() - slots.keys())
    if missing or odd:
        texts = [f"{', '.join(names)} {what}" for names, what in ((missing, "missing"), (odd, "too many")) if names]
        kind = type(module).__name__
        raise UnsupportedError(
            f"the weights of {prefix or 'a ' + kind} must be those of a {kind} and no others; "
            f"got {'; '.join(texts)} (batch norms that were fused into convolutions cannot be read)"
        )
    first, like = next((name, own[name]) for name, slot in slots.items() if slot.is_floating_point())
    require_numbers({f"{prefix}{first}": like})
    for name, slot in slots.items():
        if own[name].shape != slot.shape:
            raise UnsupportedError(f"{prefix}{name} must have shape {tuple(slot.shape)}; got {tuple(own[name].shape)}")
        dtype = like.dtype if slot.is_floating_point() else slot.dtype
        if own[name].dtype != dtype:
            raise UnsupportedError(f"{prefix}{name} must be {dtype}; got {own[name].dtype}")
        if own[name].device != like.device:
            raise UnsupportedError(f"{prefix}{name} must be on {like.device}, as others are; got {own[name].device}")
    module.to(like.device, like.dtype)
    module.load_state_dict(dict(own))
    return module.eval()
