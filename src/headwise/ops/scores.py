"""The scores of a call before its mask, and the places of its tokens that bias and dropout read."""

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from headwise.ops.call import Call


class Places(NamedTuple):
    """Who the tokens of a call are: integer tensors of 4 dimensions that broadcast to (B, H, T, S).

    `batch`: (B, 1, 1, 1). `head`: (1, H, 1, 1). `query_index` and `query_position`: (B or 1, 1, T, 1). `key_index` and
    `key_position`: (B or 1, 1, 1, S).
    """

    batch: Int[Tensor, "batch 1 1 1"]
    head: Int[Tensor, "1 num_heads 1 1"]
    query_index: Int[Tensor, "#batch 1 query_len 1"]
    key_index: Int[Tensor, "#batch 1 1 key_len"]
    query_position: Int[Tensor, "#batch 1 query_len 1"]
    key_position: Int[Tensor, "#batch 1 1 key_len"]


def places_of(call: Call) -> Places:
    """Return the places of a call's tokens: queries stand at the end of the keys, and positions are the indices."""
    batch_size, num_heads, query_len, _ = call.query.shape
    key_len = call.key.shape[2]
    device = call.query.device
    query_index, key_index = call.query_index, call.key_index
    if query_index is None:
        query_index = torch.arange(key_len - query_len, key_len, device=device)
    if key_index is None:
        key_index = torch.arange(key_len, device=device)
    query_position = query_index if call.query_positions is None else call.query_positions
    key_position = key_index if call.key_positions is None else call.key_positions
    return Places(
        torch.arange(batch_size, device=device).view(-1, 1, 1, 1),
        torch.arange(num_heads, device=device).view(1, -1, 1, 1),
        _as_rows(query_index).unsqueeze(-1),
        _as_rows(key_index).unsqueeze(-2),
        _as_rows(query_position).unsqueeze(-1),
        _as_rows(key_position).unsqueeze(-2),
    )


def bias_values(call: Call) -> Float[Tensor, "#batch #num_heads #query_len #key_len"] | None:
    """Return the bias of a call as a tensor of the smallest shape, float32 or better; None without one."""
    bias = call.bias
    if bias is None:
        return None
    if not isinstance(bias, Tensor):
        places = places_of(call)
        bias = bias(places.batch, places.head, places.query_position, places.key_position, *bias.tensors)
        bias = bias.to(torch.promote_types(call.query.dtype, torch.float32))
    return bias.reshape((1,) * (4 - bias.ndim) + bias.shape)


def cap_scores(scores: Float[Tensor, "..."], softcap: int | float | None) -> Float[Tensor, "..."]:
    """Return `softcap * tanh(scores / softcap)`, which lies within the cap on either side; None: the scores.

    Source: Bello et al. 2017, "Neural Combinatorial Optimization with Reinforcement Learning", appendix A.1; in every
    layer: Gemma Team 2024, "Gemma 2", section 2.
    """
    return scores if softcap is None else softcap * (scores / softcap).tanh()


def _as_rows(places: Tensor) -> Tensor:
    """(L,) -> (1, 1, L); (B, L) -> (B, 1, L)."""
    return places.view(1, 1, -1) if places.ndim == 1 else places.unsqueeze(1)
