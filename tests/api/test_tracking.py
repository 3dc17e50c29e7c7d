"""headwise.track with a history: what it keeps of the user's own step, and that it never stands in its way."""

import json
from dataclasses import fields

import pytest
import torch
from torch import nn

import headwise
from headwise.api.fit_results import TrackedStep
from headwise.api.history import read_history
from headwise.api.observed_step import find_size
from headwise.api.tracking import track
from headwise.cost.tracing.track import track as track_tensors
from headwise.errors import HeadwiseError, OutputError
from headwise.loading.build import build_module

BATCH, SEQ = 3, 29
GPT2 = {"model_type": "gpt2", "n_embd": 24, "n_head": 3, "n_layer": 2, "n_positions": 64, "vocab_size": 61}
BERT = {
    "model_type": "bert",
    "hidden_size": 24,
    "num_attention_heads": 3,
    "num_hidden_layers": 2,
    "intermediate_size": 40,
    "vocab_size": 61,
}
LLAMA = {
    "model_type": "llama",
    "hidden_size": 24,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 2,
    "intermediate_size": 40,
    "vocab_size": 61,
}


def build(content, attention="sdpa"):
    module = build_module(content, name="small", device="cpu").train()
    module.set_attn_implementation(attention)
    module.config.use_cache = False
    return module


def tokens(module, batch=BATCH, seq=SEQ):
    return torch.randint(60, (batch, seq), generator=torch.Generator().manual_seed(0))


def run(module, optimizer, *, passes=1, autocast=False, labels=False, **inputs):
    ids = tokens(module)
    for _ in range(passes):
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            output = module(input_ids=ids, **({"labels": ids} if labels else {}))
            loss = output.loss if labels else output[0].float().sum()
            del output
        (loss / passes if passes > 1 else loss).backward()
        del loss
    optimizer.step()
    optimizer.zero_grad()


def kept(path):
    steps, notes = read_history(path)
    assert notes == ()
    return steps


@pytest.mark.parametrize(
    ("content", "attention", "optimizer", "how"),
    [
        (BERT, "sdpa", torch.optim.AdamW, {}),
        (BERT, "eager", torch.optim.AdamW, {"passes": 2}),
        (GPT2, "sdpa", torch.optim.SGD, {"autocast": True}),
        (GPT2, "eager", torch.optim.Adafactor, {}),
        (LLAMA, "sdpa", torch.optim.Adam, {"labels": True}),
        (LLAMA, "eager", torch.optim.AdamW, {"checkpointed": True}),
    ],
)
def test_the_workload_of_a_step_is_told_by_looking_and_its_peak_foretold(tmp_path, content, attention, optimizer, how):
    module = build(content, attention)
    how = dict(how)
    if how.pop("checkpointed", False):
        module.activation_checkpointing_enable({"use_reentrant": False})
    made = optimizer(module.parameters())
    run(module, made, **how)
    with track(module, history=tmp_path / "steps.jsonl") as ledger:
        run(module, made, **how)
    (step,) = kept(tmp_path / "steps.jsonl")
    assert (step.batch, step.seq, step.device) == (BATCH, SEQ, "CPU")
    assert step.measured_peak_bytes == ledger.bytes_at(ledger.peak)
    assert step.predicted_peak_bytes is not None
    assert abs(step.error) < 0.01  # as docs/accounting.md promises of the closed form beside a real step


def test_a_history_sees_what_a_plain_track_sees(tmp_path):
    module = build(GPT2)
    optimizer = torch.optim.AdamW(module.parameters())
    run(module, optimizer)
    with track_tensors(module) as plain:
        run(module, optimizer)
    with track(module) as without:
        run(module, optimizer)
    with track(module, history=tmp_path / "steps.jsonl") as with_history:
        run(module, optimizer)
    assert plain.bytes_by_moment == without.bytes_by_moment == with_history.bytes_by_moment


def test_only_what_a_step_is_said_to_hold_is_kept(tmp_path):
    module = build(GPT2)
    module.config._name_or_path = "/home/somebody/secret"
    path = tmp_path / "steps.jsonl"
    with track(module, history=path), torch.no_grad():
        module(tokens(module))
    (line,) = path.read_text().splitlines()
    assert set(json.loads(line)) == {field.name for field in fields(TrackedStep)}
    assert json.loads(line)["model"] == "GPT2LMHeadModel, 17.50 K parameters"
    for private in ("somebody", str(tmp_path), "test_tracking"):
        assert private not in line


