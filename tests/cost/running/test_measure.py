"""A measured step against sums by hand, and what it must leave as it was."""

from contextlib import nullcontext

import pytest
import torch
from torch import nn

from headwise.cost.running.measure import measure_training_step, storage_bytes, sum_of_first_tensor
from headwise.cost.workload import Workload
from headwise.errors import ConfigError, ModelError, UnsupportedError


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
    with pytest.raises(UnsupportedError, match="all on one CUDA device; got tensors on cpu, meta"):
        measure_training_step(nn.Linear(3, 5, device="meta"), (torch.ones(7, 3),))


# Under a workload


def asked(**options):
    return Workload(batch=1, seq=1, device="cpu", **options)


class Affine(nn.Module):
    """Two products in a row: the first one's output is what the second keeps for its weight's gradient."""

    def __init__(self, size):
        super().__init__()
        self.first, self.second = (nn.Linear(size, size, bias=False) for _ in range(2))

    def forward(self, x):
        return self.second(self.first(x))


ROWS, SIZE = 7, 16


@pytest.mark.parametrize(
    ("precision", "saved"),
    [
        ("fp32", 4 * ROWS * SIZE),  # the first output; x is an input and the weights are parameters
        ("bf16", 2 * ROWS * SIZE),
        ("amp-bf16", 2 * ROWS * SIZE + 2 * ROWS * SIZE + 2 * SIZE * SIZE),  # x and both read in bf16: x, output, weight
    ],
)
def test_precision_decides_what_is_saved_and_what_parameters_weigh(precision, saved):
    step = measure_training_step(Affine(SIZE), (torch.ones(ROWS, SIZE),), workload=asked(precision=precision))
    assert step.parameter_bytes == 2 * SIZE * SIZE * (2 if precision == "bf16" else 4)
    assert step.saved_bytes == saved


