"""A step agrees with a message where its replay fails with the message's own figures."""

from dataclasses import replace

import pytest

from headwise.config.presets import preset
from headwise.cost.allocator import replay
from headwise.cost.oom import agreement, search
from headwise.cost.oom.agreement import Failed, Replayer, make_replayer, room_of
from headwise.cost.oom.births import LearnedStep
from headwise.cost.oom.pairs import tensor_ranges
from headwise.cost.oom.results import OomMessage
from headwise.cost.oom.scripts import Script
from headwise.cost.oom.search import Known, Search
from headwise.cost.oom.solve import solve
from headwise.cost.oom.steps import Hints, list_suspects
from headwise.cost.reserved import step_events
from headwise.cost.step.play import play_step
from headwise.cost.workload import Workload

MIB = 2**20
ROOM = 5 * 2**30
CONFIG = replace(preset("gpt2"), blocks=preset("gpt2").blocks[:2])
WORKLOAD = Workload(batch=23, seq=768, attention="eager", precision="bf16", loss="cross_entropy")
HINTS = Hints(phase="train", precision="bf16", attention="eager", checkpoint="none")


@pytest.fixture(autouse=True)
def few_are_weighed(monkeypatch):
    """A part of what is weighed as a rule: the type checks of the tests make every call ten times slower."""
    monkeypatch.setattr(search, "MAX_WEIGHED", 3_000)
    monkeypatch.setattr(search, "MAX_REFINED", 12)


def fail(config=CONFIG, workload=WORKLOAD, room=ROOM):
    found = replay(step_events(config, workload), capacity_bytes=room).out_of_memory
    assert found is not None
    return found


def message_of(failed, room=ROOM):
    return OomMessage(
        backend="cuda",
        wording="test",
        requested_text=None,
        requested_low_bytes=failed.requested_bytes,
        requested_high_bytes=failed.requested_bytes,
        is_rounded_up=True,
        capacity_bytes=room,
        free_bytes=room - failed.reserved_bytes,
        allocated_bytes=failed.allocated_bytes,
        reserved_bytes=failed.reserved_bytes,
    )


@pytest.fixture(scope="module")
def failed():
    return fail()


@pytest.fixture
def message(failed):
    return message_of(failed)


def find_failure(message, workload=WORKLOAD, config=CONFIG, *, reaches_windows=True):
    step = LearnedStep(workload, (), 0, reaches_windows)
    return make_replayer(config, message).find_failure(step, workload.batch, workload.seq)


def test_the_step_that_wrote_a_message_agrees_and_names_the_tensor(message, failed):
    found = find_failure(message)
    record = play_step(CONFIG, CONFIG.blocks, WORKLOAD).records[failed.key[1]]
    assert record.name == found.name == "output scores, float32"
    assert found == Failed(record.name, "head", "loss", record.shape, record.dtype)


def test_a_tensor_of_a_layer_is_named_without_its_number():
    room = 2 * 2**30
    failed = fail(room=room)
    record = play_step(CONFIG, CONFIG.blocks, WORKLOAD).records[failed.key[1]]
    found = find_failure(message_of(failed, room))
    assert record.owner.startswith("layer ")
    assert (found.owner, found.moment) == (record.owner.partition(" ")[2].partition(" ")[2], "forward")


def test_an_optimizers_state_is_named_too():
    workload = replace(WORKLOAD, batch=1, seq=8)
    in_use = 400 * MIB  # weights and gradients of 2 layers are 104 MiB each; their states as much again, twice
    failed = fail(workload=workload, room=in_use)
    assert failed.key[0] == -1
    found = find_failure(message_of(failed, in_use), workload)
    assert found.moment == "optimizer" and "moment" in found.name


@pytest.mark.parametrize("figure", ["allocated_bytes", "reserved_bytes"])
def test_figures_agree_within_what_is_printed_of_them(message, figure):
    value = getattr(message, figure)
    for distance, agrees in ((4 * MIB, True), (6 * MIB, False), (60 * MIB, False)):  # 0.005 GiB is 5.12 MiB
        free = ROOM - message.reserved_bytes
        moved = replace(message, **{figure: value - distance}, free_bytes=free)
        assert (find_failure(moved) is not None) == agrees, distance


@pytest.mark.parametrize("change", [{"batch": 24}, {"seq": 760}, {"precision": "fp32"}, {"batch": 1, "seq": 8}])
def test_another_step_does_not_agree(message, change):
    assert find_failure(message, replace(WORKLOAD, **change)) is None


@pytest.mark.parametrize(("distance", "agrees"), [(10 * MIB, True), (60 * MIB, False)])
def test_a_script_that_comes_near_is_played_for_itself(message, failed, monkeypatch, distance, agrees):
    rough = replace(failed, allocated_bytes=failed.allocated_bytes + distance)
    monkeypatch.setattr(Script, "find_failure", lambda *_: rough)
    assert (find_failure(message) is not None) == agrees


