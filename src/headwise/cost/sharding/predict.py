"""Memory of one device of a step that is spread over several, predicted from the config alone."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any

from headwise.config.checks import require_instance
from headwise.config.model import ModelConfig
from headwise.cost.memory import predict_ledger, predict_step
from headwise.cost.outline import Outline, outline_of, predict_outline
from headwise.cost.reserved import Event, repeated_events
from headwise.cost.results import Ledger, StepMemory
from headwise.cost.sharding.checks import require_optimizer_of_shards, require_ring, require_split
from headwise.cost.sharding.gathered import GatheringTape
from headwise.cost.sharding.parts import part_of_config, splits_head
from headwise.cost.sharding.replicated import OwnOptimizer, ReplicaTape
from headwise.cost.sharding.results import Sharding
from headwise.cost.sharding.ring import RingTape
from headwise.cost.sharding.split import SplitTape
from headwise.cost.step.models import family_of
from headwise.cost.step.play import Play, play_step
from headwise.cost.step.repeat import RepeatedStep, repeated_step
from headwise.cost.workload import Workload


def predict_sharded_ledger(config: ModelConfig, workload: Workload, sharding: Sharding) -> Ledger:
    """Return every tensor of one device with its life; of unequal devices, that with the most.

    Whose implementation each kind of sharding stands for, and what it holds, is told by `GatheringTape` (zero2, zero3),
    `ReplicaTape` (zero1), `SplitTape` (tensor, sequence) and `RingTape` (context). What a communication library takes
    for itself is not counted. Under "amp-bf16" and "amp-fp16", zero2 and zero3 use FSDP2's own mixed precision in place
    of autocast: float32 shards, weights gathered and activations made in the narrow dtype, gradients reduced in
    float32. (Autocast would keep a narrow copy of every whole weight until backward.)

    Args:
        config: the whole model.
        workload: of one device: its own texts; for tensor, sequence and context all texts with all their tokens.
        sharding: how, and over how many devices.

    Raises:
        UnsupportedError: as `predict_ledger`; or the model, the workload or the optimizer cannot be spread so.
        ConfigError: as `predict_ledger`.
    """
    plan = plan_of(config, workload, sharding)
    ledger = predict_ledger(plan.config, plan.workload, play=plan.play)
    return ledger if sharding.kind != "zero1" else _own_optimizer(plan, sharding)[0].add_to_ledger(ledger)


def predict_sharded_step(config: ModelConfig, workload: Workload, sharding: Sharding) -> StepMemory:
    """Return the totals of `predict_sharded_ledger` without its entries.

    Args:
        config, workload, sharding: as of `predict_sharded_ledger`.

    Raises:
        UnsupportedError, ConfigError: as of `predict_sharded_ledger`.
    """
    plan = plan_of(config, workload, sharding)
    totals = predict_step(plan.config, plan.workload, play=plan.play)
    if sharding.kind != "zero1":
        return totals
    own, step = _own_optimizer(plan, sharding)
    return own.add_to_totals(totals, step)


def predict_sharded_outline(config: ModelConfig, workload: Workload, sharding: Sharding) -> Outline:
    """Return `predict_sharded_ledger` in short.

    Args:
        config, workload, sharding: as of `predict_sharded_ledger`.

    Raises:
        UnsupportedError, ConfigError: as of `predict_sharded_ledger`.
    """
    if sharding.kind == "zero1":  # its optimizer is none of the play's
        return outline_of(predict_sharded_ledger(config, workload, sharding))
    plan = plan_of(config, workload, sharding)
    return predict_outline(plan.config, plan.workload, play=plan.play)


def sharded_events(config: ModelConfig, workload: Workload, sharding: Sharding) -> Iterator[Event]:
    """Give one device's allocations and frees of two training steps, as `repeated_events` does, for `replay`.

    Of zero1 the optimizer's states are there from the beginning.

    Args:
        config, workload, sharding: as of `predict_sharded_ledger`.

    Raises:
        UnsupportedError, ConfigError: as of `predict_sharded_ledger` and of `repeated_events`.
    """
    plan = plan_of(config, workload, sharding)
    if sharding.kind == "zero1":
        states = _own_optimizer(plan, sharding)[0].states
        yield from (((-1, place), state.bytes) for place, state in enumerate(states))
    yield from repeated_events(plan.config, plan.workload, plan.play)


@dataclass(frozen=True)
class DevicePlan:
    """What one device plays."""

    config: ModelConfig
    workload: Workload
    play: Play


@lru_cache(maxsize=32)  # the same plan has the same play, which is then remembered too
def plan_of(config: ModelConfig, workload: Workload, sharding: Sharding) -> DevicePlan:
    """Return what one device plays of a step, or raise what `predict_sharded_ledger` raises."""
    require_instance("config", config, ModelConfig)
    require_instance("workload", workload, Workload)
    require_instance("sharding", sharding, Sharding)
    match sharding.kind:
        case "zero1":
            make_replica = partial(ReplicaTape, gradients_are_views=sharding.gradients_are_views)
            return DevicePlan(config, workload, partial(play_step, make_tape=make_replica))
        case "zero2" | "zero3":
            return _plan_gathered(config, workload, sharding)
        case "context":
            return _plan_ring(config, workload, sharding)
        case _:
            return _plan_split(config, workload, sharding)


def _own_optimizer(plan: DevicePlan, sharding: Sharding) -> tuple[OwnOptimizer, RepeatedStep]:
    step = repeated_step(plan.config, plan.workload, plan.play)
    return OwnOptimizer(step, plan.workload, sharding.num_devices), step


def _plan_gathered(config: ModelConfig, workload: Workload, sharding: Sharding) -> DevicePlan:
    require_optimizer_of_shards(workload, sharding)
    make_tape = partial(
        GatheringTape,
        num_devices=sharding.num_devices,
        gathers_again=sharding.kind == "zero3",
        shard_dtype=workload.weight_dtype,
        has_loss_inside=workload.loss == "cross_entropy",
    )
    narrow: dict[str, Any] = {"amp-bf16": {"precision": "bf16"}, "amp-fp16": {"precision": "fp16"}}
    own = replace(workload, **narrow.get(workload.precision, {}))
    return DevicePlan(config, own, partial(play_step, make_tape=make_tape))


def _plan_ring(config: ModelConfig, workload: Workload, sharding: Sharding) -> DevicePlan:
    family_of(config, workload)  # refuse what is not known before its attention is looked at
    require_ring(config, workload, sharding)
    own = replace(workload, seq=workload.seq // sharding.num_devices)
    return DevicePlan(config, own, partial(play_step, make_tape=partial(RingTape, num_devices=sharding.num_devices)))


def _plan_split(config: ModelConfig, workload: Workload, sharding: Sharding) -> DevicePlan:
    family = family_of(config, workload)  # of the whole model: a device's part has another form
    require_split(config, workload, sharding)
    make_tape = partial(
        SplitTape,
        num_devices=sharding.num_devices,
        splits_tokens=sharding.kind == "sequence",
        splits_head=splits_head(config, sharding),
    )
    part = part_of_config(config, sharding)
    return DevicePlan(part, workload, partial(play_step, family=family, make_tape=make_tape))
