"""explain_oom around a step: the error that comes out is the step's own, with the answer attached."""

import asyncio
import contextlib
import gc
import inspect
import subprocess
import sys
import traceback
import weakref
from concurrent.futures import ThreadPoolExecutor

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


def run_apart(coroutine):
    """Run a coroutine in a thread of its own: this one may have a loop already, as a browser's tests leave it."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, coroutine).result()


@pytest.fixture(scope="module")
def answer():
    return headwise.api.oom.oom(ON_GPU)


@pytest.fixture
def asked(monkeypatch, answer):
    """Let every question be answered by one that was given before, and remember what was asked."""
    questions = []

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
    assert known == {
        "batch": 3,
        "seq": 11,
        "phase": "train",
        "precision": "fp32",
        "attention": "eager",
        "checkpoint": "none",
        "dropout": True,
    }


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


def test_a_decorated_coroutine_is_watched_while_it_runs(asked):
    @explain_oom()
    async def step(error):
        """Step once."""
        await asyncio.sleep(0)
        raise error

    error = torch.OutOfMemoryError(ON_GPU)
    with pytest.raises(torch.OutOfMemoryError) as raised:
        run_apart(step(error))
    assert raised.value is error and len(error.__notes__) == 1
    assert inspect.iscoroutinefunction(step) and step.__doc__ == "Step once."


def test_a_decorated_generator_is_watched_from_value_to_value(asked):
    @explain_oom()
    def steps():
        given = yield 1
        try:
            yield given
        except ValueError as error:
            yield repr(error)
        raise torch.OutOfMemoryError(ON_GPU)

    running = steps()
    assert [next(running), running.send(5), running.throw(ValueError("of ours"))] == [1, 5, "ValueError('of ours')"]
    assert asked == []
    with pytest.raises(torch.OutOfMemoryError) as raised:
        next(running)
    assert len(asked) == len(raised.value.__notes__) == 1


def test_a_decorated_async_generator_is_watched_and_closed(asked):
    closed = []

    @explain_oom()
    async def steps(is_failing):
        try:
            given = yield 1
            try:
                yield given
            except ValueError as error:
                yield repr(error)
            if is_failing:
                raise torch.OutOfMemoryError(ON_GPU)
        finally:
            closed.append(is_failing)

    async def run():
        running = steps(True)
        values = [await anext(running), await running.asend(5), await running.athrow(ValueError("of ours"))]
        assert values == [1, 5, "ValueError('of ours')"] and asked == []
        with pytest.raises(torch.OutOfMemoryError) as raised:
            await anext(running)
        assert len(asked) == len(raised.value.__notes__) == 1
        left = steps(False)
        await anext(left)
        await left.aclose()
        assert closed == [True, False]
        assert [value async for value in steps(False)] == [1, None]

    run_apart(run())


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


GPT2 = {"model_type": "gpt2", "n_embd": 24, "n_head": 3, "n_layer": 2, "vocab_size": 61, "attn_pdrop": 0.1}


def small(attention="sdpa"):
    module = build_module(GPT2, name="small", device="cpu").train()
    module.set_attn_implementation(attention)
    return module


def asked_of(asked, module, around=contextlib.nullcontext, step=None):
    """Return what was told of the step of a module that fails inside `around`."""

    def raise_it():
        raise torch.OutOfMemoryError(ON_GPU)

    with pytest.raises(torch.OutOfMemoryError), around(), explain_oom(module):
        (step or raise_it)()
    return {name: value for name, value in asked[-1][1].items() if name != "model"}


def test_what_the_module_says_is_told(asked):
    train = {"phase": "train", "precision": "fp32", "attention": "sdpa", "checkpoint": "none", "dropout": True}
    module = small()
    assert asked_of(asked, module) == train
    assert asked_of(asked, small("eager")) == train | {"attention": "eager"}
    assert asked_of(asked, small().to(torch.bfloat16)) == train | {"precision": "bf16"}
    assert asked_of(asked, module, lambda: torch.autocast("cpu", torch.bfloat16)) == train | {"precision": "amp-bf16"}
    prefill = train | {"phase": "prefill", "dropout": False}
    assert asked_of(asked, module.eval(), torch.no_grad) == prefill
    assert asked_of(asked, module.eval(), torch.inference_mode) == prefill
    del prefill["phase"]
    assert asked_of(asked, module.eval()) == prefill  # gradients may be off inside
    module.train().activation_checkpointing_enable()
    assert asked_of(asked, module) == train | {"checkpoint": "full"}
    assert asked_of(asked, module.eval())["checkpoint"] == "none"
    module.config._attn_implementation = "flash_attention_2"
    assert "attention" not in asked_of(asked, module)


def test_autocast_inside_the_block_leaves_the_precision_open(asked):
    def step():
        with torch.autocast("cpu", torch.bfloat16):
            raise torch.OutOfMemoryError(ON_GPU)

    assert "precision" not in asked_of(asked, small(), step=step)
    assert asked_of(asked, small().to(torch.bfloat16), step=step)["precision"] == "bf16"


def test_a_generation_fails_at_its_prompt_or_at_a_token(asked):
    def _prefill():
        raise torch.OutOfMemoryError(ON_GPU)

    def generate(part):
        part()

    def _sample():
        raise torch.OutOfMemoryError(ON_GPU)

    assert asked_of(asked, small().eval(), torch.no_grad, lambda: generate(_prefill))["phase"] == "prefill"
    assert asked_of(asked, small().eval(), torch.no_grad, lambda: generate(_sample))["phase"] == "decode"


def test_the_answer_is_of_a_step_that_the_module_can_have_run():
    error = torch.OutOfMemoryError(ON_GPU.replace("6.00 GiB", "384.00 MiB"))
    with pytest.raises(torch.OutOfMemoryError):
        fail(error, module=small(), gpu="t4")
    answer = error.headwise_answer
    for workload in (answer.workload, *(one.workload for one in answer.candidates if one.workload)):
        assert (workload.phase, workload.precision, workload.attention) == ("train", "fp32", "sdpa")
        assert workload.compute_capability == (7, 5)
    assert answer.changes and not any("taken to be" in note for note in answer.notes)


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        RuntimeError("Invalid buffer size: 19.45 GB"),
        RuntimeError("MPS backend out of memory (MPS allocated: 1.00 GB, other allocations: 2.00 GB)."),
        RuntimeError("HIP error: out of memory"),
        RuntimeError("NCCL WARN Failed to CUDA calloc async 608 bytes"),
        RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"),
        RuntimeError(
            "[enforce fail at alloc_cpu.cpp:83] . DefaultCPUAllocator: not enough memory: you tried to "
            "allocate 8589934592 bytes."
        ),
        RuntimeError("unable to mmap 64 bytes from file </torch_1>: Cannot allocate memory (12)"),
        RuntimeError("DataLoader worker (pid 7) is killed by signal: Killed. "),
        MemoryError("std::bad_alloc"),
        torch.OutOfMemoryError("of a wording to come"),
    ],
)
def test_every_wording_that_oom_reads_is_explained(error):
    assert is_out_of_memory(error)
    with pytest.raises(type(error)):
        fail(error)
    assert error.__notes__


def test_notes_name_what_explain_oom_takes():
    error = torch.OutOfMemoryError(ON_GPU)
    with pytest.raises(torch.OutOfMemoryError):
        fail(error)
    assert error.headwise_answer.notes == (
        "Without a model no changes can be reckoned: give explain_oom the module, and batch and seq.",
    )
    error = torch.OutOfMemoryError(ON_GPU)
    with pytest.raises(torch.OutOfMemoryError):
        fail(error, module=nn.Linear(2, 2))
    (note,) = error.headwise_answer.notes
    assert note.startswith("The config of Linear cannot be read")


def test_a_step_that_fits_reads_nothing_of_the_module():
    class Shy(nn.Module):
        @property
        def config(self):
            raise AssertionError("the config was read")

        def parameters(self, recurse=True):
            raise AssertionError("the weights were read")

    with explain_oom(Shy()):
        pass


def test_a_decorator_keeps_no_module_alive(asked):
    module = nn.Linear(2, 2)
    gone = weakref.ref(module)

    @explain_oom(module)
    def step():
        raise torch.OutOfMemoryError(ON_GPU)

    for _ in range(2):
        with pytest.raises(torch.OutOfMemoryError):
            step()
        module = None
        gc.collect()
        assert gone() is None
    assert len(asked) == 2


def test_the_device_is_checked_before_the_step():
    with pytest.raises(ConfigError, match="there is no device"):
        explain_oom(gpu="h1000")


def test_an_error_whose_own_attributes_fail_is_still_the_one_that_is_raised():
    class Broken(torch.OutOfMemoryError):
        def __getattr__(self, name):
            raise ZeroDivisionError

    with pytest.raises(Broken), headwise.explain_oom():
        raise Broken("CUDA out of memory. Tried to allocate 2.00 GiB")