def test_a_replayer_tells_a_batch_of_one_from_others():
    """A batch of one needs no contiguous copies of keys, which leaves 32 MiB more of holes here, whichever is first."""
    config = replace(preset("llama-3.2-1b"), blocks=preset("llama-3.2-1b").blocks[:6])
    workload = Workload(batch=1, seq=4096, attention="eager", precision="bf16", loss="cross_entropy")
    room = 31_500 * MIB
    replayer = make_replayer(config, message_of(fail(config, workload, room), room))
    step = LearnedStep(workload, (), 0)
    assert replayer.find_failure(step, 2, 640) is None
    assert replayer.find_failure(step, 1, 4096) is not None


def test_texts_shorter_than_the_windows_are_replayed_without_their_mask():
    config = replace(preset("mistral-7b"), blocks=preset("mistral-7b").blocks[:2])
    workload = Workload(batch=16, seq=512, precision="bf16", loss="cross_entropy")
    room = 5 * 2**30
    asked = message_of(fail(config, workload, room), room)
    assert find_failure(asked, workload, config, reaches_windows=False) is not None
    assert find_failure(asked, workload, config, reaches_windows=True) is None


def test_chunks_of_linear_attention_are_played_at_once():
    blocks = preset("qwen3-next-80b").blocks[:1]
    small = tuple(replace(one, feed_forward=preset("llama-3.2-1b").blocks[0].feed_forward) for one in blocks)
    config = replace(preset("qwen3-next-80b"), blocks=small, vocab_size=1024)
    workload = Workload(batch=8, seq=384, precision="bf16", loss="sum")
    room = 2000 * MIB  # what a chunk writes fails, of which its script has another number
    assert find_failure(message_of(fail(config, workload, room), room), workload, config) is not None
    room = 2**29  # less than the weights
    replayer = make_replayer(config, message_of(fail(config, workload, room), room))
    assert replayer.find_failure(LearnedStep(workload, (), 0), 8, 384) is None
    assert replayer.is_spent  # it is explained


def test_a_failure_before_the_step_is_no_business_of_a_step(monkeypatch):
    room = 64 * MIB  # the token table alone has 74
    asked = message_of(fail(room=room), room)
    monkeypatch.setattr(agreement, "step_events", None)  # nothing is played
    replayer = make_replayer(CONFIG, asked)
    step = LearnedStep(WORKLOAD, (), 0)
    assert replayer.find_failure(step, 23, 768) is None
    assert replayer.is_spent  # it is explained
    other = make_replayer(CONFIG, replace(asked, allocated_bytes=asked.allocated_bytes + 32 * MIB))
    assert other.find_failure(step, 23, 768) is None
    assert not other.is_spent
    monkeypatch.setattr(agreement, "write_script", None)
    monkeypatch.setattr(Script, "find_failure", None)
    assert other.find_failure(step, 24, 768) is None  # and is not replayed again


def test_replays_are_counted_and_come_to_an_end(message, monkeypatch):
    replayer = make_replayer(CONFIG, message)
    step = LearnedStep(WORKLOAD, (), 0)
    written = len(list(step_events(CONFIG, WORKLOAD)))  # of its script, once
    other = fail(workload=replace(WORKLOAD, batch=24)).event
    for count, limit in ((1, written + other), (2, written + 2 * other), (3, written + 3 * other)):
        monkeypatch.setattr(agreement, "MAX_EVENTS", limit)
        assert not replayer.is_spent, count
        replayer.find_failure(step, 24, 768)
        assert replayer.is_spent, count
    played = written + 2 * fail().event  # replayed from its script and from a play of its own
    monkeypatch.setattr(agreement, "MAX_EVENTS", limit + played + 1)
    assert replayer.find_failure(step, 23, 768) is not None
    assert not replayer.is_spent
    monkeypatch.setattr(agreement, "MAX_EVENTS", limit + played)
    assert replayer.is_spent


def test_the_room_is_at_the_upper_end_of_what_is_printed_but_lets_the_request_still_fail(message):
    gib = 2**30
    asked = replace(message, reserved_bytes=3 * gib, free_bytes=100 * MIB, requested_low_bytes=gib)
    rounding = 0.00501 * gib + 0.00501 * MIB  # two decimals of GiB, and of MiB
    assert room_of(asked) == int(3 * gib + 100 * MIB + rounding)
    assert room_of(replace(asked, requested_low_bytes=102 * MIB)) == 3 * gib + 100 * MIB  # 2 MiB is less than 5.1
    close = room_of(replace(asked, requested_low_bytes=108 * MIB))
    assert 3 * gib + 100 * MIB < close < 3 * gib + 108 * MIB - rounding + 1
    assert room_of(replace(asked, free_bytes=None)) is None


