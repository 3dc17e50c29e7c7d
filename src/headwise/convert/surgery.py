"""Surgery on a layer: take heads out, let more query heads share a key/value head, fuse projections or split them."""

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import replace
from numbers import Integral

import torch
from jaxtyping import Shaped
from torch import Tensor

from headwise.config.attention import ALiBi, AttentionConfig
from headwise.config.checks import require_size, shown
from headwise.convert.weights import Weights, build_layer, weights_of
from headwise.errors import ConfigError, UnsupportedError
from headwise.nn.multihead import MultiHeadAttention

_SHARED_BY_HEADS = ("out_proj.bias", "q_norm.weight", "k_norm.weight")


def prune_heads(layer: MultiHeadAttention, heads: Collection[int]) -> MultiHeadAttention:
    """Make a smaller layer without some query heads, which computes what the layer does with those heads' outputs at 0.

    A key/value head that no query head reads any more goes, too. Those that stay must serve the same number of query
    heads each, so that head `h` still reads head `h // queries_per_kv`: of grouped heads, whole groups can go, or the
    same number from every group that stays.

    Args:
        layer: stays as it is.
        heads: numbers of the query heads that go, from 0 to `num_heads - 1`; not all of them.

    Returns:
        A layer in the same mode, with `head_dim`, `scale`, the width of its tokens and the dtypes and frozen state of
        its weights as before.

    Raises:
        ConfigError: a number that is no head's, or all heads; anything else than a collection of whole numbers, such
            as a mask of booleans.
        UnsupportedError: another kind of layer (a subclass too) or one whose projections are no longer plain; groups of
            different sizes would stay; the layer tells heads apart by their number: a mask that does, ALiBi.

    Source: Michel et al. 2019, "Are Sixteen Heads Really Better than One?", section 2.3.
    """
    weights = weights_of(layer)
    config = layer.config
    gone = _read_numbers(heads)
    strangers = sorted(gone - set(range(config.num_heads)))
    if strangers or len(gone) == config.num_heads:
        raise ConfigError(f"heads must be some of 0 to {config.num_heads - 1}, and not all of them; got {sorted(gone)}")
    _require_equal_heads(layer)
    kept = [head for head in range(config.num_heads) if head not in gone]
    served = Counter(head // config.queries_per_kv for head in kept)
    if len(set(served.values())) > 1:
        groups = ", ".join(f"{count} of kv head {group}" for group, count in sorted(served.items()))
        raise UnsupportedError(
            "heads must go in whole groups, or the same number from every group that stays, so that each kv head "
            f"serves as many query heads as any other; got {sorted(gone)}, which leaves {groups}"
        )
    kept_kv = sorted(served)
    taken = {
        "q_proj": (0, kept, config.head_dim),
        "k_proj": (0, kept_kv, config.head_dim),
        "v_proj": (0, kept_kv, config.v_head_dim),
        "out_proj.weight": (1, kept, config.v_head_dim),
        "sink": (0, kept, 1),
        "relative_bias.table": (1, kept, 1),
    }
    for name, weight in weights.items():
        which = taken.get(name, taken.get(name.split(".")[0]))
        if which is not None and name not in _SHARED_BY_HEADS:
            weights[name] = _take_heads(weight.detach(), *which).requires_grad_(weight.requires_grad)
    return _rebuild(layer, replace(config, num_heads=len(kept), num_kv_heads=len(kept_kv)), weights)


def merge_kv_heads(layer: MultiHeadAttention, num_kv_heads: int) -> MultiHeadAttention:
    """Make a layer whose query heads share fewer key/value heads, each the mean of the ones that it stands for.

    `k_proj` of new head g is the mean of those of the old heads `g * n` to `g * n + n - 1`, with
    `n = old num_kv_heads / num_kv_heads`, and so is `v_proj`. Its cache is smaller by that factor. What it computes is
    no longer the same, unless the heads of each group were equal: it is where training begins that makes up for it.

    Args:
        layer: stays as it is.
        num_kv_heads: number of key/value heads after it; divides the number before it.

    Returns:
        A layer in the same mode, its weights in the same dtypes and frozen where they are.

    Raises:
        ConfigError: something else than a whole number, or one that does not divide the layer's own.
        UnsupportedError: another kind of layer (a subclass too) or one whose projections are no longer plain.

    Source: Ainslie et al. 2023, "GQA: Training Generalized Multi-Query Transformer Models from Multi-Head Checkpoints",
    section 2.1.
    """
    weights = weights_of(layer)
    config = layer.config
    require_size("num_kv_heads", num_kv_heads)
    if config.num_kv_heads % num_kv_heads:
        raise ConfigError(
            "num_kv_heads must divide the layer's own, so that each new head stands for the same number of old ones; "
            f"got {num_kv_heads} for {config.num_kv_heads}"
        )
    for name in ("k_proj.weight", "k_proj.bias", "v_proj.weight", "v_proj.bias"):
        if name in weights:
            size = config.head_dim if name.startswith("k_proj") else config.v_head_dim
            heads = weights[name].detach().reshape(num_kv_heads, -1, size, *weights[name].shape[1:])
            weights[name] = heads.mean(1).flatten(0, 1).requires_grad_(weights[name].requires_grad)
    return _rebuild(layer, replace(config, num_kv_heads=num_kv_heads), weights)


def fuse_qkv(layer: MultiHeadAttention) -> MultiHeadAttention:
    """Make the layer that computes the same by one projection for queries, keys and values (`fused_qkv=True`).

    Args:
        layer: stays as it is; its keys and values are projected from tokens of the queries' width.

    Raises:
        ConfigError: tokens of different widths.
        UnsupportedError: projections that are not all frozen or all not, or have several dtypes, as one matrix cannot;
            another kind of layer, or one whose projections are no longer plain.
    """
    return _rebuild(layer, layer.config, weights_of(layer), fused_qkv=True)


def split_qkv(layer: MultiHeadAttention) -> MultiHeadAttention:
    """Make the layer that computes the same by three projections: the inverse of `fuse_qkv`.

    Args:
        layer: stays as it is.

    Raises:
        UnsupportedError: another kind of layer, or one whose projections are no longer plain.
    """
    return _rebuild(layer, layer.config, weights_of(layer), fused_qkv=False)


def _rebuild(
    layer: MultiHeadAttention, config: AttentionConfig, weights: Weights, *, fused_qkv: bool | None = None
) -> MultiHeadAttention:
    """Make a layer of another config and other weights that in all else is like one, fused or not unless told."""
    fused_qkv = layer.qkv_proj is not None if fused_qkv is None else fused_qkv
    built = build_layer(config, weights, training=layer.training, fused_qkv=fused_qkv, impl=layer.impl)
    built.recomputes = layer.recomputes
    return built


def _read_numbers(heads: object) -> set[int]:
    """Return numbers of heads; True and 1.0 equal 1, but are no numbers of heads."""
    is_known = isinstance(heads, Collection) and not isinstance(heads, Mapping | str | bytes | Tensor)
    if not is_known or not all(isinstance(head, Integral) and not isinstance(head, bool) for head in heads):  # type: ignore[attr-defined]
        raise ConfigError(f"heads must be a collection of whole numbers, one for each that goes; got {shown(heads)}")
    return {int(head) for head in heads}  # type: ignore[attr-defined]


def _take_heads(weight: Shaped[Tensor, "..."], axis: int, heads: list[int], size: int) -> Shaped[Tensor, "..."]:
    """Return the parts of a weight that belong to some heads, which lie side by side along an axis."""
    first = torch.tensor(heads, device=weight.device) * size
    places = first[:, None] + torch.arange(size, device=weight.device)
    return weight.index_select(axis, places.flatten())


def _require_equal_heads(layer: MultiHeadAttention) -> None:
    """Raise UnsupportedError where a head would do something else under another number."""
    config = layer.config
    if isinstance(config.position, ALiBi):
        raise UnsupportedError(
            "position must not be ALiBi to take heads out, as a head's slope follows from its number; "
            f"got {config.position}"
        )
    # A mask that looks at the head gives one answer for each.
    answer = config.mask.allows(0, torch.arange(config.num_heads), 0, 0)
    if isinstance(answer, Tensor) and answer.ndim:
        raise UnsupportedError(f"mask must be the same for all heads to take some out; got {config.mask!r}")
