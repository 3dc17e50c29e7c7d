"""Heads chosen by the number of their layer and their own, in one stack of a model's attention layers."""

from collections.abc import Collection, Mapping, Sequence
from numbers import Integral

from torch import Tensor, nn

from headwise.config.checks import shown
from headwise.errors import ConfigError, ModelError
from headwise.inspection.capture.checked_inputs import require_module
from headwise.inspection.capture.stacks import StackNames
from headwise.integrations.output_projection import OutputProjection, find_attention_parts, find_output_projections
from headwise.integrations.transformers_attention import is_transformers_model

Heads = Collection[tuple[int, int]]


def projections_of(model: nn.Module, stack: str | None = None) -> tuple[OutputProjection, ...]:
    """Return the output projections of one stack of a model's attention layers.

    Args:
        model: any model.
        stack: its name. Default: the only stack, or the only one of self-attention.

    Raises:
        ModelError: what is no module; no stack of that name, or several and no name; a layer of it whose projection is
            not found.
    """
    require_module(model)
    parts = find_attention_parts(model)
    by_path = is_transformers_model(model) or any(part.is_cross for part in parts)
    names = StackNames(model, by_path=by_path)
    places = [names.place_of(part.module, part.is_cross) for part in parts]
    stacks = names.name_places(places)
    own = [each.name for each in stacks.values() if not each.is_cross]
    if stack is None and len(own) == 1:
        stack = own[0]
    if stack not in [each.name for each in stacks.values()]:
        known = ", ".join(map(str, stacks.values()))
        raise ModelError(f"stack must be one of {type(model).__name__}'s: {known}; got {stack!r}")
    members = [part for part, place in zip(parts, places, strict=True) if stacks[place].name == stack]
    return find_output_projections(model, members)


def read_heads(heads: Heads, projections: Sequence[OutputProjection]) -> dict[int, list[int]]:
    """Return the chosen heads of each layer that has some.

    Raises:
        ConfigError: something else than pairs of whole numbers, or a head that does not exist.
    """
    is_known = isinstance(heads, Collection) and not isinstance(heads, Mapping | str | Tensor)
    if not is_known or not all(_is_pair(pair) for pair in heads):
        raise ConfigError(f"heads must be a collection of pairs (layer, head) of whole numbers; got {shown(heads)}")
    chosen: dict[int, list[int]] = {}
    for layer, head in sorted({(int(layer), int(head)) for layer, head in heads}):
        if not 0 <= layer < len(projections):
            raise ConfigError(
                f"heads must be of layers 0 to {len(projections) - 1}, as the model has {len(projections)}; "
                f"got {(layer, head)}"
            )
        if not 0 <= head < projections[layer].num_heads:
            raise ConfigError(
                f"heads of layer {layer} must be from 0 to {projections[layer].num_heads - 1}; got {(layer, head)}"
            )
        chosen.setdefault(layer, []).append(head)
    return chosen


def _is_pair(pair: object) -> bool:
    """Tell whether something is two whole numbers; True and 1.0 are none."""
    return (
        isinstance(pair, tuple | list)
        and len(pair) == 2
        and all(isinstance(number, Integral) and not isinstance(number, bool) for number in pair)
    )
