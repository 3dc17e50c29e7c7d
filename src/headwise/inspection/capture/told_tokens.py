"""Which tokens are no padding, as the mask among the arguments of a call says."""

import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from jaxtyping import Bool
from torch import Tensor, nn

from headwise.integrations.transformers_attention import is_transformers_model

MASKS = ("attention_mask", "decoder_attention_mask", "encoder_attention_mask")


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


@contextmanager
def hear_masks(module: nn.Module) -> Iterator[dict[str, Tensor]]:
    """Collect the masks of (B, T) that the outermost Hugging Face model in a module is called with, by their names.

    Whatever wraps the model, its own call says which tokens are real. Of several models side by side it is the first.
    """
    found: dict[str, Tensor] = {}
    model = next((part for part in module.modules() if is_transformers_model(part)), None)
    if model is None:
        yield found
        return

    def hear(called: nn.Module, args: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        for name in MASKS:
            told = told_tokens(called, args, keywords, name=name)
            if told is not None:
                found.setdefault(name, told.detach().cpu())

    handle = model.register_forward_pre_hook(hear, with_kwargs=True)
    try:
        yield found
    finally:
        handle.remove()


def by_name(module: nn.Module, args: tuple[Any, ...], keywords: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the arguments of a call of a module by their names, as far as they have any."""
    if not args:
        return keywords
    try:
        return inspect.signature(module.forward).bind(*args, **keywords).arguments
    except TypeError:
        return keywords
