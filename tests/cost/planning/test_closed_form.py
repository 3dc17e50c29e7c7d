"""ClosedForm: what is told in bounded time of models whose layers do not repeat."""

from dataclasses import replace

import pytest

from headwise.config.presets import preset
from headwise.cost.planning import closed_form, size_changes
from headwise.cost.planning.closed_form import ClosedForm
from headwise.cost.planning.option import Place
from headwise.cost.planning.plan import plan
from headwise.cost.planning.setup import OutOfTime, Setup
from headwise.cost.planning.size_changes import list_size_changes
from headwise.cost.planning.verdict import Judge
from headwise.cost.results import Device
from headwise.cost.workload import Workload

GPU = Device(
    name="gpu",
    description="a GPU",
    memory_bytes=2**30,
    kind="cuda",
    source="-",
    date="2026-01-01",
    compute_capability=(8, 0),
)
GPT2 = preset("gpt2")
KINDS = GPT2.blocks[0], replace(GPT2.blocks[0], dropout_p=0.25)


def thue_morse(num_layers):
    """A model of two kinds of layers, of which no cycle comes three times in a row."""
    return replace(GPT2, blocks=tuple(KINDS[number.bit_count() % 2] for number in range(num_layers)))


def setup(config, batch=1):
    return Setup(config=config, workload=Workload(batch=batch, seq=64))


@pytest.fixture
def few_layers(monkeypatch):
    monkeypatch.setattr(closed_form, "MAX_SLOW_LAYERS", 50)


def test_of_layers_that_do_not_repeat_few_steps_are_told(few_layers):
    told = ClosedForm()
    first = told.step(setup(thue_morse(32)))
    for batch in (2, 3):
        told.step(setup(thue_morse(32), batch))
    for ask in (told.step, told.ledger):
        with pytest.raises(OutOfTime, match="left out to answer in time: 32 layers of gpt2 differ"):
            ask(setup(thue_morse(32), batch=5))
    assert told.step(setup(thue_morse(32))) == first


def test_of_layers_that_repeat_all_are_told(few_layers):
    told = ClosedForm()
    deep = replace(GPT2, blocks=200 * KINDS)
    for batch in range(1, 20):
        told.step(setup(deep, batch))


def test_a_plan_answers_within_its_budget_and_marks_what_it_left_out(few_layers):
    planned = plan(ClosedForm(), setup(thue_morse(32), batch=4), GPU)
    assert planned.verdict.fits in ("yes", "tight", "no") and planned.ledger.entries
    left_out = [change for change in planned.changes if "left out to answer in time" in (change.why or "")]
    assert len(left_out) > 5 and not any(change.applies for change in left_out)
    assert planned.largest_batch is None and planned.largest_seq is None


@pytest.mark.parametrize(("key", "what"), [("batch", "batch"), ("seq", "length")])
def test_a_size_that_was_not_found_in_time_is_no_size(monkeypatch, key, what):
    for search in ("largest_batch", "largest_seq"):
        monkeypatch.setattr(size_changes, search, lambda *given, **asked: None)
    [option] = [one for one in list_size_changes() if one.key == key]
    place = Place(Judge(ClosedForm(), replace(GPU, memory_bytes=2**20)), num_devices=2)
    made = option.make(setup(GPT2, batch=4), place)
    assert made == f"left out to answer in time: the largest {what} that fits was not found"
