"""Optimizers: states and what a step needs, against torch's own optimizers, and two that torch has not."""

from functools import partial
from itertools import accumulate

import pytest
import torch
from torch import optim
from torch.profiler import ProfilerActivity, profile

from headwise.cost.step.optimizers import (
    BLOCK_SIZE,
    MIN_8BIT_SIZE,
    optimizer_states,
    play_optimizer,
    require_optimizer,
    trained_parameters,
)
from headwise.cost.step.tape import Tape
from headwise.cost.workload import Workload
from headwise.errors import UnsupportedError

# None makes a tensor as small as a number: tall and flat matrices, vectors, stacked experts, each beside smaller
# and larger ones.
SHAPES = ((13, 7), (7, 13), (11,), (101, 5), (5, 101), (17,), (2, 3, 5), (5, 5))
NUMBER = 8  # bytes: the largest of the numbers that Python hands to an operation, and that a scalar result holds


class Lion(optim.Optimizer):
    """Chen et al. 2023, program 1, over tensors."""

    def __init__(self, parameters, *, foreach=False):
        super().__init__(parameters, {"lr": 1e-3})
        self.is_foreach = foreach

    @torch.no_grad()
    def step(self, closure=None):
        parameters = [one for group in self.param_groups for one in group["params"]]
        for one in parameters:
            self.state[one].setdefault("momentum", torch.zeros_like(one))
        moments = [self.state[one]["momentum"] for one in parameters]
        gradients = [one.grad for one in parameters]
        if self.is_foreach:
            updates = torch._foreach_mul(moments, 0.9)
            torch._foreach_add_(updates, gradients, alpha=0.1)
            torch._foreach_sign_(updates)
            torch._foreach_add_(parameters, updates, alpha=-1e-3)
        else:
            for one, moment, gradient in zip(parameters, moments, gradients, strict=True):
                update = moment * 0.9 + gradient * (1 - 0.9)
                one.add_(update.sign_(), alpha=-1e-3)
                moment.mul_(0.99).add_(gradient, alpha=1 - 0.99)


MAKERS = {
    "sgd": optim.SGD,
    "momentum": partial(optim.SGD, momentum=0.9),
    "adam": optim.Adam,
    "adamw": optim.AdamW,
    "adafactor": optim.Adafactor,
    "lion": Lion,
}
CASES = [
    (name, step)
    for name in MAKERS
    for step in ("foreach", "loop", "fused")
    if (name, step) not in (("adafactor", "fused"), ("lion", "fused"))
]


def run_torch(optimizers, parameters):
    """Bytes of the states, and the most that a steady step allocates beside them, numbers that stand alone apart."""
    for one in optimizers:
        one.step()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        for one in optimizers:
            one.step()
    events = profiler.profiler.kineto_results.events()
    changes = sorted((event.start_ns(), index) for index, event in enumerate(events) if event.name() == "[memory]")
    sizes = [events[index].nbytes() for _, index in changes]
    states = [value for one in optimizers for state in one.state.values() for value in state.values()]
    state_bytes = sum(value.untyped_storage().nbytes() for value in states if isinstance(value, torch.Tensor))
    return state_bytes, max(accumulate((size for size in sizes if abs(size) > NUMBER), initial=0))


def make_torch(dtype, shapes=SHAPES):
    torch.manual_seed(0)
    parameters = [torch.nn.Parameter(torch.randn(shape).to(dtype)) for shape in shapes]
    for one in parameters:
        one.grad = torch.randn_like(one)
    return parameters


def play(workload, shapes=SHAPES, dtype="float32", owner="layer 0 attention"):
    tape = Tape(device=workload.device)
    tape.begin("forward")
    with tape.owned_by(owner):
        parameters = [tape.parameter(f"weight {index}", shape, dtype) for index, shape in enumerate(shapes)]
        tape.gradients = [
            tape.new(f"gradient of weight {index}", shape, dtype, kind="gradient") for index, shape in enumerate(shapes)
        ]
    before = tape.current_bytes
    play_optimizer(tape, workload)
    assert tape.current_bytes == before
    assert [one.storage.record for one in parameters] == trained_parameters(tape)
    states = [state for one in trained_parameters(tape) for state in optimizer_states(one, workload)]
    return states, tape.stretches[-1].peak_bytes - before


def work(optimizer, step, device="cpu"):
    return Workload(batch=1, seq=1, optimizer=optimizer, optimizer_step=step, device=device)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(("name", "step"), CASES)
def test_a_step_holds_and_needs_what_torchs_does_to_the_byte(name, step, dtype):
    parameters = make_torch(getattr(torch, dtype))
    form = {"foreach": step == "foreach"} | ({"fused": True} if step == "fused" else {})
    state_bytes, peak = run_torch([MAKERS[name](parameters, **form)], parameters)
    states, played = play(work(name, step), dtype=dtype)
    assert sum(state.bytes for state in states) == state_bytes
    assert played == peak


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("step", ["foreach", "loop", "fused"])
def test_muon_serves_the_matrices_of_layers_and_adamw_the_rest(step, dtype):
    parameters = make_torch(getattr(torch, dtype))
    matrices = [one for one in parameters if one.dim() == 2]
    rest = [one for one in parameters if one.dim() != 2]
    adamw = optim.AdamW(rest, foreach=step == "foreach", fused=step == "fused")
    state_bytes, peak = run_torch([optim.Muon(matrices), adamw], parameters)
    states, played = play(work("muon", step), dtype=dtype)
    assert sum(state.bytes for state in states) == state_bytes
    assert played == peak
    assert {state.name.split(" of ")[0] for state in play(work("muon", step), owner="embeddings")[0]} == {
        "first moment",
        "second moment",
        "step count",
    }


def test_eight_bit_states_have_a_byte_a_number_and_a_scale_for_each_256():
    large, small = (97, 43), (89, 46)
    assert 97 * 43 - MIN_8BIT_SIZE == 75
    assert 89 * 46 - MIN_8BIT_SIZE == -2
    states, played = play(work("adamw8bit", "foreach"), (large, small))
    assert played == 0
    by_name = {state.name: (state.shape, state.dtype, state.bytes) for state in states}
    num_blocks = 17  # 4171 numbers
    assert num_blocks == -(-97 * 43 // BLOCK_SIZE)
    assert by_name == {
        "first moment of weight 0": (large, "uint8", 4171),
        "second moment of weight 0": (large, "uint8", 4171),
        "scales of the first moment of weight 0": ((num_blocks,), "float32", 68),
        "scales of the second moment of weight 0": ((num_blocks,), "float32", 68),
        "first moment of weight 1": (small, "float32", 4 * 4094),
        "second moment of weight 1": (small, "float32", 4 * 4094),
    }


def test_step_counts_are_on_the_gpu_only_if_the_kernel_is_fused():
    for step, is_there in (("foreach", False), ("loop", False), ("fused", True)):
        states, _ = play(work("adamw", step, "cuda"))
        assert any(state.name.startswith("step count") for state in states) is is_there


def test_torch_takes_foreach_on_cuda_but_for_adafactor():
    for optimizer, device, step in (
        ("adamw", "cuda", "foreach"),
        ("adamw", "cpu", "loop"),
        ("adafactor", "cuda", "loop"),
    ):
        assert Workload(batch=1, seq=1, optimizer=optimizer, device=device).optimizer_step == step


def test_a_form_that_torch_has_not_is_refused():
    with pytest.raises(UnsupportedError, match="Adafactor has no fused step; give optimizer_step 'loop' or 'foreach'"):
        require_optimizer(work("adafactor", "fused"))
