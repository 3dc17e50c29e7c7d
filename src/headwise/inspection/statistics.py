"""Statistics of attention heads, summed up block by block over any number of texts."""

import torch
from torch import Tensor

from headwise.inspection.kinds import TokenKinds
from headwise.inspection.results import HeadStatistics, Role
from headwise.inspection.roles import HOLDS_FROM, ROLE_NAMES, role_weights
from headwise.integrations.layer_weights import LayerWeights, WeightBlock

SPARSE_BELOW = 0.1  # of the uniform weight: below it a key counts as one that the head passes over


class LayerSums:
    """Sums of one layer's statistics per head, in float64, over all queries that were added.

    A query counts if it is real and sees a real key. Of its weights, those on visible real keys count.
    """

    def __init__(self, num_heads: int):
        self.num_heads = num_heads
        self.looks_ahead = False  # whether a query has seen a key after itself
        self.num_queries = torch.zeros(num_heads, dtype=torch.float64)
        self.num_choosers = torch.zeros(num_heads, dtype=torch.float64)  # queries that see two keys or more
        self.sums = {
            name: torch.zeros(num_heads, dtype=torch.float64)
            for name in ("entropy", "normalized_entropy", "sparsity", "distance", "sink_mass", "max_weight")
        }
        self.role_sums = torch.zeros(len(ROLE_NAMES), num_heads, dtype=torch.float64)
        self.role_queries = torch.zeros(len(ROLE_NAMES), num_heads, dtype=torch.float64)

    def add(self, layer: LayerWeights, kinds: TokenKinds) -> None:
        """Add the queries of one batch."""
        for block in layer.blocks():
            self.add_block(block, kinds.to(block.weights.device))

    def add_block(self, block: WeightBlock, kinds: TokenKinds) -> None:
        """Add the queries of one block of one batch."""
        num_rows, key_len = block.weights.shape[2:]
        rows = torch.arange(block.start, block.start + num_rows, device=block.weights.device)
        keys = torch.arange(key_len, device=block.weights.device)
        is_query = kinds.real[:, None, rows]
        visible = block.visible & kinds.real[:, None, None, :] & is_query.unsqueeze(-1)
        weights = block.weights.double().masked_fill(~visible, 0.0)  # (B, H, R, S)
        num_visible = visible.sum(dim=-1).double()  # (B, 1 or H, R); 0 where the query does not count
        chooses = num_visible >= 2
        distance = (rows[:, None] - keys).abs().double()
        first_token = kinds.real.int().argmax(dim=-1)
        entropy = torch.special.entr(weights).sum(dim=-1)
        is_small = (weights * num_visible.unsqueeze(-1) < SPARSE_BELOW) & visible
        sink = first_token[:, None, None, None].expand(*weights.shape[:3], 1)
        per_query = {
            "entropy": entropy,
            # queries with one key have entropy 0 and add nothing; log(2) keeps them from dividing 0 by 0
            "normalized_entropy": entropy / num_visible.clamp(min=2).log(),
            # comparisons hide a NaN, which the entropy carries on
            "sparsity": is_small.sum(dim=-1) / num_visible.clamp(min=1) + 0.0 * entropy,
            "distance": (weights * distance).sum(dim=-1),
            "sink_mass": weights.gather(-1, sink).squeeze(-1),
            "max_weight": weights.amax(dim=-1),
        }
        for name, values in per_query.items():
            self.sums[name] += values.sum(dim=(0, 2)).cpu()
        self.num_queries += self._per_head(num_visible > 0)
        self.num_choosers += self._per_head(chooses)
        self.looks_ahead = self.looks_ahead or bool((visible & (keys > rows[:, None])).any())

        roles = role_weights(weights, visible, start=block.start, first_token=first_token, separators=kinds.separators)
        self.role_sums += (roles.weights * roles.applies).sum(dim=(1, 3)).cpu()
        self.role_queries += roles.applies.expand(-1, -1, self.num_heads, -1).sum(dim=(1, 3)).cpu()

    def _per_head(self, flags: Tensor) -> Tensor:
        return flags.expand(-1, self.num_heads, -1).sum(dim=(0, 2)).cpu()

    def to_statistics(self, layer: int) -> tuple[HeadStatistics, ...]:
        """Divide the sums by the queries they are over; a mean over no query is 0, a role's is None."""
        means = {
            name: sums / (self.num_choosers if name == "normalized_entropy" else self.num_queries).clamp(min=1)
            for name, sums in self.sums.items()
        }
        return tuple(
            HeadStatistics(
                layer=layer,
                head=head,
                roles=tuple(
                    _role(*row)
                    for row in zip(
                        ROLE_NAMES, self.role_sums[:, head].tolist(), self.role_queries[:, head].tolist(), strict=True
                    )
                ),
                **{name: mean[head].item() for name, mean in means.items()},
            )
            for head in range(self.num_heads)
        )


def _role(name: str, weight: float, num_queries: float) -> Role:
    """Return a role from the summed weight of the queries that it applies to."""
    score = weight / num_queries if num_queries else None
    return Role(name=name, score=score, holds=score is not None and score >= HOLDS_FROM)
