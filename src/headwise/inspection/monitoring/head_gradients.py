"""How large the gradient is that the projections of each attention head get."""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from headwise.integrations.input_projections import InputProjections, Linear, as_linear, find_input_projections
from headwise.integrations.output_projection import output_candidates
from headwise.nn.multihead import MultiHeadAttention


@dataclass(frozen=True, eq=False)
class HeadSlice:
    """The rows or columns of one parameter that belong to each head.

    Args:
        parameter: a weight or a bias.
        dim: the dimension along which heads lie side by side.
        index: places along it; heads that share a key/value head have the same.
    """

    parameter: Tensor
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

    Known are `nn.MultiheadAttention`, headwise's `MultiHeadAttention`, and any other layer whose projections of
    queries, keys and values `find_input_projections` finds, with an output projection where heads are ablated too.

    Args:
        model: holds the layer.
        attention: the layer, as it shows itself when it attends.
        shape: numbers of query heads H and key/value heads K, and size D of a head.

    Returns:
        Empty if the projections are not known or have other sizes.
    """
    if attention is None:
        return ()
    if isinstance(attention, nn.MultiheadAttention):
        return _torch_slices(attention, shape)
    inputs = find_input_projections(attention)
    if inputs is None:
        return ()
    outputs: Iterable[nn.Module]
    if isinstance(attention, MultiHeadAttention):
        outputs = [attention.out_proj]
    else:
        path = next((path for path, part in model.named_modules() if part is attention), "")
        outputs = [module for _, module, _ in output_candidates(path, attention, model if path else attention)]
    found = (_slices(inputs, output, shape) for output in map(as_linear, outputs) if output is not None)
    return next(filter(None, found), ())


def _torch_slices(attention: nn.MultiheadAttention, shape: tuple[int, int, int]) -> Slices:
    """Cut the projections of torch's layer, whose three parts share one bias even where they have a weight each."""
    output = Linear(weight=attention.out_proj.weight, bias=attention.out_proj.bias)
    if attention.in_proj_weight is not None:
        fused = Linear(weight=attention.in_proj_weight, bias=attention.in_proj_bias)
        return _slices(InputProjections(linears=(fused,)), output, shape)
    weights = (attention.q_proj_weight, attention.k_proj_weight, attention.v_proj_weight)
    separate = tuple(Linear(weight=weight, bias=None) for weight in weights)
    found = _slices(InputProjections(linears=separate), output, shape)
    if not found or attention.in_proj_bias is None:
        return found
    places = torch.arange(attention.in_proj_bias.numel()).view(3, attention.num_heads, -1).transpose(0, 1)
    return (*found, HeadSlice(attention.in_proj_bias, 0, places.flatten(1)))


def _slices(inputs: InputProjections, output: Linear, shape: tuple[int, int, int]) -> Slices:
    """Cut the projections of a layer into heads; empty if their sizes are not those of its heads."""
    num_heads, num_kv_heads, head_dim = shape
    rows = [each.out_width for each in inputs.linears]
    v_head_dim = (sum(rows) - (num_heads + num_kv_heads) * head_dim) // num_kv_heads
    sizes = [num_heads * head_dim, num_kv_heads * head_dim, num_kv_heads * v_head_dim]
    if rows not in (sizes, [sum(sizes)]) or output.in_width != num_heads * v_head_dim:
        return ()
    order = [part.view(-1, size) for part, size in _rows_of_heads(sizes, shape, inputs.by_group)]
    indices = [order[0], *(part.repeat_interleave(num_heads // num_kv_heads, dim=0) for part in order[1:])]
    groups = [torch.cat(indices, dim=1)]
    if len(rows) > 1:
        groups = [index - index.min() for index in indices]
    found = []
    for linear, index in zip(inputs.linears, groups, strict=True):
        found.append(HeadSlice(linear.weight, int(linear.is_transposed), index))
        if linear.bias is not None:
            found.append(HeadSlice(linear.bias, 0, index))
    columns = torch.arange(num_heads * v_head_dim).view(num_heads, v_head_dim)
    return (*found, HeadSlice(output.weight, int(not output.is_transposed), columns))


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
