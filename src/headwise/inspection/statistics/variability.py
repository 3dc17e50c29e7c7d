"""How much a head's map differs between texts: whether it follows positions or content."""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from headwise.inspection.statistics.counted import CountedBlock

FIRST_TOKENS = 10  # tokens of each text that are compared
MOST_TEXTS = 100  # texts that are compared, the first ones: 40 KB a head


class FirstTokens:
    """The maps of the first 10 tokens of every text, and how much they vary.

    Variability of a head = sum_x sum_ij |w_ij(x) - mean_ij| / (2 sum_x sum_ij w_ij(x)), over texts x of at least 10
    tokens: 0 where the map is the same for all (it depends on positions only), at most 1. Of cross-attention the keys
    are the first 10 tokens of the other text, which must have so many as well.

    Source: Vig and Belinkov 2019, "Analyzing the Structure of Attention in a Transformer Language Model" (attention
    variability, with the first 10 tokens).
    """

    def __init__(self, num_heads: int):
        self.num_heads = num_heads
        self.maps: list[Float[Tensor, "num_heads tokens tokens"]] = []
        # text, its first queries, their first keys, its map
        self.batch: list[tuple[int, Int[Tensor, " tokens"], Int[Tensor, " tokens"], Tensor]] = []

    def add(self, block: CountedBlock) -> None:
        """Add the queries of a block. The blocks of a batch come in order, from index 0 on."""
        if block.start == 0:
            self._start_batch(block.real, block.real if block.real_keys is None else block.real_keys)
        stop = block.start + block.weights.shape[2]
        for text, queries, keys, map_ in self.batch:
            found = (queries >= block.start) & (queries < stop)
            if found.any():
                map_[:, found.cpu()] = block.of_text(text, queries[found], keys).cpu().float()

    def _start_batch(self, real: Bool[Tensor, "batch query_len"], real_keys: Bool[Tensor, "batch key_len"]) -> None:
        self.batch = []
        for text in range(len(real)):
            queries, keys = (each[text].nonzero().flatten()[:FIRST_TOKENS] for each in (real, real_keys))
            if len(queries) == len(keys) == FIRST_TOKENS and len(self.maps) < MOST_TEXTS:
                self.maps.append(torch.zeros(self.num_heads, FIRST_TOKENS, FIRST_TOKENS))
                self.batch.append((text, queries, keys, self.maps[-1]))

    def variability(self) -> list[float] | None:
        """Return the variability of every head; None for fewer than two texts of 10 tokens."""
        if len(self.maps) < 2:
            return None
        maps = torch.stack(self.maps).double()
        deviation = (maps - maps.mean(dim=0)).abs().sum(dim=(0, 2, 3))
        total = maps.sum(dim=(0, 2, 3))
        variability: list[float] = (deviation / (2 * total + (total == 0))).tolist()
        return variability
