"""How alike heads are: the Jensen-Shannon divergence between their weights."""

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from headwise.errors import TextError
from headwise.inspection.results import HeadDivergence
from headwise.inspection.statistics.counted import CountedBlock, count_block
from headwise.inspection.statistics.kinds import TokenKinds
from headwise.inspection.statistics.spread import entropy_of
from headwise.integrations.layer_weights import LayerWeights, block_ranges

MAX_TOKENS_ACROSS = 1024  # every two heads of a model are met: 36,000 pairs in one of 30 layers and 9 heads
REST_FROM = 1e-5  # float32 weights sum to 1 but for some 1e-6: what is missing beyond lies on no key


class DivergenceSums:
    """Sums of the Jensen-Shannon divergence between every two heads, over the queries that count for both.

    Of two distributions p and q over the keys of a query it is H((p + q) / 2) - (H(p) + H(q)) / 2, with the entropy H
    in nats: 0 where they are the same, log 2 = 0.69 where they share no key. What of a query's weight lies on no real
    key (on a sink, on padding) counts as one more key.

    Source: Clark et al. 2019, "What Does BERT Look At?", section 6 (clustering of heads; a sum over words there, a mean
    here).
    """

    def __init__(self, num_heads: int):
        self.sums = torch.zeros(num_heads, num_heads, dtype=torch.float64)
        self.num_queries = torch.zeros(num_heads, num_heads, dtype=torch.float64)

    def add(self, block: CountedBlock) -> None:
        """Add the queries of a block."""
        self.add_weights(block.weights, (block.num_visible > 0).expand(-1, len(self.sums), -1))

    def add_weights(
        self,
        weights: Float[Tensor, "batch num_heads rows key_len"],
        counts: Bool[Tensor, "batch num_heads rows"],
    ) -> None:
        """Add the weights of queries, and for which heads each of them counts."""
        rest = 1 - weights.sum(dim=-1, keepdim=True)
        if bool((rest > REST_FROM).any()):
            weights = torch.cat([weights, rest.where(rest > REST_FROM, 0.0)], dim=-1)
        entropy = entropy_of(weights)
        for head in range(len(self.sums)):
            # heads before this one have met it already
            own, others = slice(head, head + 1), slice(head, None)
            both = counts[:, own] & counts[:, others]
            mixed = entropy_of((weights[:, own] + weights[:, others]) / 2)
            divergence = mixed - (entropy[:, own] + entropy[:, others]) / 2
            self.sums[head, others] += divergence.where(both, 0.0).sum(dim=(0, 2), dtype=torch.float64).cpu()
            self.num_queries[head, others] += both.sum(dim=(0, 2)).cpu()

    def to_result(self, heads: Sequence[tuple[int, int]]) -> HeadDivergence:
        """Return the means; `heads` are the layer and number of each."""
        means = (self.sums / self.num_queries.clamp(min=1)).clamp(min=0)  # rounding may fall below 0
        means = (means + means.T).fill_diagonal_(0.0)
        return HeadDivergence(heads=tuple(heads), divergence=tuple(tuple(row) for row in means.tolist()))


class ModelDivergence:
    """Sums of the divergence between every two heads of a model, whichever layers they are in.

    The layers of a batch are kept, as queries and keys where they can be, until all have been seen; then their weights
    are computed anew, in blocks of a few queries of all layers.
    """

    def __init__(self) -> None:
        self.layers: list[LayerWeights] = []
        self.sums: DivergenceSums | None = None
        self.heads: list[tuple[int, int]] = []

    def keep(self, layer: LayerWeights) -> None:
        """Keep the next layer of a batch.

        Raises:
            TextError: the text is longer than 1,024 tokens.
        """
        longest = max(layer.shape[2:])
        if longest > MAX_TOKENS_ACROSS:
            raise TextError(
                f"heads are compared across layers in texts of up to {MAX_TOKENS_ACROSS} tokens, padding included; got "
                f"{longest}: cut it, or read it in windows"
            )
        self.layers.append(layer)

    def finish_batch(self, kinds: TokenKinds) -> None:
        """Add the queries of the layers that were kept, and let go of them."""
        if self.sums is None:
            self.heads = [(number, head) for number, layer in enumerate(self.layers) for head in range(layer.shape[1])]
            self.sums = DivergenceSums(len(self.heads))
        batch, _, query_len, key_len = self.layers[0].shape
        for start, stop in block_ranges((batch, len(self.heads), query_len, key_len)):
            weights, counts = [], []
            for layer in self.layers:
                block = layer.block(start, stop)
                counted = count_block(block, kinds.to(block.weights.device))
                weights.append(counted.weights)
                counts.append((counted.num_visible > 0).expand(-1, layer.shape[1], -1))
            self.sums.add_weights(torch.cat(weights, dim=1), torch.cat(counts, dim=1))
        self.layers = []

    def to_result(self) -> HeadDivergence:
        """Return how far apart the heads are, layer by layer."""
        assert self.sums is not None
        return self.sums.to_result(self.heads)
