"""Which layers repeat, against a search by hand, and what tells two layers apart."""

from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

from headwise.cost.tracing.layers import Row, cut_rows, find_period, find_rows


def row_of(kinds):
    num_first, period = find_period(kinds)
    return Row(name="layers", num_layers=len(kinds), num_first=num_first, period=period)


@pytest.mark.parametrize(
    ("kinds", "num_first", "period", "num_kept"),
    [
        ("aaaaaaaa", 0, 1, 4),
        ("aaaa", 0, 4, 4),
        ("aaaaa", 0, 1, 4),
        ("bbbaaaaaaa", 3, 1, 7),
        ("abababababab", 0, 2, 8),
        ("ababababababa", 0, 2, 9),
        ("aaaaaaaab", 0, 9, 9),
        ("", 0, 1, 0),
    ],
)
def test_the_shortest_cut_keeps_four_periods_and_what_comes_before(kinds, num_first, period, num_kept):
    row = row_of(list(kinds))
    assert (row.num_first, row.period, row.num_kept) == (num_first, period, num_kept)


@given(st.lists(st.sampled_from("ab"), max_size=23))
def test_what_is_cut_can_be_put_back_by_repeating_the_second_period(kinds):
    row = row_of(kinds)
    start, end = row.num_first + row.period, row.num_first + 2 * row.period
    kept = kinds[: row.num_kept]
    assert kept[:end] + row.num_missing * kept[start:end] + kept[end:] == kinds


class Layer(nn.Module):
    def __init__(self, index, *, width=3, window=None, act=functional.relu):
        super().__init__()
        self.index = index
        self.window = window
        self.act = partial(act)
        self.linear = nn.Linear(5, width)


def net(make):
    module = nn.Module()
    module.embed = nn.Linear(5, 5)
    module.layers = nn.ModuleList([make(index) for index in range(7)])
    return module


def test_a_number_that_counts_layers_does_not_tell_them_apart():
    [row] = find_rows(net(Layer))
    assert (row.name, row.num_layers, row.period, row.num_kept) == ("layers", 7, 1, 4)


@pytest.mark.parametrize(
    "make",
    [
        lambda index: Layer(index, width=3 if index < 6 else 4),
        lambda index: Layer(index, window=None if index < 6 else 7),
        lambda index: Layer(index, act=functional.relu if index < 6 else functional.gelu),
        lambda index: Layer(0 if index < 6 else 1),
        lambda index: Layer(index).requires_grad_(index < 6),
    ],
    ids=["shape", "setting", "function", "number", "frozen"],
)
def test_a_last_layer_that_differs_leaves_nothing_to_cut(make):
    [row] = find_rows(net(make))
    assert row.num_kept == 7


def test_a_hook_on_a_layer_tells_it_apart():
    module = net(Layer)
    module.layers[6].register_forward_hook(lambda *_: None)
    assert find_rows(module)[0].num_kept == 7


def test_lists_inside_layers_and_lists_of_different_things_are_no_rows():
    module = net(lambda index: nn.Sequential(nn.Linear(5, 5), nn.Linear(5, 5)))
    module.parts = nn.Sequential(nn.Linear(5, 5), nn.ReLU())
    assert [row.name for row in find_rows(module)] == ["layers"]


def test_cutting_keeps_the_first_layers():
    module = net(Layer)
    cut_rows(module, find_rows(module))
    assert [layer.index for layer in module.layers] == [0, 1, 2, 3]


def test_the_number_of_a_period_counts_from_the_first_that_repeats():
    row = Row(name="layers", num_layers=20, num_first=3, period=2)
    assert [row.unit(("layers", index)) for index in (2, 3, 4, 5)] == [None, 0, 0, 1]
    assert row.unit(("others", 5)) is None
    assert row.unit(None) is None
