"""Listening to headwise's own attention: layers of every kind, and plain calls of `headwise.attention`."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from threading import get_ident
from typing import Any

import torch
from jaxtyping import Bool
from torch import Tensor, nn

from headwise.integrations.layer_weights import (
    AttentionCall,
    Listener,
    OnError,
    ProjectedWeights,
    RowsOf,
    block_ranges,
    in_thread,
    is_self_attention,
    take_rows,
    tell,
)
from headwise.nn.latent import LatentAttention
from headwise.nn.multihead import MultiHeadAttention
from headwise.nn.torch_multihead import TorchMultiheadAttention
from headwise.ops.call import Call
from headwise.ops.listening import listening
from headwise.ops.lowering import allowed_pairs
from headwise.ops.scores import bias_values

OWN_LAYERS = (MultiHeadAttention, LatentAttention, TorchMultiheadAttention)
"""The layers whose calls are told apart by name; any module may call `headwise.attention` itself."""


@contextmanager
def observe_own_attention(module: nn.Module, listener: Listener, *, on_error: OnError | None = None) -> Iterator[None]:
    """Show every call of `headwise.attention` that is made in this context to `listener`.

    Weights are made of what the call is given (queries, keys, mask, bias, indices, softcap, sink), a block of queries
    at a time: what the call computes stays as it is, and nobody makes a table of all pairs. A token that no query may
    read counts as padding.

    Args:
        module: any module; the layers in it that are headwise's own are told with their calls.
        listener: called at each attention call.
        on_error: as of `tell`.
    """
    ear = _Ear(listener, on_error)
    with ExitStack() as exits:
        for part in module.modules():
            if isinstance(part, OWN_LAYERS):
                exits.callback(part.register_forward_pre_hook(ear.before, with_kwargs=True).remove)
                exits.callback(part.register_forward_hook(ear.after, always_call=True).remove)
        exits.enter_context(listening(ear.hear))
        yield


class _Ear:
    """Tells a listener of each call which layer makes it."""

    def __init__(self, listener: Listener, on_error: OnError | None):
        self.listener, self.on_error = listener, on_error
        self.thread = get_ident()  # another one may be in a pass of the same layers
        # layers that run just now, and whether keys are of other tokens
        self.running: list[tuple[nn.Module, bool]] = []

    def before(self, layer: nn.Module, args: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        if in_thread(self.thread):
            self.running.append((layer, not isinstance(layer, LatentAttention) and _reads_others(*args, **keywords)))

    def after(self, *_: Any) -> None:
        if in_thread(self.thread):
            self.running.pop()

    def hear(self, call: Call) -> None:
        layer, is_cross = self.running[-1] if self.running else (None, call.query.shape[2] != call.key.shape[2])
        tell(self.listener, lambda: AttentionCall(layer, weights_of_call(call), is_cross), self.on_error)


def _reads_others(query: Tensor, key: Tensor | None = None, *_: Any, **__: Any) -> bool:
    return not is_self_attention(query, key)


def weights_of_call(call: Call) -> ProjectedWeights:
    """Return what the weights of a call of `headwise.attention` are made of; its mask and bias stay functions.

    Args:
        call: the call, checked.
    """
    query_len, key_len = call.query.shape[2], call.key.shape[2]
    query_index = call.query_index
    if query_index is None:
        query_index = torch.arange(key_len - query_len, key_len, device=call.query.device)
    query_positions = query_index if call.query_positions is None else call.query_positions

    def rows(index: Tensor) -> Call:
        return call._replace(
            query=call.query[:, :, : index.shape[-1]],  # of which only the shape counts
            query_index=_places_of(query_index, index),
            query_positions=_places_of(query_positions, index),
        )

    def bias_rows(index: Tensor) -> Tensor:
        bias = bias_values(rows(index))
        assert bias is not None
        return (take_rows(bias, index) if isinstance(call.bias, Tensor) else bias).detach()

    values = call.value.detach()  # what is kept must not hold the pass's graph
    has_mask = call.mask is not None or call.key_index is not None
    mask_rows = (lambda index: allowed_pairs(rows(index))) if has_mask else None
    return ProjectedWeights(
        query=call.query.detach(),
        key=call.key.detach(),
        scale=float(call.score_scale),
        mask=mask_rows,
        bias=None if call.bias is None else bias_rows,
        softcap=None if call.softcap is None else float(call.softcap),
        sink=None if call.sink is None else call.sink.detach(),
        real_tokens=_readable_keys(call, mask_rows),
        value=lambda: values,
    )


def _places_of(places: Tensor, index: Tensor) -> Tensor:
    """Return the places, (T,) or (B, T), of the queries `index`, (rows,) or (B, rows)."""
    index = index.to(places.device)
    return places[..., index] if index.dim() == 1 else places.expand(len(index), -1).gather(1, index)


def _readable_keys(call: Call, mask_rows: RowsOf | None) -> Bool[Tensor, "batch key_len"] | None:
    """Return which keys some query may read; None where no mask of this batch hides one."""
    if mask_rows is None or (call.key_index is None and call.mask is not None and call.mask.is_structural):
        return None
    batch, num_heads, query_len, _ = call.query.shape
    key_len = call.key.shape[2]
    readable = torch.zeros(batch, key_len, dtype=torch.bool, device=call.query.device)
    for start, stop in block_ranges((batch, num_heads, query_len, key_len)):
        readable |= mask_rows(torch.arange(start, stop)).flatten(1, 2).any(dim=1)
    return readable
