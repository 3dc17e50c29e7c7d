"""The tracker against known sequences of tensors, and against the allocator's own record of a real step."""

import gc

import pytest
import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from headwise.cost.measure import storage_bytes
from headwise.cost.tracker import AllocationTracker


def floats(count):
    """A new tensor of `count` float32 numbers."""
    return torch.empty(count)


def test_the_peak_of_known_tensors_is_exact_to_the_byte():
    with AllocationTracker() as tracker:
        with tracker.phase("first"):
            a = floats(11)
            b = floats(7)
        del a
        with tracker.phase("second"):
            c = torch.empty(5, dtype=torch.int64)
            d = floats(13)
        del b, c
        with tracker.phase("third"):
            e = torch.empty(3, dtype=torch.bool)
        assert tracker.current_bytes == 4 * 13 + 3
    assert tracker.peak_bytes == 4 * 7 + 8 * 5 + 4 * 13
    assert tracker.peak_phase == "second"
    assert [(one.shape, one.dtype, one.phase) for one in tracker.peak_storages()] == [
        ((13,), "float32", "second"),
        ((5,), "int64", "second"),
        ((7,), "float32", "first"),
    ]
    assert [one.shape for one in tracker.live_storages()] == [(13,), (3,)]
    del d, e
    assert tracker.current_bytes == 0


def test_views_count_once_and_hold_the_whole():
    with AllocationTracker() as tracker:
        whole = floats(30)
        part = whole.view(5, 6)[1:2].t()
        also = part.detach()
        assert tracker.current_bytes == 120
        del whole, part
        assert tracker.current_bytes == 120
        del also
        assert tracker.current_bytes == 0
    assert tracker.peak_bytes == 120


def test_an_operation_in_place_takes_nothing():
    with AllocationTracker() as tracker:
        x = floats(5)
        x.zero_().add_(1)
    assert tracker.peak_bytes == 20


def test_a_resized_tensor_counts_with_its_new_size():
    with AllocationTracker() as tracker:
        x = floats(5)
        x.resize_(9)
        assert tracker.current_bytes == 36
        x.untyped_storage().resize_(0)
        y = floats(2)
        assert [one.bytes for one in tracker.live_storages()] == [8, 0]
        assert tracker.current_bytes == 8
    assert tracker.peak_bytes >= 36
    del x, y


def test_what_existed_before_counts_from_the_beginning():
    module = nn.Linear(3, 5)
    x, unnamed = torch.ones(2, 3), torch.ones(7)
    with AllocationTracker(module, existing=[x]) as tracker:
        assert tracker.current_bytes == 4 * (3 * 5 + 5 + 2 * 3)
        y = module(x)
        before = tracker.peak_bytes
        assert before == 4 * (3 * 5 + 5 + 2 * 3 + 2 * 5)
        z = unnamed.view(1, 7)
        assert tracker.peak_bytes == before + 28
    owners = {(one.owner, one.phase) for one in tracker.peak_storages()}
    assert owners == {("", "before"), ("", "")}
    del y, z


def test_a_tensor_from_python_numbers_is_new():
    with AllocationTracker() as tracker, tracker.phase("here"):
        x = torch.tensor([1.0, 2.0, 3.0])
    assert [(one.bytes, one.phase) for one in tracker.peak_storages()] == [(12, "here")]
    del x


def test_backward_is_followed_and_belongs_to_the_module_that_ran_forward():
    module = nn.Sequential(nn.Linear(3, 5, bias=False), nn.Tanh(), nn.Linear(5, 2, bias=False))
    with AllocationTracker(module) as tracker:
        with tracker.phase("forward"):
            loss = module(torch.ones(7, 3)).sum()
        with tracker.phase("backward"):
            loss.backward()
        gradients = [one for one in tracker.live_storages() if one.phase == "backward"]
    assert [(one.owner, one.bytes) for one in gradients] == [("0", 4 * 3 * 5), ("2", 4 * 5 * 2)]


def test_the_owner_in_forward_is_the_innermost_module():
    module = nn.Sequential(nn.Sequential(nn.Linear(3, 5)), nn.GELU())
    with AllocationTracker(module) as tracker, tracker.phase("forward"):
        y = module(torch.ones(7, 3))
        z = torch.ones(1)
    owners = [one.owner for one in tracker.live_storages() if one.phase == "forward"]
    assert sorted(owners) == ["", "", "0.0", "1"]  # the input, z, what GELU keeps, and its result
    del y, z


def test_hooks_are_removed_even_after_an_error():
    module = nn.Linear(3, 5)
    with pytest.raises(RuntimeError), AllocationTracker(module) as tracker:
        module(torch.ones(2, 4))
    before = tracker.current_bytes
    x = module(torch.ones(2, 3))
    assert tracker.current_bytes <= before
    del x


def test_a_real_step_agrees_with_the_allocators_record():
    """Exactly after each phase but for single numbers, and at the peak: AdamW's, whose tensors are all seen."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(36, 4, 72, dropout=0.1, batch_first=True)
    model = nn.Sequential(nn.Embedding(997, 36), layer)
    ids = torch.randint(0, 997, (3, 11))
    optimizer = torch.optim.AdamW(model.parameters())

    def step(after):
        output = model(ids)
        loss = output.sum()
        del output
        after("forward")
        loss.backward()
        after("backward")
        optimizer.step()
        optimizer.zero_grad()
        del loss
        after("step")

    step(lambda _: None)
    gc.collect()
    states = [leaf for leaf in tree_leaves(list(optimizer.state.values())) if isinstance(leaf, torch.Tensor)]
    standing = storage_bytes([*model.parameters(), ids, *states])
    tracked = {}
    with AllocationTracker(model, existing=[ids, *states]) as tracker:
        assert tracker.current_bytes == standing
        step(lambda phase: tracked.update({phase: tracker.current_bytes - standing}))

    recorded, peak = {}, 0
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profiler:

        def mark(phase):
            with torch.profiler.record_function(f"after {phase}"):
                pass

        step(mark)
    current = 0
    events = sorted(profiler.profiler.kineto_results.events(), key=lambda event: event.start_ns())
    for event in events:
        if event.name() == "[memory]":
            current += event.nbytes()
            peak = max(peak, current)
        elif event.name().startswith("after "):
            recorded[event.name().removeprefix("after ")] = current
    numbers = 64
    assert tracked["step"] == 0
    assert abs(tracked["forward"] - recorded["forward"]) <= numbers
    assert abs(tracked["backward"] - recorded["backward"]) <= numbers
    assert abs(tracker.peak_bytes - standing - peak) <= numbers
