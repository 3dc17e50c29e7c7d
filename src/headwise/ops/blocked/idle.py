"""What is idle in a call, from the parts that are visited: queries without a key, and slots that nobody reads."""

from collections.abc import Callable, Iterable

import torch

from headwise.masks.patterns import Mask
from headwise.masks.rows import Sizes
from headwise.masks.visits import CACHED_PLANS
from headwise.ops.blocked.part import Part
from headwise.ops.blocked.tile import allowed_of, fold
from headwise.ops.call import Call
from headwise.ops.lowering import Idle, form_of


def find_idle(call: Call, parts: Callable[[], Iterable[Part]]) -> Idle | None:
    """Say what is idle in a call; None: nothing. Of a structural mask it is remembered.

    Args:
        call: the call.
        parts: gives what is visited. Pairs are looked at in parts that are not allowed as a whole.
    """
    if not form_of(call).has_idle:
        return None
    if call.mask is None or not call.mask.is_structural or call.has_indices:
        return _look(call, parts)
    key = (call.mask, call.sizes, call.query.device)
    known = _KNOWN.get(key)
    if known is None:
        if len(_KNOWN) >= CACHED_PLANS:
            _KNOWN.clear()
        with torch.inference_mode(False):  # what is remembered serves a training, too
            known = _KNOWN[key] = (_look(call, parts),)
    return known[0]


_KNOWN: dict[tuple[Mask, Sizes, torch.device], tuple[Idle | None]] = {}


def _look(call: Call, parts: Callable[[], Iterable[Part]]) -> Idle | None:
    if _reads_itself(call):
        return None
    batch, num_heads, query_len, _ = call.query.shape
    num_kv_heads, key_len = call.key.shape[1:3]
    device = call.query.device
    reads = torch.zeros(batch, num_heads, query_len, 1, dtype=torch.bool, device=device)
    num_readers = torch.zeros(batch, num_kv_heads, key_len, 1, device=device)
    for part in parts():
        rows, columns = part.take_queries(reads), part.take_keys(num_readers)
        if part.is_whole:
            part.put_queries(reads, torch.ones_like(rows))
            part.add_keys(num_readers, torch.ones_like(columns))
            continue
        tile = fold(allowed_of(call, part.places()), part)
        part.put_queries(reads, tile.any(-1, keepdim=True).expand_as(rows))
        part.add_keys(num_readers, tile.any(-2).unsqueeze(-1).expand_as(columns).float())
    is_empty, is_unread = ~reads, num_readers == 0
    return Idle(is_empty, is_unread) if bool(is_empty.any()) or bool(is_unread.any()) else None


def _reads_itself(call: Call) -> bool:
    """Tell whether each query stands at a key of its own and reads it: then no query and no key is idle."""
    batch, num_heads, query_len, _ = call.query.shape
    if call.mask is None or call.has_indices or query_len != call.key.shape[2]:
        return False
    place = torch.arange(query_len, device=call.query.device)
    rows, heads = (torch.arange(size, device=call.query.device) for size in (batch, num_heads))
    reads = call.mask.allows(rows.view(-1, 1, 1), heads.view(-1, 1), place, place)
    return bool(reads.all()) if isinstance(reads, torch.Tensor) else reads
