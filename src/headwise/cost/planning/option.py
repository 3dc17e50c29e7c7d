"""Option: one way of changing a setup, before it is known what it frees."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from headwise.cost.planning.results import ListName
from headwise.cost.planning.setup import Setup
from headwise.cost.planning.verdict import Judge
from headwise.cost.results import Device


class Made(NamedTuple):
    """A setup with one change made: what was done in words, and whether the result is the "same"."""

    setup: Setup
    words: str
    list: ListName


class Place(NamedTuple):
    """Where a change is made: the judge of what fits, and over how many devices a step could be spread."""

    judge: Judge
    num_devices: int

    @property
    def device(self) -> Device:
        """The device that the step should fit."""
        return self.judge.device


Maker = Callable[[Setup, Place], Made | str]
"""From a setup, the changed one; a string says why it cannot be made there."""


@dataclass(frozen=True, kw_only=True)
class Option:
    """A change that can be tried.

    `make` makes it. `list`: where it stands as a rule; what was made says it for the setup. `topic`: of options with
    one topic at most one is made. `is_technique`: it leaves the model, its training, the batch, the length and
    the number of devices as they are. `takes_devices`: it needs more than one.
    """

    key: str
    topic: str
    words: str
    list: ListName
    make: Maker
    is_technique: bool = False
    takes_devices: bool = False
