"""Lists of layers in a module: where several of one class stand in a row."""

from collections.abc import Iterator

from torch import nn

LISTS = (nn.ModuleList, nn.Sequential)


def find_lists(module: nn.Module, kinds: tuple[type[nn.Module], ...] = LISTS) -> dict[str, list[nn.Module]]:
    """Return the outermost lists, inside a module, of layers that are all of one class, by name.

    Args:
        module: to look into; it is no such list itself.
        kinds: the classes of the lists. Default: `LISTS`.
    """
    lists: dict[str, list[nn.Module]] = {}
    for name, part in named_parts(module):
        layers = [layer for layer in part._modules.values() if layer is not None] if isinstance(part, kinds) else []
        is_inside = any(name.startswith(f"{outer}.") for outer in lists)
        if name and not is_inside and len({type(layer) for layer in layers}) == 1:
            lists[name] = layers
    return lists


def named_parts(module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield every part of a module once, under its first name, as `named_modules` does; parts need no hash."""
    seen: set[int] = set()
    waiting = [("", module)]
    while waiting:
        name, part = waiting.pop()
        if id(part) not in seen:
            seen.add(id(part))
            yield name, part
            prefix = f"{name}." if name else ""
            inner = [(prefix + own, each) for own, each in part._modules.items() if each is not None]
            waiting += reversed(inner)
