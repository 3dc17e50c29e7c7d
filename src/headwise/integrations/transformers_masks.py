"""The masks that a Hugging Face model asks for, told as a headwise mask instead of a table of all pairs.

transformers describes a mask by functions on indices that it puts together (causal, a window, packed documents), and by
a row of keys to keep. Which function is which is told by its code, compared with one made by transformers itself.
What is not known here becomes the bool table of transformers' own sdpa.
"""

from collections.abc import Callable, Sequence
from functools import cache
from types import CodeType
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from headwise.integrations.told_mask import Told, ToldMask, note, refuse_own_attention
from headwise.masks.patterns import Causal, Full, Mask, SlidingWindow
from headwise.masks.sparse import LocalWindow
from headwise.masks.tables import Documents, Explicit
from headwise.ops.obstacles import is_traced

MaskFunction = Callable[..., Any]


def tell_mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int | Tensor = 0,
    kv_offset: int = 0,
    mask_function: MaskFunction | None = None,
    attention_mask: Tensor | None = None,
    *,
    allow_is_causal_skip: bool = True,
    allow_is_bidirectional_skip: bool = False,
    device: Any = "cpu",
    config: Any = None,
    **keywords: Any,
) -> Tensor | None:
    """Make the mask of one call of a Hugging Face model: what is registered as the mask function.

    Args:
        batch_size: number of batch rows.
        q_length: number of queries.
        kv_length: number of key slots that the cache returns.
        q_offset: index of the first query in its stream; a tensor in caches of fixed size.
        kv_offset: index of the first key slot.
        mask_function: which pairs are allowed, as transformers puts it together. Default: causal.
        attention_mask: (batch, at least the tokens seen) bools, False = padding.
        allow_is_causal_skip: whether a plainly causal mask may be None.
        allow_is_bidirectional_skip: whether a mask that hides nothing may be None.
        device: of the mask.
        config: of the model that asks.
        keywords: what else transformers gives to its sdpa mask.

    Returns:
        A `ToldMask`, a bool table, or None: for a single query that sees all keys, and where the model reads None as
        transformers' own sdpa does.

    Raises:
        UnsupportedError: transformers knows that the model's attention does not go through its interface.
    """
    from transformers import AttentionMaskInterface
    from transformers.masking_utils import causal_mask_function

    asker = _find_asker(type(config))
    if not asker.uses_interface:
        refuse_own_attention(asker.name)
    function = causal_mask_function if mask_function is None else mask_function
    told = None
    if not _has_no_numbers(attention_mask, q_offset):
        # Relative to the first key slot, the queries end here.
        num_read = int(q_offset) + q_length - kv_offset
        mask = read_mask_function(function)
        if mask is not None and (num_keys := _count_read(mask, num_read, kv_length)) is not None:
            if isinstance(mask, SlidingWindow) and mask.window_size >= num_keys:
                mask = Causal()
            mask = mask & _read_padding(attention_mask, kv_offset, num_keys)
            if q_length == 1 and num_keys == kv_length:
                if allow_is_causal_skip and mask == Causal():
                    return None
                if allow_is_bidirectional_skip and mask == Full():
                    return None
            told = Told(mask, num_keys, kv_length)
            if q_length > 1 or allow_is_causal_skip or allow_is_bidirectional_skip:
                shape = (batch_size, 1, q_length, kv_length)
                return ToldMask.tell(told, shape, device=device, asker=asker.name)
            # A step of a cache that `generate` may compile: numbers, so that one graph serves any number of tokens.
    may_skip = q_length == 1 or asker.reads_none
    make_table = AttentionMaskInterface()["sdpa"]
    table: Tensor | None = make_table(
        batch_size=batch_size,
        q_length=q_length,
        kv_length=kv_length,
        q_offset=q_offset,
        kv_offset=kv_offset,
        mask_function=function,
        attention_mask=attention_mask,
        allow_is_causal_skip=allow_is_causal_skip and may_skip,
        allow_is_bidirectional_skip=allow_is_bidirectional_skip and may_skip,
        device=device,
        **keywords,
    )
    if told is not None and table is not None:
        note(table, told)
    return table


class _Asker(NamedTuple):
    """A model that asks for a mask.

    Attributes:
        name: its class, or that of its config.
        uses_interface: whether its attention goes through transformers' interface; True where nobody knows.
        reads_none: whether it is known to read None as transformers' own sdpa has it.
    """

    name: str
    uses_interface: bool
    reads_none: bool


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _find_asker(config_type: type) -> _Asker:
    """Return what transformers says of its own model with such a config; of others it knows nothing."""
    return _look_up_asker(config_type)


