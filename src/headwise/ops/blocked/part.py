"""Part: what one bundle of visits takes from the tensors of a call, and where it puts what it computes.

A part's tensors have the dimensions (batch, visits or kv heads, query heads of one kv head, ...): queries of one kv
head lie side by side, so that they share its keys as rows of one matrix.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from headwise.masks.rows import Sizes
from headwise.masks.visits import Visit


class Places(NamedTuple):
    """Who the tokens of a part are: integer tensors that broadcast to (batch, kv heads, queries per kv, T', S')."""

    batch: Tensor
    head: Tensor
    query: Tensor
    key: Tensor


class PartGradients(NamedTuple):
    """Gradients of one part's queries, keys, values, and of its scores as the bias meets them (None: not made)."""

    query: Tensor
    key: Tensor
    value: Tensor
    scores: Tensor | None = None


class Part:
    """A bundle of visits.

    Args:
        visits: one visit of all heads or of one, or several that are each of one head and of the same size.
        sizes: of the call.
        device: of its tensors.
    """

    def __init__(self, visits: tuple[Visit, ...], sizes: Sizes, device: torch.device):
        self.visit = visits[0]
        self.is_whole = all(visit.is_whole for visit in visits)
        self.num_queries, self.num_keys = self.visit.num_queries, self.visit.num_keys
        self._sizes, self._device = sizes, device
        self.queries_per_kv = sizes.num_heads // sizes.num_kv_heads
        self._rows: Tensor | None = None
        if len(visits) > 1:
            self._head = torch.tensor([visit.kv_head for visit in visits], device=device)  # (m,)
            self._query_index = _tokens_of([(visit.queries,) for visit in visits]).to(device)  # (m, T')
            self._key_index = _tokens_of([visit.keys for visit in visits]).to(device)  # (m, S')
            self._rows = self._head[:, None] * sizes.key_len + self._key_index
        batch, kv_head = self.visit.batch, self.visit.kv_head
        self._batch_slice = slice(None) if batch is None else slice(batch, batch + 1)
        self._kv_slice = slice(None) if kv_head is None else slice(kv_head, kv_head + 1)
        self._query_slice = slice(*self.visit.queries)

    @property
    def is_bundle(self) -> bool:
        """Whether there are several visits."""
        return self._rows is not None

    def places(self) -> Places:
        """Return the batch rows, heads, and places of queries and keys in their tensors."""
        sizes, device, group = self._sizes, self._device, self.queries_per_kv
        batch = torch.arange(sizes.batch, device=device)[self._batch_slice].view(-1, 1, 1, 1, 1)
        if self.is_bundle:
            head = self._head[:, None] * group + torch.arange(group, device=device)
            query, key = self._query_index, self._key_index
            return Places(
                batch, head.view(1, -1, group, 1, 1), query[None, :, None, :, None], key[None, :, None, None, :]
            )
        head = torch.arange(sizes.num_heads, device=device).view(-1, group)[self._kv_slice]
        query = torch.arange(*self.visit.queries, device=device)
        key = torch.cat([torch.arange(*keys, device=device) for keys in self.visit.keys])
        return Places(batch, head.view(1, -1, group, 1, 1), query.view(1, 1, 1, -1, 1), key.view(1, 1, 1, 1, -1))

    def take_queries(self, tensor: Tensor) -> Tensor:
        """(B, H, T, ...) -> (batch, kv heads, queries per kv * T', ...)."""
        grouped = self._grouped(tensor)
        if self.is_bundle:
            group = torch.arange(self.queries_per_kv, device=self._device)
            taken = grouped[:, self._head[:, None, None], group[:, None], self._query_index[:, None, :]]
        else:
            taken = grouped[self._batch_slice, self._kv_slice, :, self._query_slice]
        return taken.flatten(2, 3)

    def put_queries(self, tensor: Tensor, part: Tensor) -> None:
        """Write what `take_queries` would take."""
        grouped = self._grouped(tensor)
        by_head = (self.queries_per_kv, self.num_queries)
        values = part.view(*part.shape[:2], *by_head, *part.shape[3:]).to(tensor.dtype)
        if self.is_bundle:
            group = torch.arange(self.queries_per_kv, device=self._device)
            grouped[:, self._head[:, None, None], group[:, None], self._query_index[:, None, :]] = values
        else:
            grouped[self._batch_slice, self._kv_slice, :, self._query_slice] = values

    def _grouped(self, tensor: Tensor) -> Tensor:
        """(B, H, ...) -> (B, K, H/K, ...), a view."""
        return tensor.view(tensor.shape[0], self._sizes.num_kv_heads, self.queries_per_kv, *tensor.shape[2:])

    def take_keys(self, tensor: Tensor) -> Tensor:
        """(B, K, S, D) -> (batch, kv heads, S', D)."""
        if self._rows is not None:
            rows = tensor.view(tensor.shape[0], -1, tensor.shape[3]).index_select(1, self._rows.flatten())
            return rows.view(rows.shape[0], *self._rows.shape, rows.shape[-1])
        heads = tensor[self._batch_slice, self._kv_slice]
        pieces = [heads[:, :, begin:end] for begin, end in self.visit.keys]
        return pieces[0] if len(pieces) == 1 else torch.cat(pieces, dim=2)

    def add_keys(self, tensor: Tensor, part: Tensor) -> None:
        """Add to what `take_keys` would take."""
        if self._rows is not None:
            rows, places = tensor.view(tensor.shape[0], -1, tensor.shape[-1]), self._rows
            if part.stride(1) < part.stride(2):  # torch's kernel writes gradients token by token
                part, places = part.transpose(1, 2), places.T
            rows.index_add_(1, places.flatten(), part.flatten(1, 2).to(tensor.dtype))
            return
        heads = tensor[self._batch_slice, self._kv_slice]
        first = 0
        for begin, end in self.visit.keys:
            heads[:, :, begin:end] += part[:, :, first : first + end - begin]
            first += end - begin


def _tokens_of(ranges: list[tuple[tuple[int, int], ...]]) -> Tensor:
    """Return the tokens of each list of ranges, all of which hold as many."""
    return torch.stack([torch.cat([torch.arange(*one) for one in each]) for each in ranges])
