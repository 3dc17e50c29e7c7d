"""Stacks of attention layers: which calls of a pass belong together, and what they are called."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from torch import nn

SELF, CROSS = "self", "cross"


@dataclass(frozen=True, kw_only=True)
class Stack:
    """Attention layers of one kind, one on top of the other.

    Args:
        name: "self" where a model has one stack of self-attention, else by the module that holds it ("encoder",
            "decoder"); "cross" for cross-attention, with that module's name before it where there are several.
        is_cross: whether keys are of other tokens than queries.
        num_layers: number of attention calls in one pass.
    """

    name: str
    is_cross: bool
    num_layers: int

    def __str__(self) -> str:
        """Return the name and the number of layers."""
        return f"{self.name!r} ({self.num_layers} {'layer' if self.num_layers == 1 else 'layers'})"


Place = tuple[str, bool]
"""The path of the layers of one stack, with "*" for numbers, and whether they are cross-attention."""


class StackNames:
    """Tells of every attention call of a model which stack it belongs to.

    Args:
        model: the model.
        by_path: whether self-attention layers in different places are different stacks.
    """

    def __init__(self, model: nn.Module, *, by_path: bool):
        self.by_path = by_path
        self._paths: dict[nn.Module | None, str] = {part: path for path, part in model.named_modules()}

    def place_of(self, module: nn.Module | None, is_cross: bool) -> Place:
        """Return the place of a call's layer; a layer that belongs to no list stands in what holds it."""
        if not self.by_path and not is_cross:
            return "", False
        path = re.sub(r"(?<![^.])\d+(?![^.])", "*", self._paths.get(module, ""))
        return path if "*" in path else path.rpartition(".")[0], is_cross

    def name_places(self, calls: Sequence[Place]) -> dict[Place, Stack]:
        """Return the stack of every place, in the order of their first calls."""
        places = list(dict.fromkeys(calls))
        names: dict[Place, str] = {}
        for is_cross in (False, True):
            alike = [place for place in places if place[1] is is_cross]
            kind = CROSS if is_cross else SELF
            if len(alike) == 1:
                names[alike[0]] = kind
                continue
            holders = _tell_apart(
                [path.partition("*")[0].split(".")[:-2] if "*" in path else path.split(".") for path, _ in alike]
            )
            if not _are_names(holders):
                holders = _tell_apart([path.split(".") for path, _ in alike])
            if not _are_names(holders):
                holders = [path or kind for path, _ in alike]
            for place, holder in zip(alike, holders, strict=True):
                names[place] = f"{holder} {kind}" if is_cross else holder
        return {place: Stack(name=names[place], is_cross=place[1], num_layers=calls.count(place)) for place in places}


def _are_names(words: Sequence[str]) -> bool:
    return len(set(words)) == len(words) and "" not in words


def _tell_apart(paths: Iterable[Sequence[str]]) -> list[str]:
    """Join each path's parts, without those that all paths share."""
    paths = list(paths)
    shared = set.intersection(*(set(path) for path in paths)) if paths else set()
    return [".".join(part for part in path if part not in shared) for path in paths]
