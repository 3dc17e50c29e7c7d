"""A sink as one more key: torch's kernels know no sinks, but a key with a value of 0 is one."""

from typing import NamedTuple

import torch
from jaxtyping import Float, Shaped
from torch import Tensor
from torch.nn import functional

from headwise.kernels import width_with_sink
from headwise.ops.call import Call


class WithSink(NamedTuple):
    """Query, key and value of a call with its sink among the keys, its mask, and the factor on the scores."""

    query: Float[Tensor, "batch num_heads rows width"]
    key: Float[Tensor, "batch num_kv_heads slots width"]
    value: Float[Tensor, "batch num_kv_heads slots v_width"]
    mask: Shaped[Tensor, "#batch #num_heads #rows slots"] | None
    scale: int | float


def add_sink_key(
    call: Call, mask: Shaped[Tensor, "#batch #num_heads #query_len key_len"] | None, *, is_causal: bool
) -> WithSink:
    """Make the sink the first key.

    Heads get more dimensions, in which all keys are 0 but that of the sink, which is 0 in all others. There each query
    has `sink / scale` of its own head, so that its product with the sink's key, scaled, is the sink. The quotient takes
    two numbers, the rounded one and the rest, since in bfloat16 one alone has but 8 bits. The sink's value is 0: it
    takes its share of the weights and gives nothing.

    With `is_causal` one more query comes first, which sees the sink alone: the square stays a square, and every query
    sees the sink. The first row of the output is then to be dropped, as are the last numbers of a row where values had
    the size of the keys, and grew with them.
    """
    query, key, value = call[:3]
    assert call.sink is not None
    head_dim, v_head_dim = query.shape[-1], value.shape[-1]
    extra = width_with_sink(head_dim) - head_dim
    scale = call.score_scale
    if scale == 0:  # all scores are 0, however a sink is to come out
        query, scale = torch.zeros_like(query), 1.0
    high, low = _split(call.sink / scale, query.dtype)
    room = query.new_zeros(extra - 2)
    parts = (high.view(-1, 1, 1), low.view(-1, 1, 1), room)
    query = torch.cat([query, *(part.expand(*query.shape[:3], part.shape[-1]) for part in parts)], dim=-1)
    key = functional.pad(key, (0, extra, 1, 0))
    key[:, :, 0, head_dim : head_dim + 2] = 1.0
    value = functional.pad(value, (0, extra if v_head_dim == head_dim else 0, 1, 0))
    if is_causal:
        query = functional.pad(query, (0, 0, 1, 0))
    if mask is not None:
        mask = functional.pad(mask, (1, 0), value=True if mask.dtype == torch.bool else 0.0)
    return WithSink(query, key, value, mask, scale)


def _split(number: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return a number as the sum of two of a dtype, as nearly as they can say it; an infinite one as a huge one."""
    limit = torch.finfo(dtype).max
    high = number.clamp(-limit, limit).to(dtype)
    low = (number - high).clamp(-limit, limit).to(dtype)
    return high, low
