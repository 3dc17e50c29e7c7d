"""Adapters: how to read the attention weights of modules that headwise does not know."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

from torch import nn

from headwise.integrations.layer_weights import AttentionCall, LayerWeights, Listener, OnError, tell

ReadCall = Callable[[nn.Module, tuple[Any, ...], Mapping[str, Any], Any], LayerWeights]
"""(module, positional arguments, keyword arguments, output) of one forward pass -> its weights."""


class _Adapter(NamedTuple):
    read: ReadCall
    is_cross: bool


_adapters: dict[type[nn.Module], _Adapter] = {}


def register_adapter(cls: type[nn.Module], read: ReadCall | None, *, is_cross: bool = False) -> None:
    """Say how to read the attention of a class of modules; every model that holds one can then be looked at.

    It holds for subclasses too, and counts before what headwise itself knows of the class. To register a class again
    replaces what was said before.

    Args:
        cls: the class of the layer whose forward pass computes attention.
        read: called after each forward pass of such a layer with the layer, its positional and keyword arguments and
            its output; returns the weights: `ProjectedWeights` of queries and keys (positions already applied), which
            are computed in blocks, or `GivenWeights` where they are at hand. None: forget the class.
        is_cross: whether keys are of other tokens than queries. Calls with other numbers of queries than of keys
            are taken for cross-attention in any case.

    Example:
        >>> class Tiny(nn.Module):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.qkv = nn.Linear(8, 24)
        ...     def forward(self, x):
        ...         q, k, v = self.qkv(x).unflatten(-1, (3, 2, 4)).permute(2, 0, 3, 1, 4)
        ...         return nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        >>> def read(module, args, keywords, output):
        ...     q, k, _ = module.qkv(args[0]).unflatten(-1, (3, 2, 4)).permute(2, 0, 3, 1, 4)
        ...     return ProjectedWeights(query=q, key=k, scale=4**-0.5)
        >>> register_adapter(Tiny, read)
        >>> x = torch.zeros(1, 5, 8)
        >>> open_reader(Tiny(), (x,)).read((x,), lambda number, weights: print(number, weights.shape))
        0 (1, 2, 5, 5)
        >>> register_adapter(Tiny, None)
    """
    if read is None:
        _adapters.pop(cls, None)
    else:
        _adapters[cls] = _Adapter(read, is_cross)


def adapted_layers(module: nn.Module) -> dict[nn.Module, _Adapter]:
    """Return the layers of a module that an adapter reads."""
    found = {}
    for part in module.modules():
        adapter = next((_adapters[cls] for cls in type(part).__mro__ if cls in _adapters), None)
        if adapter is not None:
            found[part] = adapter
    return found


@contextmanager
def observe_adapted(module: nn.Module, listener: Listener, *, on_error: OnError | None = None) -> Iterator[None]:
    """Show every forward pass of a layer that an adapter reads to `listener`, once it is done.

    Args:
        module: any module.
        listener: called at each attention call.
        on_error: as of `tell`.
    """
    layers = adapted_layers(module)
    if not layers:
        yield
        return

    def after(layer: nn.Module, args: tuple[Any, ...], keywords: dict[str, Any], output: Any) -> None:
        tell(listener, lambda: _hear(layers[layer], layer, (args, keywords, output)), on_error)

    with ExitStack() as exits:
        for layer in layers:
            exits.callback(layer.register_forward_hook(after, with_kwargs=True).remove)
        yield


def _hear(adapter: _Adapter, layer: nn.Module, call: tuple[tuple[Any, ...], dict[str, Any], Any]) -> AttentionCall:
    weights = adapter.read(layer, *call)
    return AttentionCall(layer, weights, adapter.is_cross or weights.shape[2] != weights.shape[3])
