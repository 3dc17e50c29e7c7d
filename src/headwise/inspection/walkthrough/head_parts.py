"""Which dimensions, or rotation pairs, made a score, or the difference of two."""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from headwise.inspection.walkthrough.head_reading import HeadReading
from headwise.inspection.walkthrough.pairs import RotationPairs
from headwise.inspection.walkthrough.results import Contrast, ExplainedScore, ScorePart

Told = tuple[float, float, float]
"""(score, scaled product, bias) of a key."""


def explain_score(
    reading: HeadReading, told: Told, index: int, token: str, pairs: RotationPairs | None
) -> ExplainedScore:
    """Take the score of one key apart: `scale * q . k = sum over dimensions d of scale * q_d k_d`."""
    assert reading.query_vector is not None and reading.keys is not None and reading.scale is not None
    products = reading.query_vector.double() * reading.keys[index].double()
    score, scaled, _ = told
    return ExplainedScore(
        index=index, token=token, score=score, scaled=scaled, parts=parts_of(products, reading.scale, pairs)
    )


def contrast_of(
    reading: HeadReading,
    told: dict[int, Told],
    index: int,
    against: int,
    labels: list[str],
    pairs: RotationPairs | None,
) -> Contrast:
    """Take the difference of two keys' scores apart: `scale * (q_d a_d - q_d b_d)` for each dimension d."""
    assert reading.query_vector is not None and reading.keys is not None and reading.scale is not None
    difference = reading.keys[index].double() - reading.keys[against].double()
    score, scaled, bias = (one - other for one, other in zip(told[index], told[against], strict=True))
    try:
        ratio = math.exp(score)
    except OverflowError:
        ratio = math.inf
    return Contrast(
        index=index,
        token=labels[index],
        against=against,
        against_token=labels[against],
        score=score,
        scaled=scaled,
        bias=bias,
        ratio=ratio if math.isfinite(ratio) else None,
        parts=parts_of(reading.query_vector.double() * difference, reading.scale, pairs),
    )


def sum_pairs(products: Float[Tensor, "keys head_dim"], pairs: RotationPairs) -> Float[Tensor, "keys num_pairs"]:
    """Return the sum of the products of each rotation pair."""
    both = torch.tensor([pairs.dimensions_of(pair) for pair in range(len(pairs.frequencies))])
    return products[:, both.to(products.device)].sum(dim=-1)


def parts_of(products: Float[Tensor, " head_dim"], scale: float, pairs: RotationPairs | None) -> tuple[ScorePart, ...]:
    """Return what each dimension adds to a score, the largest first; the two of a rotation pair together.

    Args:
        products: `q_d * k_d`.
        scale: factor on them.
        pairs: of the head's first dimensions; the others stand alone. None = all stand alone.
    """
    groups: list[tuple[tuple[int, ...], float | None]] = []
    turned = 0
    if pairs is not None:
        turned = pairs.rotary_dim
        groups = [(pairs.dimensions_of(pair), pairs.wavelength_of(pair)) for pair in range(len(pairs.frequencies))]
    groups += [((dimension,), None) for dimension in range(turned, len(products))]
    parts = []
    for dimensions, wavelength in groups:
        own = tuple(products[list(dimensions)].tolist())
        score = scale * float(torch.tensor(own, dtype=torch.float64).sum())
        parts.append(ScorePart(dimensions=dimensions, products=own, score=score, wavelength=wavelength))
    return tuple(sorted(parts, key=lambda part: -abs(part.score) if math.isfinite(part.score) else -math.inf))