def test_what_just_fitted_before_a_printed_figure_was_cut_fits_again():
    """What is reserved is printed to 0.01 GiB: 4 MiB less would leave no room for a tensor that was there."""
    events = [(number, 20 * MIB) for number in range(60)] + [("failed", 40 * MIB)]
    truth = replay(events, capacity_bytes=1200 * MIB).out_of_memory
    asked = replace(message_of(truth, 1200 * MIB), reserved_bytes=1196 * MIB)
    assert replay(events, capacity_bytes=room_of(asked)).out_of_memory == truth
    assert replay(events, capacity_bytes=asked.reserved_bytes + asked.free_bytes).out_of_memory != truth


@pytest.mark.parametrize("figure", ["allocated_bytes", "reserved_bytes", "free_bytes"])
def test_nothing_is_replayed_where_a_figure_is_missing(message, figure):
    assert make_replayer(CONFIG, replace(message, **{figure: None})) is None
    assert make_replayer(CONFIG, replace(message, backend="xpu")) is None


def test_hostile_figures_and_models_do_not_agree(message):
    assert find_failure(replace(message, allocated_bytes=0, reserved_bytes=2**62, free_bytes=2**62)) is None
    assert find_failure(message, config=replace(CONFIG, blocks=CONFIG.blocks[:1] * 1000)) is None


def test_what_fails_in_a_step_that_agrees_comes_first(message):
    truth = find_failure(message)
    first = solve(message, CONFIG, hints=HINTS)[0]
    assert (first.batch, first.seq, first.shape) == (23, 768, truth.shape)
    assert any(one.endswith(f": {truth.name}") for one in first.members)


class Told(Replayer):
    """A replayer that is told at which batch and length a step fails, and where; `is_spent`: nothing may be asked."""

    is_spent = False

    def __init__(self, failures, *, is_spent=False):
        self.failures = failures
        self.is_spent = is_spent
        self.calls = []

    def find_failure(self, step, batch, seq):
        self.calls.append((batch, seq))
        return self.failures.get((batch, seq))


def calls_of(message, suspects, failures):
    """Return the batches and lengths of the steps that a search has replayed."""
    replayer = Told(failures)
    Search(message, tensor_ranges(message), Known(longest=1024)).run(suspects, replayer)
    return replayer.calls


def test_what_fails_in_a_step_that_agrees_gains_and_what_else_was_replayed_loses(message):
    suspects = list_suspects(CONFIG, HINTS, "cuda", (8, 0))

    def ranked(replayer=None):
        found = Search(message, tensor_ranges(message), Known(longest=1024)).run(suspects, replayer)
        return {(one.birth.pattern.poly, one.birth.pattern.dtype, one.birth.moment): one for one in found}

    before = ranked()
    key = list(before)[1]
    batch, seq = max(before[key].by_pair, key=before[key].by_pair.get)
    birth = before[key].birth
    failed = Failed(birth.name, birth.owner, birth.moment, birth.pattern.shape_at(batch, seq), birth.pattern.dtype)
    after = ranked(Told({(batch, seq): failed}))
    assert [one for one in before if after[one].weight > before[one].weight] == [key]
    assert next(iter(after)) == key
    none_agrees = ranked(Told({}))
    assert all(none_agrees[one].weight <= before[one].weight for one in before)
    assert none_agrees[key].weight < before[key].weight


def test_nothing_more_is_replayed_once_it_is_settled(message):
    suspects = list_suspects(CONFIG, HINTS, "cuda", (8, 0))

    assert len(calls_of(message, suspects, {(23, 768): find_failure(message)})) < len(calls_of(message, suspects, {}))


def test_steps_of_the_batch_and_length_that_agree_are_replayed_all(message):
    """Two steps may differ in nothing before the tensor that fails: here they do not differ at all."""
    (suspect,) = list_suspects(CONFIG, HINTS, "cuda", (8, 0))
    suspects = (suspect, replace(suspect, prior=suspect.prior / 100))
    all_calls = calls_of(message, suspects, {})
    calls = calls_of(message, suspects, {(23, 768): find_failure(message)})
    assert calls.count((23, 768)) == all_calls.count((23, 768)) == 2
    assert len(calls) < len(all_calls)


def test_a_spent_replayer_is_not_asked(message):
    suspects = list_suspects(CONFIG, HINTS, "cuda", (8, 0))
    spent = Told({}, is_spent=True)
    assert Search(message, tensor_ranges(message), Known(longest=1024)).run(suspects, spent)
    assert spent.calls == []
