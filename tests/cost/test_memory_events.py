"""Allocations of a deep step, told from the play of few of its layers, are those of a play of all."""

from dataclasses import replace

import pytest

from headwise.config.presets import preset
from headwise.cost.allocator import replay
from headwise.cost.reserved import repeated_events, step_events
from headwise.cost.sharding.predict import plan_of
from headwise.cost.sharding.results import SHARDINGS, Sharding
from headwise.cost.workload import Lora, Workload

STEPS = [
    {},
    {"attention": "eager", "optimizer": "sgd"},
    {"precision": "amp-bf16", "optimizer_step": "fused"},
    {"checkpoint": "full", "loss": "cross_entropy"},
    {"checkpoint": "full", "precision": "amp-fp16", "frozen_layers": 2},
    {"checkpoint": "selective", "precision": "bf16", "optimizer": "adamw8bit"},
    {"optimizer": "lion", "frozen_layers": 3},
    {"lora": Lora(rank=4), "precision": "amp-fp16"},
    {"phase": "prefill", "attention": "eager"},
    {"phase": "decode", "precision": "bf16"},
]


def deep(name, num_layers):
    config = preset(name, head=True)
    return replace(config, blocks=(config.blocks * num_layers)[:num_layers])


def sizes(events):
    """What is allocated (+) and freed (-), in order, where frees in a row have none: nothing is allocated between."""
    alive, listed, row = {}, [], []
    for key, num_bytes in events:
        if num_bytes is None:
            row.append(-alive.pop(key))
            continue
        alive[key] = num_bytes
        listed += [*sorted(row), num_bytes]
        row = []
    return listed + sorted(row)


def reserved(events):
    found = replay(events)
    return found.reserved_peak_bytes, found.allocated_peak_bytes, found.requested_peak_bytes, found.reserved_bytes


@pytest.mark.parametrize("workload", STEPS, ids=str)
@pytest.mark.parametrize(
    ("name", "num_layers"), [("gpt2", 9), ("llama-3.2-1b", 7), ("gemma-3-27b", 26), ("mixtral-8x7b", 6)]
)
def test_sizes_come_in_the_order_of_a_play_of_all_layers(name, num_layers, workload):
    config, step = deep(name, num_layers), Workload(batch=3, seq=131, **workload)
    told, played = list(repeated_events(config, step)), list(step_events(config, step))
    assert sizes(told) == sizes(played)
    assert reserved(told) == reserved(played)


@pytest.mark.parametrize("kind", SHARDINGS)
@pytest.mark.parametrize("checkpoint", ["none", "full"])
def test_so_do_those_of_one_device_of_several(kind, checkpoint):
    workload = Workload(batch=2, seq=132, dropout=False, precision="bf16", checkpoint=checkpoint)
    plan = plan_of(deep("llama-3.2-1b", 8), workload, Sharding(kind=kind, num_devices=4))
    told, played = (list(give(plan.config, plan.workload, plan.play)) for give in (repeated_events, step_events))
    assert sizes(told) == sizes(played)
    assert reserved(told) == reserved(played)


@pytest.mark.parametrize("optimizer", ["adamw", "muon", "adafactor"])
def test_an_optimizer_that_loops_does_so_for_few_layers_and_needs_as_much(optimizer):
    config, step = deep("gpt2", 9), Workload(batch=3, seq=131, optimizer=optimizer, optimizer_step="loop")
    told, played = list(repeated_events(config, step)), list(step_events(config, step))
    assert len(told) < len(played)
    assert reserved(told) == reserved(played)


def test_gradients_of_earlier_passes_stand_from_the_beginning():
    config, step = deep("gpt2", 9), Workload(batch=3, seq=131, accumulation=3)
    told, played = list(repeated_events(config, step)), list(step_events(config, step))
    assert sizes(told) == sizes(played)
    assert reserved(told) == reserved(played)
