"""Relations between tokens that the caller labels (subject and verb, pronoun and noun): which heads follow them.

A head follows a pair if the strongest weight of its first token is on its second one. The share of pairs that it
follows says little alone: a head that looks one token back follows every relation between neighbours. So it stands
beside what the best fixed offset follows, and beside the same head of another inspection as the null: of an untrained
model, say. In a causal model a token reads earlier ones only: there the first token of a pair is the later one.

Source: Clark et al. 2019, "What Does BERT Look At?", section 4.2 (accuracy of a head on a relation, beside the best
fixed offset); Voita et al. 2019, "Analyzing Multi-Head Self-Attention" (a head is called syntactic if it is ahead of
the positional baseline by 10 %).
"""

from bisect import bisect
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool
from torch import Tensor

from headwise.config.checks import shown
from headwise.errors import TextError
from headwise.inspection.results import HeadRelation, Inspection, RelationScores
from headwise.inspection.statistics.counted import CountedBlock


@dataclass(frozen=True, kw_only=True)
class Relation:
    """Pairs of tokens that stand in one relation.

    Args:
        name: what it is called.
        pairs: (text, first token, second token); a token's number counts the text's own tokens from 0, padding left out
            and special tokens included, as `Inspection.tokens` lists them.

    Raises:
        TextError: there is no pair, or one is no three whole numbers from 0 on.
    """

    name: str
    pairs: tuple[tuple[int, int, int], ...]

    def __post_init__(self) -> None:
        if not self.pairs:
            raise TextError(f"a relation must have at least one pair (text, first, second); {self.name!r} has none")
        for pair in self.pairs:
            if not _is_pair(pair):
                raise TextError(
                    "a pair must be (text, first, second), three whole numbers from 0 on; "
                    f"{shown(self.name)} has {shown(pair)}"
                )

    @property
    def best_offset(self) -> int:
        """Return the offset `second - first` that most pairs have; of several the nearest, then the earlier key."""
        counts = Counter(second - first for _, first, second in self.pairs)
        return min(counts, key=lambda offset: (-counts[offset], abs(offset), offset))

    @property
    def offset_share(self) -> float:
        """Return the share of pairs that have the best offset."""
        offset = self.best_offset
        return sum(second - first == offset for _, first, second in self.pairs) / len(self.pairs)


def _is_pair(pair: object) -> bool:
    numbers = pair if isinstance(pair, tuple | list) else ()
    are_whole = all(isinstance(number, int) and not isinstance(number, bool) and number >= 0 for number in numbers)
    return len(numbers) == 3 and are_whole


class RelationSums:
    """How many pairs of each relation every head of a layer follows.

    Args:
        num_heads: heads of the layer.
        relations: what to look at.
    """

    def __init__(self, num_heads: int, relations: Sequence[Relation]):
        self.relations = relations
        self.followed = torch.zeros(len(relations), num_heads, dtype=torch.float64)
        self.weight = torch.zeros(len(relations), num_heads, dtype=torch.float64)
        self.due: list[tuple[int, int, int, int]] = []  # of a batch: query, relation, row, key; first queries first

    def add(self, block: CountedBlock, *, first_text: int) -> None:
        """Add the queries of a block of the batch that starts with text `first_text`; they come in order, from 0 on."""
        if block.start == 0:
            self.due = self._pairs_of(block.real, first_text)
        stop = block.start + block.weights.shape[2]
        for query, number, row, key in self.due[bisect(self.due, (block.start,)) : bisect(self.due, (stop,))]:
            self._add_pair(number, block.weights[row, :, query - block.start], key)  # (H, S)

    def _pairs_of(self, real: Bool[Tensor, "batch seq_len"], first_text: int) -> list[tuple[int, int, int, int]]:
        """Return the pairs of a batch's texts, with their tokens' indices in place of their numbers."""
        places = {row: each.nonzero().flatten().tolist() for row, each in enumerate(real)}
        return sorted(
            (places[text - first_text][first], number, text - first_text, places[text - first_text][second])
            for number, relation in enumerate(self.relations)
            for text, first, second in relation.pairs
            if text - first_text in places
        )

    def _add_pair(self, number: int, weights: Tensor, second: int) -> None:
        on_second = weights[:, second] if second < weights.shape[1] else torch.zeros_like(weights[:, 0])
        largest = weights.amax(dim=-1)
        num_largest = (weights == largest.unsqueeze(-1)).sum(dim=-1)
        follows = (on_second == largest) & (largest > 0)
        # of several keys that hold the same largest weight each is the strongest to its part
        self.followed[number] += (follows / num_largest.clamp(min=1)).double().cpu()
        self.weight[number] += on_second.cpu()


def require_tokens(relations: Sequence[Relation], lengths: Sequence[int]) -> None:
    """Refuse relations of tokens that are not there; `lengths` are the tokens of each text.

    Raises:
        TextError: a pair names a text or a token that is not there.
    """
    for relation in relations:
        for pair in relation.pairs:
            text, first, second = pair
            if not 0 <= text < len(lengths):
                raise TextError(
                    f"a pair's text must be a number from 0 to {len(lengths) - 1}; {relation.name!r} has {pair}"
                )
            if not (0 <= first < lengths[text] and 0 <= second < lengths[text]):
                raise TextError(
                    f"a pair's tokens must be numbers from 0 to {lengths[text] - 1}, as text {text} is read; "
                    f"{relation.name!r} has {pair}"
                )


def to_scores(
    relations: Sequence[Relation], sums: Sequence[RelationSums], null: Inspection | None
) -> tuple[RelationScores, ...]:
    """Return every relation's scores over all layers, in the order of `sums`.

    Raises:
        TextError: the null has no such relation, or other heads.
    """
    return tuple(_scores(number, relation, sums, null) for number, relation in enumerate(relations))


def _scores(number: int, relation: Relation, sums: Sequence[RelationSums], null: Inspection | None) -> RelationScores:
    num_pairs = len(relation.pairs)
    places = [(layer, head) for layer, each in enumerate(sums) for head in range(each.followed.shape[1])]
    null_shares = dict.fromkeys(places) if null is None else _null_shares(relation, null, places)
    return RelationScores(
        name=relation.name,
        num_pairs=num_pairs,
        best_offset=relation.best_offset,
        offset_share=relation.offset_share,
        heads=tuple(
            HeadRelation(
                layer=layer,
                head=head,
                share=sums[layer].followed[number, head].item() / num_pairs,
                weight=sums[layer].weight[number, head].item() / num_pairs,
                null_share=null_shares[layer, head],
            )
            for layer, head in places
        ),
    )


def _null_shares(
    relation: Relation, null: Inspection, places: Sequence[tuple[int, int]]
) -> dict[tuple[int, int], float | None]:
    found = [each for each in null.relations if each.name == relation.name]
    if len(found) != 1:
        raise TextError(
            f"the null must be an inspection with each relation once; it has {relation.name!r} {len(found)} times"
        )
    shares: dict[tuple[int, int], float | None] = {(head.layer, head.head): head.share for head in found[0].heads}
    if list(shares) != list(places):
        raise TextError(f"the null must be of a model with the same {len(places)} heads; it has {len(shares)}")
    return shares
