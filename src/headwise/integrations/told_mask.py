"""A mask on paper that travels through a Hugging Face model in a bool tensor of the table's shape.

It does without the table's memory: models look at the shape, and `generate` makes masks ahead. A model that does more
than look gets the table; one that adds it to its scores, as "eager" adds numbers, computes attention of its own, and is
refused.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, NoReturn

import torch
from jaxtyping import Bool
from torch import Tensor
from torch.utils._pytree import tree_map_only

from headwise.errors import UnsupportedError
from headwise.masks.dense import dense_mask
from headwise.masks.patterns import Mask

_NOTE = "_headwise_told"  # on a table that stands for a mask: the mask, and how often the table had been written to


class Told(NamedTuple):
    """What a mask tensor stands for.

    Attributes:
        mask: the mask; the last query sees the last of the first `num_keys` keys.
        num_keys: number of keys that are read at all; those behind are slots of a cache that wait for tokens.
        key_len: number of keys in all.
    """

    mask: Mask
    num_keys: int
    key_len: int


class ToldMask(Tensor):
    """A bool tensor (batch, 1, query_len, key_len), True = may attend, that is a mask on paper until someone computes.

    Attributes:
        told: what it stands for.
        asker: the model that asked for it, by name.
        table: the tensor's numbers, once an operation has asked for them; from then on they count, as they may have
            been written to.
    """

    told: Told
    asker: str
    table: Tensor | None

    @staticmethod
    def tell(told: Told, shape: Sequence[int], *, device: Any, asker: str) -> "ToldMask":
        """Return the tensor that stands for a mask; it takes the memory of one number."""
        tensor = torch.ones(1, 1, 1, 1, dtype=torch.bool, device=device).expand(*shape).as_subclass(ToldMask)
        tensor.told, tensor.asker, tensor.table = told, asker, None
        return tensor

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Answer questions about the shape; compute everything else with the table.

        Raises:
            UnsupportedError: the mask is to be added to floats.
        """
        with torch._C.DisableTorchFunctionSubclass():
            if func in _LOOKS:
                return func(*args, **(kwargs or {}))
            if func in (Tensor.contiguous, Tensor.detach):
                return args[0]
            if func is Tensor.to and (moved := _move(*args, **(kwargs or {}))) is not None:
                return moved
            if func in _ADDS and any(map(_is_float, args)):
                refuse_own_attention(next(one.asker for one in args if isinstance(one, ToldMask)))
            args, kwargs = tree_map_only(ToldMask, _table_of, (args, kwargs or {}))
            return func(*args, **kwargs)


_LOOKS = {
    *(getattr(Tensor, name).__get__ for name in ("shape", "ndim", "dtype", "device", "layout", "requires_grad")),
    *(getattr(Tensor, name).__get__ for name in ("is_cuda", "is_nested", "is_meta")),
    *(Tensor.dim, Tensor.size, Tensor.numel, Tensor.__len__, Tensor.__hash__),
    *(Tensor.stride, Tensor.storage_offset, Tensor.is_contiguous),  # what torch.compile guards
    *(Tensor.is_floating_point, torch.is_floating_point),  # what sharded models ask of their inputs
    vars(Tensor.__base__)["requires_grad"].__set__,  # checkpoints set what it was
}
_ADDS = {Tensor.add, Tensor.add_, torch.add}  # `scores + mask`, `scores += mask`


def _is_float(number: Any) -> bool:
    return number.is_floating_point() if isinstance(number, Tensor) else isinstance(number, float)


def refuse_own_attention(asker: str) -> NoReturn:
    """Raise UnsupportedError for a model whose attention is not ours."""
    raise UnsupportedError(
        'attn_implementation="headwise" needs a model whose attention goes through transformers\' interface; '
        f'got {asker}, which computes attention of its own (use "eager" for it)'
    )


def _move(told: ToldMask, *args: Any, **kwargs: Any) -> ToldMask | None:
    """Return the mask on another device; None if that takes numbers along, or changes more."""
    moved = torch.ones(1, dtype=torch.bool, device=told.device).to(*args, **kwargs)
    if moved.dtype != torch.bool or told.table is not None:
        return None
    if moved.device == told.device:
        return told
    if not told.told.mask.is_structural:
        return None
    return ToldMask.tell(told.told, told.shape, device=moved.device, asker=told.asker)


def _table_of(told: ToldMask) -> Bool[Tensor, "batch 1 query_len key_len"]:
    """Return the mask's table, the same one each time."""
    if told.table is None:
        (mask, num_keys, _), (batch_size, _, query_len, _) = told.told, told.shape
        told.table = torch.zeros(told.shape, dtype=torch.bool, device=told.device)
        told.table[..., :num_keys] = dense_mask(
            mask, batch_size=batch_size, num_heads=1, query_len=query_len, key_len=num_keys, device=told.device
        )
    return told.table


def note(table: Bool[Tensor, "batch 1 query_len key_len"], told: Told) -> None:
    """Note on a table which mask it is, so that what computes eagerly need not look for it in the numbers."""
    if not table.is_inference():  # those do not count how often they are written to
        vars(table)[_NOTE] = told, table._version


def told_by(attention_mask: Tensor | None) -> Told | None:
    """Return what a tensor that `tell_mask` made stands for; None where its numbers count, or it is another's."""
    if isinstance(attention_mask, ToldMask):
        return attention_mask.told if attention_mask.table is None else None
    if attention_mask is None or torch.compiler.is_compiling():  # a graph must serve any number of tokens
        return None
    told, version = vars(attention_mask).get(_NOTE, (None, 0))
    return told if told is not None and version == attention_mask._version else None
