"""Which tokens each stack of a model's layers reads: of one text, of another, or of both (cross-attention)."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
from jaxtyping import Bool
from torch import Tensor, nn

from headwise.inspection.capture.quiet_passes import Inputs
from headwise.inspection.capture.readers import StackReader
from headwise.inspection.capture.stacks import Stack
from headwise.inspection.capture.told_tokens import hear_masks
from headwise.inspection.statistics.kinds import TokenKinds
from headwise.inspection.texts.pairs import is_encoder_decoder
from headwise.integrations.layer_weights import LayerWeights

Side = Literal["source", "target", "cross"]


def side_of(stack: str, stacks: Sequence[Stack]) -> Side:
    """Return what a stack reads: the first stack of self-attention the source, later ones the target, or both."""
    own = [each.name for each in stacks if not each.is_cross]
    if stack not in own:
        return "cross"
    return "source" if stack == own[0] else "target"


def kinds_of(side: Side, source: TokenKinds, target: TokenKinds | None) -> TokenKinds:
    """Return what the tokens are that a stack reads, of a pair of texts; without a target all stacks read the source.

    In cross-attention the target's tokens are queries and the source's are keys.
    """
    if target is None or side == "source":
        return source
    return target if side == "target" else TokenKinds(target.real, target.separators, None, source.real)


def told_kinds(
    module: nn.Module,
    reader: StackReader,
    inputs: Inputs,
    *,
    real_tokens: Bool[Tensor, "batch query_len"] | None = None,
    real_keys: Bool[Tensor, "batch key_len"] | None = None,
) -> dict[str, TokenKinds]:
    """Return which tokens are no padding for every stack of a model, as it is told in one pass.

    It is said by the masks that a Hugging Face model gets (`attention_mask`, `decoder_attention_mask`,
    `encoder_attention_mask`) where they fit the layers; else by what the first layer of a stack is told of its keys;
    else all tokens are real. Queries of cross-attention are those of the self-attention before it that has as many.

    Args:
        module: the model.
        reader: the way to its attention; it reads the inputs once.
        inputs: of a forward pass.
        real_tokens: what the caller knows of queries, for all stacks.
        real_keys: what the caller knows of the keys of cross-attention.
    """
    first: dict[str, tuple[tuple[int, int], tuple[int, int], Tensor | None]] = {}

    def look(stack: str, number: int, layer: LayerWeights) -> None:
        if number == 0:
            batch, _, query_len, key_len = layer.shape
            told = None if layer.real_tokens is None else layer.real_tokens.cpu()
            first[stack] = (batch, query_len), (batch, key_len), told

    with hear_masks(module) as heard:
        reader.read(inputs, look)
    masks = _Masks(module, heard)
    found: dict[str, TokenKinds] = {}
    for stack, (queries, _, told) in first.items():
        side = side_of(stack, reader.stacks)
        if side != "cross":
            real = _first_of(queries, real_tokens, masks.own(side), told)
            found[stack] = TokenKinds(real, torch.zeros_like(real))
    for stack, (queries, keys, told) in first.items():
        if stack not in found:
            before = [kinds.real for kinds in found.values()]
            real = _first_of(queries, real_tokens, masks.own("cross"), *reversed(before))
            of_keys = _first_of(keys, real_keys, masks.other(), told)
            found[stack] = TokenKinds(real, torch.zeros_like(real), None, of_keys)
    return found


class _Masks:
    """The masks of padding that a Hugging Face model was called with."""

    def __init__(self, module: nn.Module, masks: Mapping[str, Tensor]):
        self.has_two_texts = any(is_encoder_decoder(part) for part in module.modules())
        self.masks = masks

    def own(self, side: Side) -> Tensor | None:
        """Return the mask of a stack's queries."""
        is_decoder = self.has_two_texts and side != "source"
        return self.masks.get("decoder_attention_mask" if is_decoder else "attention_mask")

    def other(self) -> Tensor | None:
        """Return the mask of the keys of cross-attention."""
        return self.masks.get("attention_mask" if self.has_two_texts else "encoder_attention_mask")


def _first_of(shape: tuple[int, int], *known: Any) -> Tensor:
    """Return the first mask of a shape, on the CPU; all are real where there is none."""
    fitting = next((each.cpu() for each in known if each is not None and tuple(each.shape) == shape), None)
    return torch.ones(shape, dtype=torch.bool) if fitting is None else fitting
