"""Rows of layers: which repeat in a module, and how few of them must be traced.

A row whose layers repeat with a period (1 where all are alike, 2 where two kinds take turns) may be cut behind its
fourth period: what is first stays first, so that code that reads a layer's number finds what it found before.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from types import BuiltinFunctionType, FunctionType
from typing import Any

import torch
from torch import Tensor, nn

from headwise.cost.running.layer_lists import find_lists

NUM_KEPT_PERIODS = 4  # the first, the one that stands for others, the one that it is compared with, the last

_OF_EVERY_MODULE = frozenset(vars(nn.Module()))
_HOLDERS = ("_parameters", "_buffers", "_modules")


@dataclass(frozen=True, kw_only=True)
class Row:
    """A list of layers: the first `num_first`, then `period` kinds in turns to the end.

    `name`: of the list in its module. `num_kept` of its `num_layers` need a trace.
    """

    name: str
    num_layers: int
    num_first: int
    period: int

    @property
    def num_missing(self) -> int:
        """How many periods need no trace."""
        return max(0, (self.num_layers - self.num_first) // self.period - NUM_KEPT_PERIODS)

    @property
    def num_kept(self) -> int:
        """How many layers need a trace."""
        return self.num_layers - self.period * self.num_missing

    def unit(self, layer: tuple[str, int] | None) -> int | None:
        """Return the number of the period that a layer is in, None for what is in none."""
        if layer is None or layer[0] != self.name or layer[1] < self.num_first:
            return None
        return (layer[1] - self.num_first) // self.period


def find_rows(module: nn.Module) -> list[Row]:
    """Return the lists of layers in a module, with how their layers repeat."""
    rows = []
    for name, layers in find_lists(module).items():
        num_first, period = find_period(_describe_layers(layers))
        rows.append(Row(name=name, num_layers=len(layers), num_first=num_first, period=period))
    return rows


def cut_rows(module: nn.Module, rows: Iterable[Row]) -> None:
    """Drop the layers that need no trace, in place."""
    for row in rows:
        layers: Any = module.get_submodule(row.name)
        del layers[row.num_kept :]


def find_period(kinds: list[Any]) -> tuple[int, int]:
    """Return how many of the first stand alone and the period of the rest, so that the fewest must be kept.

    Args:
        kinds: what the layers are, in order; equal ones are alike.
    """
    num_layers = len(kinds)
    best = Row(name="", num_layers=num_layers, num_first=0, period=max(num_layers, 1))
    for period in range(1, num_layers // (NUM_KEPT_PERIODS + 1) + 1):
        num_first = num_layers - period
        while num_first > 0 and kinds[num_first - 1] == kinds[num_first - 1 + period]:
            num_first -= 1
        row = Row(name="", num_layers=num_layers, num_first=num_first, period=period)
        if row.num_kept < best.num_kept:
            best = row
    return best.num_first, best.period


def _describe_layers(layers: list[nn.Module]) -> list[tuple[Any, ...]]:
    """Describe what each layer is by its classes, shapes and settings; a number that counts layers is left out."""
    descriptions = [_describe(layer) for layer in layers]
    paths = {path: None for description in descriptions for path in description}
    columns = []
    for path in paths:
        values = [description.get(path) for description in descriptions]
        if not _is_count(values):
            columns.append(values)
    return list(zip(*columns, strict=True)) if columns else [()] * len(layers)


def _is_count(values: list[Any]) -> bool:
    """Tell whether a setting numbers the layers: whole numbers that grow by one."""
    numbers = [value[1] for value in values if isinstance(value, tuple) and value and value[0] is int]
    return len(numbers) == len(values) > 1 and numbers == list(range(numbers[0], numbers[0] + len(numbers)))


def _describe(layer: nn.Module) -> dict[str, Any]:
    description: dict[str, Any] = {}
    for path, part in layer.named_modules():
        description[path] = type(part)
        for name, tensor in [*part._parameters.items(), *part._buffers.items()]:
            description[f"{path}.{name}"] = None if tensor is None else _describe_tensor(tensor)
        for name, value in vars(part).items():
            if name in _HOLDERS:
                continue
            if name in _OF_EVERY_MODULE and isinstance(value, dict | set):  # hooks: alike where there are none
                description[f"{path}:{name}"] = value and id(value)
            else:
                description[f"{path}:{name}"] = _describe_value(value)
    return description


def _describe_tensor(tensor: Tensor) -> tuple[Any, ...]:
    return tensor.shape, tensor.dtype, tensor.requires_grad, type(tensor)


def _describe_value(value: Any) -> Any:
    """Return what compares equal only where the value is the same to a layer that holds it."""
    kind = type(value)
    match value:
        case bool() | int() | float() | str() | bytes() | None | torch.dtype() | torch.device():
            return kind, value
        case Tensor():
            return _describe_tensor(value)
        case list() | tuple():
            return kind, tuple(_describe_value(item) for item in value)
        case partial():
            return kind, _describe_value((value.func, value.args, value.keywords))
        case dict():
            return kind, tuple((_describe_value(key), _describe_value(item)) for key, item in value.items())
    return value if isinstance(value, FunctionType | BuiltinFunctionType | type) else (kind, id(value))
