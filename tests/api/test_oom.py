"""headwise.oom: from the text of an error to the tensor, what was alive, and the changes, beside `fit` of that step."""

import io
from dataclasses import replace

import pytest
from torch import nn

import headwise
from headwise.api.oom import oom, read_stream, read_text
from headwise.config.presets import preset
from headwise.cost.results import Device
from headwise.errors import ConfigError, HeadwiseError, TextError

GIB = 2**30
FLAGSHIP = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 6.00 GiB. GPU 0 has a total capacity of 31.74 GiB "
    "of which 5.31 GiB is free. Including non-PyTorch memory, this process has 26.43 GiB memory in use. Of the "
    "allocated memory 25.90 GiB is allocated by PyTorch, and 112.00 MiB is reserved by PyTorch but unallocated."
)
NO_SIZE = "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"
BACKWARD = (
    "Traceback (most recent call last):\n"
    '  File "train.py", line 9, in <module>\n'
    "    loss.backward()\n"
    '  File "torch/_tensor.py", line 648, in backward\n'
    "    torch.autograd.backward(\n"
)
ONE_STEP = {"phase": "train", "precision": "fp32", "attention": "eager", "checkpoint": "none"}  # for the sake of time


def old(requested, capacity, backend="CUDA"):
    """A message as torch 1.4 to 2.0 wrote it."""
    return (
        f"RuntimeError: {backend} out of memory. Tried to allocate {requested} (GPU 0; {capacity} total capacity; "
        "1.00 GiB already allocated; 1.00 MiB free; 1.20 GiB reserved in total by PyTorch)"
    )


@pytest.fixture(scope="module")
def flagship():
    return oom(FLAGSHIP, model="bert-base", phase="train", checkpoint="none")


@pytest.fixture(scope="module")
def nameless():
    return oom(FLAGSHIP)


def test_the_scores_of_one_layer_are_found_at_their_batch_and_length(flagship):
    first = flagship.candidates[0]
    assert flagship.kind == "one huge tensor"
    assert (first.batch, first.seq, first.shape, first.dtype) == (32, 2048, (32, 12, 2048, 2048), "float32")
    assert (flagship.workload.batch, flagship.workload.seq, flagship.workload.attention) == (32, 2048, "eager")


def test_what_was_alive_is_of_the_instant_that_the_candidate_speaks_of(flagship):
    """25.90 GiB are told: by hand, the layer before keeps 6 + 6 GiB of scores and a mask of 1.5, and this one has 6."""
    assert "25.86 GiB of tensors are alive before it" in flagship.candidates[0].why
    assert flagship.peak_moment == "forward of layer 1"
    scores = [entry for entry in flagship.alive if entry.bytes == 6 * GIB]
    assert [entry.owner for entry in scores] == ["layer 0 attention"] * 2 + ["layer 1 attention"]
    assert list(flagship.alive) == sorted(flagship.alive, key=lambda entry: -entry.bytes)
    assert not any(entry.owner == "layer 1 feed-forward" and entry.kind != "parameter" for entry in flagship.alive)
    assert sum(entry.bytes for entry in flagship.alive) <= 25.87 * GIB


def test_in_backward_the_instant_is_of_the_backward():
    message = BACKWARD + "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 6.00 GiB."
    answer = oom(message, model="bert-base", batch=32, seq=2048, **ONE_STEP)
    assert answer.candidates[0].moment == "backward"
    assert answer.peak_moment.startswith("backward of ")


def test_the_changes_are_those_of_a_fit_of_the_same_step(flagship):
    plan = headwise.fit(
        "bert-base", batch=32, seq=2048, attention="eager", gpu="v100-32gb", phase="train", precision="fp32"
    )
    assert {change.key: change.frees_bytes for change in flagship.changes} == {
        change.key: change.frees_bytes for change in plan.changes
    }
    assert flagship.path == plan.path
    assert flagship.path_peak_bytes == plan.paths[0].peak_bytes
    assert flagship.changes


def test_the_card_is_named_as_an_assumption_and_the_step_too(flagship):
    assert "The device is taken to be NVIDIA V100 32 GB" in flagship.notes[0]
    assert "train, batch 32, length 2,048, fp32, eager attention, checkpoint none" in flagship.notes[1]
    assert any("no bfloat16 units" in (change.why or "") for change in flagship.changes)  # as of a V100


def test_a_card_that_cannot_be_told_has_no_properties_of_one():
    answer = oom(old("1.50 GiB", "15.99 GiB"), model="bert-base", batch=16, seq=1024, **ONE_STEP)
    assert "Several devices have about 15.99 GiB" in answer.notes[0]
    assert not any("bfloat16 units" in (change.why or "") for change in answer.changes)
    named = oom(old("1.50 GiB", "15.99 GiB"), model="bert-base", batch=16, seq=1024, gpu="v100-16gb", **ONE_STEP)
    assert not any("Several devices" in note or "taken to be" in note for note in named.notes)
    assert any("bfloat16 units" in (change.why or "") for change in named.changes)
    assert named.workload.compute_capability == (7, 0)


