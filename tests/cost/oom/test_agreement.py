"""A step agrees with a message where its replay fails with the message's own figures."""

from dataclasses import replace

import pytest

from headwise.config.presets import preset
from headwise.cost.allocator import replay
from headwise.cost.oom.agreement import Failed, make_replayer
from headwise.cost.oom.pairs import tensor_ranges
from headwise.cost.oom.results import OomMessage
from headwise.cost.oom.search import Known, Search
from headwise.cost.oom.solve import solve
from headwise.cost.oom.steps import Hints, list_suspects
from headwise.cost.reserved import step_events
from headwise.cost.step.play import play_step
from headwise.cost.workload import Workload

MIB = 2**20
ROOM = 15 * 2**30
CONFIG = preset("gpt2")
WORKLOAD = Workload(batch=23, seq=768, attention="eager", precision="bf16", loss="cross_entropy")
HINTS = Hints(phase="train", precision="bf16", attention="eager", checkpoint="none")


@pytest.fixture(scope="module")
def failed():
    found = replay(step_events(CONFIG, WORKLOAD), capacity_bytes=ROOM).out_of_memory
    assert found is not None
    return found


@pytest.fixture
def message(failed):
    return OomMessage(
        backend="cuda",
        wording="test",
        requested_text=None,
        requested_low_bytes=failed.requested_bytes,
        requested_high_bytes=failed.requested_bytes,
        is_rounded_up=True,
        capacity_bytes=ROOM,
        free_bytes=ROOM - failed.reserved_bytes,
        allocated_bytes=failed.allocated_bytes,
        reserved_bytes=failed.reserved_bytes,
    )


def test_the_step_that_wrote_a_message_agrees_and_names_the_tensor(message, failed):
    found = make_replayer(CONFIG, message)(WORKLOAD)
    record = play_step(CONFIG, CONFIG.blocks, WORKLOAD).records[failed.key[1]]
    assert (found.shape, found.dtype) == (record.shape, record.dtype)
    assert record.name.endswith(found.name)
    assert "layer" not in found.owner


@pytest.mark.parametrize("figure", ["allocated_bytes", "reserved_bytes"])
def test_figures_agree_within_what_is_printed_of_them(message, figure):
    value = getattr(message, figure)
    for distance, agrees in ((4 * MIB, True), (6 * MIB, False), (60 * MIB, False)):  # 0.005 GiB is 5.12 MiB
        free = ROOM - message.reserved_bytes
        moved = replace(message, **{figure: value - distance}, free_bytes=free)
        assert (make_replayer(CONFIG, moved)(WORKLOAD) is not None) == agrees, distance


@pytest.mark.parametrize("change", [{"batch": 24}, {"seq": 760}, {"precision": "fp32"}, {"batch": 1, "seq": 8}])
def test_another_step_does_not_agree(message, change):
    assert make_replayer(CONFIG, message)(replace(WORKLOAD, **change)) is None


@pytest.mark.parametrize("figure", ["allocated_bytes", "reserved_bytes", "free_bytes"])
def test_nothing_is_replayed_where_a_figure_is_missing(message, figure):
    assert make_replayer(CONFIG, replace(message, **{figure: None})) is None
    assert make_replayer(CONFIG, replace(message, backend="xpu")) is None


def test_hostile_figures_and_models_do_not_agree(message):
    hostile = replace(message, allocated_bytes=0, reserved_bytes=2**62, free_bytes=2**62)
    assert make_replayer(CONFIG, hostile)(WORKLOAD) is None
    deep = replace(CONFIG, blocks=CONFIG.blocks[:1] * 1000)
    assert make_replayer(deep, message)(WORKLOAD) is None


def test_what_fails_in_a_step_that_agrees_comes_first(message):
    truth = make_replayer(CONFIG, message)(WORKLOAD)
    first = solve(message, CONFIG, hints=HINTS)[0]
    assert (first.batch, first.seq, first.shape) == (23, 768, truth.shape)
    assert any(one.endswith(f": {truth.name}") for one in first.members)


def test_a_step_that_agrees_gains_for_what_fails_in_it_and_nothing_else_does(message):
    suspects = list_suspects(CONFIG, HINTS, "cuda", (8, 0))

    def ranked(replayer=None, num_replays=0):
        return Search(message, tensor_ranges(message), Known(longest=1024)).run(suspects, replayer, num_replays)

    without = ranked()
    second = without[1]
    batch, seq = max(second.by_pair, key=second.by_pair.get)
    birth = second.birth
    failed = Failed(birth.name, birth.owner, birth.moment, birth.pattern.shape_at(batch, seq), birth.pattern.dtype)

    def replayer(workload):
        return failed if (workload.batch, workload.seq) == (batch, seq) else None

    before = {_key(one.birth): one.weight for one in without}
    after = {_key(one.birth): one.weight for one in ranked(replayer, 64)}
    assert [key for key in before if after[key] > before[key]] == [_key(birth)]


def _key(birth):
    return birth.pattern.poly, birth.pattern.dtype, birth.moment
