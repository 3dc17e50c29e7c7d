"""The recorder against known sequences of tensors, and against the allocator's own record of a real step."""

import gc
import weakref
from contextlib import contextmanager
from itertools import accumulate

import pytest
import torch
from torch import nn
from torch._subclasses import FakeTensorMode
from torch.nn import functional
from torch.profiler import ProfilerActivity, profile
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import checkpoint

from headwise.cost.tracing.lives import make_ledger
from headwise.cost.tracing.recorder import Recorder


@contextmanager
def recording(module=None, *, phase=None):
    recorder = Recorder()
    if module is not None:
        recorder.name_modules(module)
    recorder.phase = phase
    with recorder:
        yield recorder
    recorder.close()


def ledger_of(recorder):
    return make_ledger(recorder.standing, recorder.events)


def born_inside(recorder):
    return [entry for entry in ledger_of(recorder).entries if entry.born > 0]


def floats(count):
    """A new tensor of `count` float32 numbers."""
    return torch.empty(count)


@pytest.mark.parametrize("is_fake", [False, True])
def test_the_bytes_at_every_moment_are_those_of_known_tensors(is_fake):
    def make_and_drop():
        a = floats(11)
        b = floats(7)
        del a
        c = torch.empty(5, dtype=torch.int64)
        d = floats(13)
        del b, c
        return d, torch.empty(3, dtype=torch.bool)

    with FakeTensorMode(), recording() as recorder:
        kept = make_and_drop() if is_fake else None
    if not is_fake:
        with recording() as recorder:
            kept = make_and_drop()
    ledger = ledger_of(recorder)
    assert ledger.bytes_by_moment == (0, 44, 72, 28, 68, 120, 92, 52, 55)
    assert [(entry.shape, entry.dtype) for entry in ledger.alive(ledger.peak)] == [
        ((13,), "float32"),
        ((5,), "int64"),
        ((7,), "float32"),
    ]
    assert [entry.freed for entry in ledger.entries] == [3, 6, 7, None, None]
    del kept


def test_views_count_once_and_hold_the_whole():
    with recording() as recorder:
        whole = floats(30)
        part = whole.view(5, 6)[1:2].t()
        also = part.detach()
        del whole, part
        floats(1)
        del also
    assert ledger_of(recorder).bytes_by_moment == (0, 120, 124, 120, 0)


def test_an_operation_in_place_takes_nothing():
    with recording() as recorder:
        x = floats(5)
        x.zero_().add_(1)
    assert ledger_of(recorder).bytes_by_moment == (0, 20)


def test_memory_that_changes_its_size_lives_twice():
    with recording() as recorder:
        x = floats(5)
        x.resize_(9)
        y = x.view(3, 3)
    sizes = [(entry.bytes, entry.freed is None) for entry in ledger_of(recorder).entries]
    assert sizes == [(20, False), (36, True)]
    del x, y


def test_what_existed_before_counts_from_the_first_moment_once_it_is_read():
    named, unnamed, unread = torch.ones(3), torch.ones(7), torch.ones(11)
    recorder = Recorder()
    recorder.stand(named, "input", "x", "inputs")
    with recorder:
        y = unnamed + 1.0
    ledger = ledger_of(recorder)
    assert ledger.bytes_by_moment == (12 + 28, 12 + 28 + 28)
    assert [(entry.name, entry.kind, entry.owner) for entry in ledger.entries if entry.born == 0] == [
        ("x", "input", "inputs"),
        ("before", "temporary", ""),
    ]
    del y, unread


def test_a_tensor_of_python_numbers_is_new_once():
    with recording() as recorder:
        x = torch.tensor([1.0, 2.0, 3.0])
    assert [(entry.bytes, entry.born) for entry in ledger_of(recorder).entries] == [(12, 1)]
    del x


