"""Which keys a role gives each query: one key by its index, or a set of keys."""

from dataclasses import dataclass

from jaxtyping import Bool, Float, Int
from torch import Tensor


@dataclass(frozen=True, eq=False)
class OneKey:
    """At most one key for each query.

    Args:
        index: (B or 1, R) the key's index; one outside the text stands for none.
    """

    index: Int[Tensor, "text_rows rows"]

    def weight(self, weights: Float[Tensor, "batch num_heads rows key_len"]) -> Float[Tensor, "batch num_heads rows"]:
        """Return each query's weight on its key; what it is for a query without one says nothing."""
        return weights.gather(-1, self.best(weights).unsqueeze(-1)).squeeze(-1)

    def applies(self, visible: Bool[Tensor, "batch mask_heads rows key_len"]) -> Bool[Tensor, "batch mask_heads rows"]:
        """Tell which queries have a key and may read it."""
        key_len = visible.shape[-1]
        exists = (self.index >= 0) & (self.index < key_len)
        index = self._inside(key_len).expand(len(visible), visible.shape[1], -1, -1)
        return visible.gather(-1, index).squeeze(-1) & exists[:, None, :]

    def contains(self, keys: Int[Tensor, "batch num_heads rows"]) -> Bool[Tensor, "batch num_heads rows"]:
        """Tell whether each of some keys, one a query, is the role's."""
        return keys == self.index[:, None, :]

    def best(self, weights: Float[Tensor, "batch num_heads rows key_len"]) -> Int[Tensor, "batch num_heads rows"]:
        """Return the role's key of each query; any where it has none."""
        index = self._inside(weights.shape[-1]).expand(len(weights), weights.shape[1], -1, -1)
        return index.squeeze(-1)

    def _inside(self, key_len: int) -> Tensor:
        return self.index.clamp(0, key_len - 1)[:, None, :, None]


@dataclass(frozen=True, eq=False)
class KeySet:
    """Any number of keys for each query; the weight on them is their sum.

    Args:
        members: (B, R or 1, S) which keys belong to it.
        queries: (B, R) which queries the role is for.
    """

    members: Bool[Tensor, "batch member_rows key_len"]
    queries: Bool[Tensor, "batch rows"]

    def weight(self, weights: Float[Tensor, "batch num_heads rows key_len"]) -> Float[Tensor, "batch num_heads rows"]:
        """Return each query's weight on all its keys."""
        return (weights * self._members(weights)).sum(dim=-1)

    def applies(self, visible: Bool[Tensor, "batch mask_heads rows key_len"]) -> Bool[Tensor, "batch mask_heads rows"]:
        """Tell which queries the role is for and may read one of its keys."""
        return (visible & self._members(visible)).any(dim=-1) & self.queries[:, None, :]

    def contains(self, keys: Int[Tensor, "batch num_heads rows"]) -> Bool[Tensor, "batch num_heads rows"]:
        """Tell whether each of some keys, one a query, is the role's."""
        num_rows, key_len = keys.shape[-1], self.members.shape[-1]
        members = self.members[:, None].expand(-1, keys.shape[1], num_rows, key_len)
        return members.gather(-1, keys.unsqueeze(-1)).squeeze(-1)

    def best(self, weights: Float[Tensor, "batch num_heads rows key_len"]) -> Int[Tensor, "batch num_heads rows"]:
        """Return the one of the role's keys that each query puts most on; any where it has none."""
        return weights.masked_fill(~self._members(weights), -1.0).argmax(dim=-1)

    def _members(self, block: Tensor) -> Tensor:
        """Return which of the keys that a block has are members."""
        return self.members[:, None, :, : block.shape[-1]]


RoleKeys = OneKey | KeySet


def visible_choices(visible: Bool[Tensor, "batch mask_heads rows key_len"]) -> Bool[Tensor, "batch mask_heads rows"]:
    """Tell which queries have two keys or more to choose from: what the others do says nothing about a head."""
    return visible.sum(dim=-1) >= 2


def other_than(members: Bool[Tensor, "batch key_len"], rows: Int[Tensor, " rows"]) -> KeySet:
    """Return marked tokens as the keys of all queries that are not marked: for those the role would be "self"."""
    return KeySet(members[:, None, :], ~members[:, rows])