def test_the_first_step_of_an_optimizer_is_not_predicted(tmp_path):
    module = build(GPT2)
    optimizer = torch.optim.AdamW(module.parameters())
    for _ in range(2):
        with track(module, history=tmp_path / "steps.jsonl"):
            run(module, optimizer)
    first, second = kept(tmp_path / "steps.jsonl")
    assert first.predicted_peak_bytes is None and second.predicted_peak_bytes is not None
    assert first.measured_peak_bytes < second.measured_peak_bytes


def test_a_forward_pass_alone_is_a_prefill(tmp_path):
    module = build(LLAMA).eval()
    module.config.use_cache = True
    with track(module, history=tmp_path / "steps.jsonl"), torch.no_grad():
        output = module(tokens(module))
    (step,) = kept(tmp_path / "steps.jsonl")
    assert step.predicted_peak_bytes == step.measured_peak_bytes
    del output


@pytest.mark.parametrize("what", ["use_cache", "past", "frozen", "two sizes", "own optimizer", "mixed"])
def test_what_no_workload_describes_is_measured_and_not_predicted(tmp_path, what):
    module = build(LLAMA)
    ids = tokens(module)
    optimizer = torch.optim.SGD(module.parameters())
    before = {"cache": module(ids[:, :1], use_cache=True).cache, "use_cache": True} if what == "past" else {}
    if what == "frozen":
        module.model.embed_tokens.requires_grad_(False)
    if what == "own optimizer":
        optimizer = type("Mine", (torch.optim.SGD,), {})(module.parameters())
    if what == "mixed":
        module.lm_head.double()
        module.lm_head.register_forward_pre_hook(lambda _, args: (args[0].double(),))
    with track(module, history=tmp_path / "steps.jsonl"):
        if what in ("use_cache", "past"):
            with torch.no_grad():
                module(ids, **before)
        else:
            module(ids)[0].sum().backward()
            if what == "two sizes":
                module(ids[:, 1:])[0].sum().backward()
            optimizer.step()
    (step,) = kept(tmp_path / "steps.jsonl")
    assert step.predicted_peak_bytes is None
    assert step.measured_peak_bytes > 0


def test_a_step_that_is_described_is_predicted_as_described(tmp_path):
    module = build(LLAMA)
    optimizer = torch.optim.AdamW(module.parameters())
    workload = headwise.Workload(batch=1, seq=1, device="cpu", checkpoint="full")
    run(module, optimizer)
    with track(module, history=tmp_path / "steps.jsonl", workload=workload):
        run(module, optimizer)
    expected = headwise.Workload(batch=BATCH, seq=SEQ, device="cpu", checkpoint="full")
    config = headwise.api.module_config.config_of(module)
    (step,) = kept(tmp_path / "steps.jsonl")
    assert step.predicted_peak_bytes == headwise.predict_step(config, expected).peak_bytes


def test_a_model_may_be_named_for_a_module_without_a_config(tmp_path):
    workload = headwise.Workload(batch=5, seq=7, device="cpu", phase="prefill")
    with track(history=tmp_path / "steps.jsonl", model="gpt2", workload=workload):
        x = torch.ones(11)
    (step,) = kept(tmp_path / "steps.jsonl")
    assert (step.model, step.batch, step.seq, step.measured_peak_bytes) == ("gpt2", 5, 7, 44)
    assert step.predicted_peak_bytes == headwise.predict_step(headwise.preset("gpt2"), workload).peak_bytes
    del x


def test_a_module_of_ones_own_is_measured(tmp_path):
    module = nn.Sequential(nn.Linear(3, 5), nn.Tanh())
    with track(module, history=tmp_path / "steps.jsonl"):
        module(torch.ones(2, 7, 3)).sum().backward()
    (step,) = kept(tmp_path / "steps.jsonl")
    assert (step.model, step.batch, step.seq) == ("Sequential, 20 parameters", 2, 7)
    assert step.predicted_peak_bytes is None


def test_the_steps_own_exception_comes_out_and_no_line_is_kept(tmp_path):
    error = KeyError("of the step")
    with pytest.raises(KeyError) as raised, track(build(GPT2), history=tmp_path / "steps.jsonl"):
        raise error
    assert raised.value is error
    assert kept(tmp_path / "steps.jsonl") == ()


