"""Freeze the first layers of a module: what `Workload.frozen_layers` means in torch."""

import re
from collections.abc import Iterator
from typing import Any

from torch import nn

from headwise.cost.running.layer_lists import find_lists
from headwise.errors import ConfigError, UnsupportedError

_EMBEDDINGS = re.compile(r"(^|\.)(\w*embed\w*|wte|wpe)(\.|$)")  # some modules list a part of them after their layers


def freeze_layers(module: nn.Module, num_layers: int) -> None:
    """Freeze a module's embeddings and its first layers, in place: their weights need no gradient.

    The layers are those of the list that holds the most weights; of an encoder-decoder that is the decoder's.
    Embeddings are all that the module lists before its layers, an encoder included, and what bears their name. A weight
    that is tied to one of them is frozen with it.

    Args:
        module: with a list of equal layers.
        num_layers: how many of them are frozen; 0 freezes nothing, and no embeddings either.

    Raises:
        UnsupportedError: the module has no list of equal layers.
        ConfigError: it has fewer layers.
    """
    if num_layers == 0:
        return
    lists = find_lists(nn.ModuleDict({"module": module}), (nn.ModuleList,))
    if not lists:
        raise UnsupportedError(
            f"freezing needs a ModuleList of equal layers; {type(module).__name__} has none: set requires_grad yourself"
        )
    name, layers = max(lists.items(), key=lambda item: _count_weights(item[1]))
    if num_layers > len(layers):
        raise ConfigError(
            f"frozen_layers must be at most the number of layers of {type(module).__name__}, {len(layers)}; "
            f"got {num_layers}"
        )
    for layer in layers[:num_layers]:
        layer.requires_grad_(False)
    start = f"{name}.".removeprefix("module.")
    head = {id(parameter) for parameter in _head_weights(module)}
    is_before = True
    for path, parameter in module.named_parameters():
        if path.startswith(start):
            is_before = False
        elif is_before or (_EMBEDDINGS.search(path) and id(parameter) not in head):
            parameter.requires_grad_(False)


def _head_weights(module: Any) -> Iterator[nn.Parameter]:
    """Give the weights of what projects to the output of a model of transformers."""
    head = module.get_output_embeddings() if hasattr(module, "get_output_embeddings") else None
    return iter(()) if head is None else head.parameters()


def _count_weights(layers: list[nn.Module]) -> int:
    return sum(parameter.numel() for layer in layers for parameter in layer.parameters())
