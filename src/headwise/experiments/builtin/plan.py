"""How long the built-in comparisons take, roughly."""

from collections.abc import Sequence

from headwise.experiments.compare import Comparison

STEP_SECONDS = {
    "heads-offsets": 0.034,
    "heads-recall": 0.013,
    "heads-bbc": 0.048,
    "heads-r8": 0.046,
    "reduction-offsets": 0.030,
    "reduction-cost": 0.085,
    "length-copy-all": 0.041,
    "length-copy-short": 0.030,
    "length-reverse-all": 0.041,
    "length-reverse-short": 0.035,
    "length-recall-all": 0.030,
    "length-recall-short": 0.026,
    "length-r8": 0.050,
    "positions-language": 0.041,
    "positions-copy": 0.040,
    "attention-kinds-language": 0.063,
    "attention-kinds-copy": 0.052,
    "attention-kinds-cost-256": 0.062,
    "attention-kinds-cost-1024": 0.096,
    "precision-and-memory": 0.154,
    "scale": 0.022,
    "stability": 0.055,
}
"""Seconds of one core of a step of each part, the mean of its arms: measured with two runs at once, without looks."""

LOOKS = 1.15  # times the steps: looks at the validation set, tests, and starts of processes


def core_seconds(parts: Sequence[Comparison]) -> float | None:
    """Return about how many seconds of one core some parts take in all; None: one is no built-in's."""
    if any(part.name not in STEP_SECONDS for part in parts):
        return None
    return sum(LOOKS * STEP_SECONDS[part.name] * _steps(part) for part in parts)


def _steps(part: Comparison) -> int:
    """Return the steps of all runs, those that choose learning rates among them."""
    runs = len(part.seeds) + len(part.learning_rates)
    return runs * sum((arm.recipe or part.recipe).steps for arm in part.arms)
