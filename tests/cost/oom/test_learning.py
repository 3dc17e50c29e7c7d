"""What is learned from one play of few layers is what a play of all layers at any batch and length allocates."""

import re
from collections import Counter
from dataclasses import replace
from itertools import pairwise

import pytest

from headwise.config.presets import preset
from headwise.cost.oom.learning import learn_step
from headwise.cost.oom.patterns import value_at
from headwise.cost.step.optimizers import optimizer_states, trained_parameters
from headwise.cost.step.play import play_step
from headwise.cost.workload import Workload
from headwise.errors import UnsupportedError

BATCH = 7
LAYER = re.compile(r"layer \d+ ?")


def played(config, workload):
    """Every allocation of every layer as (name, owner, bytes alive before it, its bytes)."""
    tape = play_step(config, config.blocks, workload)
    events = [(record.born, 1, record) for record in tape.records]
    events += [(record.freed, 0, record) for record in tape.records if record.freed is not None]
    alive, found = 0, Counter()
    for _, is_made, record in sorted(events, key=lambda event: event[:2]):
        if is_made and record.bytes:
            owner = re.sub(r"^encoder layer \d+", "encoder", record.owner)  # an encoder's layers are not counted
            found[LAYER.sub("", record.name), owner, alive, record.bytes] += 1
        alive += record.bytes if is_made else -record.bytes
    return found


def learned(config, workload):
    found = Counter()
    for birth in learn_step(config, workload).births:
        if birth.kind == "optimizer":
            continue
        layers = [None] if birth.layers is None else list(birth.layers)[:: -1 if birth.moment == "backward" else 1]
        for place, layer in enumerate(layers):
            before = value_at(birth.before, BATCH, workload.seq) + place * value_at(birth.growth, BATCH, workload.seq)
            owner = birth.owner if layer is None else f"layer {layer} {birth.owner}".rstrip()
            found[birth.name, owner, int(before), birth.pattern.bytes_at(BATCH, workload.seq)] += 1
    return found


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("bert-base", {"precision": "amp-bf16", "checkpoint": "full"}),
        ("gpt2", {"attention": "eager", "loss": "cross_entropy"}),
        ("gpt2", {"loss": "chunked_cross_entropy", "precision": "bf16"}),
        ("llama-3-8b", {"loss": "cross_entropy", "precision": "bf16", "checkpoint": "selective"}),
        ("llama-3-8b", {"phase": "prefill", "attention": "eager"}),
        ("mixtral-8x7b", {"loss": "cross_entropy"}),
        ("gpt-oss-20b", {"attention": "eager", "phase": "prefill", "precision": "bf16"}),
        ("t5-small", {"loss": "cross_entropy"}),
        ("vit-b-16", {"attention": "eager"}),
    ],
)
def test_all_allocations_and_what_is_alive_before_them_are_learned_to_the_byte(name, settings):
    config = preset(name)
    workload = Workload(batch=BATCH, seq=1152, **settings)
    assert learned(config, workload) == played(config, workload)


@pytest.mark.parametrize("seq", [512, 4096])
def test_a_windowed_model_is_learned_below_and_from_its_window_on(seq):
    mistral = preset("mistral-7b")
    shallow = replace(mistral, blocks=mistral.blocks[:7])
    window = shallow.blocks[0].attention.mask.window_size
    workload = Workload(batch=BATCH, seq=seq)
    births = {
        reaches: {birth.name for birth in learn_step(shallow, workload, reaches_windows=reaches).births}
        for reaches in (True, False)
    }
    names = {name for name, _, _, _ in played(shallow, workload)}
    assert births[seq >= window] == names | {birth for birth in births[seq >= window] if "moment" in birth}
    assert births[True] != births[False]


def test_the_states_of_the_optimizer_are_made_one_after_another_before_its_first_step():
    config, workload = preset("gpt2"), Workload(batch=BATCH, seq=1152)
    step = learn_step(config, workload)
    tape = play_step(config, config.blocks, workload)
    states = [state for one in trained_parameters(tape) for state in optimizer_states(one, workload)]
    assert step.states_bytes == sum(state.bytes for state in states)
    births = [birth for birth in step.births if birth.kind == "optimizer"]
    made = sorted(
        (int(value_at(birth.before, 7, 1152) + place * value_at(birth.growth, 7, 1152)), birth.pattern.bytes_at(1, 1))
        for birth in births
        for place in range(birth.times)
    )
    for (before, size), (following, _) in pairwise(made):
        assert following == before + size
    assert len(made) == len(states)


def test_a_model_of_too_many_unlike_layers_is_refused():
    config = preset("llama-3-8b")
    block = config.blocks[0]
    blocks = tuple(
        replace(block, feed_forward=replace(block.feed_forward, hidden_dim=128 + index)) for index in range(700)
    )
    with pytest.raises(UnsupportedError, match=r"at most 600 layers; got 700"):
        learn_step(replace(config, blocks=blocks), Workload(batch=1, seq=1))
