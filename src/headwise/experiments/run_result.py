"""What a run answers with."""

from dataclasses import dataclass, field
from typing import Any

from headwise.results import Result


@dataclass(frozen=True, kw_only=True)
class Run(Result):
    """What came out of one run.

    Args:
        seed: of the run.
        num_parameters: of its model.
        steps: that were trained.
        seconds: of training, without looks at the validation set.
        best_step: after which the validation loss was lowest; 0 = it was never a number.
        clipped_share: of steps whose gradients were scaled down.
        num_bad: steps without finite gradients.
        test: metrics of the best state on the test set; empty where there was no such state.
        test_by_length: the same by bucket of lengths; empty where none were asked for.
        curve: what was written at each look.
        stopped: why the training ended before its last step; None = it did not.
    """

    seed: int
    num_parameters: int
    steps: int
    seconds: float
    best_step: int
    clipped_share: float
    num_bad: int
    test: dict[str, float]
    test_by_length: dict[str, dict[str, float]] = field(default_factory=dict)
    curve: tuple[dict[str, Any], ...] = ()
    stopped: str | None = None
