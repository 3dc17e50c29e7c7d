"""blocked_attention: every allowed pair is computed once, part by part, and computed again on the way back."""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from headwise.errors import HeadwiseError, UnsupportedError
from headwise.masks.patterns import Mask
from headwise.ops.blocked.fused import can_fuse, fused_backward, fused_forward
from headwise.ops.blocked.idle import find_idle
from headwise.ops.blocked.part import Part
from headwise.ops.blocked.plain import Plain
from headwise.ops.blocked.tile import Tiles
from headwise.ops.blocked.work import Work
from headwise.ops.call import Call
from headwise.ops.dropout import draw_seed
from headwise.ops.lowering import fill_idle, form_of
from headwise.ops.obstacles import with_numbers
from headwise.ops.results import AttentionOutput


def blocked_attention(call: Call) -> AttentionOutput:
    """Compute attention over the pairs that the mask allows, and little else.

    Nothing of (query_len, key_len) is ever held: beside output and logsumexp a few tiles, forward and backward.
    Backward computes the weights of each part again from the logsumexp. On a CPU the parts run on torch's fused kernel
    where that can do what is asked for, else on matrix products.

    Source: Dao et al. 2022, "FlashAttention", section 3.1 and appendix B; Rabe and Staats 2021, "Self-attention Does
    Not Need O(n^2) Memory".
    """
    seed: Tensor | int | None = None
    if call.dropout_p > 0:
        seed = draw_seed(call.query.device) if call.dropout_seed is None else call.dropout_seed
    work = Work(call, can_fuse(call), call.needs_gradient, seed)
    with with_numbers(call):
        idle = find_idle(call, work.every_part)
    if idle is not None:
        call = work.call = fill_idle(call, idle)
    apply: Callable[..., tuple[Tensor, Tensor]] = _Blocked.apply
    output, logsumexp = apply(work, call.query, call.key, call.value, call.sink, *call.bias_tensors)
    return AttentionOutput(output, None, logsumexp if call.return_logsumexp else None)


