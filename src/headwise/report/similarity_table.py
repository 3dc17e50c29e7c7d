"""How alike heads are: what the page draws of it and says of it in words."""

import math
from dataclasses import dataclass
from heapq import nsmallest
from itertools import combinations

from headwise.inspection.results import HeadDivergence, Inspection
from headwise.report.packing import pack
from headwise.report.page_parts import parts_of

MOST = math.log(2)  # the divergence of heads that never read the same key, in nats

Head = tuple[int, int]


@dataclass(frozen=True, kw_only=True)
class Pair:
    """Two heads (layer, head) and how far apart they are, in nats."""

    first: Head
    second: Head
    divergence: float


@dataclass(frozen=True, kw_only=True)
class LayerSimilarity:
    """How alike the heads of one layer are.

    Args:
        layer: which one.
        nearest, farthest: the two heads that are most and least alike; None for a layer of one head, and where no
            divergence is a number.
        mean: of all pairs, in nats; None as well.
    """

    layer: int
    nearest: Pair | None
    farthest: Pair | None
    mean: float | None


@dataclass(frozen=True, kw_only=True)
class SimilarPart:
    """How alike the heads of one part are.

    Args:
        index: of the part, 0 = the main one.
        name: of the part; None where it stands alone.
        layers: one per layer; empty where they were not met.
        across: of every two heads of the model; None where they were not met.
        nearest: pairs of different layers that are most alike.
    """

    index: int
    name: str | None
    layers: tuple[LayerSimilarity, ...]
    across: HeadDivergence | None
    nearest: tuple[Pair, ...]


def parts_with_similarity(inspection: Inspection) -> list[SimilarPart]:
    """Return the parts whose heads were held against one another."""
    found = []
    for index, part in enumerate(parts_of(inspection)):
        own = part.inspection
        if own.divergences or own.divergence_across_layers is not None:
            across = own.divergence_across_layers
            found.append(
                SimilarPart(
                    index=index,
                    name=part.name,
                    layers=tuple(_layer(one) for one in own.divergences),
                    across=across,
                    nearest=() if across is None else tuple(nearest_across(across)),
                )
            )
    return found


def nearest_across(divergence: HeadDivergence, num_pairs: int = 5) -> list[Pair]:
    """Return the heads of different layers that are most alike."""
    heads = divergence.heads
    found = nsmallest(
        num_pairs,
        (
            (value, row, column)
            for row, values in enumerate(divergence.divergence)
            for column, value in enumerate(values[row + 1 :], start=row + 1)
            if heads[row][0] != heads[column][0] and math.isfinite(value)
        ),
    )
    return [Pair(first=heads[row], second=heads[column], divergence=value) for value, row, column in found]


def divergences_data(inspection: Inspection) -> dict[str, object]:
    """Return what the page draws: of each layer its heads, and their divergences as bytes, 255 standing for log 2."""
    return {
        "divergences": [
            {
                "layer": one.heads[0][0],
                "heads": [head for _, head in one.heads],
                "bytes": pack(bytes(_byte(value) for row in one.divergence for value in row)),
            }
            for one in inspection.divergences
            if one.heads
        ]
    }


def _byte(value: float) -> int:
    return round(255 * min(1.0, max(0.0, value / MOST))) if math.isfinite(value) else 0


def _layer(divergence: HeadDivergence) -> LayerSimilarity:
    pairs = _pairs(divergence)
    return LayerSimilarity(
        layer=divergence.heads[0][0],
        nearest=min(pairs, key=lambda pair: pair.divergence, default=None),
        farthest=max(pairs, key=lambda pair: pair.divergence, default=None),
        mean=sum(pair.divergence for pair in pairs) / len(pairs) if pairs else None,
    )


def _pairs(divergence: HeadDivergence) -> list[Pair]:
    """Return every two heads whose divergence is a number."""
    return [
        Pair(
            first=divergence.heads[row], second=divergence.heads[column], divergence=divergence.divergence[row][column]
        )
        for row, column in combinations(range(len(divergence.heads)), 2)
        if math.isfinite(divergence.divergence[row][column])
    ]