def test_a_history_that_cannot_be_written_is_known_before_the_step(tmp_path):
    with pytest.raises(OutputError, match="name another file"), track(history=tmp_path / "no" / "steps.jsonl"):
        pytest.fail("the step ran")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"model": "gpt2"}, "give history="),
        ({"workload": headwise.Workload(batch=1, seq=1)}, "give history="),
        ({"history": "steps.jsonl", "model": 7}, "model must be a preset"),
        ({"history": "steps.jsonl", "model": "no-such-model"}, "is neither a preset"),
    ],
)
def test_wrong_arguments_are_told_before_the_step(tmp_path, monkeypatch, arguments, text):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(HeadwiseError, match=text), track(**arguments):
        pytest.fail("the step ran")
    assert not list(tmp_path.iterdir())


def test_watching_leaves_no_hook_behind(tmp_path):
    module = build(GPT2)
    with track(module, history=tmp_path / "steps.jsonl"):
        pass
    assert not module._forward_pre_hooks


def test_the_size_of_a_step_is_that_of_its_tokens_or_vectors():
    ids, vectors = torch.zeros(3, 5, dtype=torch.long), torch.zeros(7, 11, 2)
    assert find_size((ids,), {}) == find_size((vectors, ids), {}) == find_size((), {"x": ids}) == (3, 5)
    assert find_size((torch.ones(1, 9, dtype=torch.long),), {"input_ids": ids}) == (3, 5)
    assert find_size((), {"inputs_embeds": vectors}) == (7, 11)
    assert find_size((torch.zeros(2, 3, 4, 4), 5), {}) is None


def steps_of(tmp_path, module, optimizers, runs=3):
    """Track the last of some steps over a module."""
    ids = tokens(module)

    def step():
        module(input_ids=ids)[0].float().sum().backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()

    for _ in range(runs - 1):
        step()
    module.zero_grad()
    with track(module, history=tmp_path / "steps.jsonl"):
        step()
    return kept(tmp_path / "steps.jsonl")[0]


@pytest.mark.parametrize(
    "make",
    [
        lambda all_: [torch.optim.AdamW(all_, amsgrad=True)],
        lambda all_: [torch.optim.Adam([{"params": all_[:3]}, {"params": all_[3:], "amsgrad": True}])],
        lambda all_: [torch.optim.AdamW(all_, maximize=True)],
        lambda all_: [torch.optim.SGD(all_, lr=0.1, weight_decay=0.1)],
        lambda all_: [torch.optim.Adam(all_, weight_decay=0.1, foreach=True)],
        lambda all_: [torch.optim.SGD([{"params": all_[:3], "momentum": 0.9}, {"params": all_[3:]}], lr=0.1)],
        lambda all_: [torch.optim.AdamW([{"params": all_[:3], "foreach": True}, {"params": all_[3:]}])],
        lambda all_: [torch.optim.AdamW(all_[:4])],
        lambda all_: [torch.optim.AdamW([*all_, nn.Parameter(torch.ones(3))])],
    ],
)
def test_what_no_closed_form_knows_of_an_optimizer_is_not_predicted(tmp_path, make):
    module = build(BERT)
    step = steps_of(tmp_path, module, make(list(module.parameters())))
    assert step.predicted_peak_bytes is None and step.measured_peak_bytes > 0


@pytest.mark.parametrize(
    "make",
    [
        lambda all_: [torch.optim.AdamW(all_, weight_decay=0.1)],  # from the weights, in place
        lambda all_: [torch.optim.AdamW([{"params": all_[:3], "weight_decay": 0.0}, {"params": all_[3:], "lr": 0.1}])],
        lambda all_: [torch.optim.AdamW(all_[:4]), torch.optim.AdamW(all_[4:])],
    ],
)
def test_an_optimizer_of_many_groups_or_of_parts_is_predicted_where_it_is_told(tmp_path, make):
    module = build(BERT)
    step = steps_of(tmp_path, module, make(list(module.parameters())))
    assert step.predicted_peak_bytes is None or abs(step.error) < 0.02


def test_gradients_of_before_are_not_predicted_unless_they_go_first(tmp_path):
    module = build(BERT)
    optimizer = torch.optim.AdamW(module.parameters())
    run(module, optimizer)
    ids = tokens(module)
    path = tmp_path / "steps.jsonl"

    def step(clears):
        if clears:
            optimizer.zero_grad()
        module(input_ids=ids)[0].float().sum().backward()
        optimizer.step()

    step(True)
    for clears in (False, True):
        with track(module, history=path):
            step(clears)
    kept_gradients, cleared = kept(path)
    assert kept_gradients.predicted_peak_bytes is None
    assert cleared.predicted_peak_bytes is not None and abs(cleared.error) < 0.02
