"""The scores of one layer's heads on all roles, and the evidence for them, summed up block by block."""

from dataclasses import dataclass, field

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from headwise.inspection.capture.reading import require_shape
from headwise.inspection.roles.keys import RoleKeys, visible_choices
from headwise.inspection.roles.rule import UNIFORM, Score
from headwise.inspection.roles.texts import RoleTexts
from headwise.integrations.layer_weights import LayerWeights, WeightBlock, fill_hidden


@dataclass(eq=False)
class RoleSum:
    """One role of all heads of a layer.

    Args:
        num_heads: heads of the layer.
        weight: (H) summed over the queries that have a key of the role.
        num_queries: (H) how many those are.
        num_largest: (H) how many of them have their largest weight on such a key.
        best_weight: (H) the highest weight of a query on one such key; -1 where there is none.
        best_pair: (H, 3) number of the text, index of the query and of the key that it is of.
    """

    num_heads: int
    weight: Float[Tensor, " num_heads"] = field(init=False)
    num_queries: Int[Tensor, " num_heads"] = field(init=False)
    num_largest: Int[Tensor, " num_heads"] = field(init=False)
    best_weight: Float[Tensor, " num_heads"] = field(init=False)
    best_pair: Int[Tensor, "num_heads 3"] = field(init=False)

    def __post_init__(self) -> None:
        self.weight = torch.zeros(self.num_heads, dtype=torch.float64)
        self.num_queries, self.num_largest = (torch.zeros(self.num_heads, dtype=torch.long) for _ in range(2))
        self.best_weight = torch.full((self.num_heads,), -1.0, dtype=torch.float64)
        self.best_pair = torch.zeros(self.num_heads, 3, dtype=torch.long)

    def add(
        self, weight: Float[Tensor, "batch num_heads rows"], applies: Bool[Tensor, "batch mask_heads rows"]
    ) -> Bool[Tensor, "batch num_heads rows"]:
        """Add the weight of the queries that the role applies to, and return which those are in every head."""
        applies = applies.expand(weight.shape)
        self.weight += weight.double().masked_fill(~applies, 0.0).sum(dim=(0, 2)).cpu()
        self.num_queries += applies.sum(dim=(0, 2)).cpu()
        return applies

    def keep_best(
        self,
        weight: Float[Tensor, "batch num_heads rows"],
        keys: Int[Tensor, "batch num_heads rows"],
        *,
        first_text: int,
        start: int,
    ) -> None:
        """Remember the pair of the highest weight.

        Args:
            weight: of each query on its best key; below 0 where it has none.
            keys: that key.
            first_text: number of the batch's first text.
            start: index of the first query.
        """
        num_rows = weight.shape[2]
        best, where = weight.double().transpose(0, 1).flatten(1).max(dim=1)
        key = keys.transpose(0, 1).flatten(1).gather(1, where.unsqueeze(1)).squeeze(1)
        pair = torch.stack([first_text + where // num_rows, start + where % num_rows, key], dim=1).cpu()
        better = best.cpu() > self.best_weight
        self.best_weight = torch.where(better, best.cpu(), self.best_weight)
        self.best_pair = torch.where(better.unsqueeze(1), pair, self.best_pair)

    def score(self, head: int) -> Score:
        """Return a head's mean weight and the number of queries that it is over."""
        num_queries = int(self.num_queries[head])
        return Score(self.weight[head].item() / num_queries if num_queries else None, num_queries)


class RoleSums:
    """Every role of one layer's heads over all queries that were added.

    A query counts if it is real and sees two real keys or more. Of its weights, those on visible real keys count. The
    score of "uniform" is `sum_j min(w_j, 1 / n)` over the n keys that a query sees: the share of its weight that lies
    where a uniform head would lay it, one minus the total variation distance between the two.
    """

    def __init__(self, num_heads: int):
        self.num_heads = num_heads
        self.roles: dict[str, RoleSum] = {}

    def add(self, layer: LayerWeights, texts: RoleTexts, *, first_text: int) -> None:
        """Add the queries of one batch, whose first text has a number among all that are read."""
        require_shape(layer, (len(texts.ids), texts.ids.shape[1]))
        for block in layer.blocks():
            self._add_block(block, texts.to(block.weights.device), first_text)

    def _add_block(self, block: WeightBlock, texts: RoleTexts, first_text: int) -> None:
        rows = torch.arange(block.start, block.start + block.weights.shape[2], device=block.weights.device)
        real_keys = texts.real[:, : block.weights.shape[3]]
        visible = block.visible & real_keys[:, None, None, :] & texts.real[:, None, rows, None]
        weights = fill_hidden(block.weights, visible, 0.0)
        chooses = visible_choices(visible)
        largest = weights.argmax(dim=-1)
        for name, keys in texts.keys_of_roles(rows).items():
            self._add_role(name, keys, weights, visible, chooses, largest, first_text=first_text, start=block.start)
        uniform = visible.to(weights.dtype) / visible.sum(dim=-1, keepdim=True).clamp(min=1)
        self._sum_of(UNIFORM).add(torch.minimum(weights, uniform).sum(dim=-1), chooses)

    def _add_role(
        self,
        name: str,
        keys: RoleKeys,
        weights: Tensor,
        visible: Tensor,
        chooses: Tensor,
        largest: Tensor,
        *,
        first_text: int,
        start: int,
    ) -> None:
        role = self._sum_of(name)
        applies = role.add(keys.weight(weights), keys.applies(visible) & chooses)
        role.num_largest += (applies & keys.contains(largest)).sum(dim=(0, 2)).cpu()
        best = keys.best(weights)
        weight = weights.gather(-1, best.unsqueeze(-1)).squeeze(-1).masked_fill(~applies, -1.0)
        role.keep_best(weight, best, first_text=first_text, start=start)

    def _sum_of(self, name: str) -> RoleSum:
        return self.roles.setdefault(name, RoleSum(self.num_heads))
