"""track around a user's own step: what it tells, and what it must not disturb."""

import gc
import threading
import weakref
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import headwise
from headwise.cost.results import Ledger
from headwise.cost.tracing.track import track


def line_here(offset):
    """The line that stands `offset` lines below the call."""
    import inspect

    frame = inspect.currentframe().f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno + offset}"


class Scores(nn.Module):
    """A user's attention scores, written by hand."""

    def __init__(self):
        super().__init__()
        self.project = nn.Linear(6, 6, bias=False)

    def forward(self, x):
        self.line = line_here(1)
        return torch.softmax(self.project(x) @ x.transpose(-2, -1), dim=-1)


def test_the_ledger_is_a_plain_one_that_is_filled_when_the_block_ends():
    with track() as ledger:
        assert ledger.entries == ()
        x = torch.ones(11)
        del x
    assert type(ledger) is Ledger
    assert ledger.bytes_at(ledger.peak) == 44
    assert ledger.to_dict()["entries"][0]["shape"] == [11]


def test_lines_of_headwise_itself_are_a_librarys():
    layer = headwise.MultiHeadAttention(10, 2)
    x = torch.randn(3, 7, 10)
    with headwise.track(layer) as ledger:
        layer(x)
    lines = {entry.line for entry in ledger.entries if entry.born > 0}
    assert len(lines) == 1 and lines.pop().startswith(str(Path(__file__)))


def test_each_tensor_tells_the_users_line_that_made_it_not_a_librarys():
    module = Scores()
    with track(module) as ledger:
        y = module(torch.ones(2, 7, 6))
    softmax = next(entry for entry in ledger.entries if entry.name == "_softmax")
    assert (softmax.line, softmax.owner, softmax.shape) == (module.line, "", (2, 7, 7))
    product = next(entry for entry in ledger.entries if entry.owner == "project" and entry.kind == "temporary")
    assert product.line == module.line
    assert product.line.startswith(str(Path(__file__)))
    del y


def test_kinds_and_phases_are_told_by_modules_backward_and_optimizers():
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(3, 5, bias=False), nn.Tanh(), nn.Linear(5, 2, bias=False))
    optimizer = torch.optim.AdamW(module.parameters())
    x = torch.ones(7, 3)
    with track(module) as ledger:
        loss = module(x).pow(2).sum()
        loss.backward()
        optimizer.step()
    kinds = {
        kind: sorted(e.shape for e in ledger.entries if e.kind == kind and e.shape)
        for kind in ("parameter", "gradient", "optimizer", "saved")
    }
    assert kinds == {
        "parameter": [(2, 5), (5, 3)],
        "gradient": [(2, 5), (5, 3)],
        "optimizer": [(2, 5), (2, 5), (5, 3), (5, 3)],
        "saved": [(7, 2), (7, 5)],
    }  # tanh keeps its result, the square its input
    names = {(entry.owner, entry.name) for entry in ledger.entries if entry.kind in ("gradient", "optimizer")}
    assert {("0", "gradient of weight"), ("2", "exp_avg of weight")} <= names
    phases = list(dict.fromkeys(moment.split(":")[0] for moment in ledger.moments))
    assert phases == ["forward", "outside modules", "backward", "optimizer step"]


