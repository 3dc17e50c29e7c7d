"""One part on torch's fused CPU kernel, with what the public call does not give: the logsumexp, and the way back."""

import torch
from torch import Tensor

from headwise.ops.blocked.part import PartGradients
from headwise.ops.call import Call

_FORWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_BACKWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


def can_fuse(call: Call) -> bool:
    """Say whether torch's fused CPU kernel can compute the parts of a call, gradients included.

    It caps no scores, drops no weights, takes values of the size of the keys alone, and gives no gradient of a bias or
    through a logsumexp.
    """
    learns_bias = torch.is_grad_enabled() and any(one.requires_grad for one in call.bias_tensors)
    return (
        call.query.device.type == "cpu"
        and call.value.shape[-1] == call.query.shape[-1]
        and call.softcap is None
        and call.dropout_p == 0
        and not learns_bias
        and not (call.return_logsumexp and call.needs_gradient)
    )


def fused_forward(
    query: Tensor, key: Tensor, value: Tensor, tile: Tensor | None, scale: int | float, *, may_be_empty: bool
) -> tuple[Tensor, Tensor]:
    """Return the output of one part, and the logsumexp of its rows: 0 and -inf of a row that reads nothing.

    The kernel has other numbers there, so that such rows are looked for in the tile, where there may be any.
    """
    output, logsumexp = _FORWARD(*map(_dense, (query, key, value)), 0.0, False, attn_mask=tile, scale=float(scale))
    if tile is None or not may_be_empty:
        return output, logsumexp
    is_empty = tile.amax(-1).isneginf()
    return output.masked_fill(is_empty.unsqueeze(-1), 0.0), logsumexp.masked_fill(is_empty, -torch.inf)


def fused_backward(
    grad: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    output: Tensor,
    logsumexp: Tensor,
    tile: Tensor | None,
    scale: int | float,
) -> PartGradients:
    """Return the gradients of the queries, keys and values of one part."""
    logsumexp = logsumexp.masked_fill(logsumexp.isneginf(), 0.0)  # a row that reads nothing: its weights come out as 0
    query, key, value = map(_dense, (query, key, value))
    made = _BACKWARD(grad, query, key, value, output, logsumexp, 0.0, False, attn_mask=tile, scale=float(scale))
    return PartGradients(made[0], made[1], made[2])


def _dense(tensor: Tensor) -> Tensor:
    """The kernel reads the numbers of a head one after the other."""
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()