@pytest.fixture(scope="module")
def plan_of_bert():
    return headwise.fit("bert-base", batch=32, seq=512, gpu="v100-32gb", precision="fp32", checkpoint="full")


@pytest.mark.parametrize(
    "message",
    [
        old("1.51 GiB", "31.74 GiB"),  # no tensor of that step has it
        NO_SIZE,
        "torch.OutOfMemoryError: HIP out of memory.",
        "Killed",
    ],
)
@pytest.mark.parametrize("gpu", ["v100-32gb", None])
def test_a_step_that_is_given_is_reckoned_whatever_the_message_says(message, gpu, plan_of_bert):
    answer = oom(message, model="bert-base", batch=32, seq=512, gpu=gpu, precision="fp32", checkpoint="full")
    assert answer.candidates == ()
    workload = answer.workload
    assert (workload.batch, workload.seq, workload.precision, workload.checkpoint) == (32, 512, "fp32", "full")
    assert any(note.startswith("No candidate is of the step that was given") for note in answer.notes)
    plan = plan_of_bert
    freed = {change.key: change.frees_bytes for change in answer.changes}
    if gpu is None:
        assert max(freed.values()) > 0
    else:
        assert freed == {change.key: change.frees_bytes for change in plan.changes}
        assert answer.peak_moment == plan.peak_label
        assert answer.alive == plan.largest


def test_without_a_device_changes_free_what_they_free_and_nothing_is_said_of_what_fits():
    answer = oom(NO_SIZE, model="gpt2", batch=3, seq=64)
    assert answer.changes and all(change.fits is None for change in answer.changes)
    assert max(change.frees_bytes for change in answer.changes) > 0
    assert answer.path == ()
    assert any("The memory of the device is not known" in note for note in answer.notes)


def test_sizes_that_are_given_count_where_the_tensor_does_not_tell_them():
    """GPT-2's token table, 50,257 x 768 float32, has one size at every batch and length."""
    message = old("148.00 MiB", "31.74 GiB")
    answer = oom(message, model="gpt2", batch=7, seq=61, precision="fp32")
    first = next(one for one in answer.candidates if one.workload is not None)
    assert first.batch is None
    assert (answer.workload.batch, answer.workload.seq) == (7, 61)
    open_sizes = oom(message, model="gpt2", precision="fp32")
    told = next(one for one in open_sizes.candidates if one.workload is not None)
    missing = [name for name, size in (("batch", told.batch), ("length", told.seq)) if size is None]
    assert missing and any(f"the {' and '.join(missing)} cannot be told" in note for note in open_sizes.notes)


def test_with_too_little_known_the_notes_say_what_is_missing(monkeypatch):
    no_size = oom(NO_SIZE, model="bert-base")
    assert (no_size.changes, no_size.workload) == ((), None)
    assert no_size.notes == ("The message names no size: give batch and seq to reckon the changes of that step.",)
    monkeypatch.setattr(headwise.api.oom, "solve", lambda *_, **__: ())
    none = oom(FLAGSHIP, model="bert-base")
    assert none.candidates == ()
    assert none.notes[-1].startswith("No tensor of bert-base has this size")


def test_without_a_model_common_shapes_are_tried(nameless):
    answer = nameless
    assert answer.model is None and answer.changes == ()
    assert any(one.shape == (32, 12, 2048, 2048) for one in answer.candidates)
    assert answer.notes == (
        "Without a model no changes can be reckoned: give model (--model), and batch and seq where known.",
    )


def test_a_model_without_a_closed_form_is_said_to_be_one(nameless, monkeypatch):
    monkeypatch.setattr(headwise.api.oom, "solve", lambda read, config, **_: nameless.candidates * (config is None))

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Linear(7, 7)

        def forward(self, x):
            return self.weight(x)

    answer = oom(FLAGSHIP, model=Net())
    assert answer.kind == "one huge tensor" and answer.evidence
    assert any(one.shape == (32, 12, 2048, 2048) for one in answer.candidates)
    assert any(note.startswith("The config of Net is of a family without a closed form") for note in answer.notes)
    assert not any("No tensor of Net" in note for note in answer.notes)


@pytest.mark.parametrize("capacity", ["0 bytes", "512.00 KiB", "99999999.00 GiB", "1 bytes"])
def test_no_capacity_is_too_odd_for_an_answer(capacity):
    answer = oom(old("2.00 GiB", capacity), model="gpt2", batch=2, seq=512, **ONE_STEP)
    assert answer.evidence
    assert answer.notes[0].startswith("No device has ")
    assert answer.changes and all(change.fits is None for change in answer.changes)


@pytest.mark.parametrize("backend", ["HIP", "XPU", "NPU"])
def test_others_than_cuda_are_not_reckoned_as_a_card_of_nvidias(backend):
    message = f"{backend} out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 31.74 GiB of which "
    answer = oom(message + "1.00 GiB is free.", model="gpt2", batch=2, seq=512)
    assert "with CUDA's kernels in place of its own" in answer.notes[0]
    assert not any("V100" in text for change in answer.changes for text in (change.why or "", *answer.notes))


