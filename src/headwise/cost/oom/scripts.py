"""Script: the allocations and frees of a step in order, of every layer, written once for all batches and lengths.

To play a step takes several times as long as to replay what it allocates. So a step is played once, at the batch and
length at which patterns are learned, and replayed at any from its script. That is right but for what is rounded up to
a multiple of some tokens, as the workspaces of kernels are: at the length that is played nothing is.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from headwise.config.block import BlockConfig
from headwise.config.model import ModelConfig
from headwise.cost.allocator import OutOfMemory, replay
from headwise.cost.oom.learning import is_whole, widen_window
from headwise.cost.oom.patterns import PROBE_BATCH, PROBE_SEQ, Pattern, learn_pattern
from headwise.cost.reserved import step_events
from headwise.cost.step.optimizers import optimizer_states, trained_parameters
from headwise.cost.step.play import play_step
from headwise.cost.step.tape import Record, Tape
from headwise.cost.workload import Workload


@dataclass(frozen=True)
class Script:
    """What a step allocates and frees.

    `events`: a key, and the place of its size in `sizes`, or None where it is freed. `sizes`: patterns, or bytes that
    are the same at all batches and lengths. `num_loading`: how many of the first events are of weights and inputs.
    """

    events: tuple[tuple[object, int | None], ...]
    sizes: tuple[Pattern | int, ...]
    num_loading: int

    def find_failure(self, batch: int, seq: int, room: int) -> OutOfMemory | None:
        """Return the first allocation of a batch and length that does not fit into so many bytes."""
        bytes_at = [size if isinstance(size, int) else size.bytes_at(batch, seq) for size in self.sizes]
        events = ((key, None if place is None else bytes_at[place]) for key, place in self.events)
        return replay(events, capacity_bytes=room).out_of_memory


def write_script(config: ModelConfig, workload: Workload, *, reaches_windows: bool = True) -> Script:
    """Write the script of a step.

    Its length does not count, and of its batch only whether it is 1: then some copies fall away.

    Args:
        config: the model.
        workload: the step.
        reaches_windows: whether texts are at least as long as the windows of the layers.

    Raises:
        UnsupportedError, ConfigError: as of `predict_ledger`, and where the model has too many layers to list.
    """
    tapes: list[Tape] = []

    def play(config: ModelConfig, blocks: Sequence[BlockConfig], workload: Workload) -> Tape:
        played = blocks if reaches_windows else [widen_window(block) for block in blocks]
        tapes.append(play_step(config, played, workload))
        return tapes[-1]

    probe = replace(workload, batch=1 if workload.batch == 1 else PROBE_BATCH, seq=PROBE_SEQ)
    events = list(step_events(config, probe, play))
    (tape,) = tapes
    states = [state for one in trained_parameters(tape) for state in optimizer_states(one, probe)]
    places: dict[Pattern | int, int] = {}
    written: list[tuple[object, int | None]] = []
    num_loading = None
    for key, num_bytes in events:
        step, index = key
        record = states[index] if step < 0 else tape.records[index]
        if num_loading is None and (num_bytes is None or record.kind not in ("parameter", "input")):
            num_loading = len(written)
        place = None if num_bytes is None else places.setdefault(_size_of(record), len(places))
        written.append((key, place))
    return Script(tuple(written), tuple(places), num_loading or 0)


def _size_of(record: Record) -> Pattern | int:
    return learn_pattern(record.shape, record.dtype) if is_whole(record) else record.bytes
