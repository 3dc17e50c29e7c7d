"""require_as_made: a Hugging Face model computes what its config says, since it still is what its class made of it."""

import copy
from collections.abc import Iterator
from typing import Any, cast

import torch
from torch import Tensor, nn

from headwise.convert.plain import kind_of, require_numbers
from headwise.errors import UnsupportedError

# Attributes that say nothing of what a module computes; `layer_idx` is the number of its place in transformers' caches,
# stale where layers have been taken out.
_BESIDE = {
    "training",
    "gradient_checkpointing",
    "layer_idx",
    "loss_type",
    "max_seq_len_cached",
    "name_or_path",
    "padding_idx",
    "vocab_size",  # stale in a model whose table was made longer; tables and heads have their own numbers
}
_COLLECTING = "transformers.utils.output_capturing"  # whose hooks, put there by the first call, change nothing
_BY_LENGTH = ("dynamic", "longrope")  # angles whose frequencies follow the text before


def require_as_made(model: nn.Module) -> None:
    """Raise UnsupportedError unless a model of transformers is what its class makes of its config, weights aside.

    A converter reads the config and the weights. What else a model computes with is compared to a model that is made
    anew of the same config, without memory: which modules there are and of which kinds, their numbers and switches
    (epsilons, scales, probabilities of dropout), the frequencies of rotary positions, hooks, and a `forward` of its
    own.

    Args:
        model: of a class of transformers itself, with its config.
    """
    kind = type(model)
    if not kind.__module__.startswith("transformers."):
        raise UnsupportedError(
            f"a model must be of a class of transformers, not a subclass, to be converted; got {kind_of(model)}"
        )
    config: Any = model.config
    with torch.device("meta"):  # where nothing is drawn
        made = kind(copy.deepcopy(config))
    wanted: dict[str, nn.Module] = dict(made.named_modules(remove_duplicate=False))
    found: dict[str, nn.Module] = dict(model.named_modules(remove_duplicate=False))
    for path, other in wanted.items():
        part = found.get(path)
        if type(part) is not type(other):
            kinds = [type(other).__name__]
            raise UnsupportedError(
                f"{path} must be a plain {kinds[0]}, as the config says, to convert {kind_of(model)}; "
                f"got {kind_of(part, kinds)}"
            )
        assert part is not None
        if _is_changed_from_outside(part):
            raise UnsupportedError(
                f"{path or 'the model'} must have no hook and no forward of its own to convert {kind_of(model)}, "
                "since what they change is lost; remove them first"
            )
        names, others = ([name for name, one in each._parameters.items() if one is not None] for each in (part, other))
        if set(names) != set(others):
            raise UnsupportedError(
                f"{path} must have the parameters {', '.join(others) or 'none'}, as the config says, to convert "
                f"{kind_of(model)}; got {', '.join(names) or 'none'}"
            )
        for name, value, right in _differences(part, other):
            raise UnsupportedError(
                f"{path}.{name} must be {right!r}, as the config says, to convert {kind_of(model)}; got {value!r}"
            )
        for name, buffer, right_buffer in _buffers(part, other):
            require_numbers({f"{path}.{name}": buffer})
            if not torch.equal(buffer.cpu(), right_buffer.to(buffer.dtype)):  # models are cast with their buffers
                raise UnsupportedError(
                    f"{path}.{name} must hold what {kind_of(other)} computes of the config to convert "
                    f"{kind_of(model)}; got other numbers"
                )
    for path, part in found.items():
        if path not in wanted:
            raise UnsupportedError(
                f"{path} must not be there, by the config, to convert {kind_of(model)}; got {kind_of(part)}"
            )
    _require_places(found)


def _require_places(parts: dict[str, nn.Module]) -> None:
    """Raise UnsupportedError if two layers of a stack share a place in transformers' caches, and so their keys."""
    seen: dict[tuple[str, object], str] = {}
    for path, part in parts.items():
        if hasattr(part, "layer_idx"):
            stack = ".".join(step for step in path.split(".") if not step.isdecimal())
            other = seen.setdefault((stack, part.layer_idx), path)
            if other != path:
                raise UnsupportedError(
                    f"layer_idx must be another number in each layer of a model that is converted; got "
                    f"{part.layer_idx} in {other} and {path}"
                )


def _differences(part: nn.Module, other: nn.Module) -> Iterator[tuple[str, object, object]]:
    """Yield name, value and right value of each number or switch of a module that is not as it was made."""
    for name, right in vars(other).items():
        value = getattr(part, name, None)
        if name.startswith("_") or name in _BESIDE or not isinstance(right, bool | int | float | str | None):
            continue
        if type(value) is not type(right) or value != right:
            yield name, value, right


def _buffers(part: nn.Module, other: nn.Module) -> Iterator[tuple[str, Tensor, Tensor]]:
    """Yield name, numbers and right numbers of each buffer of a module: of frequencies, in these families."""
    if other._buffers:
        with torch.device("cpu"):
            buffers = dict(type(other)(cast(Any, other.config)).named_buffers(recurse=False))
        for name, right in buffers.items():
            if name != "inv_freq" or getattr(part, "rope_type", None) not in _BY_LENGTH:
                yield name, cast(Tensor, getattr(part, name)), right


def _is_changed_from_outside(part: nn.Module) -> bool:
    hooks = [*part._forward_hooks.values(), *part._forward_pre_hooks.values()]
    return "forward" in vars(part) or any(getattr(hook, "__module__", None) != _COLLECTING for hook in hooks)
