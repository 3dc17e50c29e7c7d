"""Which tokens of a forward call are no padding, from the arguments that the model is called with."""

from collections.abc import Mapping
from typing import Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor, nn

from headwise.inspection.capture.told_tokens import by_name, told_tokens
from headwise.integrations.text_config import text_config_of

IGNORED = -100  # what a label is where there is nothing to predict


def real_tokens_of(
    module: nn.Module, args: tuple[Any, ...], keywords: Mapping[str, Any], *, padding_id: int | None
) -> Bool[Tensor, "batch seq_len"] | None:
    """Return which tokens are real, as an `attention_mask` of (B, T) says, else the tokens themselves; None: unknown.

    Args:
        module: what is called.
        args, keywords: its arguments.
        padding_id: token that stands for padding. Default: that of the config of the module, or of what it wraps.
    """
    told = told_tokens(module, args, keywords)
    if told is not None:
        return told
    ids = by_name(module, args, keywords).get("input_ids")
    padding_id, is_end = _padding_of(module, padding_id)
    if padding_id is None or not isinstance(ids, Tensor) or ids.dim() != 2:
        return None
    return real_by_id(ids, padding_id, is_end=is_end)


def real_targets_of(
    module: nn.Module, args: tuple[Any, ...], keywords: Mapping[str, Any], *, padding_id: int | None
) -> Bool[Tensor, "batch target_len"] | None:
    """Return which tokens of an encoder-decoder's decoder are real; None: unknown.

    As its `decoder_attention_mask` says, else `decoder_input_ids` without the padding behind a text, else the `labels`
    that they are made of by a shift to the right: a token is real if the one that it follows is no -100.

    Args:
        module, args, keywords, padding_id: as of `real_tokens_of`.
    """
    told = told_tokens(module, args, keywords, name="decoder_attention_mask")
    if told is not None:
        return told
    given = by_name(module, args, keywords)
    ids, labels = given.get("decoder_input_ids"), given.get("labels")
    padding_id, is_end = _padding_of(module, padding_id)
    if isinstance(ids, Tensor) and ids.dim() == 2 and padding_id is not None:
        real = real_by_id(ids, padding_id, is_end=is_end)
        starts = torch.arange(ids.shape[1], device=ids.device) <= real.int().argmax(dim=1, keepdim=True)
        return real | starts  # a text may start with the token that stands for padding, as T5's do
    if isinstance(labels, Tensor) and labels.dim() == 2:
        return torch.cat([torch.ones_like(labels[:, :1], dtype=torch.bool), labels[:, :-1] != IGNORED], dim=1)
    return None


def _padding_of(module: nn.Module, padding_id: int | None) -> tuple[int | None, bool]:
    """Return the token that stands for padding, and whether it ends texts, too."""
    config: Any = text_config_of(getattr(_configured(module), "config", None))
    if padding_id is None:
        padding_id = getattr(config, "pad_token_id", None)
    return padding_id, padding_id == getattr(config, "eos_token_id", None)


def real_by_id(
    ids: Int[Tensor, "batch seq_len"], padding_id: int, *, is_end: bool = False
) -> Bool[Tensor, "batch seq_len"]:
    """Return which tokens are real: all but those that stand for padding, at the ends of a text.

    Args:
        ids: tokens.
        padding_id: the one that stands for padding.
        is_end: whether it ends texts, too; the first of those behind a text is then its end, and real.
    """
    is_padding = ids == padding_id
    before = is_padding.cumprod(dim=1).bool()
    behind = is_padding.flip(1).cumprod(dim=1).flip(1).bool()
    if is_end:
        behind = behind & torch.cat([torch.zeros_like(behind[:, :1]), behind[:, :-1]], dim=1)
    return ~(before | behind)


def readers_of(module: nn.Module) -> set[nn.Module]:
    """Return the parts of a module that read the tokens it is called with: of an encoder and decoder, the encoder."""
    owner = _configured(module)
    get_encoder: Any = getattr(owner, "get_encoder", None)
    if get_encoder is not None and getattr(owner.config, "is_encoder_decoder", False):
        return set(get_encoder().modules())
    return set(module.modules())


def target_readers_of(module: nn.Module) -> set[nn.Module]:
    """Return the parts of an encoder-decoder that read its target: the decoder's; of another model none."""
    owner = _configured(module)
    get_decoder: Any = getattr(owner, "get_decoder", None)
    if get_decoder is not None and getattr(owner.config, "is_encoder_decoder", False):
        return set(get_decoder().modules())
    return set()


def _configured(module: nn.Module) -> Any:
    """Return the outermost part of a module that has a config, as Hugging Face models have; else the module."""
    return next((part for part in module.modules() if hasattr(part, "config")), module)
