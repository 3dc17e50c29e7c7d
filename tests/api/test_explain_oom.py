"""explain_oom around a step: the error that comes out is the step's own, with the answer attached."""

import gc
import subprocess
import sys
import traceback
import weakref

import pytest
import torch
from torch import nn

import headwise.api.oom
from headwise.api.explain_oom import explain_oom, is_out_of_memory
from headwise.api.fit_results import OomAnswer
from headwise.config.model import ModelConfig
from headwise.errors import ConfigError
from headwise.loading.build import build_module

ON_GPU = (
    "CUDA out of memory. Tried to allocate 6.00 GiB. GPU 0 has a total capacity of 31.74 GiB of which 1.20 GiB is free."
)
ON_CPU = "DefaultCPUAllocator: can't allocate memory: you tried to allocate 1152921504606846976 bytes."
OWN_LIMIT = """
import resource, sys
import torch
from headwise.api.explain_oom import explain_oom
with open("/proc/self/statm") as file:
    used = int(file.read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + 2**28, used + 2**28))
try:
    with explain_oom():
        x = [torch.zeros(2**24) for _ in range(100)]
except RuntimeError as error:
    print(error.headwise_answer.requested_bytes)
    print(error.__notes__[0])
"""


@pytest.fixture
def asked(monkeypatch):
    """Let every question be answered by one that was given before, and remember what was asked."""
    questions = []
    answer = headwise.api.oom.oom(ON_GPU)

    def remember(text, **known):
        questions.append((text, known))
        return answer

    monkeypatch.setattr(headwise.api.oom, "oom", remember)
    return questions


def fail(error, **known):
    with explain_oom(**known):
        raise error


def test_a_gpus_error_comes_out_itself_with_the_answer_in_a_note():
    error = torch.OutOfMemoryError(ON_GPU)
    with pytest.raises(torch.OutOfMemoryError) as raised:
        fail(error)
    assert raised.value is error
    assert isinstance(error.headwise_answer, OomAnswer)
    message = error.headwise_answer.message
    assert message.requested_low_bytes <= 6 * 2**30 <= message.requested_high_bytes
    (note,) = error.__notes__
    assert note.strip() == error.headwise_answer.to_text().strip()
    assert note in "".join(traceback.format_exception(error))


def test_a_tensor_that_no_cpu_can_hold_is_explained():
    with pytest.raises(RuntimeError) as raised, explain_oom():
        torch.empty(2**60, dtype=torch.uint8)
    assert type(raised.value) is RuntimeError
    assert raised.value.headwise_answer.requested_bytes == 2**60
    assert raised.value.headwise_answer.message.backend == "cpu"


def test_a_process_that_reaches_its_limit_still_explains():
    done = subprocess.run([sys.executable, "-c", OWN_LIMIT], capture_output=True, text=True, timeout=120, check=True)
    requested, note = done.stdout.split("\n", maxsplit=1)
    assert int(requested) == 4 * 2**24
    assert "64" in note


@pytest.mark.parametrize(
    "error",
    [RuntimeError("mat1 and mat2 shapes cannot be multiplied"), MemoryError(), ValueError(ON_CPU), KeyboardInterrupt()],
)
def test_any_other_error_passes_untouched(asked, error):
    with pytest.raises(type(error)) as raised:
        fail(error)
    assert raised.value is error
    assert not hasattr(error, "headwise_answer") and not hasattr(error, "__notes__")
    assert asked == []


def test_a_step_that_fits_asks_nothing(asked):
    with explain_oom():
        x = torch.ones(3)
    assert asked == [] and x.sum() == 3


def test_the_question_holds_the_lines_of_the_step_and_what_is_known_of_it(asked):
    config = {"model_type": "gpt2", "n_embd": 24, "n_head": 3, "n_layer": 2, "vocab_size": 61}
    module = build_module(config, name="small")
    with pytest.raises(torch.OutOfMemoryError):
        fail(torch.OutOfMemoryError(ON_GPU), module=module, batch=3, seq=11)
    ((text, known),) = asked
    assert text.startswith("Traceback") and ON_GPU in text
    assert "raise error" in text and "/api/explain_oom.py" not in text.replace(__file__, "")
    model = known.pop("model")
    assert isinstance(model, ModelConfig) and (model.model_type, model.embed_dim) == ("gpt2", 24)
    assert known == {"batch": 3, "seq": 11}


@pytest.mark.parametrize("wrap", [nn.DataParallel, lambda module: module])
def test_a_wrapped_model_is_known_too(asked, wrap):
    config = {"model_type": "gpt2", "n_embd": 24, "n_head": 3, "n_layer": 2, "vocab_size": 61}
    module = wrap(build_module(config, name="small", device="cpu"))
    with pytest.raises(RuntimeError):
        fail(RuntimeError(ON_CPU), module=module)
    assert asked[0][1]["model"].head is not None


@pytest.mark.parametrize(
    "config",
    [
        None,
        object(),
        type("Raising", (), {"to_dict": lambda self: 1 / 0})(),
        type("Unknown", (), {"to_dict": lambda self: {"model_type": "no-such"}})(),
    ],
)
def test_a_module_without_a_config_that_can_be_read_is_no_obstacle(asked, config):
    module = nn.Linear(2, 2)
    module.config = config
    with pytest.raises(RuntimeError):
        fail(RuntimeError(ON_CPU), module=module)
    assert asked[0][1] == {"model": None}


@pytest.mark.parametrize("failure", [ZeroDivisionError("of ours"), MemoryError()])
def test_an_explanation_that_fails_hides_nothing(monkeypatch, failure):
    def refuse(*_, **__):
        raise failure

    monkeypatch.setattr(headwise.api.oom, "oom", refuse)
    error = torch.OutOfMemoryError(ON_GPU)
    with pytest.raises(torch.OutOfMemoryError) as raised:
        fail(error)
    assert raised.value is error and error.__context__ is None
    (note,) = error.__notes__
    assert note.startswith(f"headwise could not explain this error: {type(failure).__name__}")


def test_blocks_in_one_another_explain_once(asked):
    error = torch.OutOfMemoryError(ON_GPU)
    with pytest.raises(torch.OutOfMemoryError), explain_oom():
        fail(error)
    assert len(asked) == len(error.__notes__) == 1


def test_it_is_a_decorator_too(asked):
    @explain_oom()
    def step():
        raise torch.OutOfMemoryError(ON_GPU)

    for number in (1, 2):
        with pytest.raises(torch.OutOfMemoryError):
            step()
        assert len(asked) == number


def test_the_tensors_of_a_failed_step_go_with_its_error():
    kept = []

    def step():
        tensor = torch.ones(7)
        kept.append(weakref.ref(tensor))
        raise torch.OutOfMemoryError(ON_GPU)

    around = explain_oom()
    try:
        with around:
            step()
    except torch.OutOfMemoryError as error:
        assert error.headwise_answer and kept[0]() is not None
    gc.collect()
    assert kept[0]() is None


def test_an_exception_whose_text_fails_passes():
    class OddError(RuntimeError):
        def __str__(self):
            raise ZeroDivisionError

    assert not is_out_of_memory(OddError())
    with pytest.raises(OddError):
        fail(OddError())


@pytest.mark.parametrize("known", [{"batch": 0}, {"seq": 2**40}])
def test_sizes_are_checked_before_the_step(known):
    with pytest.raises(ConfigError, match=f"{next(iter(known))} must be between"), explain_oom(**known):
        pytest.fail("the step ran")
