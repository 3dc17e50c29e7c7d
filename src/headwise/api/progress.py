"""How far a verb is, for a progress bar."""

from collections.abc import Callable, Sequence

Progress = Callable[[str, int, int], None]
"""Called with what is being done, how much is done, and how much there is."""

PARTS = 100  # parts of a step that a step can report


class Steps:
    """Tells a progress function which step of a verb has begun, and how much of it is done.

    Args:
        progress: what is told; None: nobody.
        names: of all steps, in order.
    """

    def __init__(self, progress: Progress | None, names: Sequence[str]):
        self.progress = progress
        self.names = names
        self.current = names[0]

    def start(self, name: str) -> None:
        """Say that a step begins."""
        self.current = name
        self.advance(0, 1)

    def advance(self, done: int, total: int) -> None:
        """Say how much of the current step is done."""
        before = PARTS * self.names.index(self.current)
        self._tell(self.current, before + PARTS * done // total)

    def finish(self) -> None:
        """Say that everything is done."""
        self._tell("done", PARTS * len(self.names))

    def _tell(self, what: str, done: int) -> None:
        if self.progress is not None:
            self.progress(what, done, PARTS * len(self.names))
