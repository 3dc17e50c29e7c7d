"""The tape against sums by hand: lives, in-place sums of gradients, and the worst instant of a stretch."""

import pytest

from headwise.cost.step import operations as ops
from headwise.cost.step.autograd import play_backward
from headwise.cost.step.heads import repeat_heads, split_heads
from headwise.cost.step.tape import Tape, Value

WIDTH, ROWS = 7, 5
X = 4 * ROWS * WIDTH  # bytes of a hidden state
W = 4 * WIDTH * WIDTH  # bytes of a weight


@pytest.fixture
def tape():
    tape = Tape()
    tape.begin("forward: all")
    return tape


def test_a_tensor_is_freed_when_nothing_holds_it(tape):
    first = tape.new("first", (3,))
    second = tape.new("second", (2,), "int64")
    assert tape.current_bytes == 12 + 16
    del first
    assert tape.current_bytes == 16
    view = Value((1, 2), second)
    del second
    assert tape.current_bytes == 16
    del view
    assert tape.current_bytes == 0


def test_a_stretch_remembers_its_worst_instant(tape):
    held = [tape.new("kept", (2,), "bool")]
    passing = tape.new("passing", (11,), "bool")
    del passing
    held.append(tape.new("later", (3,), "bool"))
    tape.begin("next")
    held.append(tape.new("last", (1,), "bool"))
    assert [stretch.peak_bytes for stretch in tape.stretches] == [13, 6]
    lives = {record.name: (born, freed) for record, born, freed in tape.lives()}
    assert lives == {"kept": (0, None), "passing": (0, 0), "later": (1, None), "last": (1, None)}
    assert tape.current_bytes == sum(one.record.bytes for one in held)


def test_a_linear_layer_keeps_its_input_and_gives_it_back(tape):
    table = tape.parameter("table", (ROWS, WIDTH))
    weight = tape.parameter("weight", (WIDTH, WIDTH))
    x = ops.linear("y", ops.scale("x", table), weight)
    assert tape.current_bytes == X + W + 2 * X  # table, weight, kept x, y
    loss = ops.total("loss", x)
    del x
    assert tape.current_bytes == X + W + X + 4
    play_backward(tape, loss)
    del loss
    assert tape.current_bytes == 2 * (X + W)
    assert {gradient.record.name for gradient in tape.gradients} == {"gradient of table", "gradient of weight"}


def test_without_gradients_nothing_is_kept():
    tape = Tape(grad_enabled=False)
    tape.begin("forward")
    weight = tape.parameter("weight", (WIDTH, WIDTH))
    x = ops.linear("y", Value((ROWS, WIDTH), tape.new("x", (ROWS, WIDTH))), weight)
    assert tape.current_bytes == W + X
    assert x.node is None


def test_a_branch_that_the_loss_does_not_read_is_dropped_with_its_result(tape):
    table = tape.parameter("table", (ROWS, WIDTH))
    x = ops.scale("x", table)
    before = tape.current_bytes
    idle = ops.tanh("idle", x)
    assert tape.current_bytes == before + X
    del idle
    assert tape.current_bytes == before


def sums_of_gradients(tape, result):
    play_backward(tape, ops.total("loss", result))
    return sum(record.name.startswith("sum of gradients") for record in tape.records)


def test_a_second_gradient_is_added_in_place_to_one_that_nothing_else_holds(tape):
    x = ops.scale("x", tape.parameter("table", (ROWS, WIDTH)))
    added = ops.add("x + f(x)", x, ops.scale("f(x)", x))
    assert sums_of_gradients(tape, ops.scale("2 (x + f(x))", added)) == 0


def test_nothing_is_added_to_the_one_number_that_a_sum_sends_back(tape):
    x = ops.scale("x", tape.parameter("table", (ROWS, WIDTH)))
    assert sums_of_gradients(tape, ops.add("x + f(x)", x, ops.scale("f(x)", x))) == 1


def test_a_second_gradient_is_added_out_of_place_to_one_that_another_branch_still_holds(tape):
    x = ops.scale("x", tape.parameter("table", (ROWS, WIDTH)))
    y = ops.scale("y", tape.parameter("other", (ROWS, WIDTH)))
    assert sums_of_gradients(tape, ops.add("x + (y + f(x))", x, ops.add("y + f(x)", y, ops.scale("f(x)", x)))) == 1


@pytest.mark.parametrize(("outputs", "num_sums"), [(None, 1), (WIDTH, 0)])
def test_a_weight_that_is_used_twice_has_one_gradient(tape, outputs, num_sums):
    """The gradient of a weight used as its transpose is a view, which torch does not add to in place."""
    weight = tape.parameter("weight", (WIDTH, WIDTH))
    x = Value((ROWS, WIDTH), tape.new("x", (ROWS, WIDTH)))
    first = ops.linear("first", x, weight, outputs=outputs)
    play_backward(tape, ops.total("loss", ops.linear("second", first, weight, outputs=outputs)))
    squares = [record for record in tape.records if record.shape == (WIDTH, WIDTH)]
    assert len(squares) == 1 + 2 + num_sums  # the weight, a gradient of each use, their sum
    assert [gradient.record.name for gradient in tape.gradients] == ["gradient of weight"]


@pytest.mark.parametrize(("num_heads", "num_copies"), [(3, 1), (1, 0)])
def test_a_gradient_in_the_heads_order_is_copied_where_heads_were_split(tape, num_heads, num_copies):
    batch, seq, head_dim = 2, 5, 7
    x = tape.parameter("x", (batch, seq, num_heads * head_dim))
    heads = split_heads(x, num_heads, head_dim)
    play_backward(tape, ops.total("loss", repeat_heads("repeated", heads, 2)))
    copies = [record for record in tape.records if record.shape == x.shape and record.kind == "gradient"]
    fresh = [record for record in tape.records if record.shape == heads.shape]
    assert len(copies) == num_copies
    assert len(fresh) == 1
