"""What is idle in a call, from the parts that are visited: queries without a key, and slots that nobody reads."""

from collections.abc import Iterable

import torch

from headwise.ops.blocked.part import Part
from headwise.ops.blocked.tile import allowed_of, fold
from headwise.ops.call import Call
from headwise.ops.lowering import Idle


def idle_of_parts(call: Call, parts: Iterable[Part]) -> Idle | None:
    """Say what is idle; None: nothing. Pairs are looked at in parts that are not allowed as a whole."""
    if _reads_itself(call):
        return None
    batch, num_heads, query_len, _ = call.query.shape
    num_kv_heads, key_len = call.key.shape[1:3]
    device = call.query.device
    reads = torch.zeros(batch, num_heads, query_len, 1, dtype=torch.bool, device=device)
    num_readers = torch.zeros(batch, num_kv_heads, key_len, 1, device=device)
    for part in parts:
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