def test_gradients_stand_through_the_next_pass_of_an_accumulated_step():
    size = 300
    once, thrice = (
        measure_training_step(
            Affine(size), (torch.ones(1, size),), workload=asked(optimizer="sgd", accumulation=passes)
        )
        for passes in (1, 3)
    )
    weight = 4 * size * size
    assert (once.peak_bytes // weight, thrice.peak_bytes // weight) == (4, 5)  # with one gradient more in flight
    assert once.peak_moment == thrice.peak_moment == "backward"


@pytest.mark.parametrize(
    ("optimizer", "step", "weights"),
    [
        ("sgd", "loop", 2),  # a weight and its gradient
        ("momentum", "loop", 3),
        ("adamw", "fused", 4),
        ("adamw", "foreach", 5),  # and the root of every second moment at once
    ],
)
def test_the_optimizers_states_and_temporaries_are_in_the_peak(optimizer, step, weights):
    class Total(nn.Module):
        def __init__(self):
            super().__init__()
            self.parts = nn.ParameterList(nn.Parameter(torch.ones(10_007)) for _ in range(4))

        def forward(self, x):
            return sum(part.sum() for part in self.parts) * x

    measured = measure_training_step(
        Total(), (torch.ones(1),), workload=asked(optimizer=optimizer, optimizer_step=step)
    )
    whole, rest = divmod(measured.peak_bytes, 4 * 4 * 10_007)
    assert whole == weights
    assert rest < 200


def test_the_gain_of_an_accumulated_loss_is_that_of_one_large_batch():
    """Each pass's loss is divided by the number of passes; the same inputs thrice give the gradient of once."""
    seen = []
    module = nn.Linear(3, 1, bias=False)

    class Spy(torch.optim.SGD):
        def step(self, closure=None):
            seen.append(self.param_groups[0]["params"][0].grad.clone())
            return super().step(closure)

    for passes in (1, 3):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(torch.optim, "SGD", Spy)
            measure_training_step(module, (torch.ones(2, 3),), workload=asked(optimizer="sgd", accumulation=passes))
    torch.testing.assert_close(seen[0], seen[-1])


def test_flops_are_those_of_every_pass_forward_and_backward():
    """Forward one product a layer, backward two, but the first layer's input needs no gradient."""
    product = 2 * ROWS * SIZE * SIZE
    for passes in (1, 3):
        step = measure_training_step(
            Affine(SIZE), (torch.ones(ROWS, SIZE),), workload=asked(accumulation=passes), with_flops=True
        )
        assert step.flops == passes * 5 * product


def test_time_is_the_median_of_the_steps_that_were_timed(monkeypatch):
    clock = iter([0.0, 3.0, 10.0, 11.0, 20.0, 22.0])
    monkeypatch.setattr("headwise.cost.running.measure.time.perf_counter", lambda: next(clock))
    assert measure_training_step(Squares(3), (torch.ones(3),), timed_steps=3).seconds == 2.0


def test_what_is_not_asked_for_is_not_there():
    step = measure_training_step(Squares(3), (torch.ones(3),))
    assert (step.seconds, step.flops, step.reserved_bytes) == (None, None, None)


@pytest.mark.parametrize(
    ("workload", "message"),
    [
        (Workload(batch=1, seq=1), r"a module on cpu and a workload of device cuda: give Workload\(device='cpu'\)"),
        (asked(phase="prefill"), "needs phase 'train'; got 'prefill'"),
    ],
)
def test_a_workload_that_is_no_training_step_here_is_refused(workload, message):
    with pytest.raises(ConfigError, match=message):
        measure_training_step(Squares(3), (torch.ones(3),), workload=workload)


def test_two_optimizers_are_refused():
    with pytest.raises(ConfigError, match="stands in the workload; got adam there and sgd beside it"):
        measure_training_step(Squares(3), (torch.ones(3),), workload=asked(optimizer="adam"), optimizer="sgd")


def test_a_workload_leaves_the_module_as_it_was():
    module = nn.Sequential(nn.Linear(16, 16), nn.Dropout(0.5))
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    measure_training_step(module, (torch.ones(2, 16),), workload=asked(precision="bf16", dropout=False))
    assert module[1].p == 0.5
    for name, tensor in module.state_dict().items():
        assert tensor.dtype == torch.float32
        assert torch.equal(tensor, before[name])


# On CUDA: the allocator's functions are replaced, since tests run without a GPU


def test_cuda_peaks_are_the_allocators_own_for_each_moment(monkeypatch):
    allocated = iter([1000, 5000, 5000])  # before the copy, before the recorded step, when its record begins
    peaks = iter([7000, 7100, 9000, 8000, 5000])
    reserved = iter([20_000, 20_000, 40_000, 40_000, 30_000])
    resets, waits = [], []
    for name, function in {
        "memory_allocated": lambda device: next(allocated),
        "max_memory_allocated": lambda device: next(peaks),
        "max_memory_reserved": lambda device: next(reserved),
        "reset_peak_memory_stats": resets.append,
        "synchronize": waits.append,
    }.items():
        monkeypatch.setattr(torch.cuda, name, function)
    device = torch.device("cuda", 0)
    monkeypatch.setattr("headwise.cost.running.measure.common_device", lambda module, inputs: device)
    monkeypatch.setattr(torch.random, "fork_rng", lambda devices: nullcontext())
    step = measure_training_step(Squares(3), (torch.ones(3),), timed_steps=1)
    assert step.peak_moment == "backward"
    assert step.peak_bytes == (5000 - (1000 - 12)) + (9000 - 5000)  # the 12 bytes of x stood before, and count
    assert step.reserved_bytes == 40_000
    assert step.saved_bytes == 12  # by the same hooks
    assert resets == [device] * 5
    assert waits == [device] * 2


def test_the_callers_inputs_get_no_gradient_though_the_step_makes_one():
    x = torch.randn(2, 4, 8, requires_grad=True)
    plain = measure_training_step(nn.Linear(8, 8), (x.detach(),), optimizer="sgd")
    learning = measure_training_step(nn.Linear(8, 8), (x,), optimizer="sgd")
    assert x.grad is None
    assert learning.peak_bytes == plain.peak_bytes + 4 * x.numel()
