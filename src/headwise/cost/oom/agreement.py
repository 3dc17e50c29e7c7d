"""Whether a step fails with the very figures of a message, by the model of torch's caching allocator.

What is reserved and free tells steps apart whose tensors add up to the same: how blocks are cut and left over depends
on the size of every tensor before. On a device libraries take blocks too, so that a step which does not agree may still
be the one; one that does agree hardly does so by accident.
"""

from dataclasses import replace
from typing import NamedTuple

from headwise.config.linear import LinearAttentionConfig
from headwise.config.model import ModelConfig
from headwise.cost.allocator import OutOfMemory, replay
from headwise.cost.oom.births import LearnedStep, MomentKind
from headwise.cost.oom.evidence import printed_within
from headwise.cost.oom.learning import find_moment, strip_layer
from headwise.cost.oom.results import OomMessage
from headwise.cost.oom.scripts import Script, write_script
from headwise.cost.reserved import step_events
from headwise.cost.step.optimizers import optimizer_states, trained_parameters
from headwise.cost.step.play import play_step
from headwise.cost.workload import Workload
from headwise.errors import HeadwiseError

MAX_EVENTS = 1_000_000  # allocations and frees that are played or replayed for one message: some seconds
_NEAR = 4  # within so many times the rounding of what is printed, a script's failure is worth a play


class Failed(NamedTuple):
    """The tensor at which a replay fails."""

    name: str
    owner: str
    moment: MomentKind
    shape: tuple[int, ...]
    dtype: str


class Replayer:
    """Tells of steps at which tensor they fail with the figures of a message.

    A step is replayed from its script first, and played for itself only where that comes near to the figures. Linear
    attention goes through a text in chunks, of which no script tells: its steps are played at once.

    Args:
        config: the model.
        in_use, reserved: bytes as the message says.
        room: bytes that can be reserved in all.
    """

    def __init__(self, config: ModelConfig, in_use: int, reserved: int, room: int):
        self._config = config
        self._in_use, self._reserved, self._room = in_use, reserved, room
        self._scripts: dict[tuple[int, bool], Script] = {}
        self._has_chunks = any(isinstance(block.attention, LinearAttentionConfig) for block, _ in config.block_groups)
        self._never_begin: set[tuple[int, bool]] = set()  # scripts of steps whose weights alone do not fit
        self._num_events = 0

    @property
    def is_spent(self) -> bool:
        """Whether no more steps are worth asking for: enough are replayed, or none begins."""
        return self._num_events >= MAX_EVENTS

    def find_failure(self, step: LearnedStep, batch: int, seq: int) -> Failed | None:
        """Return the tensor at which a step of a batch and length fails with the figures.

        None where it does not, or where its weights fail, before it begins: so they do in every step that has them.
        """
        try:
            workload = replace(step.workload, batch=batch, seq=seq)
            return self._play(workload) if self._has_chunks or self._comes_near(step, workload) else None
        except HeadwiseError:
            return None

    def _comes_near(self, step: LearnedStep, workload: Workload) -> bool:
        """Tell whether a step's script fails with about the figures, and within the step."""
        key = (id(step), workload.batch == 1)
        if key in self._never_begin:
            return False
        if key not in self._scripts:
            self._scripts[key] = write_script(self._config, workload, reaches_windows=step.reaches_windows)
            self._num_events += len(self._scripts[key].events)
        script = self._scripts[key]
        failed = script.find_failure(workload.batch, workload.seq, self._room)
        agrees = self._agrees(failed, len(script.events), nearness=_NEAR)
        if failed is not None and failed.event < script.num_loading:
            self._never_begin.add(key)
            self._num_events += MAX_EVENTS if agrees else 0
            return False
        return agrees

    def _play(self, workload: Workload) -> Failed | None:
        events = list(step_events(self._config, workload))
        self._num_events += len(events)  # to play it takes about as long as to replay all of it
        failed = replay(events, capacity_bytes=self._room).out_of_memory
        if failed is None or not self._agrees(failed, len(events), nearness=1):
            return None
        found = _describe(self._config, workload, failed.key)  # type: ignore[arg-type]  # keys are of `step_events`
        if found.moment == "loading":
            self._num_events += MAX_EVENTS
            return None
        return found

    def _agrees(self, failed: OutOfMemory | None, num_events: int, *, nearness: int) -> bool:
        """Count a replay, and tell whether it failed with the figures."""
        self._num_events += num_events if failed is None else failed.event
        if failed is None:
            return False
        figures = ((failed.allocated_bytes, self._in_use), (failed.reserved_bytes, self._reserved))
        return all(abs(own - printed) <= nearness * printed_within(printed) for own, printed in figures)


def make_replayer(config: ModelConfig, message: OomMessage) -> Replayer | None:
    """Return what replays steps for a message; None where it does not give the bytes in use, reserved and free."""
    in_use, reserved, room = message.allocated_bytes, message.reserved_bytes, room_of(message)
    if in_use is None or reserved is None or room is None or message.backend not in ("cuda", "hip"):
        return None
    return Replayer(config, in_use, reserved, room)


def room_of(message: OomMessage) -> int | None:
    """Return how much can be reserved in all by a message's figures; None where they do not tell.

    It is what is reserved and what is free, at the upper end of what is printed: a trifle less, and what just fitted
    before would fail. A trifle more lets nothing pass that fails, but for a request which that trifle makes fit.
    """
    reserved, free, requested = message.reserved_bytes, message.free_bytes, message.requested_low_bytes
    if reserved is None or free is None:
        return None
    rounding = printed_within(reserved) + printed_within(free)
    spare = rounding if requested is None else min(rounding, requested - free - rounding)
    return reserved + free + max(0, int(spare))


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
