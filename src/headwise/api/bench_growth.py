"""How a measured quantity grows with the length: the exponent of the power law that fits best."""

import math
from collections.abc import Sequence


def fit_exponent(lengths: Sequence[int], values: Sequence[int | float]) -> float | None:
    """Return the exponent p of the `c * length^p` nearest to the values, by least squares of the logarithms.

    `p = sum((x - mean x) (y - mean y)) / sum((x - mean x)^2)` with x = log length, y = log value

    Args:
        lengths: at least 1 each.
        values: one a length; those that are 0 or below have no logarithm and are left out.

    Returns:
        The exponent; None with fewer than two lengths to tell it from.
    """
    points = [(math.log(x), math.log(y)) for x, y in zip(lengths, values, strict=True) if y > 0]
    if len({x for x, _ in points}) < 2:
        return None
    mean_x = math.fsum(x for x, _ in points) / len(points)
    mean_y = math.fsum(y for _, y in points) / len(points)
    spread = math.fsum((x - mean_x) ** 2 for x, _ in points)
    return math.fsum((x - mean_x) * (y - mean_y) for x, y in points) / spread
