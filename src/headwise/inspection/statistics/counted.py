"""What counts of a block of weights, found once for all statistics of it."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from headwise.inspection.statistics.kinds import TokenKinds
from headwise.integrations.layer_weights import WeightBlock, fill_hidden, is_known_full


@dataclass(frozen=True, eq=False, kw_only=True)
class CountedBlock:
    """The weights of a block of queries that count: those of real queries on visible real keys.

    Args:
        start: index of the first query.
        weights: (B, H, R, S), 0 where they do not count; in float32 or, where the model is, in float64. On the first S
            keys: of a causal layer those that no query of the block sees are left off.
        visible: which keys count for each query; a query that is padding has none.
        num_visible: how many they are; 0 where the query does not count.
        real: which queries are no padding; of keys, too, unless `real_keys` says others.
        first_token: index of each text's first real key.
        padding_mass: weight of each real query on padding, as the model itself weighs.
        sees: which real queries the model lets see any token, padding included.
        scores: what the softmax read; None where a layer gave its weights whole.
        places, real_keys: as of `TokenKinds`.
    """

    start: int
    weights: Float[Tensor, "batch num_heads rows key_len"]
    visible: Bool[Tensor, "batch mask_heads rows key_len"]
    num_visible: Float[Tensor, "batch mask_heads rows"]
    real: Bool[Tensor, "batch query_len"]
    first_token: Int[Tensor, " batch"]
    padding_mass: Float[Tensor, "batch num_heads rows"]
    sees: Bool[Tensor, "batch mask_heads rows"]
    scores: Float[Tensor, "batch num_heads rows key_len"] | None = None
    places: Int[Tensor, "query_len 2"] | None = None
    real_keys: Bool[Tensor, "batch key_len"] | None = None

    @property
    def rows(self) -> Int[Tensor, " rows"]:
        """Return the indices of the queries."""
        return torch.arange(self.start, self.start + self.weights.shape[2], device=self.weights.device)

    @property
    def keys(self) -> Int[Tensor, " key_len"]:
        """Return the indices of the keys."""
        return torch.arange(self.weights.shape[3], device=self.weights.device)

    def on_first_token(self) -> Float[Tensor, "batch num_heads rows"]:
        """Return each query's weight on its text's first real key."""
        # a query before the first key that is real does not count: its weights are 0 wherever one looks
        index = self.first_token.clamp(max=self.weights.shape[3] - 1)[:, None, None, None]
        return self.weights.gather(-1, index.expand(*self.weights.shape[:3], 1)).squeeze(-1)

    def of_text(
        self, row: int, queries: Int[Tensor, " num_queries"], keys: Int[Tensor, " num_keys"]
    ) -> Float[Tensor, "num_heads num_queries num_keys"]:
        """Return the weights of one text's queries, which the block has, on some keys, whether it has them or not."""
        rows = self.weights[row].index_select(1, queries - self.start)
        missing = int(keys.max()) + 1 - rows.shape[-1] if len(keys) else 0
        return torch.nn.functional.pad(rows, (0, max(0, missing))).index_select(2, keys)


def count_block(block: WeightBlock, kinds: TokenKinds) -> CountedBlock:
    """Find what counts of a block; `kinds` stand on its device."""
    stop = block.start + block.weights.shape[2]
    is_query = kinds.real[:, None, block.start : stop]
    real_keys = kinds.keys[:, : block.weights.shape[3]]
    visible = block.visible & real_keys[:, None, None, :] & is_query.unsqueeze(-1)
    if is_known_full(real_keys):
        padding_mass = torch.zeros_like(block.weights[..., 0])
    else:
        on_padding = block.weights @ (~real_keys).to(block.weights.dtype)[:, None, :, None]
        padding_mass = on_padding.squeeze(-1).where(is_query, 0.0)
    return CountedBlock(
        start=block.start,
        weights=fill_hidden(block.weights, visible, 0.0),
        visible=visible,
        num_visible=visible.sum(dim=-1).to(block.weights.dtype),
        real=kinds.real,
        first_token=kinds.keys.int().argmax(dim=-1),
        padding_mass=padding_mass,
        sees=block.visible.any(dim=-1) & is_query,
        scores=block.scores,
        places=kinds.places,
        real_keys=kinds.real_keys,
    )
