"""Steps of a computation on tensors, kept as plain numbers."""

from torch import Tensor

from headwise.inspection.results import Step
from headwise.inspection.walkthrough.compute import freeze


class KeptSteps:
    """The steps so far, in the order in which they are computed."""

    def __init__(self) -> None:
        self.found: list[Step] = []

    def add(self, name: str, equation: str, values: Tensor) -> None:
        """Keep one step with all its numbers."""
        self.found.append(Step(name=name, equation=equation, shape=tuple(values.shape), values=freeze(values.tolist())))
