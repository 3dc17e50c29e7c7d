"""Changing what attention heads put out, where the output projection of each layer reads them."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from headwise.errors import ModelError
from headwise.integrations.fast_path import without_fast_path
from headwise.integrations.output_projection import OutputProjection

Edit = Callable[[OutputProjection, Float[Tensor, "batch num_tokens num_heads head_dim"]], Tensor]


@dataclass
class Passes:
    """How often a model was called, and its layers' projections, each under its layer's number."""

    passes: int = 0
    calls: dict[int, int] = field(default_factory=dict)

    def require_called(self, model: nn.Module, projections: Sequence[OutputProjection]) -> None:
        """Raise ModelError where the model was called and a projection was not: nothing was changed there."""
        for each in projections:
            if self.passes and not self.calls.get(each.layer):
                raise ModelError(
                    f"a pass of {type(model).__name__} must call {each.name} for the heads of layer {each.layer} to be "
                    f"changed; it was called in none of {self.passes}"
                )


@contextmanager
def edit_heads(model: nn.Module, projections: Sequence[OutputProjection], edit: Edit) -> Iterator[Passes]:
    """Let `edit` change the heads of some layers, as their output projections are about to read them.

    Works under any attention implementation, as the projection comes after it. Nothing of the model is replaced: hooks
    are set and removed again, also on failure. `nn.MultiheadAttention` never calls its projection: while the context is
    open it computes with the identity in its place, the real one comes after the edit, and torch's fused encoder path,
    which would pass the layer by, is off.

    Args:
        model: whose passes are counted; layers that share one module are told apart by the order of its calls in one.
        projections: of the layers to change.
        edit: called with a projection and the heads that it reads, (B, T, H, V), of one text alone with B = 1, of
            windows with B a multiple of the texts; returns them changed.

    Yields:
        The count of passes and calls.
    """
    sharers: dict[nn.Module, list[OutputProjection]] = {}
    for each in projections:
        sharers.setdefault(each.module, []).append(each)
    passes = Passes()
    places = dict.fromkeys(sharers, 0)  # of the next call of each module within a pass

    def start_pass(*_: Any) -> None:
        passes.passes += 1
        places.update(dict.fromkeys(sharers, 0))

    def change(module: nn.Module, tokens: Tensor) -> Tensor:
        members = sharers[module]
        each = members[places[module] % len(members)]
        places[module] += 1
        passes.calls[each.layer] = passes.calls.get(each.layer, 0) + 1
        heads = _split(tokens, each)
        return _merge(edit(each, heads), tokens, each)

    with ExitStack() as undo:
        undo.callback(model.register_forward_pre_hook(start_pass).remove)
        for module in sharers:
            if isinstance(module, nn.MultiheadAttention):
                undo.enter_context(_without_projection(module, change))
            else:
                undo.callback(module.register_forward_pre_hook(partial(_change_first, change)).remove)
        if any(isinstance(module, nn.MultiheadAttention) for module in sharers):
            undo.enter_context(without_fast_path())
        yield passes


def _change_first(
    change: Callable[[nn.Module, Tensor], Tensor], module: nn.Module, args: tuple[Any, ...]
) -> tuple[Any, ...]:
    return (change(module, args[0]), *args[1:])


@contextmanager
def _without_projection(layer: nn.MultiheadAttention, change: Callable[[nn.Module, Tensor], Tensor]) -> Iterator[None]:
    """Put the identity in the place of the output projection in each call, and the projection behind the change."""
    projection = layer.out_proj

    def before_forward(*_: Any) -> None:
        weight = projection.weight
        identity = nn.Linear(layer.embed_dim, layer.embed_dim, bias=False, device="meta")
        identity.weight = nn.Parameter(torch.eye(layer.embed_dim).to(weight), requires_grad=False)
        layer.out_proj = identity  # type: ignore[assignment]

    def after_forward(_: nn.Module, __: Any, output: Any) -> Any:
        layer.out_proj = projection
        if output is None:  # the call failed
            return None
        tokens = change(layer, output[0])
        return (functional.linear(tokens, projection.weight, projection.bias), *output[1:])

    handles = (
        layer.register_forward_pre_hook(before_forward),
        layer.register_forward_hook(after_forward, always_call=True),
    )
    try:
        yield
    finally:
        layer.out_proj = projection
        for handle in handles:
            handle.remove()


def _split(tokens: Tensor, projection: OutputProjection) -> Tensor:
    """Cut what a projection reads into heads, (B, T, H, V): texts first, images' rows and columns one after another."""
    if tokens.dim() == 2:
        tokens = tokens.unsqueeze(0)
    elif projection.time_first:
        tokens = tokens.transpose(0, 1)
    return tokens.reshape(tokens.shape[0], -1, projection.num_heads, projection.head_dim)


def _merge(heads: Tensor, like: Tensor, projection: OutputProjection) -> Tensor:
    """Lay heads side by side in the layout that they came in: the inverse of `_split`."""
    tokens = heads.flatten(2)
    if like.dim() == 3 and projection.time_first:
        tokens = tokens.transpose(0, 1)
    return tokens.reshape(like.shape)
