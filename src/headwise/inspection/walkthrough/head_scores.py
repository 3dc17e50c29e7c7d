"""The scores and weights of one query of one head, in float64."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from headwise.inspection.walkthrough.head_reading import HeadReading
from headwise.inspection.walkthrough.steps import KeptSteps
from headwise.ops.scores import cap_scores


@dataclass(frozen=True, eq=False, kw_only=True)
class Scored:
    """The scores of the visible keys, and what they are made of: a number a key."""

    products: Tensor
    scaled: Tensor
    bias: Tensor | None
    scores: Tensor
    exponentials: Tensor
    weights: Tensor
    sink_weight: Tensor | None

    def by_key(self, seen: Sequence[int]) -> dict[int, tuple[float, float, float]]:
        """Return (score, scaled product, bias) of each visible key, by its number."""
        return {
            index: (
                float(self.scores[at]),
                float(self.scaled[at]),
                0.0 if self.bias is None else float(self.bias[at]),
            )
            for at, index in enumerate(seen)
        }


def score_keys(reading: HeadReading, visible: Tensor, steps: KeptSteps) -> Scored | None:
    """Compute scores and weights from the query and the keys; None where the layer did not tell them."""
    if reading.query_vector is None or reading.keys is None or reading.scale is None:
        return None
    q, keys = reading.query_vector.double(), reading.keys.double()[visible]
    steps.add("query", f"q of token {reading.query} in head {reading.head}, positions applied", q)
    products = keys @ q
    steps.add("scores_before_scale", "query @ key, for each key that the query may read", products)
    root = 1 / math.sqrt(len(q))
    is_usual = math.isclose(reading.scale, root, rel_tol=1e-6)
    steps.add(
        "scale",
        f"1 / sqrt(head_dim) = 1 / sqrt({len(q)})" if is_usual else "the layer's own",
        torch.tensor(reading.scale, dtype=torch.float64),
    )
    scaled = reading.scale * products
    last = "scale * scores_before_scale"
    scores = cap_scores(scaled, reading.softcap)
    if reading.softcap is not None:
        steps.add("capped", f"{reading.softcap:g} * tanh({last} / {reading.softcap:g})", scores)
        last = "capped"
    bias = None if reading.bias is None else reading.bias.double()[visible]
    if bias is not None and not bool(bias.any()):
        bias = None  # a mask of floats, which hides keys and adds nothing to the others
    if bias is not None:
        steps.add("bias", "added to the scores", bias)
        scores = scores + bias
        last = f"{last} + bias"
    steps.add("mask", "1 = the query may read the key; the others have no score and weight 0", reading.visible.double())
    steps.add("scores", last, scores)
    sink = None if reading.sink is None else torch.tensor(reading.sink, dtype=torch.float64)
    highest = scores.max() if len(scores) else torch.zeros((), dtype=torch.float64)
    if sink is not None:
        steps.add("sink", "one more score, which no key has", sink)
        highest = torch.maximum(highest, sink)
    exponentials = (scores - highest).exp()
    steps.add("exponentials", "exp(scores - the largest)", exponentials)
    extra = None if sink is None else (sink - highest).exp()
    total = exponentials.sum() if extra is None else exponentials.sum() + extra
    steps.add("sum", "sum of exponentials" + ("" if extra is None else " + exp(sink - the largest)"), total)
    weights = exponentials / total if len(scores) else exponentials
    steps.add("weights", "exponentials / sum", weights)
    sink_weight = None if extra is None else extra / total
    if sink_weight is not None:
        steps.add("sink_weight", "exp(sink - the largest) / sum", sink_weight)
    return Scored(
        products=products,
        scaled=scaled,
        bias=bias,
        scores=scores,
        exponentials=exponentials,
        weights=weights,
        sink_weight=sink_weight,
    )
