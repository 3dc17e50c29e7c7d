"""What is followed of saved tensors, against operations whose needs are known."""

import torch

from headwise.cost.running.saved import follow_saved


def shapes(saved):
    return [tuple(tensor.shape) for tensor in saved.held()]


def test_what_an_operation_saves_is_held_until_its_backward():
    x = torch.ones(5, requires_grad=True)
    with follow_saved() as saved:
        y = x.exp().sin()  # exp saves its result, sin its input: one tensor, held twice
    assert shapes(saved) == [(5,), (5,)]
    assert len({tensor.untyped_storage().data_ptr() for tensor in saved.held()}) == 1
    y.sum().backward()
    assert shapes(saved) == []


def test_what_was_saved_for_a_result_that_is_dropped_is_held_no_more():
    x = torch.ones(5, requires_grad=True)
    with follow_saved() as saved:
        y = x.exp()  # saves its own result
        assert shapes(saved) == [(5,)]
        del y
    assert shapes(saved) == []
