"""Whether a step fails with the very figures of a message, by the model of torch's caching allocator.

What is reserved and free tells steps apart whose tensors add up to the same: how blocks are cut and left over depends
on the size of every tensor before. On a device libraries take blocks too, so that a step which does not agree may still
be the one; one that does agree hardly does so by accident.
"""

from collections.abc import Callable
from typing import NamedTuple

from headwise.config.model import ModelConfig
from headwise.cost.allocator import OutOfMemory, replay
from headwise.cost.oom.births import MomentKind
from headwise.cost.oom.evidence import printed_within
from headwise.cost.oom.learning import find_moment, strip_layer
from headwise.cost.oom.results import OomMessage
from headwise.cost.reserved import step_events
from headwise.cost.step.optimizers import optimizer_states, trained_parameters
from headwise.cost.step.play import play_step
from headwise.cost.workload import Workload
from headwise.errors import HeadwiseError

_NEAR = 4  # so many times the rounding of what is printed, a second look is worth while


class Failed(NamedTuple):
    """The tensor at which a replay fails."""

    name: str
    owner: str
    moment: MomentKind
    shape: tuple[int, ...]
    dtype: str


Replayer = Callable[[Workload], Failed | None]


def make_replayer(config: ModelConfig, message: OomMessage) -> Replayer | None:
    """Return what tells of a step at which tensor it fails with a message's figures, None where it does not.

    None where the message does not give all of the bytes in use, reserved and free.
    """
    in_use, reserved, free = message.allocated_bytes, message.reserved_bytes, message.free_bytes
    if in_use is None or reserved is None or free is None or message.backend not in ("cuda", "hip"):
        return None

    def replayer(workload: Workload) -> Failed | None:
        try:
            room = reserved + free
            for nearness in (_NEAR, 1):
                failed = replay(step_events(config, workload), capacity_bytes=room).out_of_memory
                if failed is None or not _agrees(failed, in_use, reserved, nearness):
                    return None
                room = failed.reserved_bytes + free  # what is free is printed to more digits than what is reserved
        except HeadwiseError:
            return None
        assert failed is not None
        return _describe(config, workload, failed.key)  # type: ignore[arg-type]  # keys are those of `step_events`

    return replayer


def _agrees(failed: OutOfMemory, in_use: int, reserved: int, nearness: int) -> bool:
    figures = ((failed.allocated_bytes, in_use), (failed.reserved_bytes, reserved))
    return all(abs(own - printed) <= nearness * printed_within(printed) for own, printed in figures)


def _describe(config: ModelConfig, workload: Workload, key: tuple[int, int]) -> Failed:
    step, index = key
    tape = play_step(config, config.blocks, workload)
    if step < 0:
        record = [state for one in trained_parameters(tape) for state in optimizer_states(one, workload)][index]
        moment: MomentKind = "optimizer"
    else:
        record = tape.records[index]
        moment = find_moment(record, tape)
    return Failed(strip_layer(record.name), strip_layer(record.owner), moment, record.shape, record.dtype)
