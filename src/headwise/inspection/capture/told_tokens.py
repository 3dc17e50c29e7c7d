"""Which tokens are no padding, as the mask among the arguments of a call says."""

import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from threading import get_ident
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
    """Collect the masks of (B, T) that a Hugging Face model in a module is called with, by their names.

    Whatever wraps the model, and whichever of its parts is run (its body without the head, say), the outermost call
    says which tokens are real: what that call gives on to parts is not heard. Of several calls the first with a mask
    is.
    """
    found: dict[str, Tensor] = {}
    running: list[nn.Module] = []
    thread = get_ident()  # another one may be in a pass of the same model

    def hear(called: nn.Module, args: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        if get_ident() != thread:
            return
        running.append(called)
        if len(running) > 1 or found:
            return
        for name in MASKS:
            told = told_tokens(called, args, keywords, name=name)
            if told is not None:
                found[name] = told.detach().cpu()

    def leave(*_: Any) -> None:
        if get_ident() == thread:
            running.pop()

    handles = []
    for part in module.modules():
        if is_transformers_model(part):
            handles.append(part.register_forward_pre_hook(hear, with_kwargs=True))
            handles.append(part.register_forward_hook(leave, always_call=True))
    try:
        yield found
    finally:
        for handle in handles:
            handle.remove()


def by_name(module: nn.Module, args: tuple[Any, ...], keywords: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the arguments of a call of a module by their names, as far as they have any."""
    if not args:
        return keywords
    try:
        return inspect.signature(module.forward).bind(*args, **keywords).arguments
    except TypeError:
        return keywords
