"""How far a report is, for a progress bar."""

from collections.abc import Callable

Progress = Callable[[str, int, int], None]
"""Called with what is being done, how much is done, and how much there is."""

STEPS = (
    "loading the model",
    "counting parameters and FLOPs",
    "measuring a training step",
    "looking at the heads",
    "writing the page",
)
PARTS = 100  # parts of a step that a step can report


class Steps:
    """Tells a progress function which step of a report has begun, and how much of it is done."""

    def __init__(self, progress: Progress | None):
        self.progress = progress
        self.current = STEPS[0]

    def start(self, name: str) -> None:
        """Say that a step begins."""
        self.current = name
        self.advance(0, 1)

    def advance(self, done: int, total: int) -> None:
        """Say how much of the current step is done."""
        if self.progress is not None:
            self.progress(self.current, PARTS * STEPS.index(self.current) + PARTS * done // total, PARTS * len(STEPS))

    def finish(self) -> None:
        """Say that everything is done."""
        if self.progress is not None:
            self.progress("done", PARTS * len(STEPS), PARTS * len(STEPS))