@cache
def _look_up_asker(config_type: type) -> _Asker:
    from transformers import MODEL_MAPPING, PreTrainedModel

    # The mapping goes by names; a class of someone else's may have the same.
    known = MODEL_MAPPING.get(config_type, ()) if config_type.__module__.startswith("transformers.") else ()
    models = [
        model
        for model in (known if isinstance(known, Sequence) else [known])
        if issubclass(model, PreTrainedModel)  # and not what stands for a class whose packages are missing
    ]
    if not models:
        return _Asker(f"the model of a {config_type.__name__}", uses_interface=True, reads_none=False)
    return _Asker(
        models[0].__name__,
        uses_interface=any(model._can_set_attn_implementation() for model in models),
        reads_none=all(model._supports_sdpa for model in models),
    )


def _has_no_numbers(attention_mask: Tensor | None, q_offset: int | Tensor) -> bool:
    """Tell whether a graph is being made, or a step is traced: then there is nothing to look at."""
    new = torch.empty(0)  # of another type, or on the meta device, where steps are traced without numbers
    tensors = [tensor for tensor in (new, attention_mask, q_offset) if isinstance(tensor, Tensor)]
    return is_traced() or any(type(tensor) is not Tensor or tensor.is_meta for tensor in tensors)


def _count_read(mask: Mask, num_read: int, kv_length: int) -> int | None:
    """Return how many key slots are read, so that the last query stands at the last; None if no number does that."""
    if num_read == kv_length or isinstance(mask, Full):
        return kv_length
    # A cache of fixed size: no query reads what stands behind the last one.
    return num_read if num_read < kv_length and isinstance(mask, (Causal, SlidingWindow)) else None


def _read_padding(attention_mask: Bool[Tensor, "batch _"] | None, kv_offset: int, num_keys: int) -> Mask:
    """Return which key slots hold no padding."""
    if attention_mask is None:
        return Full()
    keep = attention_mask[:, kv_offset : kv_offset + num_keys].bool()
    if keep.shape[1] < num_keys:  # as transformers has it, what it does not reach is hidden
        keep = torch.nn.functional.pad(keep, (0, num_keys - keep.shape[1]))
    return Full() if bool(keep.all()) else Explicit(keep[:, None, None, :])


def read_mask_function(function: MaskFunction) -> Mask | None:
    """Return the mask that a function of `transformers.masking_utils` describes; None if a part is not known here.

    Args:
        function: (batch, head, query_index, key_index) -> whether the pair is allowed.
    """
    codes = _codes()
    mask: Mask = Full()
    is_causal, is_remapped = False, False
    windows: list[int] = []  # that leave the future open
    packed: list[Int[Tensor, "batch seq_len"]] = []
    waiting = [(function, False)]
    while waiting:
        part, is_inside = waiting.pop()  # inside a part whose positions begin again in each document
        kind = codes.get(getattr(part, "__code__", None))
        held = dict(zip(part.__code__.co_freevars, _contents(part), strict=True)) if kind else {}
        if kind == "and":
            waiting += [(each, is_inside) for each in held["mask_functions"]]
        elif kind == "remapped" and not is_remapped:
            is_remapped = True
            waiting.append((held["mask_function"], True))
        elif kind == "packed" and not is_inside:
            packed.append(held["packed_sequence_mask"])
        elif kind == "causal":
            is_causal = True
        elif kind == "behind":
            windows.append(held["sliding_window"])
        elif kind == "around":
            mask = mask & LocalWindow(held["sliding_window"], held["sliding_window"])
        elif kind != "all":
            return None
    if len(packed) != is_remapped or (windows and not is_causal):
        return None
    if windows:
        # Qwen2-MoE makes a window of 0 tokens where no layer has any, and gives it to none
        mask = mask & (SlidingWindow(min(windows)) if min(windows) > 0 else ~Full())
    elif is_causal:
        mask = mask & Causal()
    # Within a document, positions are as far apart as indices.
    return mask & Documents.from_segment_ids(packed[0]) if packed else mask


def _contents(function: MaskFunction) -> list[Any]:
    return [cell.cell_contents for cell in getattr(function, "__closure__", None) or ()]


@cache
def _codes() -> dict[CodeType | None, str]:
    """Return what kind each known mask function is of, by its code."""
    from transformers import masking_utils as makers

    nothing = torch.zeros(1, 1, dtype=torch.long)
    causal = makers.causal_mask_function
    samples = {
        "causal": causal,
        "all": makers.bidirectional_mask_function,
        "and": makers.and_masks(causal),
        "behind": makers.sliding_window_overlay(1),
        "around": makers.sliding_window_bidirectional_overlay(1),
        "packed": makers.packed_sequence_mask_function(nothing),
        "remapped": makers.remap_positions_for_packed_sequence(causal, nothing),
    }
    return {sample.__code__: kind for kind, sample in samples.items()}
