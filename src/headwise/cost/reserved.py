"""predict_reserved: what torch's CUDA allocator holds from the driver for a step, replayed from its closed form.

Derived, not measured: the tensors are those of the closed form, in the order in which the step makes and frees them.
What kernels take for themselves is not among them.
"""

from collections.abc import Iterator

from headwise.config.model import ModelConfig
from headwise.cost.allocator import replay
from headwise.cost.step.optimizers import OPTIMIZER_STEP, optimizer_states, trained_parameters
from headwise.cost.step.play import Play, play_step
from headwise.cost.step.tape import Record, Tape
from headwise.cost.workload import Workload
from headwise.errors import UnsupportedError

MAX_LISTED_LAYERS = 200  # about 150,000 events, and a few seconds

STANDING_KINDS = ("parameter", "input")

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
    return replay(step_events(config, workload, play)).reserved_peak_bytes


def step_events(config: ModelConfig, workload: Workload, play: Play = play_step) -> Iterator[Event]:
    """Give the allocations and frees of two training steps in order, of every layer; of a prefill or a decode, of one.

    The first step makes the optimizer's states when it comes to the optimizer; the second one finds segments that the
    first has cut, and may need more. Between them gradients are freed.

    Raises:
        UnsupportedError: the model has more than `MAX_LISTED_LAYERS` layers, those of an encoder included.
    """
    num_layers = config.num_layers + (len(config.encoder.blocks) if config.encoder else 0)
    if num_layers > MAX_LISTED_LAYERS:
        raise UnsupportedError(
            f"allocations are listed for models of at most {MAX_LISTED_LAYERS} layers; got {num_layers}: "
            "predict_step gives the peak of any depth"
        )
    tape = play(config, config.blocks, workload)
    states = [state for one in trained_parameters(tape) for state in optimizer_states(one, workload)]
    changes = sorted(_changes(tape))
    num_steps = 2 if workload.phase == "train" else 1
    for step in range(num_steps):
        yield from _one_step(tape, changes, step, states)


def _changes(tape: Tape) -> Iterator[tuple[int, int, bool]]:
    """Give the ticks at which a step makes and frees tensors, by number; what stands from step to step is not freed."""
    for index, record in enumerate(tape.records):
        yield record.born, index, True
        # What is found and goes is a cache, in whose place a longer one comes.
        is_replaced = record.kind == "input" and record.freed is not None and record.freed <= tape.last_tick
        if record.kind not in STANDING_KINDS or is_replaced:
            yield tape.tick + 1 if record.freed is None else record.freed, index, False


def _one_step(tape: Tape, changes: list[tuple[int, int, bool]], step: int, states: list[Record]) -> Iterator[Event]:
    """Give the events of one step; parameters, buffers and states are made in the first one and stay."""
    records = tape.records
    first_work = next((one.begin_tick for one in tape.stretches if one.label == OPTIMIZER_STEP), tape.tick)
    makes_states = step == 0
    for tick, index, is_made in changes:
        record = records[index]
        if step and record.kind in STANDING_KINDS:
            continue
        if makes_states and tick > first_work:
            yield from (((-1, place), state.bytes) for place, state in enumerate(states))
            makes_states = False
        yield (step, index), record.bytes if is_made else None