def test_a_computers_own_allocator_is_judged_by_this_computers_memory(monkeypatch):
    monkeypatch.setattr(headwise.api.oom, "usable_ram_bytes", lambda: 3 * GIB)
    message = "DefaultCPUAllocator: can't allocate memory: you tried to allocate 8589934592 bytes. Error code 12"
    answer = oom(message, model="gpt2", batch=2, seq=512)
    assert answer.workload.device == "cpu"
    assert answer.notes[0].startswith("The message tells no memory of the computer")


def test_a_length_beyond_the_models_table_is_reckoned_with_a_longer_one():
    assert preset("bert-base").max_positions == 512
    assert oom(NO_SIZE, model="bert-base", batch=1, seq=700, gpu="t4").changes


@pytest.mark.parametrize(
    ("known", "error", "text"),
    [
        ({"precison": "bf16"}, HeadwiseError, "what is known of a step must be one of"),
        ({"precision": "fp8"}, ConfigError, "precision must be"),
        ({"gpu": "h1000"}, ConfigError, "there is no device"),
        ({"batch": True}, ConfigError, "batch must be"),
        ({"num_gpus": 0}, ConfigError, "num_gpus must be"),
        ({"model": "gpt-2000"}, HeadwiseError, "neither a preset"),
    ],
)
def test_what_is_known_is_checked(known, error, text):
    with pytest.raises(error, match=text):
        oom(FLAGSHIP, **known)


def test_a_device_in_hand_counts():
    device = Device(name="own", description="my own", memory_bytes=7 * GIB, kind="cuda", source="me", date="today")
    answer = oom(NO_SIZE, model="gpt2", batch=2, seq=64, gpu=device)
    assert {change.fits for change in answer.changes if change.applies} <= {"yes", "tight"}


def test_a_step_that_cannot_be_reckoned_leaves_the_rest_of_the_answer():
    answer = oom(NO_SIZE, model=replace(preset("gpt2"), model_type="bloom"), batch=2, seq=64)
    assert answer.evidence and answer.changes == ()
    assert answer.notes[-1].startswith("No changes are reckoned: ")


@pytest.mark.parametrize(
    ("model", "known", "text"),
    [
        ("bert-base", {"phase": "decode"}, "bert-base is an encoder"),
        ("bert-base", {"loss": "cross_entropy"}, "needs a language-model head"),
        ("vit-b-16", {"seq": 5}, "must be its number of tokens, 196 patches and the class token = 197; got 5"),
        ("gpt2", {"num_gpus": 1}, "num_gpus must be between 2 and"),
    ],
)
def test_what_is_known_is_refused_where_fit_refuses_it(model, known, text):
    for ask in (lambda: oom(FLAGSHIP, model=model, **known), lambda: headwise.fit(model, gpu="t4", **known)):
        with pytest.raises(ConfigError, match=text):
            ask()


def test_a_file_is_read_and_a_missing_one_is_named(tmp_path):
    log = tmp_path / "train.log"
    log.write_text("epoch 1\n" + FLAGSHIP)
    assert read_text(str(log)).endswith(FLAGSHIP)
    for path in ("train.log", "TRAIN.TXT", "runs/last", str(tmp_path / "none"), "run\\last", "out.err", "a/" * 3000):
        with pytest.raises(TextError, match="there is no file"):
            read_text(path)
    with pytest.raises(TextError, match="is a folder"):
        read_text(str(tmp_path))
    for text in (FLAGSHIP, "Killed", "CUBLAS_STATUS_ALLOC_FAILED", "see train.log for it", "CUDA error/", "\0"):
        if "/" not in text or " " in text:
            assert read_text(text) == text


def test_of_a_long_log_the_end_is_read(tmp_path):
    log = tmp_path / "train.log"
    log.write_bytes(b"x" * (5 * 2**20) + b"\n" + FLAGSHIP.encode())
    for text in (read_text(str(log)), read_stream(io.TextIOWrapper(io.BytesIO(log.read_bytes())))):
        assert len(text) == 4 * 2**20
        assert text.endswith(FLAGSHIP)


@pytest.mark.parametrize(("held", "is_other"), [("20.50 GiB", True), ("6.00 GiB", False)])
def test_a_step_that_holds_far_less_than_the_message_says_is_called_another(held, is_other):
    text = (
        "CUDA out of memory. Tried to allocate 148.00 MiB (GPU 0; 23.65 GiB total capacity; "
        f"{held} already allocated; 12.00 MiB free; 21.00 GiB reserved in total by PyTorch)"
    )
    answer = oom(text, model="gpt2", batch=8, seq=512, **ONE_STEP)
    notes = [note for note in answer.notes if "another model than gpt2" in note]
    assert bool(notes) is is_other
    assert all(f"the message says that {held} were held" in note for note in notes)
