"""SendingTape: a tape that notes what its device sends to others, in the very place where that is decided."""

from dataclasses import dataclass, field
from typing import Literal

from headwise.cost.step.tape import Tape

Collective = Literal["all-gather", "reduce-scatter", "all-reduce", "ring"]


@dataclass(frozen=True, slots=True)
class Send:
    """One collective operation: what it is of, whose, and the bytes of the whole tensor; of a "ring" those sent."""

    what: str
    collective: Collective
    bytes: int
    owner: str


@dataclass
class SendingTape(Tape):
    """A tape of one device of several.

    Args:
        sends: what it has sent so far; what backward will send is noted in the forward pass, of operations that get a
            gradient.
    """

    sends: list[Send] = field(default_factory=list)

    @property
    def goes_forward(self) -> bool:
        """Whether this is the forward pass itself, and no part of it that runs again in backward."""
        return self.first_backward_tick is None

    def send(self, what: str, collective: Collective, num_bytes: int) -> None:
        """Note a collective operation of the forward pass, or of a part of it that runs again."""
        self.sends.append(Send(what if self.goes_forward else f"{what}, again", collective, num_bytes, self.owner))

    def send_in_backward(self, what: str, collective: Collective, num_bytes: int) -> None:
        """Note what backward of an operation will send; one that runs again has no backward of its own."""
        if self.goes_forward:
            self.sends.append(Send(what, collective, num_bytes, self.owner))
