"""The masks that a Hugging Face model asks for, told as a headwise mask instead of a table of all pairs.

transformers describes a mask by functions on indices that it puts together (causal, a window, packed documents), and by
a row of keys to keep. Which function is which is told by its code, compared with one made by transformers itself.
What is not known here becomes the bool table of transformers' own sdpa.

A told mask travels through the model in a bool tensor of the table's shape, without its memory: models look at the
shape, and `generate` makes masks ahead. A model that does more than look gets the table.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from types import CodeType
from typing import Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor
from torch.utils._pytree import tree_map_only

from headwise.masks.dense import dense_mask
from headwise.masks.patterns import Causal, Full, Mask, SlidingWindow
from headwise.masks.sparse import LocalWindow
from headwise.masks.tables import Documents, Explicit
from headwise.ops.obstacles import is_traced

MaskFunction = Callable[..., Any]


class ToldMask(Tensor):
    """A bool tensor (batch, 1, query_len, key_len), True = may attend, that is a mask on paper until someone computes.

    Attributes:
        mask: the mask; the last query sees the last of the first `num_keys` keys.
        num_keys: number of keys that are read at all; those behind are slots of a cache that wait for tokens.
        table: the tensor's numbers, once an operation has asked for them; from then on they count, as they may have
            been written to.
    """

    mask: Mask
    num_keys: int
    table: Tensor | None

    @staticmethod
    def tell(mask: Mask, shape: Sequence[int], *, num_keys: int, device: Any) -> "ToldMask":
        """Return the tensor that stands for a mask; it takes the memory of one number."""
        told = torch.ones(1, 1, 1, 1, dtype=torch.bool, device=device).expand(*shape).as_subclass(ToldMask)
        told.mask, told.num_keys, told.table = mask, num_keys, None
        return told

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Answer questions about the shape; compute everything else with the table."""
        with torch._C.DisableTorchFunctionSubclass():
            if func in _LOOKS:
                return func(*args, **(kwargs or {}))
            if func is Tensor.contiguous:
                return args[0]
            args, kwargs = tree_map_only(ToldMask, _table_of, (args, kwargs or {}))
            return func(*args, **kwargs)


_LOOKS = {
    *(getattr(Tensor, name).__get__ for name in ("shape", "ndim", "dtype", "device", "layout", "requires_grad")),
    *(getattr(Tensor, name).__get__ for name in ("is_cuda", "is_nested", "is_meta")),
    *(Tensor.dim, Tensor.size, Tensor.numel, Tensor.__len__, Tensor.is_floating_point, Tensor.__hash__),
}


def _table_of(told: ToldMask) -> Tensor:
    """Return the mask's table, the same one each time."""
    if told.table is None:
        batch_size, _, query_len, _ = told.shape
        allowed = dense_mask(
            told.mask,
            batch_size=batch_size,
            num_heads=1,
            query_len=query_len,
            key_len=told.num_keys,
            device=told.device,
        ).expand(batch_size, 1, query_len, told.num_keys)
        table = torch.zeros(told.shape, dtype=torch.bool, device=told.device)
        table[..., : told.num_keys] = allowed
        told.table = table
    return told.table


def tell_mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int | Tensor = 0,
    kv_offset: int = 0,
    mask_function: MaskFunction | None = None,
    attention_mask: Tensor | None = None,
    *,
    use_vmap: bool = False,
    allow_is_causal_skip: bool = True,
    allow_is_bidirectional_skip: bool = False,
    device: Any = "cpu",
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
        use_vmap: whether a part of the function is a user's own.
        allow_is_causal_skip: whether a plainly causal mask may be None.
        allow_is_bidirectional_skip: whether a mask that hides nothing may be None.
        device: of the mask.
        keywords: what else transformers gives to its sdpa mask.

    Returns:
        A `ToldMask`, a bool table, or None.
    """
    from transformers import AttentionMaskInterface
    from transformers.masking_utils import causal_mask_function

    function = causal_mask_function if mask_function is None else mask_function
    if not use_vmap and not _has_no_numbers(attention_mask, q_offset):
        # Relative to the first key slot, the queries end here.
        num_read = int(q_offset) + q_length - kv_offset
        mask = read_mask_function(function)
        if mask is not None and (num_keys := _count_read(mask, num_read, kv_length)) is not None:
            if isinstance(mask, SlidingWindow) and mask.window_size >= num_keys:
                mask = Causal()
            mask = mask & _read_padding(attention_mask, kv_offset, num_keys)
            is_square = num_keys == kv_length and q_length in (1, kv_length)
            if allow_is_causal_skip and mask == Causal() and is_square:
                return None
            if allow_is_bidirectional_skip and mask == Full() and num_keys == kv_length:
                return None
            return ToldMask.tell(mask, (batch_size, 1, q_length, kv_length), num_keys=num_keys, device=device)
    make_table = AttentionMaskInterface()["sdpa"]
    table: Tensor | None = make_table(
        batch_size=batch_size,
        q_length=q_length,
        kv_length=kv_length,
        q_offset=q_offset,
        kv_offset=kv_offset,
        mask_function=function,
        attention_mask=attention_mask,
        use_vmap=use_vmap,
        allow_is_causal_skip=allow_is_causal_skip,
        allow_is_bidirectional_skip=allow_is_bidirectional_skip,
        device=device,
        **keywords,
    )
    return table


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
    packed: Int[Tensor, "batch seq_len"] | None = None
    mask: Mask = Full()
    behind: int | None = None  # a window that leaves the future open
    waiting, is_remapped = [function], False
    while waiting:
        part = waiting.pop()
        kind = codes.get(getattr(part, "__code__", None))
        held = dict(zip(part.__code__.co_freevars, _contents(part), strict=True)) if kind else {}
        if kind == "and":
            waiting += held["mask_functions"]
        elif kind == "remapped":  # positions that begin again in each document
            is_remapped = True
            waiting.append(held["mask_function"])
        elif kind == "packed":
            packed = held["packed_sequence_mask"]
        elif kind == "causal":
            mask = Causal()
        elif kind == "behind":
            behind = held["sliding_window"]
        elif kind == "around":
            mask = LocalWindow(held["sliding_window"], held["sliding_window"])
        elif kind != "all":
            return None
    if behind is not None:
        if mask != Causal():
            return None
        # Qwen2-MoE makes a window of 0 tokens where no layer has any, and gives it to none
        mask = SlidingWindow(behind) if behind > 0 else ~Full()
    if is_remapped != (packed is not None):
        return None
    # Within a document, positions are as far apart as indices.
    return mask if packed is None else mask & Documents.from_segment_ids(packed)


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
