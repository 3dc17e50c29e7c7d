"""What is added to the scores of one part: the bias, and -inf where the mask forbids."""

from collections.abc import Sequence

import torch
from torch import Tensor

from headwise.masks.patterns import Full
from headwise.masks.visits import TileKey, tile_key
from headwise.ops.blocked.part import Part, Places
from headwise.ops.call import Call


class Tiles:
    """The tiles of a call's parts.

    Args:
        call: the call.
        dtype: of the tiles.
        shared: those that several parts have.
    """

    def __init__(self, call: Call, dtype: torch.dtype, shared: frozenset[TileKey]):
        self._call, self._dtype, self._shared = call, dtype, shared
        self._known: dict[TileKey, Tensor | None] = {}

    def of(self, part: Part) -> Tensor | None:
        """Return what is added to the scores of a part: (batch or 1, kv heads or 1, rows, S'); None: nothing."""
        if part.is_whole and self._call.bias is None:
            return None
        key = tile_key(part.visit)
        if key is None or key not in self._shared:
            return self._make(part, part.places())
        if key not in self._known:
            self._known[key] = self._make(part, part.places())
        return self._known[key]

    def bias_of(self, places: Places, tensors: Sequence[Tensor]) -> Tensor:
        """Return the bias of a part, in its smallest shape of five dimensions.

        Args:
            places: of the part.
            tensors: the bias itself, or those that stand for `Bias.tensors`.
        """
        bias = self._call.bias
        if isinstance(bias, Tensor):
            return _with_four_dimensions(tensors[0])[index_of(tensors[0], places)]
        assert bias is not None
        query, key = positions_of(self._call, places)
        values = bias(places.batch, places.head, query, key, *tensors)
        return values.reshape((1,) * (5 - values.ndim) + values.shape)

    def _make(self, part: Part, places: Places) -> Tensor | None:
        call = self._call
        is_allowed = None if part.is_whole else allowed_of(call, places)
        if call.bias is None:
            if is_allowed is None:
                return None
            hidden = torch.zeros(is_allowed.shape, dtype=self._dtype, device=is_allowed.device)
            return fold(hidden.masked_fill_(~is_allowed, -torch.inf), part)
        bias = self.bias_of(places, call.bias_tensors).detach().to(self._dtype)
        if is_allowed is not None:
            bias = torch.where(is_allowed, bias, -torch.inf)
        return fold(bias, part)


def indices_of(call: Call, places: Places) -> tuple[Tensor, Tensor]:
    """Return the places in their stream of a part's queries and keys, which masks and dropout read."""
    query = places.query + (call.key.shape[2] - call.query.shape[2])
    if call.query_index is not None:
        query = _look_up(call.query_index, places.batch, places.query)
    key = places.key if call.key_index is None else _look_up(call.key_index, places.batch, places.key)
    return query, key


def positions_of(call: Call, places: Places) -> tuple[Tensor, Tensor]:
    """Return the positions of a part's queries and keys, which a bias that is a function reads."""
    query, key = indices_of(call, places)
    if call.query_positions is not None:
        query = _look_up(call.query_positions, places.batch, places.query)
    if call.key_positions is not None:
        key = _look_up(call.key_positions, places.batch, places.key)
    return query, key


def index_of(bias: Tensor, places: Places) -> tuple[Tensor, ...]:
    """Return where the values of a bias tensor for a part stand, its dimensions of size 1 read at 0."""
    sizes = _with_four_dimensions(bias).shape
    zero = torch.zeros((1, 1, 1, 1, 1), dtype=torch.int64, device=bias.device)
    return tuple(place if size > 1 else zero for size, place in zip(sizes, places, strict=True))


def allowed_of(call: Call, places: Places) -> Tensor:
    """Return which pairs of a part are allowed, in the smallest shape of five dimensions."""
    query, key = indices_of(call, places)
    mask = Full() if call.mask is None else call.mask
    allowed = mask.allows(places.batch, places.head, query, key)
    if call.key_index is not None:
        allowed = (key >= 0) & allowed
    if not isinstance(allowed, Tensor):
        allowed = torch.tensor(allowed, device=call.query.device)
    return allowed.reshape((1,) * (5 - allowed.ndim) + allowed.shape)


def fold(tile: Tensor, part: Part) -> Tensor:
    """(batch, kv heads, queries per kv, T', S') -> (batch, kv heads, rows, S'); the first two may be 1."""
    rows = (tile.shape[0], tile.shape[1], part.queries_per_kv, part.num_queries, part.num_keys)
    return tile.expand(rows).flatten(2, 3)


def _with_four_dimensions(bias: Tensor) -> Tensor:
    return bias.reshape((1,) * (4 - bias.ndim) + bias.shape)


def _look_up(positions: Tensor, batch: Tensor, place: Tensor) -> Tensor:
    return positions[place] if positions.ndim == 1 else positions[batch, place]
