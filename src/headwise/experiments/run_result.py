"""What a run answers with."""

from dataclasses import dataclass, field, replace
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
        test: metrics of the best state on the test set; empty where there was no such state, or texts are too long.
        test_by_length: the same by bucket of lengths; empty where none were asked for.
        curve: what was written at each look.
        stopped: why the training ended before its last step; None = it did not.
        train_loss_end, validation_loss_end: of the last state, in eval mode, on as many training texts as there are to
            validate on, and on those; in nats an answer, without smoothing. None = no finite number.
        validation_loss_best: the lowest of all looks; None = there was no finite number.
        steps_per_second: of training, without looks.
        peak_bytes: the most that forward and backward of the first step take beyond what stood before, as torch's
            allocator counts them; None = it is not known.
        seconds_to: of training until the accuracy of the validation set first reached 0.5, 0.9 and 0.99, by that number
            as text; those that it never reached are missing.
        further: metrics of the best state on each further test, by its name; empty where texts are too long.
        further_notes: why a test has no metrics, by its name; the test itself is called "test".
        notes: what else a reader must know.
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
    train_loss_end: float | None = None
    validation_loss_end: float | None = None
    validation_loss_best: float | None = None
    steps_per_second: float | None = None
    peak_bytes: int | None = None
    seconds_to: dict[str, float] = field(default_factory=dict)
    further: dict[str, dict[str, float]] = field(default_factory=dict)
    further_notes: dict[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def gap(self) -> float | None:
        """Return the loss of the last state on validation texts less that on training texts, in nats an answer."""
        if self.train_loss_end is None or self.validation_loss_end is None:
            return None
        return self.validation_loss_end - self.train_loss_end

    def without_measurements(self) -> "Run":
        """Return what depends on the settings alone: times and memory, which no two runs share, are left out."""
        return replace(self, seconds=0.0, steps_per_second=None, peak_bytes=None, seconds_to={})