class _Blocked(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, work: Work, query: Tensor, key: Tensor, value: Tensor, sink: Tensor | None, *bias: Tensor
    ) -> tuple[Tensor, Tensor]:
        call = work.call
        dtype = torch.promote_types(query.dtype, torch.float32)
        shape = (*query.shape[:3], value.shape[-1])
        output = query.new_empty(shape) if work.plan.covers_all else query.new_zeros(shape)
        logsumexp = query.new_full(shape[:3], -torch.inf, dtype=dtype)
        tiles, plain = Tiles(call, dtype, work.plan.shared_tiles), Plain(call, work.seed, work.plan.most_pairs)
        may_be_empty = call.bias is not None or form_of(call).has_idle
        keys, values = (work.laid_out(one) for one in (key, value))

        def compute(part: Part) -> None:
            tensors = part.take_queries(query), part.take_keys(keys), part.take_keys(values)
            tile = tiles.of(part)
            if work.is_fused:
                of_part, sums = fused_forward(*tensors, tile, call.score_scale, may_be_empty=may_be_empty)
            else:
                of_part, sums = plain.forward(part, *tensors, tile)
            part.put_queries(output, of_part)
            part.put_queries(logsumexp, sums)

        for part in work.parts():
            compute(part)
        totals = logsumexp
        if sink is not None:
            totals = torch.logaddexp(logsumexp, sink.view(1, -1, 1))
            output *= (logsumexp - totals).exp().unsqueeze(-1)
        ctx.save_for_backward(query, key, value, sink, output, logsumexp, totals, *bias)
        work.versions = _versions_of(call)
        work.call = call._replace(query=_shape_alone(query), key=_shape_alone(key), value=_shape_alone(value))
        ctx.work = work
        ctx.set_materialize_grads(False)
        if not call.return_logsumexp:
            ctx.mark_non_differentiable(logsumexp)
        return output, logsumexp

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():
            raise UnsupportedError(
                'impl="blocked" has no second derivatives; got a backward pass that is to be differentiated again '
                '(create_graph=True): use impl="reference"'
            )
        if any(tensor._version != version for tensor, version in ctx.work.versions):
            raise HeadwiseError(
                "what a mask, an index or a position holds must stay as it is until the backward pass, which reads it "
                "again; got a tensor that was changed in place: change a copy"
            )
        grad_output, grad_logsumexp = grads
        query, key, value, sink, output, logsumexp, totals, *bias = ctx.saved_tensors
        work, call = ctx.work, ctx.work.call
        grad = torch.zeros_like(output) if grad_output is None else grad_output
        # With a sink all weights of a row are smaller by a share. It multiplies the gradients, and not the weights, so
        # that the gradient of the logsumexp, which knows no sink, need not be divided by it.
        share = None if sink is None or work.is_fused else (logsumexp - totals).exp()
        from_sums = None
        if grad_logsumexp is not None:
            from_sums = grad_logsumexp.masked_fill(logsumexp.isneginf(), 0.0)
        taken = None if sink is None else torch.zeros_like(totals)  # each row's output times its gradient
        of_query = torch.zeros_like(query, memory_format=torch.contiguous_format)
        of_key = torch.zeros_like(key, dtype=totals.dtype, memory_format=torch.contiguous_format)
        of_value = torch.zeros_like(value, dtype=totals.dtype, memory_format=torch.contiguous_format)
        of_bias = [torch.zeros_like(one) if one.requires_grad else None for one in bias]
        wants_bias = any(one is not None for one in of_bias)
        tiles, plain = Tiles(call, totals.dtype, work.plan.shared_tiles), Plain(call, work.seed, work.plan.most_pairs)
        keys, values = (work.laid_out(one) for one in (key, value))

        def compute(part: Part) -> None:
            tensors = part.take_queries(query), part.take_keys(keys), part.take_keys(values)
            of_part, out_of_part = part.take_queries(grad), part.take_queries(output)
            tile = tiles.of(part)
            if taken is not None:
                part.put_queries(taken, _dot(of_part, out_of_part, totals.dtype))
            if work.is_fused:
                sums = part.take_queries(totals)
                made = fused_backward(of_part, *tensors, out_of_part, sums, tile, call.score_scale)
            else:
                delta = _dot(of_part, out_of_part, totals.dtype)
                if share is not None:
                    of_rows = part.take_queries(share)
                    of_part, delta = of_part * of_rows.unsqueeze(-1), delta * of_rows
                delta = delta if from_sums is None else delta - part.take_queries(from_sums)
                sums = part.take_queries(logsumexp)
                made = plain.backward(part, of_part, *tensors, tile, sums, delta, wants_scores=wants_bias)
            part.put_queries(of_query, made.query)
            part.add_keys(of_key, made.key)
            part.add_keys(of_value, made.value)
            if made.scores is not None:
                _add_bias(of_bias, bias, made.scores, part, tiles)

        for part in work.parts():
            compute(part)
        of_sink = None if taken is None else -((sink.view(1, -1, 1) - totals).exp() * taken).sum((0, 2))
        return (None, of_query, of_key.to(key.dtype), of_value.to(value.dtype), of_sink, *of_bias)


def _dot(some: Tensor, others: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the product of each row with its counterpart."""
    return (some * others).sum(-1, dtype=dtype)


def _add_bias(sums: list[Tensor | None], bias: list[Tensor], scores: Tensor, part: Part, tiles: Tiles) -> None:
    """Add one part's gradients of what a bias learns, from those of the scores."""
    places = part.places()
    with torch.enable_grad():
        learned = [one.detach().requires_grad_(one.requires_grad) for one in bias]
        values = tiles.bias_of(places, learned)
    if not values.requires_grad:
        return
    by_head = scores.view(*scores.shape[:2], part.queries_per_kv, part.num_queries, part.num_keys)
    of_values = by_head.sum_to_size(values.shape)
    wanted = [one for one in learned if one.requires_grad]
    made = iter(torch.autograd.grad(values, wanted, of_values.to(values.dtype), allow_unused=True))
    for total in sums:
        one = None if total is None else next(made)
        if total is not None and one is not None:
            total.add_(one)


def _versions_of(call: Call) -> tuple[tuple[Tensor, int], ...]:
    places = (call.query_index, call.key_index, call.query_positions, call.key_positions)
    read = [*([] if call.mask is None else _tensors_of(call.mask)), *(one for one in places if one is not None)]
    return tuple((tensor, tensor._version) for tensor in read if not tensor.is_inference())


def _tensors_of(mask: Mask) -> Iterator[Tensor]:
    """Give the tensors that a mask and its parts hold."""
    for held in vars(mask).values():
        if isinstance(held, Tensor):
            yield held
        elif isinstance(held, Mask):
            yield from _tensors_of(held)


def _shape_alone(tensor: Tensor) -> Tensor:
    """Return a tensor of the same shape, dtype and device in the memory of one number."""
    return tensor.new_empty(()).expand(tensor.shape)
