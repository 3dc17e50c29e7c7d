"""When a role says something about a head: a threshold, and two nulls that its score must stand clear of.

**Untrained null**: the highest score that any head of the same architecture reaches with random weights. There is no
head in it to pair a trained one with, and a search over all heads for the best one is met by the best of as many
untrained ones: the maximum over all that were tried, as in tests of many hypotheses at once (Westfall and Young 1993,
"Resampling-Based Multiple Testing", the maximum statistic).

**Shuffled null**: what the same head puts on the keys that are the role's by the wrong one of its two links, place or
token, in the shuffled texts that part them (`role_texts`). A token is itself in any order, so "self" has none.

A score is clearly above a null if it is at least twice as high, so that the larger part of it is not the null's, and
if the difference exceeds what means of so few numbers between 0 and 1 may differ by chance in one case of a hundred:
`sqrt(log(100) / 2 * (1 / n + 1 / m))` for n and m queries (Hoeffding 1963, "Probability Inequalities for Sums of
Bounded Random Variables", theorem 2, for the n + m terms of a difference of two means). That is for independent
queries; those of one text are not, so it is the least to ask for, not a level of significance.

"Uniform" is what an untrained head does. It says that a head cannot be told from one, so it must be above no null; the
untrained one is shown beside it.
"""

import math
from typing import NamedTuple

from headwise.inspection.roles.positional import HOLDS_FROM

# at most a tenth of the weight lies elsewhere than a uniform head would lay it
UNIFORM_FROM = 0.9
UNIFORM = "uniform"
CHANCE = 0.01


class Score(NamedTuple):
    """A mean over queries; None where it is over none."""

    mean: float | None
    num_queries: int


def threshold(name: str) -> float:
    """Return the score from which on a role can hold: one half, more on its keys than on all others together."""
    return UNIFORM_FROM if name == UNIFORM else HOLDS_FROM


def holds(name: str, score: Score, nulls: tuple[Score, ...]) -> bool:
    """Tell whether a score is at least the role's threshold and clearly above every null that there is, at least one.

    Args:
        name: of the role.
        score: the head's.
        nulls: the untrained and the shuffled one; those over no query say nothing.
    """
    if score.mean is None or not score.mean >= threshold(name):
        return False
    known = [null for null in nulls if null.mean is not None]
    return name == UNIFORM or (bool(known) and all(is_clearly_above(score, null) for null in known))


def is_clearly_above(score: Score, null: Score) -> bool:
    """Tell whether a score is at least twice a null, and above it by more than chance."""
    assert score.mean is not None and null.mean is not None
    chance = math.sqrt(math.log(1 / CHANCE) / 2 * (1 / score.num_queries + 1 / null.num_queries))
    return score.mean >= 2 * null.mean and score.mean - null.mean > chance
