"""A measured step against sums by hand, and what it must leave as it was."""

import pytest
import torch
from torch import nn

from headwise.cost.measure import measure_training_step, storage_bytes, sum_of_first_tensor
from headwise.errors import ModelError, UnsupportedError


class Squares(nn.Module):
    """`(weight * x) ** 2`: keeps x for the weight's gradient, and the product for the square's."""

    def __init__(self, size):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, x):
        return (self.weight * x) ** 2


def test_saved_bytes_are_those_that_the_operations_keep():
    """Saved: 4 x 1009 bytes of the product; x is an input, the weight a parameter."""
    step = measure_training_step(Squares(1009), (torch.ones(1009),))
    assert (step.parameter_bytes, step.saved_bytes) == (4036, 4036)


def test_the_peak_of_sgd_is_the_worst_instant_of_backward():
    """In the square's backward: weight, x, product p, p again as its first power, 2 p, and 2 p times gradient: 6."""
    size = 100_003
    step = measure_training_step(Squares(size), (torch.ones(size),), optimizer="sgd")
    assert step.peak_moment == "backward"
    whole, rest = divmod(step.peak_bytes, 4 * size)
    assert whole == 6
    assert rest < 64


def test_the_peak_of_adamw_holds_two_states_a_gradient_and_two_temporaries():
    """Weight, gradient, first and second moment, root and denominator: 6."""

    class Total(Squares):
        def forward(self, x):
            return self.weight.sum() * x

    size = 100_003
    step = measure_training_step(Total(size), (torch.ones(1),))
    assert step.peak_moment == "optimizer step"
    whole, rest = divmod(step.peak_bytes, 4 * size)
    assert whole == 6
    assert rest < 64


def test_what_the_loss_does_not_read_is_not_saved():
    class Idle(nn.Module):
        def __init__(self):
            super().__init__()
            self.used, self.idle = nn.Linear(3, 5, bias=False), nn.Linear(5, 7)

        def forward(self, x):
            y = self.used(x)
            return y, torch.tanh(self.idle(y))

    assert measure_training_step(Idle(), (torch.ones(11, 3),)).saved_bytes == 0  # used(x) keeps x, an input


def test_a_loss_of_the_callers_is_taken():
    step = measure_training_step(nn.Linear(3, 5), (torch.ones(7, 3),), loss=lambda output: output.exp().sum())
    assert step.saved_bytes == 4 * 7 * 5


@pytest.mark.parametrize("fails", [False, True])
def test_the_module_is_left_as_it_was(fails):
    torch.manual_seed(3)
    module = nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.Dropout(0.5)).eval()
    module[0].weight.grad = torch.full((5, 3), 2.0)
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    state = torch.get_rng_state()
    with torch.no_grad():
        if fails:
            with pytest.raises(ZeroDivisionError):
                measure_training_step(module, (torch.randn(7, 3),), loss=lambda output: 1 / 0)
            torch.set_rng_state(state)
        else:
            x = torch.ones(7, 3)
            measure_training_step(module, (x,))
        assert not torch.is_grad_enabled()
    assert torch.equal(torch.get_rng_state(), state)
    assert not module.training
    assert torch.equal(module[0].weight.grad, torch.full((5, 3), 2.0))
    assert module[0].bias.grad is None
    for name, tensor in module.state_dict().items():
        assert torch.equal(tensor, before[name])


def test_a_key_value_cache_is_switched_off_in_the_copy_alone():
    class Config:
        use_cache = True

    class Caching(Squares):
        def __init__(self):
            super().__init__(3)
            self.config = Config()

        def forward(self, x):
            assert not self.config.use_cache
            return super().forward(x)

    module = Caching()
    measure_training_step(module, {"x": torch.ones(3)})
    assert module.config.use_cache


def test_views_are_weighed_once_and_whole():
    x = torch.ones(3, 5)
    assert storage_bytes([x, x[1], x.t(), torch.ones(2, dtype=torch.int64), None]) == 60 + 16


def test_the_first_floating_point_tensor_is_summed():
    assert sum_of_first_tensor((torch.ones(2, dtype=torch.int64), [torch.ones(3)])) == 3


def test_an_output_without_numbers_to_train_on_is_refused():
    with pytest.raises(ModelError, match=r"must hold a floating-point tensor.*got str: give a loss"):
        sum_of_first_tensor("text")


def test_a_module_without_weights_is_refused():
    with pytest.raises(ModelError, match="needs a parameter that requires a gradient"):
        measure_training_step(nn.ReLU(), (torch.ones(3),))


def test_a_loss_without_a_gradient_is_refused():
    with pytest.raises(ModelError, match="the loss must depend on a parameter"):
        measure_training_step(nn.Linear(3, 5), (torch.ones(7, 3),), loss=lambda output: output.detach().sum())


def test_another_device_is_refused():
    with pytest.raises(UnsupportedError, match="measured on the CPU; got a tensor on meta"):
        measure_training_step(nn.Linear(3, 5, device="meta"), (torch.ones(7, 3),))
