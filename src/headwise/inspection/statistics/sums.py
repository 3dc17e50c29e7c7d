"""Statistics of attention heads, summed up block by block over any number of texts."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from headwise.inspection.results import HeadDivergence, HeadStatistics, Role
from headwise.inspection.roles.positional import HOLDS_FROM, ROLE_NAMES, role_weights
from headwise.inspection.statistics.counted import CountedBlock, count_block
from headwise.inspection.statistics.grid import patch_distances
from headwise.inspection.statistics.kinds import TokenKinds
from headwise.inspection.statistics.places import places_of
from headwise.inspection.statistics.score_scale import scores_of
from headwise.inspection.statistics.similarity import DivergenceSums
from headwise.inspection.statistics.spread import carrying_keys, spread_of
from headwise.inspection.statistics.stable_rank import stable_ranks
from headwise.inspection.statistics.variability import FirstTokens
from headwise.integrations.layer_weights import LayerWeights, WeightBlock

Look = Callable[[CountedBlock], None]
"""Called with every block of a layer, in order."""


class LayerSums:
    """Sums of one layer's statistics per head, in float64, over all queries that were added.

    A query counts if it is real and sees a real key. Of its weights, those on visible real keys count. Of
    cross-attention, whose keys are of another text, there are neither positional roles nor distances, diagonals and
    blocks; all other statistics are what they are of self-attention.

    Args:
        num_heads: heads of the layer.
        detailed: whether the costly statistics are taken too: keys that carry 90 % (rows are sorted), stable rank (the
            layer is read 6 times more), divergence between heads (every two heads are met).
    """

    def __init__(self, num_heads: int, *, detailed: bool = False):
        self.num_heads = num_heads
        self.detailed = detailed
        self.looks_ahead = False  # whether a query has seen a key after itself
        self.num_queries = torch.zeros(num_heads, dtype=torch.float64)
        self.num_choosers = torch.zeros(num_heads, dtype=torch.float64)  # queries that see two keys or more
        self.num_seeing = torch.zeros(num_heads, dtype=torch.float64)  # queries that the model lets see something
        self.num_on_grid = torch.zeros(num_heads, dtype=torch.float64)  # queries of patches that read patches
        self.num_nan = torch.zeros(num_heads, dtype=torch.int64)
        self.num_empty = torch.zeros(num_heads, dtype=torch.int64)
        self.sums: dict[str, Tensor] = {}
        self.max_abs_score: Tensor | None = None
        self.ranks = torch.zeros(num_heads, dtype=torch.float64)
        self.num_maps = torch.zeros(num_heads, dtype=torch.float64)
        self.first_tokens = FirstTokens(num_heads)
        self.divergences = DivergenceSums(num_heads)
        self.has_roles = False
        self.role_sums = torch.zeros(len(ROLE_NAMES), num_heads, dtype=torch.float64)
        self.role_queries = torch.zeros(len(ROLE_NAMES), num_heads, dtype=torch.float64)

    def add(self, layer: LayerWeights, kinds: TokenKinds, *, looks: Sequence[Look] = ()) -> None:
        """Add the queries of one batch, and show every block to `looks` as well: blocks are computed once for all."""
        for block in layer.blocks():
            kinds = kinds.to(block.weights.device)
            counted = self.add_block(block, kinds)
            for look in looks:
                look(counted)
        if self.detailed:
            ranks = stable_ranks(layer, kinds).cpu()
            self.ranks += ranks.sum(dim=0)
            self.num_maps += (ranks != 0).sum(dim=0)

    def add_block(self, block: WeightBlock, kinds: TokenKinds) -> CountedBlock:
        """Add the queries of one block of one batch, and return what counts of it."""
        counted = count_block(block, kinds)
        per_query = {**spread_of(counted), **places_of(counted)}
        if counted.scores is not None:
            per_query |= scores_of(counted)
            largest = per_query.pop("max_abs_score").amax(dim=(0, 2)).cpu()
            self.max_abs_score = largest if self.max_abs_score is None else largest.maximum(self.max_abs_score)
        if counted.places is not None:
            per_query["patch_distance"], has_distance = patch_distances(counted)
            self.num_on_grid += self._per_head(has_distance)
        if self.detailed:
            per_query["num_keys_for_90_percent"] = carrying_keys(counted)
            self.divergences.add(counted)
        for name, values in per_query.items():
            self.sums[name] = self.sums.get(name, 0.0) + values.sum(dim=(0, 2), dtype=torch.float64).cpu()
        self._count(counted, has_nan=per_query["entropy"].isnan())
        self.first_tokens.add(counted)

        if not kinds.is_cross:
            self._add_roles(counted, kinds.separators)
        return counted

    def _add_roles(self, block: CountedBlock, separators: Tensor) -> None:
        roles = role_weights(
            block.weights, block.visible, start=block.start, first_token=block.first_token, separators=separators
        )
        self.has_roles = True
        self.role_sums += (roles.weights * roles.applies).sum(dim=(1, 3), dtype=torch.float64).cpu()
        self.role_queries += roles.applies.expand(-1, -1, self.num_heads, -1).sum(dim=(1, 3)).cpu()

    def _count(self, block: CountedBlock, *, has_nan: Tensor) -> None:
        is_real = block.real[:, None, block.rows]
        self.num_queries += self._per_head(block.num_visible > 0)
        self.num_choosers += self._per_head(block.num_visible >= 2)
        self.num_seeing += self._per_head(block.sees)
        self.num_nan += self._per_head(has_nan)
        self.num_empty += self._per_head(is_real & (block.num_visible == 0))
        if block.real_keys is None:
            is_ahead = block.visible & (block.keys > block.rows[:, None])
            self.looks_ahead = self.looks_ahead or bool(is_ahead.any())

    def _per_head(self, flags: Tensor) -> Tensor:
        return flags.expand(-1, self.num_heads, -1).sum(dim=(0, 2)).cpu()

    def to_statistics(self, layer: int) -> tuple[HeadStatistics, ...]:
        """Divide the sums by the queries they are over; a mean over no query is 0, a role's is None."""
        counts = {
            "normalized_entropy": self.num_choosers,
            "padding_mass": self.num_seeing,
            "patch_distance": self.num_on_grid,
        }
        values = {
            name: (sums / counts.get(name, self.num_queries).clamp(min=1)).tolist() for name, sums in self.sums.items()
        }
        if self.max_abs_score is not None:
            values["max_abs_score"] = self.max_abs_score.tolist()
        if self.detailed:
            values["stable_rank"] = (self.ranks / self.num_maps.clamp(min=1)).tolist()
        variability = self.first_tokens.variability()
        if variability is not None:
            values["variability"] = variability
        values.setdefault("distance", [None] * self.num_heads)
        return tuple(
            HeadStatistics(
                layer=layer,
                head=head,
                roles=tuple(
                    _role(*row)
                    for row in zip(
                        ROLE_NAMES, self.role_sums[:, head].tolist(), self.role_queries[:, head].tolist(), strict=True
                    )
                    if self.has_roles
                ),
                num_nan_queries=int(self.num_nan[head]),
                num_empty_queries=int(self.num_empty[head]),
                **{name: of_heads[head] for name, of_heads in values.items()},
            )
            for head in range(self.num_heads)
        )

    def to_divergence(self, layer: int) -> HeadDivergence:
        """Return how far apart the heads are; take it of detailed sums."""
        return self.divergences.to_result([(layer, head) for head in range(self.num_heads)])


def _role(name: str, weight: float, num_queries: float) -> Role:
    """Return a role from the summed weight of the queries that it applies to."""
    score = weight / num_queries if num_queries else None
    return Role(name=name, score=score, holds=score is not None and score >= HOLDS_FROM)
