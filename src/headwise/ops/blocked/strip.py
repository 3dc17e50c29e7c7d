"""Strip: visits that follow one another by a fixed step, as in a window, taken as overlapping views in one piece."""

from collections.abc import Sequence

import torch
from torch import Tensor

from headwise.masks.rows import Sizes
from headwise.masks.visits import Visit
from headwise.ops.blocked.part import Part


class Strip(Part):
    """A part whose second dimension is its visits, and whose first one all kv heads of all batch rows.

    Args:
        visits: of all heads, each as far behind the one before as it has queries, which divide its keys.
        sizes: of the call.
        device: of its tensors.
    """

    def __init__(self, visits: Sequence[Visit], sizes: Sizes, device: torch.device):
        super().__init__((visits[0],), sizes, device)
        self.is_whole = all(visit.is_whole for visit in visits)
        self._num_visits = len(visits)
        self._span = slice(visits[0].queries[0], visits[-1].queries[1])
        self._first_key = visits[0].keys[0][0]

    def take_queries(self, tensor: Tensor) -> Tensor:
        """(B, H, T, ...) -> (B * kv heads, visits, queries per kv * T', ...)."""
        grouped = self._grouped(tensor)[:, :, :, self._span]
        by_visit = grouped.reshape(*grouped.shape[:3], self._num_visits, self.num_queries, *tensor.shape[3:])
        return by_visit.transpose(2, 3).flatten(3, 4).flatten(0, 1)

    def put_queries(self, tensor: Tensor, part: Tensor) -> None:
        """Write what `take_queries` would take."""
        batch, heads, group = tensor.shape[0], self._sizes.num_kv_heads, self.queries_per_kv
        values = part.view(batch, heads, self._num_visits, group, self.num_queries, *tensor.shape[3:])
        rows = self._grouped(tensor)[:, :, :, self._span]
        rows.view(*rows.shape[:3], self._num_visits, self.num_queries, *tensor.shape[3:]).copy_(values.transpose(2, 3))

    def take_keys(self, tensor: Tensor) -> Tensor:
        """(B, K, S, D) -> (B * kv heads, visits, S', D), a view."""
        head, token, number = tensor.stride()[1:]
        heads = tensor.shape[0] * tensor.shape[1]
        first = tensor.storage_offset() + self._first_key * token
        shape = (heads, self._num_visits, self.num_keys, tensor.shape[3])
        return tensor.as_strided(shape, (head, self.num_queries * token, token, number), first)

    def add_keys(self, tensor: Tensor, part: Tensor) -> None:
        """Add to what `take_keys` would take, the keys of all visits that lie side by side at once."""
        heads = tensor.view(-1, *tensor.shape[2:])
        width = self._num_visits * self.num_queries
        for first in range(0, self.num_keys, self.num_queries):
            begin = self._first_key + first
            pieces = part[:, :, first : first + self.num_queries]
            heads[:, begin : begin + width].view_as(pieces).add_(pieces)


def can_show(tensor: Tensor) -> bool:
    """Tell whether all kv heads of all batch rows of keys lie at one distance, so that views can show them at once."""
    return tensor.shape[0] == 1 or tensor.stride(0) == tensor.shape[1] * tensor.stride(1)
