"""Which tokens are no padding, as the mask among the arguments of a call says."""

import inspect
from collections.abc import Mapping
from typing import Any

from jaxtyping import Bool
from torch import Tensor, nn


def told_tokens(
    module: nn.Module, args: tuple[Any, ...], keywords: Mapping[str, Any], *, name: str = "attention_mask"
) -> Bool[Tensor, "batch seq_len"] | None:
    """Return which tokens are real where the call is given a mask of (B, T) under a name; None: it is not.

    Args:
        module: what is called.
        args, keywords: its arguments.
        name: of the mask; True, or a number that is not 0, for a real token.
    """
    mask = by_name(module, args, keywords).get(name)
    return mask.bool() if isinstance(mask, Tensor) and mask.dim() == 2 else None


def by_name(module: nn.Module, args: tuple[Any, ...], keywords: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the arguments of a call of a module by their names, as far as they have any."""
    if not args:
        return keywords
    try:
        return inspect.signature(module.forward).bind(*args, **keywords).arguments
    except TypeError:
        return keywords
