"""Adapters beside frozen projections: predicted against real ones."""

import dataclasses
import re

import pytest
import torch
import transformers

from headwise.config.huggingface import read_config
from headwise.config.presets import preset
from headwise.cost.memory import predict_ledger, predict_step
from headwise.cost.running.measure import measure_training_step
from headwise.cost.workload import LORA_TARGETS, Lora, Workload
from headwise.errors import ConfigError

VOCAB = 97
SHARED = {"vocab_size": VOCAB, "num_hidden_layers": 3, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
FAMILIES = {
    "bert": SHARED
    | {"hidden_size": 21, "num_attention_heads": 3, "intermediate_size": 37, "max_position_embeddings": 53},
    "gpt2": SHARED | {"n_embd": 21, "n_head": 3, "n_positions": 53},
    "llama": SHARED
    | {
        "hidden_size": 24,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "head_dim": 10,
        "intermediate_size": 37,
        "max_position_embeddings": 53,
    },
}
PLAIN = tuple(target for target in LORA_TARGETS if target != "gate_proj")  # without a gate
PATHS = {
    "bert": {
        "q_proj": r"attention\.self\.query",
        "k_proj": r"attention\.self\.key",
        "v_proj": r"attention\.self\.value",
        "out_proj": r"attention\.output\.dense",
        "up_proj": r"intermediate\.dense",
        "down_proj": r"output\.dense",
    },
    "gpt2": {
        "q_proj": r"attn\.c_attn",
        "k_proj": r"attn\.c_attn",
        "v_proj": r"attn\.c_attn",
        "out_proj": r"attn\.c_proj",
        "up_proj": r"mlp\.c_fc",
        "down_proj": r"mlp\.c_proj",
    },
    "llama": {
        "q_proj": r"self_attn\.q_proj",
        "k_proj": r"self_attn\.k_proj",
        "v_proj": r"self_attn\.v_proj",
        "out_proj": r"self_attn\.o_proj",
        "gate_proj": r"mlp\.gate_proj",
        "up_proj": r"mlp\.up_proj",
        "down_proj": r"mlp\.down_proj",
    },
}
BATCH, SEQ = 5, 31


class Adapted(torch.nn.Module):
    """A projection with an adapter, as peft and torchtune run it."""

    def __init__(self, projection, rank):
        super().__init__()
        outputs, inputs = projection.weight.shape
        if not isinstance(projection, torch.nn.Linear):  # GPT-2's weights are (inputs, outputs)
            inputs, outputs = outputs, inputs
        self.projection = projection
        self.A = torch.nn.Linear(inputs, rank, bias=False)
        self.B = torch.nn.Linear(rank, outputs, bias=False)

    def forward(self, x):
        result = self.projection(x)
        return result + self.B(self.A(x)) * 2.0


def compare(family, workload):
    config = transformers.AutoConfig.for_model(family, **FAMILIES[family])
    model = transformers.AutoModel.from_config(config, attn_implementation=workload.attention)
    content = model.config.to_dict() | {"architectures": [type(model).__name__]}
    described = read_config(content, name=family)
    model.requires_grad_(False)
    ends = {PATHS[family][target] for target in workload.lora.targets}
    for path, part in list(model.named_modules()):
        if any(re.search(rf"\.\d+\.{end}$", path) for end in ends):
            model.set_submodule(path, Adapted(part, workload.lora.rank))
    ids = torch.randint(3, VOCAB, (workload.batch, workload.seq))
    own = dataclasses.replace(workload, lora=None)
    measured = measure_training_step(model, {"input_ids": ids}, workload=own)
    return predict_step(described, workload), measured, described


def allowance(config):
    """Bytes of what a peak leaves out: numbers that Python hands to an operation, and two rows of sums in a norm."""
    return 2 * 4 * config.embed_dim + 8 * 24 * config.num_layers


@pytest.mark.parametrize("checkpoint", ["none", "full"])
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize(
    ("family", "targets"),
    [
        ("bert", ("q_proj", "v_proj")),
        ("bert", PLAIN),
        ("gpt2", ("q_proj", "k_proj", "v_proj")),
        ("gpt2", PLAIN),
        ("llama", ("q_proj", "v_proj")),
        ("llama", ("down_proj",)),
        ("llama", LORA_TARGETS),
    ],
)
def test_a_step_with_adapters_saves_and_needs_what_the_real_one_does(family, targets, attention, checkpoint):
    workload = Workload(
        batch=BATCH,
        seq=SEQ,
        device="cpu",
        attention=attention,
        checkpoint=checkpoint,
        dropout=False,
        lora=Lora(rank=3, targets=targets),
    )
    predicted, measured, config = compare(family, workload)
    assert predicted.parameter_bytes == measured.parameter_bytes
    assert predicted.saved_bytes == measured.saved_bytes
    assert abs(predicted.peak_bytes - measured.peak_bytes) <= allowance(config)


def test_only_adapters_have_gradients_and_states():
    config = preset("llama-3.2-1b")
    ledger = predict_ledger(config, Workload(batch=1, seq=64, lora=Lora(rank=8)))
    width, values, rank = 2048, 512, 8
    adapters = config.num_layers * (rank * (width + width) + rank * (width + values))
    assert ledger.kind_bytes("gradient") == 4 * adapters
    assert ledger.kind_bytes("optimizer") == 2 * 4 * adapters
    names = {entry.name for entry in ledger.entries if entry.kind == "gradient"}
    assert names == {f"gradient of {target} adapter {part}" for target in ("q_proj", "v_proj") for part in "AB"}


def test_a_frozen_projection_keeps_no_input():
    config = preset("llama-3-8b")
    full = Workload(batch=1, seq=512, precision="bf16")
    adapted = dataclasses.replace(full, lora=Lora(rank=8))
    saved = {
        entry.name
        for entry in predict_ledger(config, adapted).entries
        if entry.kind == "saved" and entry.owner == "layer 1 feed-forward"
    }
    assert "feed-forward active" not in saved  # what the frozen down_proj reads
    assert "gate, active" in saved  # what its backward needs: the gate is a factor of a product
    assert predict_step(config, adapted).saved_bytes < predict_step(config, full).saved_bytes


@pytest.mark.parametrize(
    ("name", "targets", "text"),
    [
        ("gpt2", ("gate_proj",), r"down_proj, k_proj, out_proj, q_proj, up_proj, v_proj; got gate_proj"),
        ("mixtral-8x7b", ("up_proj",), r"k_proj, out_proj, q_proj, v_proj; got up_proj"),
        ("llama-2-7b", (), r"must be projections of the model: .*; got none"),
    ],
)
def test_a_target_that_the_model_has_not_is_refused(name, targets, text):
    with pytest.raises(ConfigError, match=text):
        predict_step(preset(name), Workload(batch=1, seq=3, lora=Lora(rank=2, targets=targets)))
