"""What one device of several holds and sends, from the play of few layers, against the play of every layer."""

import dataclasses
from collections import Counter

import pytest

from headwise.config.presets import preset
from headwise.cost.memory import predict_ledger, predict_step
from headwise.cost.sharding.predict import predict_sharded_ledger, predict_sharded_step
from headwise.cost.sharding.results import SHARDINGS, Sharding
from headwise.cost.sharding.travel import travels
from headwise.cost.workload import Workload

FAMILIES = {"gpt2": 9, "llama-3.2-1b": 8, "bert-base": 8}  # deep enough for layers between, frozen and learning
FROZEN = (0, 1, 4, 5)
NARROW = {"optimizer": "sgd", "precision": "amp-bf16"}  # weights on their way count for much


def model(name):
    config = preset(name)
    return dataclasses.replace(config, blocks=config.blocks[: FAMILIES[name]])


def played(config):
    """The same model with layers that differ in a number that needs no memory, so that each one is played."""
    blocks = (dataclasses.replace(block, norm_eps=1e-6 * (1 + index)) for index, block in enumerate(config.blocks))
    return dataclasses.replace(config, blocks=tuple(blocks))


def asked(name, frozen, checkpoint, settings):
    fused = {"precision": "bf16"} if "precision" not in settings else {}  # which a ring needs
    workload = Workload(
        batch=2, seq=64, attention="sdpa", frozen_layers=frozen, checkpoint=checkpoint, **fused | settings
    )
    return model(name), workload


def identities(ledger):
    """Every tensor but for when it lives: of layers at the ends a life may differ by one moment."""
    return Counter((one.owner, one.name, one.kind, one.bytes, one.dtype) for one in ledger.entries)


def can_be_spread(name, kind):
    return (name, kind) != ("bert-base", "sequence")  # its pooler reads the first token alone


@pytest.mark.parametrize(
    ("settings", "kinds"), [({}, SHARDINGS), (NARROW, ("zero2", "zero3"))], ids=["adamw", "narrow"]
)
@pytest.mark.parametrize("checkpoint", ["none", "full"])
@pytest.mark.parametrize("name", FAMILIES)
def test_what_devices_hold_and_send_is_as_if_every_layer_were_played(name, checkpoint, settings, kinds):
    for frozen in FROZEN:
        config, workload = asked(name, frozen, checkpoint, settings)
        for kind in filter(lambda kind: can_be_spread(name, kind), kinds):
            sharding = Sharding(kind=kind, num_devices=4)
            shifted, whole = ((one, workload, sharding) for one in (config, played(config)))
            assert predict_sharded_step(*shifted) == predict_sharded_step(*whole), (frozen, kind)
            assert travels(*shifted) == travels(*whole), (frozen, kind)


@pytest.mark.parametrize("kind", [None, *SHARDINGS])
def test_ledgers_have_the_tensors_of_every_layer_where_some_are_frozen(kind):
    config, workload = asked("llama-3.2-1b", 4, "none", {"device": "cpu"} if kind is None else {})
    if kind is None:  # a loop of an optimizer names the layer whose turn is the worst
        shifted, whole = predict_ledger(config, workload), predict_ledger(played(config), workload)
    else:
        sharding = Sharding(kind=kind, num_devices=4)
        shifted, whole = (predict_sharded_ledger(one, workload, sharding) for one in (config, played(config)))
    assert shifted.moments == whole.moments
    assert identities(shifted) == identities(whole)


@pytest.mark.parametrize("kind", SHARDINGS)
@pytest.mark.parametrize("frozen", [0, 5])
def test_totals_are_those_of_the_ledger_where_layers_are_frozen(kind, frozen):
    config, workload = asked("gpt2", frozen, "none", {})
    sharding = Sharding(kind=kind, num_devices=4)
    ledger, step = (predict(config, workload, sharding) for predict in (predict_sharded_ledger, predict_sharded_step))
    assert step.peak_bytes == ledger.bytes_at(ledger.peak)
    assert ledger.moments[ledger.peak].startswith(step.peak_moment)


@pytest.mark.parametrize("num_layers", [9, 12, 48])
def test_frozen_weights_of_zero2_stay_gathered_to_the_end_of_backward(num_layers):
    """Nothing of a frozen layer runs backward, so that its weights are dropped when the optimizer's turn comes."""
    block = preset("gpt2").blocks[0]
    config = dataclasses.replace(preset("gpt2"), blocks=num_layers * (block,))
    workload = Workload(batch=1, seq=10, frozen_layers=6)
    ledger = predict_sharded_ledger(config, workload, Sharding(kind="zero2", num_devices=4))
    gathered = [one for one in ledger.entries if one.name == "gathered qkv_proj weight"]
    ends = {one.owner: ledger.moments[one.freed - 1] for one in gathered}
    assert ends == {
        f"layer {index}": "backward: layer 6" if index < 6 else f"backward: layer {index}"
        for index in range(num_layers)
    }


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("checkpoint", ["none", "full"])
def test_a_whole_step_with_frozen_layers_is_as_if_every_layer_were_played(name, checkpoint):
    for frozen in FROZEN:
        config, workload = asked(name, frozen, checkpoint, {})
        assert predict_step(config, workload) == predict_step(played(config), workload)
