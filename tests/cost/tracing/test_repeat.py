"""Repeating a period of a record: what comes out is written by hand, and what is irregular is refused."""

import pytest

from headwise.cost.tracing.layers import Row
from headwise.cost.tracing.lives import Event, Life, Where, make_ledger
from headwise.cost.tracing.repeat import IrregularError, repeat_row

SIX = Row(name="layers", num_layers=6, num_first=0, period=1)


def make_life(layer, name="hidden", num_bytes=4):
    place = None if layer is None else ("layers", layer)
    owner = "head" if layer is None else f"layers.{layer}.mlp"
    return Life(name=name, kind="temporary", num_bytes=num_bytes, shape=(1,), dtype="float32", owner=owner, layer=place)


def at(phase, layer):
    return Where(phase, f"layers.{layer}.mlp", ("layers", layer))


def forward_and_backward(num_layers):
    """Each layer keeps one tensor for backward and hands one to the next; backward hands gradients down."""
    events = []
    kept, gradients = {}, {}
    previous = None
    for layer in range(num_layers):
        kept[layer] = make_life(layer, "kept", 16)
        hidden = make_life(layer)
        events += [Event(kept[layer], at("forward", layer)), Event(hidden, at("forward", layer))]
        if previous is not None:
            events.append(Event(previous, at("forward", layer)))
        previous = hidden
    loss = make_life(None, "loss")
    events += [Event(loss, Where("loss")), Event(previous, Where("loss"))]
    for layer in reversed(range(num_layers)):
        gradients[layer] = make_life(layer, "gradient", 8)
        events.append(Event(gradients[layer], at("backward", layer)))
        if layer + 1 < num_layers:
            events.append(Event(gradients[layer + 1], at("backward", layer)))
        events.append(Event(kept[layer], at("backward", layer)))
    return [make_life(layer, "weight", 32) for layer in range(num_layers)], events


def test_forward_and_backward_are_repeated_as_if_every_layer_had_run():
    assert make_ledger(*repeat_row(SIX, *forward_and_backward(4))) == make_ledger(*forward_and_backward(6))


def test_a_period_of_two_layers_is_repeated_whole():
    row = Row(name="layers", num_layers=12, num_first=0, period=2)
    assert row.num_kept == 8
    assert make_ledger(*repeat_row(row, *forward_and_backward(8))) == make_ledger(*forward_and_backward(12))


def test_a_row_that_is_whole_is_left_alone():
    standing, events = forward_and_backward(4)
    whole = Row(name="layers", num_layers=4, num_first=0, period=4)
    assert repeat_row(whole, standing, events) == (standing, events)


def test_copies_that_live_to_the_end_and_copies_released_outside_go_with_their_original():
    def record(num_layers):
        lives = [make_life(layer) for layer in range(num_layers)]
        births = [Event(life, at("forward", layer)) for layer, life in enumerate(lives)]
        return [], [*births, *(Event(life, Where("loss")) for life in lives)]

    assert make_ledger(*repeat_row(SIX, *record(4))) == make_ledger(*record(6))


def change_size(standing, events):
    events[3].life.bytes += 1


def drop_a_birth(standing, events):
    life = events[4].life
    events[:] = [event for event in events if event.life is not life]


def swap_two_births(standing, events):
    events[5], events[6] = events[6], events[5]


def release_elsewhere(standing, events):
    place = next(
        index
        for index, event in enumerate(events)
        if event.where.phase == "backward" and event.life.name == "kept" and event.life.layer == ("layers", 1)
    )
    events[place] = Event(events[place].life, Where("loss"))


def move_to_another_module(standing, events):
    place = next(index for index, event in enumerate(events) if event.where.layer == ("layers", 2))
    events[place] = Event(events[place].life, Where("forward", "layers.2.norm", ("layers", 2)))


def release_two_layers_later(standing, events):
    """By the last layer, which is not two layers behind those that are missing."""
    late = [event for event in events if event.life.name == "kept" and event.where.phase == "backward"][1:3]
    for event in late:
        events.remove(event)
    last = next(index for index, event in enumerate(events) if event.where == at("forward", 3))
    events[last:last] = [Event(event.life, at("forward", 3)) for event in late]


def widen_a_weight(standing, events):
    standing[2].bytes += 1


@pytest.mark.parametrize(
    "spoil",
    [
        change_size,
        drop_a_birth,
        swap_two_births,
        move_to_another_module,
        release_elsewhere,
        release_two_layers_later,
        widen_a_weight,
    ],
)
def test_a_second_period_that_lives_otherwise_than_the_third_is_refused(spoil):
    standing, events = forward_and_backward(4)
    spoil(standing, events)
    with pytest.raises(IrregularError):
        repeat_row(SIX, standing, events)


def test_a_row_whose_layers_did_not_run_as_such_is_refused():
    """One layer that stands in all places runs under the first one's name."""
    standing, events = forward_and_backward(1)
    with pytest.raises(IrregularError):
        repeat_row(SIX, standing, events)
    outside = [Event(make_life(None), Where("forward")) for _ in range(4)]
    with pytest.raises(IrregularError):
        repeat_row(SIX, [], outside)