def test_nothing_is_recorded_after_close():
    with recording() as recorder:
        x = floats(5)
    num_events = len(recorder.events)
    del x
    gc.collect()
    assert len(recorder.events) == num_events


def test_a_closed_recorder_holds_no_tensor():
    with recording() as recorder:
        x = floats(5)
        reference = weakref.ref(x)
        del x
        assert reference() is None
    assert ledger_of(recorder).bytes_by_moment == (0, 20, 0)


def test_the_owner_is_the_innermost_module_in_forward_and_in_its_backward():
    module = nn.Sequential(nn.Sequential(nn.Linear(3, 5, bias=False)), nn.Tanh(), nn.Linear(5, 2, bias=False))
    with recording(module) as recorder:
        module(torch.ones(7, 3)).sum().backward()
    entries = born_inside(recorder)
    moments = ledger_of(recorder).moments
    owners = [(entry.owner, entry.shape) for entry in entries if moments[entry.born].startswith("backward")]
    assert ("0.0", (5, 3)) in owners
    assert ("2", (2, 5)) in owners
    assert ("1", (7, 5)) in owners
    forward = [(entry.owner, entry.shape) for entry in entries if moments[entry.born].startswith("forward")]
    assert forward == [("0.0", (7, 5)), ("1", (7, 5)), ("2", (7, 2))]


def test_a_checkpointed_part_has_its_own_name_when_it_runs_again():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Sequential(nn.Linear(3, 5), nn.Tanh())

        def forward(self, x):
            return checkpoint(self.inner, x, use_reentrant=False)

    module = Net()
    with recording(module) as recorder:
        module(torch.ones(7, 3, requires_grad=True)).sum().backward()
    moments = ledger_of(recorder).moments
    again = [
        entry.owner
        for entry in born_inside(recorder)
        if entry.name in ("addmm", "tanh") and moments[entry.born].startswith("backward")
    ]
    assert again == ["inner.0", "inner.1"]


def test_moments_name_the_layer_of_a_row_and_what_stands_between_two_layers_is_the_first_ones():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList([nn.Linear(3, 3, bias=False) for _ in range(2)])
            self.norm = nn.LayerNorm(3)

        def forward(self, x):
            for layer in self.layers:
                x = layer(x) * 2.0
            return self.norm(x)

    module = Net()
    with recording(module, phase="forward") as recorder:
        y = module(torch.ones(7, 3))
    births = {entry.born for entry in born_inside(recorder)}
    moments = [moment for place, moment in enumerate(ledger_of(recorder).moments) if place in births]
    assert moments == ["forward", *2 * ["forward: layers.0"], *2 * ["forward: layers.1"], *3 * ["forward: norm"]]
    del y


@pytest.mark.parametrize("foreach", [False, True])
def test_an_optimizers_temporaries_belong_to_the_weights_owner(foreach):
    module = nn.Sequential(nn.Linear(3, 5, bias=False), nn.Linear(5, 2, bias=False))
    optimizer = torch.optim.AdamW(module.parameters(), foreach=foreach)
    module(torch.ones(7, 3)).sum().backward()
    optimizer.step()
    recorder = Recorder()
    for index, parameter in enumerate(module.parameters()):
        recorder.stand(parameter, "parameter", "weight", str(index))
        recorder.stand(parameter.grad, "gradient", "gradient of weight", str(index))
        for name, state in optimizer.state[parameter].items():
            recorder.stand(state, "optimizer", name, str(index))
    with recorder:
        recorder.phase = "optimizer step"
        optimizer.step()
    recorder.close()
    made = {(entry.owner, entry.shape) for entry in born_inside(recorder) if entry.shape}
    assert made == {("0", (5, 3)), ("1", (2, 5))}


def test_hooks_are_removed_and_the_record_is_readable_after_an_error():
    module = nn.Linear(3, 5)
    recorder = Recorder()
    with pytest.raises(RuntimeError), recorder:
        module(torch.ones(2, 4))
    recorder.close()
    num_events = len(recorder.events)
    module(torch.ones(2, 3))
    assert len(recorder.events) == num_events
    assert [entry.shape for entry in born_inside(recorder)] == [(2, 4)]


