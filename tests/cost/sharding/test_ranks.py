"""Predicted bytes of one device beside what real processes hold: 2 and 4 of them, over gloo on this CPU.

The same Python code of FSDP2, DDP and DTensor holds tensors on CPU and on CUDA. What is not the same is derived alone:
pools of memory by CUDA stream, what NCCL takes for itself, and CUDA's kernels.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from headwise.config.huggingface import read_config
from headwise.cost.sharding.predict import predict_sharded_ledger
from headwise.cost.sharding.results import Sharding
from headwise.cost.sharding.travel import travels
from headwise.cost.workload import Workload

SHARED = {"vocab_size": 103, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
LLAMA = SHARED | {
    "hidden_size": 44,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "head_dim": 10,
    "intermediate_size": 92,
    "num_hidden_layers": 3,
    "max_position_embeddings": 53,
}
GPT2 = SHARED | {"n_embd": 33, "n_head": 3, "n_positions": 37, "n_layer": 3, "embd_pdrop": 0.1, "attn_pdrop": 0.0}
ODD = LLAMA | {"hidden_size": 39, "num_attention_heads": 3, "num_key_value_heads": 1, "intermediate_size": 89}
EVEN = LLAMA | {"vocab_size": 104}
WORDY = LLAMA | {"vocab_size": 603, "hidden_size": 24}  # scores, whose last part is padded, are the peak of forward
FLAT = LLAMA | {"num_hidden_layers": 1, "intermediate_size": 8, "vocab_size": 12, "head_dim": 2, "hidden_size": 68}
# bfloat16 products are slow on CPUs
NARROW = LLAMA | {
    "vocab_size": 307,
    "hidden_size": 28,
    "head_dim": 6,
    "intermediate_size": 32,
}
CASE = {
    "ranks": 2,
    "family": "llama",
    "config": LLAMA,
    "batch": 3,
    "seq": 22,
    "checkpoint": "none",
    "accumulation": 1,
    "precision": "fp32",
    "gradients_are_views": True,
}
CASES = {
    "zero1": {"kind": "zero1"},
    "zero1, gradients beside buckets": {"kind": "zero1", "gradients_are_views": False, "accumulation": 2},
    "zero1 of 4": {"kind": "zero1", "ranks": 4},
    "zero2": {"kind": "zero2", "config": ODD},
    "zero3": {"kind": "zero3", "config": ODD},
    "zero2 of few tokens": {"kind": "zero2", "batch": 1, "seq": 3},  # weights and gradients alone count
    "zero3 of few tokens": {"kind": "zero3", "batch": 1, "seq": 3},
    "zero3, two passes": {"kind": "zero3", "accumulation": 2},
    "zero3 in mixed precision": {"kind": "zero3", "precision": "amp-bf16", "config": NARROW, "batch": 2, "seq": 11},
    "zero3 of 4, checkpointed": {"kind": "zero3", "ranks": 4, "checkpoint": "full", "config": ODD},
    "zero3 of 4, gpt2": {"kind": "zero3", "ranks": 4, "family": "gpt2", "config": GPT2},
    "tensor": {"kind": "tensor", "config": EVEN, "checkpoint": "full"},
    "tensor of 4, words not divided": {"kind": "tensor", "config": WORDY, "ranks": 4},
    "tensor of narrow branches": {"kind": "tensor", "batch": 5, "config": FLAT},
    "context of 4": {"kind": "context", "ranks": 4, "seq": 44},
}
SECONDS = 420  # for both groups of processes, each of which ends itself sooner


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """What each process of each case held, by case and rank."""
    folder = tmp_path_factory.mktemp("ranks")
    cases = [CASE | changes | {"name": name} for name, changes in CASES.items()]
    (folder / "cases.json").write_text(json.dumps(cases))
    environment = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "KINETO_LOG_LEVEL": "99"}
    script = Path(__file__).with_name("ranks.py")
    done = subprocess.run(
        [sys.executable, str(script), str(folder / "cases.json"), str(folder)],
        env=environment,
        timeout=SECONDS,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    by_rank = {
        (ranks, rank): json.loads((folder / f"{ranks}-{rank}.json").read_text())
        for ranks in (2, 4)
        for rank in range(ranks)
    }
    return {
        case["name"]: [by_rank[case["ranks"], rank][case["name"]] for rank in range(case["ranks"])] for case in cases
    }


def asked(name, ranks):
    """The config, workload and sharding of a case; the config is what the processes built."""
    case = CASE | CASES[name]
    workload = Workload(
        batch=case["batch"],
        seq=case["seq"],
        precision=case["precision"],
        checkpoint=case["checkpoint"],
        accumulation=case["accumulation"],
        loss="cross_entropy",
        device="cpu",
    )
    sharding = Sharding(kind=case["kind"], num_devices=case["ranks"], gradients_are_views=case["gradients_are_views"])
    return read_config(ranks[0]["content"], name=name), workload, sharding


def most_held(ranks, phase):
    """The most that a process held in a phase of its last step."""
    return max(rank["standing_bytes"] + rank["held_bytes"][phase] for rank in ranks)


def most_predicted(ledger, phase):
    """The same of a ledger, where transformers' forward pass ends with the loss."""
    moments = ("forward", "loss") if phase == "forward" else (phase,)
    return max(ledger.bytes_at(index) for index, name in enumerate(ledger.moments) if name.split(":")[0] in moments)


@pytest.mark.parametrize("name", CASES)
def test_weights_and_states_of_a_device_are_measured_ones_to_the_byte(measured, name):
    ledger = predict_sharded_ledger(*asked(name, measured[name]))
    for kind, found in (("parameter", "parameter_bytes"), ("optimizer", "state_bytes")):
        assert ledger.kind_bytes(kind) == max(rank[found] for rank in measured[name])


@pytest.mark.parametrize("name", CASES)
def test_what_a_device_holds_at_most_is_within_one_percent_of_the_measured_in_every_phase(measured, name):
    ledger = predict_sharded_ledger(*asked(name, measured[name]))
    for phase in ("forward", "backward", "optimizer step"):
        assert most_predicted(ledger, phase) == pytest.approx(most_held(measured[name], phase), rel=0.01), phase


@pytest.mark.parametrize("name", [name for name in CASES if "zero1" not in name])  # DDP sends from C++
def test_what_a_device_sends_is_what_its_collectives_were_given(measured, name):
    predicted = travels(*asked(name, measured[name]))
    sent = sum(one.sent_bytes for one in predicted if one.what != "gradients of weights")  # the ring's own
    assert [rank["sent_bytes"] for rank in measured[name]] == [pytest.approx(sent, rel=1e-3)] * len(measured[name])
