"""What each key brings to what one head puts out for one query, in float64."""

from dataclasses import dataclass

import torch
from torch import Tensor

from headwise.inspection.walkthrough.head_reading import HeadReading
from headwise.inspection.walkthrough.steps import KeptSteps


@dataclass(frozen=True, eq=False, kw_only=True)
class Mixed:
    """What each visible key brings to the output; None where it is not known."""

    value_norms: Tensor | None = None
    contributions: Tensor | None = None
    written: Tensor | None = None
    shares: Tensor | None = None
    output_norm: float | None = None
    written_norm: float | None = None
    is_changed_after: bool = False


def mix_values(reading: HeadReading, visible: Tensor, weights: Tensor, steps: KeptSteps) -> Mixed:
    """Compute what each visible key brings to the head's output, and hold it against what the projection reads."""
    real = None if reading.output is None else reading.output.double()
    if reading.values is None or reading.query_vector is None:
        if real is None:
            return Mixed()
        steps.add("output", "what the output projection reads of this head", real)
        return Mixed(output_norm=float(real.norm()), written_norm=_written_norm(real, reading.projection))
    values = reading.values.double()[visible]
    contributions = weights.unsqueeze(-1) * values
    output = contributions.sum(dim=0)
    is_changed = real is not None and not _agrees(reading, output, real)
    projection = None if is_changed or reading.projection is None else reading.projection.double()
    value_norms, norms = values.norm(dim=-1), contributions.norm(dim=-1)
    steps.add("value_norms", "||value|| of each key", value_norms)
    steps.add("contributions", "weights * ||value||", norms)
    written, along = None, contributions
    if projection is not None:
        along = contributions @ projection
        written = along.norm(dim=-1)
        steps.add("written", "weights * ||value @ w_o||, w_o the head's rows of the output projection", written)
    total = along.sum(dim=0)
    shares = along @ total / (total @ total) if float(total @ total) else None
    if shares is not None:
        mixed = "value" if projection is None else "value @ w_o"
        steps.add("shares", f"c . o / (o . o) of c = weight * {mixed} and o = their sum", shares)
    steps.add("output", "sum of weights * value", output)
    steps.add("output_norm", "||output||", output.norm())
    if projection is not None:
        steps.add("written_norm", "||output @ w_o||", total.norm())
    return Mixed(
        value_norms=value_norms,
        contributions=norms,
        written=written,
        shares=shares,
        output_norm=float(output.norm()),
        written_norm=None if projection is None else float(total.norm()),
        is_changed_after=is_changed,
    )


def _agrees(reading: HeadReading, output: Tensor, real: Tensor) -> bool:
    """Tell whether the weighted sum of values is what the projection reads, as far as the model's arithmetic allows.

    A score is off by some eps of `||q|| ||k|| scale`, a weight by as much relative to itself; a sum of S values by S
    eps of the largest. eps is that of the model's own dtype.
    """
    assert reading.values is not None and reading.query_vector is not None and reading.keys is not None
    assert reading.scale is not None
    if output.shape != real.shape:
        return False
    if not len(reading.values):
        return True
    eps = max(torch.finfo(dtype).eps for dtype in (reading.values.dtype, torch.float32))
    reach = float(reading.query_vector.norm() * reading.keys.norm(dim=-1).amax() * abs(reading.scale))
    tolerance = eps * (8 * (2 + reach) + len(reading.values)) * float(reading.values.abs().amax())
    gap = float((output - real).abs().max()) if output.numel() else 0.0
    return not gap > tolerance  # NaN tells nothing


def _written_norm(output: Tensor, projection: Tensor | None) -> float | None:
    return None if projection is None else float((output @ projection.double()).norm())