def allocator_peak(function):
    """The most bytes that the allocator gave out while the function ran, above those before."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        function()
    events = profiler.profiler.kineto_results.events()
    changes = sorted((event.start_ns(), index) for index, event in enumerate(events) if event.name() == "[memory]")
    return max(accumulate(events[index].nbytes() for _, index in changes))


def recorded_peak(function):
    with recording() as recorder:
        function()
    ledger = ledger_of(recorder)
    return max(ledger.bytes_by_moment) - ledger.bytes_at(0)


SIZE = 1009


def two_readers():
    """The second gradient of x is added in place to the first, which nothing else holds: two tensors, not three."""
    x = torch.ones(SIZE, requires_grad=True) * 1.0
    ((2.0 * x).sum() + (3.0 * x).sum()).backward()


def readers_with_a_shared_gradient():
    """The first gradient is another branch's too, so that nothing may be added to it."""
    x = torch.ones(SIZE, requires_grad=True) * 1.0
    (x + (torch.exp(x) + torch.sigmoid(x))).sum().backward()


def weight_used_twice():
    weight = torch.ones(31, 31, requires_grad=True)
    functional.linear(functional.linear(torch.ones(7, 31), weight), weight).sum().backward()


def attention_with_a_mask():
    """The math kernel adds the mask to the scores in place."""
    query = torch.ones(1, 2, 37, 4)
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        functional.scaled_dot_product_attention(query, query, query, attn_mask=torch.zeros(37, 37))


@pytest.mark.parametrize(
    ("function", "tolerance"),
    [
        (two_readers, 64),  # single numbers
        (readers_with_a_shared_gradient, 64),
        (weight_used_twice, 64),
        (attention_with_a_mask, 4 * 2 * 37 * 37 // 2),  # half a score matrix: copies inside the kernel are not seen
    ],
)
def test_what_torch_adds_in_place_when_unwatched_is_recorded_so(function, tolerance):
    function()
    assert abs(recorded_peak(function) - allocator_peak(function)) <= tolerance


def test_a_mask_and_a_bias_that_torch_adds_in_place_make_no_tensor():
    weight, bias = torch.ones(5, 4), torch.ones(5)
    turned = torch.ones(4, 7, 3).permute(2, 1, 0)
    with recording() as recorder:
        attention_with_a_mask()
        functional.linear(turned, weight, bias)
    names = [entry.name for entry in ledger_of(recorder).entries]
    assert "_safe_softmax" in names or "_softmax" in names
    assert "add" not in names


def test_a_sum_that_the_caller_makes_is_a_tensor_of_its_own():
    with recording() as recorder:
        z = torch.ones(SIZE) + torch.ones(SIZE)
    assert max(ledger_of(recorder).bytes_by_moment) == 3 * 4 * SIZE
    del z


def test_a_real_step_agrees_with_the_allocators_record_but_for_single_numbers():
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(36, 4, 72, dropout=0.1, batch_first=True)
    model = nn.Sequential(nn.Embedding(997, 36), layer)
    ids = torch.randint(0, 997, (3, 11))
    optimizer = torch.optim.AdamW(model.parameters())

    def step():
        model(ids).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    step()
    gc.collect()
    recorder = Recorder()
    states = tree_leaves(list(optimizer.state.values()))
    for tensor in [*model.parameters(), ids, *states]:
        recorder.stand(tensor, "input", "")
    with recorder:
        step()
    recorder.close()
    ledger = ledger_of(recorder)
    assert ledger.bytes_by_moment[-1] == ledger.bytes_at(0)
    assert abs(max(ledger.bytes_by_moment) - ledger.bytes_at(0) - allocator_peak(step)) <= 64
