"""What a step keeps on a CUDA device: the closed form against the trace, which derive it from torch's sources apart."""

import json

import pytest
import torch
import transformers

from headwise.config.huggingface import read_config
from headwise.cost.cuda.workspace import workspace_bytes
from headwise.cost.memory import predict_ledger, predict_step
from headwise.cost.step.attention import choose_kernel
from headwise.cost.step.models import FAMILIES
from headwise.cost.step.tape import Tape, Value
from headwise.cost.step.workspace import backward_workspace
from headwise.cost.tracing.trace import step_memory, trace_step
from headwise.cost.workload import Workload

VOCAB, BATCH, SEQ = 97, 3, 11
SHARED = {"vocab_size": VOCAB, "num_hidden_layers": 2, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
LLAMA = SHARED | {
    "hidden_size": 24,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 10,
    "intermediate_size": 37,
    "max_position_embeddings": 53,
}
CONFIGS = {
    "bert": SHARED
    | {"hidden_size": 21, "num_attention_heads": 3, "intermediate_size": 37, "max_position_embeddings": 53},
    "gemma3_text": LLAMA | {"sliding_window": 7, "layer_types": ["sliding_attention", "full_attention"]},
    "gpt2": SHARED | {"n_embd": 21, "n_head": 3, "n_positions": 53},
    "gpt_oss": LLAMA | {"num_local_experts": 5, "num_experts_per_tok": 2, "intermediate_size": 40, "sliding_window": 7},
    "llama": LLAMA,
    "mistral": LLAMA | {"sliding_window": 7},
    "mixtral": LLAMA | {"num_local_experts": 5, "num_experts_per_tok": 2, "intermediate_size": 40},
    "t5": {
        "vocab_size": VOCAB,
        "d_model": 20,
        "d_kv": 7,
        "d_ff": 37,
        "num_layers": 1,
        "num_heads": 3,
        "pad_token_id": 0,
        "eos_token_id": 1,
        "decoder_start_token_id": 0,
    },
}
DROPOUTS = {
    "bert": ("hidden_dropout_prob", "attention_probs_dropout_prob"),
    "gpt2": ("embd_pdrop", "attn_pdrop", "resid_pdrop"),
    "t5": ("dropout_rate",),
}


def build(family, attention, dropout_p, **changes):
    dropouts = dict.fromkeys(DROPOUTS.get(family, ("attention_dropout",)), dropout_p)
    settings = transformers.AutoConfig.for_model(family, **(CONFIGS[family] | dropouts | changes))
    model = transformers.AutoModel.from_config(settings, attn_implementation=attention)
    content = json.loads(model.config.to_json_string()) | {"architectures": [type(model).__name__]}
    return model, read_config(content, name=family)


def saved_bytes(family, attention, dropout_p, *, changes=(), **workload):
    """Return the saved bytes of the closed form and of the trace."""
    model, config = build(family, attention, dropout_p, **dict(changes))
    asked = Workload(batch=BATCH, seq=SEQ, attention=attention, device="cuda", optimizer="sgd", **workload)
    ids = {"input_ids": torch.randint(3, VOCAB, (BATCH, SEQ))}
    inputs = ids | {"decoder_input_ids": ids["input_ids"]} if family == "t5" else ids
    return predict_step(config, asked).saved_bytes, step_memory(trace_step(model, inputs, asked)).saved_bytes


@pytest.mark.parametrize(
    ("family", "attention"),
    [(f, a) for f in CONFIGS for a in ("eager", "sdpa") if a == "eager" or FAMILIES[f].has_sdpa],
)
def test_saved_bytes_are_traced_ones_to_the_byte(family, attention):
    for precision in ("fp16", "amp-bf16") if attention == "eager" else ("bf16",):
        predicted, traced = saved_bytes(family, attention, 0.1, precision=precision)
        assert (precision, predicted) == (precision, traced)


KERNELS = (
    ("flash", "llama", {"head_dim": 16}, (8, 0), "bf16", 0.1),
    ("flash", "llama", {"head_dim": 10}, (8, 9), "amp-fp16", 0.0),
    ("cudnn", "llama", {"head_dim": 16}, (9, 0), "bf16", 0.125),
    ("efficient", "bert", {"hidden_size": 48}, (8, 0), "fp32", 0.1),
    ("efficient", "mistral", {"head_dim": 16}, (8, 0), "amp-bf16", 0.1),
    ("efficient", "bert", {"hidden_size": 24}, (7, 0), "fp16", 0.0),
    ("math", "llama", {"head_dim": 16}, (7, 0), "bf16", 0.1),
)


@pytest.mark.parametrize(("kernel", "family", "changes", "capability", "precision", "dropout_p"), KERNELS)
def test_saved_bytes_of_every_kernel_are_traced_ones_to_the_byte(
    kernel, family, changes, capability, precision, dropout_p
):
    _, config = build(family, "sdpa", dropout_p, **changes)
    workload = Workload(batch=BATCH, seq=SEQ, precision=precision, compute_capability=capability)
    assert choose_kernel(config.blocks[0].attention, workload)[0].name == kernel
    predicted, traced = saved_bytes(
        family, "sdpa", dropout_p, changes=changes, precision=precision, compute_capability=capability
    )
    assert predicted == traced


def test_the_compute_capability_of_a_workload_decides_its_kernel():
    _, config = build("llama", "sdpa", 0.0, head_dim=16)
    names = {
        capability: choose_kernel(
            config.blocks[0].attention, Workload(batch=1, seq=5, precision="bf16", compute_capability=capability)
        )[0].name
        for capability in ((7, 0), (8, 0), (9, 0))
    }
    assert names == {(7, 0): "math", (8, 0): "flash", (9, 0): "cudnn"}


def test_a_dropout_mask_needs_a_byte_a_number_on_cuda_in_every_precision():
    _, config = build("bert", "eager", 0.1)
    for precision in ("fp32", "bf16", "amp-fp16"):
        workload = Workload(batch=2, seq=7, precision=precision, attention="eager")
        entries = predict_ledger(config, workload).entries
        assert {entry.dtype for entry in entries if entry.name.endswith("dropout mask")} == {"bool"}


def heads(shape, dtype="bfloat16"):
    """Heads of tokens on a tape, and as a tensor without numbers, both with tokens first in memory."""
    tape = Tape()
    tape.begin("forward: all")
    batch, num_heads, seq, dim = shape
    tensor = torch.empty(batch, seq, num_heads, dim, dtype=getattr(torch, dtype), device="meta").transpose(1, 2)
    return Value(shape, tape.new("heads", shape, dtype)), tensor


@pytest.mark.parametrize("capability", [(7, 5), (8, 0), (8, 6), (9, 0)])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize(("kernel", "num_kv_heads"), [("flash", 2), ("flash", 6), ("efficient", 6)])
def test_the_workspace_of_a_kernel_is_the_one_of_the_traces_rule(kernel, num_kv_heads, dtype, capability):
    operation = getattr(torch.ops.aten, f"_scaled_dot_product_{kernel}_attention_backward").default
    for head_dim, seq in ((16, 5), (64, 130), (72, 257), (96, 64), (128, 300), (256, 47)):
        query, query_tensor = heads((2, 6, seq, head_dim), dtype)
        key, key_tensor = heads((2, num_kv_heads, seq, head_dim), dtype)
        call = {"query": query_tensor, "key": key_tensor, "value": key_tensor}
        call |= {"grad_out_": query_tensor, "grad_out": query_tensor, "out": query_tensor}
        predicted = backward_workspace(kernel, query, key, key, output_layout="tokens", compute_capability=capability)
        assert predicted == workspace_bytes(operation, (), call, compute_capability=capability)
