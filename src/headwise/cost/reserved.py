"""predict_reserved: what torch's CUDA allocator holds from the driver for a step, replayed from its closed form.

Derived, not measured: the tensors are those of the closed form, in the order in which the step makes and frees them.
What kernels take for themselves is not among them.
"""

from collections.abc import Iterator

from headwise.collector import without_collections
from headwise.config.model import ModelConfig
from headwise.cost.allocator import replay
from headwise.cost.step.optimizers import OPTIMIZER_STEP, optimizer_states, trained_parameters
from headwise.cost.step.play import Play, play_step
from headwise.cost.step.repeat import repeated_step
from headwise.cost.step.repeat_events import STANDING_KINDS, changes_of, changes_of_tape, states_of
from headwise.cost.workload import Workload
from headwise.errors import UnsupportedError

MAX_LISTED_LAYERS = 200  # about 150,000 events, and a few seconds

Event = tuple[tuple[int, int], int | None]
"""A key (step, tensor) with bytes: it is allocated; with None: it is freed."""


def predict_reserved(config: ModelConfig, workload: Workload, play: Play = play_step) -> int:
    """Return the most bytes that torch's allocator reserves in the first steps of a training, in a prefill or a decode.

    Of a decode it is one token with what it finds: what earlier tokens have cut up is not known.

    Args:
        config: the model.
        workload: on device "cuda".
        play: how the step is played (see `sharding`).

    Raises:
        UnsupportedError: another device, or too many layers.
    """
    if workload.device != "cuda":
        raise UnsupportedError(f"torch reserves memory on CUDA alone; got device {workload.device!r}")
    return replay(repeated_events(config, workload, play)).reserved_peak_bytes


def step_events(config: ModelConfig, workload: Workload, play: Play = play_step) -> Iterator[Event]:
    """Give the allocations and frees of two training steps in order, of every layer; of a prefill or a decode, of one.

    The first step makes the optimizer's states when it comes to the optimizer; the second one finds segments that the
    first has cut, and may need more. Between them gradients are freed.

    Raises:
        UnsupportedError: the model has more than `MAX_LISTED_LAYERS` layers, those of an encoder included.
    """
    _require_listed(config)
    tape = play(config, config.blocks, workload)
    first_work = next((one.begin_tick for one in tape.stretches if one.label == OPTIMIZER_STEP), tape.tick)
    changes = []
    for tick, index, is_made in sorted(changes_of_tape(tape)):
        record = tape.records[index]
        num_bytes = record.bytes if is_made else None
        changes.append((index, num_bytes, record.kind in STANDING_KINDS, tick > first_work))
    states = [state.bytes for one in trained_parameters(tape) for state in optimizer_states(one, workload)]
    return _steps(changes, states, workload)


def repeated_events(config: ModelConfig, workload: Workload, play: Play = play_step) -> Iterator[Event]:
    """Give what `step_events` gives, from the play of few layers: numbers of tensors differ, and no more is played.

    An optimizer that works on one parameter after another does so for the played layers alone.

    Raises:
        UnsupportedError: as of `step_events`.
    """
    _require_listed(config)
    step = repeated_step(config, workload, play)
    optimizer = step.moments.index(OPTIMIZER_STEP) if OPTIMIZER_STEP in step.moments else len(step.moments)
    with without_collections():
        changes = [
            (number, num_bytes, is_standing, moment >= optimizer)
            for moment, number, num_bytes, is_standing in changes_of(step)
        ]
    return _steps(changes, states_of(step, workload), workload)


def _require_listed(config: ModelConfig) -> None:
    num_layers = config.num_layers + (len(config.encoder.blocks) if config.encoder else 0)
    if num_layers > MAX_LISTED_LAYERS:
        raise UnsupportedError(
            f"allocations are listed for models of at most {MAX_LISTED_LAYERS} layers; got {num_layers}: "
            "predict_step gives the peak of any depth"
        )


def _steps(changes: list[tuple[int, int | None, bool, bool]], states: list[int], workload: Workload) -> Iterator[Event]:
    """Give the events of the steps; parameters, buffers and states are made in the first one and stay.

    Args:
        changes: of one step in order: number of a tensor, its bytes or None, whether it stands from step to step, and
            whether the optimizer is at work.
        states: bytes of the optimizer's.
        workload: of a training, two steps are listed.
    """
    num_steps = 2 if workload.phase == "train" else 1
    for step in range(num_steps):
        makes_states = step == 0
        for number, num_bytes, is_standing, is_optimizing in changes:
            if step and is_standing:
                continue
            if makes_states and is_optimizing:
                yield from (((-1, place), state) for place, state in enumerate(states))
                makes_states = False
            yield (step, number), num_bytes
