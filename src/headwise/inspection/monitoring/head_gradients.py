"""How large the gradient is that the projections of each attention head get."""

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from headwise.convert.huggingface_weights import LAYOUTS, Layout
from headwise.nn.multihead import MultiHeadAttention

# families that are not converted, but whose projections are laid out as those that are
_ALSO = {"albert": Layout(("query", "key", "value", "dense")), "modernbert": Layout(("Wqkv", "Wo"))}


@dataclass(frozen=True, eq=False)
class HeadSlice:
    """The rows or columns of one parameter that belong to each head.

    Args:
        parameter: a weight or a bias.
        dim: the dimension along which heads lie side by side.
        index: places along it; heads that share a key/value head have the same.
    """

    parameter: nn.Parameter
    dim: int
    index: Int[Tensor, "num_heads places"]


Slices = tuple[HeadSlice, ...]


def head_gradient_norms(slices: Slices, *, grad_scale: float = 1.0) -> Float[Tensor, " num_heads"] | None:
    """Return the gradient norm of each head: `sqrt(sum over its places g of (g / grad_scale)^2)`, in float32.

    Args:
        slices: as `find_head_slices` found them.
        grad_scale: what the gradients are multiplied by, as a loss scaler does.

    Returns:
        None if none of the parameters has a whole gradient (frozen, not reached, sharded over devices).
    """
    total: Tensor | None = None
    for part in slices:
        grad = part.parameter.grad
        if type(grad) is not Tensor or grad.is_sparse or grad.shape != part.parameter.shape:
            continue
        others = tuple(dim for dim in range(grad.dim()) if dim != part.dim)
        places = torch.linalg.vector_norm(grad, dim=others, dtype=torch.float32) if others else grad.float()
        squares = (places / grad_scale).square()[part.index.to(grad.device)].sum(dim=1)
        total = squares if total is None else total + squares
    return None if total is None else total.sqrt()


def find_head_slices(model: nn.Module, attention: nn.Module | None, shape: tuple[int, int, int]) -> Slices:
    """Find which parts of the parameters of an attention layer belong to which head.

    Known are `nn.MultiheadAttention`, headwise's `MultiHeadAttention`, the fused projections of the Hugging Face
    families that `convert` reads and a few more, and separate ones under the names of any of these.

    Args:
        model: holds the layer.
        attention: the layer, as it shows itself when it attends.
        shape: numbers of query heads H and key/value heads K, and size D of a head.

    Returns:
        Empty if the projections are not known or have other sizes.
    """
    if isinstance(attention, MultiHeadAttention):
        paths = ("q_proj", "k_proj", "v_proj") if attention.qkv_proj is None else ("qkv_proj",)
        return _slices([_linear(attention, path) for path in (*paths, "out_proj")], shape, by_group=False)
    if isinstance(attention, nn.MultiheadAttention):
        return _torch_slices(attention, shape)
    if attention is None:
        return ()
    layouts = _layouts(model)
    for place in (attention, _holder(model, attention)):
        for layout in layouts:
            found = [_linear(place, path) for path in layout.projections]
            if slices := _slices(found, shape, by_group=layout.by_group):
                return slices
    return ()


def _layouts(model: nn.Module) -> list[Layout]:
    """List how the projections of a model may lie, the one of its family alone where that is known."""
    types = [getattr(getattr(part, "config", None), "model_type", "") for part in model.modules()]
    layouts = {**LAYOUTS, **_ALSO}
    known = [layouts[name] for name in dict.fromkeys(types) if name in layouts]
    return known or [layout for layout in dict.fromkeys(LAYOUTS.values()) if len(layout.projections) == 4]


def _holder(model: nn.Module, attention: nn.Module) -> nn.Module:
    """Return the module that holds an attention layer as a child: BERT keeps the output projection there."""
    return next((part for part in model.modules() if attention in part.children()), attention)


def _linear(module: nn.Module, path: str) -> tuple[Any, Any, bool] | None:
    """Return weight, bias and whether the weight is transposed, as Conv1D's is; None: there is no such projection."""
    part: Any = module
    for name in path.split("."):
        part = getattr(part, name, None)
    if isinstance(part, nn.Linear) or type(part).__name__ in ("Conv1D", "FalconLinear"):
        return part.weight, part.bias, type(part).__name__ == "Conv1D"
    return None


def _torch_slices(attention: nn.MultiheadAttention, shape: tuple[int, int, int]) -> Slices:
    """Cut the projections of torch's layer, whose three parts share one bias even where they have a weight each."""
    output = (attention.out_proj.weight, attention.out_proj.bias, False)
    if attention.in_proj_weight is not None:
        return _slices([(attention.in_proj_weight, attention.in_proj_bias, False), output], shape, by_group=False)
    weights = (attention.q_proj_weight, attention.k_proj_weight, attention.v_proj_weight)
    found = _slices([*((weight, None, False) for weight in weights), output], shape, by_group=False)
    if not found or attention.in_proj_bias is None:
        return found
    places = torch.arange(attention.in_proj_bias.numel()).view(3, attention.num_heads, -1).transpose(0, 1)
    return (*found, HeadSlice(attention.in_proj_bias, 0, places.flatten(1)))


def _slices(projections: list[tuple[Any, Any, bool] | None], shape: tuple[int, int, int], *, by_group: bool) -> Slices:
    """Cut the projections (query, key, value, output, or the first three as one, and output) into heads."""
    known = [each for each in projections if each is not None]
    if len(known) != len(projections):
        return ()
    num_heads, num_kv_heads, head_dim = shape
    rows = [weight.shape[1 if is_transposed else 0] for weight, _, is_transposed in known[:-1]]
    v_head_dim = (sum(rows) - (num_heads + num_kv_heads) * head_dim) // num_kv_heads
    sizes = [num_heads * head_dim, num_kv_heads * head_dim, num_kv_heads * v_head_dim]
    output, _, is_transposed = known[-1]
    if rows not in (sizes, [sum(sizes)]) or output.shape[0 if is_transposed else 1] != num_heads * v_head_dim:
        return ()
    order = [part.view(-1, size) for part, size in _rows_of_heads(sizes, shape, by_group)]
    indices = [order[0], *(part.repeat_interleave(num_heads // num_kv_heads, dim=0) for part in order[1:])]
    groups = [torch.cat(indices, dim=1)]
    if len(rows) > 1:
        groups = [index - index.min() for index in indices]
    found = []
    for (weight, bias, transposed), index in zip(known[:-1], groups, strict=True):
        found.append(HeadSlice(weight, int(transposed), index))
        if bias is not None:
            found.append(HeadSlice(bias, 0, index))
    columns = torch.arange(num_heads * v_head_dim).view(num_heads, v_head_dim)
    return (*found, HeadSlice(output, int(not is_transposed), columns))


def _rows_of_heads(sizes: list[int], shape: tuple[int, int, int], by_group: bool) -> list[tuple[Tensor, int]]:
    """Return the rows of queries, keys and values in one stacked projection, and how many belong to a head."""
    num_heads, num_kv_heads, head_dim = shape
    rows = torch.arange(sum(sizes))
    head_sizes = (head_dim, head_dim, sizes[2] // num_kv_heads)
    if by_group:
        grouped = rows.view(num_kv_heads, -1)
        widths = [num_heads // num_kv_heads * head_dim, *head_sizes[1:]]
        return list(zip([part.reshape(-1) for part in torch.split(grouped, widths, dim=1)], head_sizes, strict=True))
    return list(zip(torch.split(rows, sizes), head_sizes, strict=True))
