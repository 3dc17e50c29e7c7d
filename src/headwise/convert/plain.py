"""What can be converted: parts of known kinds, whose parameters are all that they compute with."""

from collections.abc import Mapping, Sequence

import torch
from jaxtyping import Shaped
from torch import Tensor, nn

from headwise.errors import UnsupportedError

DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


def kind_of(value: object, wanted: Sequence[str] = ()) -> str:
    """Name the kind of an object for the text of an error: by where it is defined, too, if a wanted one has that name.

    Args:
        value: the object.
        wanted: names of the kinds that would have been right.
    """
    if value is None:
        return "None"
    kind = type(value)
    return f"a {kind.__module__}.{kind.__name__}" if kind.__name__ in wanted else f"a {kind.__name__}"


def require_kind(name: str, value: object, kinds: Sequence[type], *, what: str) -> None:
    """Raise UnsupportedError unless an object is of one of some kinds itself: a subclass may compute something else.

    Args:
        name: of the argument.
        value: what came.
        kinds: the kinds.
        what: what the caller does, without "to".
    """
    if type(value) not in kinds:
        names = [kind.__name__ for kind in kinds]
        raise UnsupportedError(
            f"{name} must be a {' or '.join(names)}, not a subclass, to {what}; got {kind_of(value, names)}"
        )


def require_plain(name: str, part: object, kinds: Sequence[type | str], *, whole: object) -> None:
    """Raise UnsupportedError unless a part is of one of some kinds itself and holds its weights as parameters.

    An adapter around a projection, a quantised one and a subclass are other kinds; a weight norm and a parametrization
    compute the weight anew, so that what is written into it would be lost.

    Args:
        name: of the part.
        part: what stands there.
        kinds: classes; as strings, names of those of transformers, which is not imported for them.
        whole: the module that the part is one of.
    """
    names = [kind if isinstance(kind, str) else kind.__name__ for kind in kinds]
    kind = type(part)
    is_known = kind in kinds or (kind.__name__ in kinds and kind.__module__.startswith("transformers."))
    if not is_known:
        raise UnsupportedError(
            f"{name} must be a plain {' or '.join(names)} to convert {kind_of(whole)}; got {kind_of(part, names)}"
        )
    assert isinstance(part, nn.Module)
    for weight in ("weight", "bias"):
        require_parameter(weight, part, path=f"{name}.{weight}", whole=whole)


def require_parameter(name: str, module: nn.Module, *, path: str, whole: object) -> None:
    """Raise UnsupportedError if a module has something under a name that is none of its parameters."""
    if getattr(module, name, None) is not module._parameters.get(name):
        raise UnsupportedError(
            f"{path} must be a parameter to convert {kind_of(whole)}; got one that is computed anew for each call "
            "(by a weight norm or a parametrization; remove it first)"
        )


def require_nothing_else(module: nn.Module, known: set[str]) -> None:
    """Raise UnsupportedError if a module has parameters beside those that are known by name, which would be lost."""
    others = [name for name, _ in module.named_parameters(remove_duplicate=False) if name not in known]
    if others:
        raise UnsupportedError(
            f"every parameter of {kind_of(module)} must be one that is known here to convert it; "
            f"got {', '.join(others)}"
        )


def require_numbers(weights: Mapping[str, Shaped[Tensor, "..."]]) -> None:
    """Raise UnsupportedError unless every weight is there and holds its numbers as they are.

    Weights on the meta device hold none (offloaded, not loaded); integers and float8 need scales that stand elsewhere;
    subclasses of tensors (quantised, or sharded over devices) are laid out in ways of their own.
    """
    for name, weight in weights.items():
        if weight.is_meta:
            raise UnsupportedError(f"{name} must be in memory to be converted; got a tensor on meta (offloaded?)")
        if weight.dtype not in DTYPES:
            listed = ", ".join(str(dtype).removeprefix("torch.") for dtype in DTYPES)
            raise UnsupportedError(
                f"{name} must be in one of {listed} to be converted; got {weight.dtype} (quantised?)"
            )
        if type(weight) not in (Tensor, nn.Parameter):
            raise UnsupportedError(f"{name} must be a plain tensor to be converted; got {kind_of(weight)}")


def require_one_dtype(weights: Mapping[str, Shaped[Tensor, "..."]]) -> None:
    """Raise UnsupportedError as `require_numbers` does, and unless all weights have one dtype, lest some be rounded."""
    require_numbers(weights)
    (name, first), *others = weights.items()
    for other, weight in others:
        if weight.dtype != first.dtype:
            raise UnsupportedError(
                f"weights must have one dtype to be converted; got {name} in {first.dtype} and {other} in "
                f"{weight.dtype} (module.float() makes all of them float32)"
            )
