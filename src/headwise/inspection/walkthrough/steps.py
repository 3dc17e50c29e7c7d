"""Steps of a computation on tensors, kept as plain numbers."""

from typing import Any

from torch import Tensor

from headwise.inspection.results import Step


class Steps:
    """The steps so far, in the order in which they are computed."""

    def __init__(self) -> None:
        self.found: list[Step] = []

    def add(self, name: str, equation: str, values: Tensor) -> None:
        """Keep one step with all its numbers."""
        numbers: Any = values.tolist()
        self.found.append(Step(name=name, equation=equation, shape=tuple(values.shape), values=_freeze(numbers)))


def _freeze(numbers: Any) -> Any:
    return tuple(map(_freeze, numbers)) if isinstance(numbers, list) else float(numbers)
