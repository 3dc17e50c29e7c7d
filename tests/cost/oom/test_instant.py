"""find_instant: what is alive just before a tensor is made, beside the ledger of the same step."""

from dataclasses import replace

import pytest

from headwise.config.presets import preset
from headwise.cost.memory import predict_ledger
from headwise.cost.oom.instant import find_instant
from headwise.cost.oom.results import Candidate
from headwise.cost.workload import Workload

MIB = 2**20
WORKLOAD = Workload(batch=3, seq=61, attention="eager")
HEADS, WIDTH = 12, 768
SCORES = (3, HEADS, 61, 61)
SCORES_BYTES = 3 * HEADS * 61 * 61 * 4


@pytest.fixture(scope="module")
def config():
    return preset("bert-base")


@pytest.fixture(scope="module")
def ledger(config):
    return predict_ledger(config, WORKLOAD)


def candidate(name, shape, owner="attention", moment="forward", dtype="float32", num_bytes=SCORES_BYTES):
    return Candidate(
        name=name,
        shape=shape,
        dtype=dtype,
        owner=owner,
        batch=3,
        seq=61,
        bytes=num_bytes,
        score=1.0,
        why="",
        members=(f"{owner}: {name}",),
        moment=moment,
        workload=WORKLOAD,
    )


def find(config, one, observed=None, limit=None, workload=WORKLOAD):
    return find_instant(config, workload, one, observed_bytes=observed, limit_bytes=limit)


def test_a_layer_holds_what_it_made_before_and_nothing_of_later(config, ledger):
    instant = find(config, candidate("attention weights after dropout", SCORES), limit=1)  # the first time
    assert instant.label == "forward: layer 0"
    own = {entry.name for entry in instant.alive if entry.owner == "layer 0 attention" and entry.kind != "parameter"}
    own = {name for name in own if not name.startswith(("exp", "step"))}
    assert {"attention weights", "query, contiguous", "key, contiguous"} <= own
    assert "attention weights after dropout" not in own and "attention norm output" not in own
    made = [entry for entry in instant.alive if entry.kind in ("saved", "temporary")]
    assert not any(entry.owner.startswith(("layer 1", "layer 0 feed-forward")) for entry in made)


def test_each_layer_that_went_before_adds_what_it_keeps(config, ledger):
    """Layer n begins with what the layers below keep, which the ledger has as saved of the first moments."""
    kept = sum(one.bytes for one in ledger.entries if one.owner.startswith("layer 4 ") and one.kind == "saved")
    one = candidate("attention weights", SCORES)
    first = find(config, one, limit=1).num_bytes
    for layer in (0, 5, 11):
        instant = find(config, one, observed=first + layer * kept)
        assert instant.label == f"forward: layer {layer}"
        assert instant.num_bytes == first + layer * kept


def test_a_first_step_has_no_states_yet(config, ledger):
    states = sum(entry.bytes for entry in ledger.entries if entry.kind == "optimizer")
    one = candidate("attention weights", SCORES)
    steady = find(config, one, limit=1).num_bytes
    first = find(config, one, observed=steady - states)
    assert first.num_bytes == steady - states and first.label == "forward: layer 0"
    assert not any(entry.kind == "optimizer" for entry in first.alive)


def test_the_first_time_that_there_is_no_room_is_taken_else_the_fullest(config, ledger):
    kept = sum(one.bytes for one in ledger.entries if one.owner.startswith("layer 4 ") and one.kind == "saved")
    one = candidate("attention weights", SCORES)
    first = find(config, one, limit=1).num_bytes
    limit = first + 7 * kept + SCORES_BYTES
    assert find(config, one, limit=limit).label == "forward: layer 8"
    assert find(config, one, limit=limit - 1).label == "forward: layer 7"
    assert find(config, one).label == find(config, one, limit=2**60).label == "forward: layer 11"


@pytest.mark.parametrize("workload", [WORKLOAD, replace(WORKLOAD, checkpoint="full", precision="amp-bf16")])
def test_no_instant_holds_more_than_the_ledger_of_its_part_of_the_step(config, workload):
    ledger = predict_ledger(config, workload)
    tried = {}
    for entry in ledger.entries:
        moment = ledger.moments[entry.born].partition(":")[0]
        if (
            entry.kind in ("saved", "temporary", "gradient")
            and entry.owner[:5] == "layer"
            and moment in ("forward", "backward")
        ):
            owner = entry.owner.split(" ", maxsplit=2)[2]
            one = candidate(entry.name, entry.shape, owner, moment, entry.dtype, entry.bytes)
            tried[one.members, one.shape, one.dtype, moment] = one
    assert len(tried) > 30
    found = [find(config, one, workload=workload) for one in list(tried.values())[::13]]
    assert all(instant is not None for instant in found)
    for one, instant in zip(list(tried.values())[::13], found, strict=True):
        most = max(
            num_bytes
            for num_bytes, label in zip(ledger.bytes_by_moment, ledger.moments, strict=True)
            if label == instant.label
        )
        assert instant.num_bytes + one.bytes <= most, one.name


def test_gradients_are_looked_for_in_backward(config):
    one = candidate("gradient of attention weights after dropout", SCORES, moment="backward")
    instant = find(config, one, limit=1)
    assert instant.label == "backward: layer 11"
    assert all(entry.name != "gradient of query" for entry in instant.alive)  # which comes after it


def test_weights_come_one_after_another(config):
    table = candidate("token embeddings", (30522, WIDTH), "embeddings", "loading", num_bytes=30522 * WIDTH * 4)
    names = [entry.name for entry in predict_ledger(config, WORKLOAD).entries if entry.kind == "parameter"]
    one = replace(table, name=names[0], members=(f"embeddings: {names[0]}",))
    instant = find(config, one)
    assert instant.label == "loading"
    assert instant.num_bytes == 0
    last = candidate("down_proj weight", (WIDTH, 4 * WIDTH), "feed-forward", "loading", num_bytes=4 * WIDTH**2 * 4)
    assert (
        0
        < find(config, last).num_bytes
        < sum(entry.bytes for entry in predict_ledger(config, WORKLOAD).entries if entry.kind == "parameter")
    )


def test_what_a_step_does_not_make_is_not_found(config):
    assert find(config, candidate("attention weights", (3, HEADS, 61, 67))) is None
    assert find(config, candidate("attention weights", SCORES, dtype="float16")) is None
    assert find(config, candidate("attention weights", SCORES, moment="loss")) is None
    assert find(config, candidate("no such tensor", SCORES)) is None