def test_states_from_before_count_from_the_first_moment_once_the_optimizer_steps():
    module = nn.Linear(3, 5, bias=False)
    optimizer = torch.optim.SGD(module.parameters(), momentum=0.9)
    for _ in range(2):
        with track(module) as ledger:
            module(torch.ones(7, 3)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    states = [entry for entry in ledger.entries if entry.kind == "optimizer"]
    assert [(entry.shape, entry.born) for entry in states] == [((5, 3), 0)]


def test_a_tensor_that_outlives_backward_is_not_saved():
    module = nn.Linear(3, 5, bias=False)
    with track(module) as ledger:
        output = module(torch.ones(7, 3))
        output.sum().backward()
        del output
    assert [entry.kind for entry in ledger.entries if entry.shape == (7, 5)] == ["temporary"]


def test_without_a_module_names_begin_at_the_outermost_one_that_is_called():
    module = nn.Sequential(nn.Sequential(nn.Linear(3, 5)), nn.Tanh())
    with track() as ledger:
        y = module(torch.ones(7, 3))
    assert {entry.owner for entry in ledger.entries if entry.born} == {"", "0.0", "1"}
    assert {entry.owner for entry in ledger.entries if entry.kind == "parameter"} == {"0.0"}
    del y


def test_after_an_error_the_ledger_ends_where_it_was_raised():
    with pytest.raises(RuntimeError, match="cannot be multiplied"), track() as ledger:
        x = torch.ones(13, 3)
        nn.Linear(5, 2)(x)
    assert (13, 3) in [entry.shape for entry in ledger.alive(len(ledger.moments) - 1)]


def test_blocks_hold_one_another_and_follow_one_another():
    with track() as outer:
        a = torch.ones(5)
        with track() as inner:
            b = torch.ones(7)
        with track() as second:
            c = torch.ones(11)
    assert [entry.shape for entry in outer.entries] == [(5,), (7,), (11,)]
    assert [entry.shape for entry in inner.entries] == [(7,)]
    assert [entry.shape for entry in second.entries] == [(11,)]
    del a, b, c


def test_other_threads_are_not_recorded_and_do_not_disturb():
    module = nn.Linear(3, 5)
    made = []
    thread = threading.Thread(target=lambda: made.append(module(torch.ones(17, 3))))
    with track(module) as ledger:
        thread.start()
        thread.join()
        y = module(torch.ones(7, 3))
    assert (17, 5) not in [entry.shape for entry in ledger.entries]
    assert [entry.owner for entry in ledger.entries if entry.shape == (7, 5)] == [""]
    del y


def test_the_step_gives_the_same_numbers_and_leaves_no_hook():
    def run(watch):
        torch.manual_seed(0)
        module = nn.TransformerEncoderLayer(12, 3, 17, dropout=0.1, batch_first=True)
        optimizer = torch.optim.AdamW(module.parameters())
        x = torch.randn(2, 7, 12)
        for _ in range(2):
            if watch:
                with track(module):
                    module(x).pow(2).sum().backward()
                    optimizer.step()
            else:
                module(x).pow(2).sum().backward()
                optimizer.step()
            optimizer.zero_grad()
        return list(module.parameters())

    hooks = len(torch.nn.modules.module._global_forward_hooks)
    for plain, watched in zip(run(watch=False), run(watch=True), strict=True):
        assert torch.equal(plain, watched)
    assert len(torch.nn.modules.module._global_forward_hooks) == hooks


def test_inference_mode_and_autocast_are_followed():
    module = nn.Linear(3, 5, bias=False)
    with torch.inference_mode(), track(module) as ledger, torch.autocast("cpu", torch.bfloat16):
        module(torch.ones(7, 3))
    shapes = {(entry.shape, entry.dtype) for entry in ledger.entries if entry.born}
    assert ((7, 5), "bfloat16") in shapes


class Checkpointed(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(3, 5)

    def forward(self, x):
        return checkpoint(self.inner, x, use_reentrant=False)


def test_a_checkpoint_in_another_thread_leaves_nothing_here():
    def run_elsewhere():
        Checkpointed()(torch.ones(17, 3, requires_grad=True)).sum().backward()

    thread = threading.Thread(target=run_elsewhere)
    with track() as ledger:
        thread.start()
        thread.join()
        x = torch.ones(7)
    assert [(entry.name, entry.shape, entry.owner) for entry in ledger.entries] == [("ones", (7,), "")]
    del x


def test_a_checkpoint_here_keeps_a_state_of_the_random_generator():
    with track() as ledger:
        Checkpointed()(torch.ones(7, 3, requires_grad=True)).sum().backward()
    states = [entry for entry in ledger.entries if entry.name == "random state"]
    assert {entry.bytes for entry in states} == {torch.get_rng_state().nbytes}
    assert ledger.moments[states[0].born].startswith("forward")
    assert ledger.moments[states[-1].born].startswith("backward")


def test_blocks_that_overlap_in_two_threads_leave_torch_as_it_was():
    before = torch.get_rng_state
    inside, may_leave = threading.Event(), threading.Event()

    def record():
        with track():
            inside.set()
            may_leave.wait()

    thread = threading.Thread(target=record)
    thread.start()
    inside.wait()
    with track() as ledger:
        may_leave.set()
        thread.join()
        state = torch.get_rng_state()
    assert torch.get_rng_state is before
    assert [entry.name for entry in ledger.entries] == ["random state"]
    del state


def test_a_module_that_is_dropped_inside_is_not_held_and_its_weights_are_told():
    with track() as ledger:
        module = nn.Linear(3, 5)
        module(torch.ones(7, 3))
        reference = weakref.ref(module)
        del module
        gc.collect()
        assert reference() is None
        torch.ones(1)
    weights = [entry for entry in ledger.entries if entry.kind == "parameter"]
    assert [(entry.shape, entry.freed is None) for entry in weights] == [((5, 3), False), ((5,), False)]


@pytest.mark.parametrize("kept", [{"calls": 1}, {"history": {"loss": 0.5}}])
def test_an_optimizer_may_keep_what_is_no_tensor(kept):
    module = nn.Linear(3, 5, bias=False)
    optimizer = torch.optim.SGD(module.parameters(), momentum=0.9)
    optimizer.state.update(kept)
    with track(module) as ledger:
        module(torch.ones(7, 3)).sum().backward()
        optimizer.step()
    assert [entry.name for entry in ledger.entries if entry.kind == "optimizer"] == ["momentum_buffer of weight"]


def steps_with_and_without_a_closure(module, optimizer, x):
    def closure():
        optimizer.zero_grad()
        loss = module(x).pow(2).sum()
        loss.backward()
        return loss

    def step_after():
        closure()
        optimizer.step()

    return lambda: optimizer.step(closure), lambda: optimizer.step(closure=closure), step_after


def test_what_an_optimizer_runs_again_is_forward_and_backward():
    module = nn.Sequential(nn.Linear(3, 5, bias=False), nn.Tanh())
    optimizer = torch.optim.AdamW(module.parameters(), foreach=False)
    saved, phases = [], []
    for step in steps_with_and_without_a_closure(module, optimizer, torch.ones(7, 3)):
        with track(module) as ledger:
            step()
        saved.append(sorted((entry.owner, entry.shape) for entry in ledger.entries if entry.kind == "saved"))
        phases.append({moment.split(":")[0] for moment in ledger.moments})
    assert saved[0] == saved[1] == saved[2]
    assert ("1", (7, 5)) in saved[0]  # tanh keeps its result
    assert phases == 3 * [{"forward", "outside modules", "backward", "optimizer step"}]


class Failing(torch.optim.SGD):
    @torch.no_grad()
    def step(self, closure=None):
        raise RuntimeError("no step today")


def test_after_a_step_that_failed_the_next_forward_is_one_again():
    module = nn.Linear(3, 5)
    optimizer = Failing(module.parameters())
    with track(module) as ledger:
        with pytest.raises(RuntimeError, match="no step today"):
            optimizer.step()
        y = module(torch.ones(7, 3))
        z = y.exp()
    moments = {entry.name: ledger.moments[entry.born].split(":")[0] for entry in ledger.entries if entry.born}
    assert (moments["addmm"], moments["exp"]) == ("forward", "outside modules")
    del y, z


def test_a_lazy_weight_counts_from_when_it_has_a_size():
    module = nn.Sequential(nn.LazyLinear(5, bias=False))
    with track(module) as ledger:
        module(torch.ones(7, 3))
    [weight] = [entry for entry in ledger.entries if entry.kind == "parameter"]
    assert (weight.shape, weight.owner) == ((5, 3), "0")
    assert weight.born > 0


def test_a_module_without_a_hash_runs():
    class Unhashable(nn.Linear):
        __hash__ = None

    with track() as ledger:
        y = Unhashable(3, 5, bias=False)(torch.ones(7, 3))
    assert ((5, 3), "Unhashable") in [(e.shape, e.owner) for e in ledger.entries if e.kind == "parameter"]
    del y
