"""Predicted peaks beside published ones, nothing tuned: within a tenth, or in the list of those that are missed."""

from dataclasses import dataclass
from typing import Any

import pytest

from headwise.config.presets import preset
from headwise.cost.memory import predict_ledger
from headwise.cost.workload import Lora, Workload

GIB = 2**30
TORCHTUNE = "torchtune README at 7d470bf, 'Optimization flags': A100, batch 2, 4096 tokens, bf16; peak active memory"
TORCHTUNE_8B = "torchtune README at 7d470bf, 'Memory and training speed': batch 2, 2048 tokens, bf16, compiled"
TORCHTITAN = "torchtitan benchmarks/llama3_h100_202412 at 31a17bf, table 2: FSDP over 8 H100, 32768 tokens"
ADAPTED = ("q_proj", "v_proj", "out_proj", "gate_proj", "up_proj", "down_proj")


@dataclass(frozen=True)
class Published:
    """A measured peak, and the workload that comes nearest to it.

    `offloads`: inputs of checkpointed layers wait on the host there. `num_shards`: weights, gradients and states, 16
    bytes a parameter there, are spread over so many devices. `why`: what is not the same there.
    """

    what: str
    source: str
    gib: float
    model: str
    workload: dict[str, Any]
    offloads: bool = False
    num_shards: int | None = None
    why: str = ""


ROW = {"batch": 2, "seq": 4096, "precision": "bf16", "optimizer_step": "fused"}
CHUNKED = ROW | {"loss": "chunked_cross_entropy"}
CHECKPOINTED = CHUNKED | {"checkpoint": "full"}
PUBLISHED = (
    Published("full, packed", TORCHTUNE, 60.0, "llama-3.2-3b", ROW | {"loss": "cross_entropy"}),
    Published("+ checkpointed layers", TORCHTUNE, 24.9, "llama-3.2-3b", CHECKPOINTED),
    Published(
        "+ optimizer in backward, offloading, 8-bit AdamW",
        TORCHTUNE,
        17.6,
        "llama-3.2-3b",
        CHECKPOINTED | {"optimizer": "adamw8bit"},
        offloads=True,
        why="gradients are freed one by one there, which alone took 1.8 GiB off; predicted is a step after backward",
    ),
    Published(
        "LoRA of rank 64",
        TORCHTUNE,
        8.5,
        "llama-3.2-3b",
        CHECKPOINTED | {"lora": Lora(rank=64, targets=ADAPTED)},
        offloads=True,
    ),
    Published(
        "LoRA of rank 8, checkpointed",
        TORCHTUNE_8B,
        16.2,
        "llama-3-8b",
        CHECKPOINTED | {"seq": 2048, "lora": Lora(rank=8, targets=("q_proj", "v_proj", "out_proj"))},
    ),
)
MISSED = (
    Published(
        "+ compiled, chunked cross-entropy",
        TORCHTUNE,
        42.9,
        "llama-3.2-3b",
        CHUNKED,
        why="13 % above: compiled there, which alone took 15 % off the row before; predicted is the eager step",
    ),
    Published(
        "LoRA of rank 8",
        TORCHTUNE_8B,
        30.3,
        "llama-3-8b",
        CHUNKED | {"seq": 2048, "lora": Lora(rank=8, targets=("q_proj", "v_proj", "out_proj"))},
        why="12 % above: compiled there, which fuses norms and products and keeps less of them",
    ),
    Published(
        "full, checkpointed, sharded",
        TORCHTITAN,
        83.9,
        "llama-3-8b",
        {"batch": 1, "seq": 32768, "precision": "bf16", "loss": "cross_entropy", "checkpoint": "full"},
        num_shards=8,
        why="15 % below: reserved memory there, with holes, gathered weights and collectives; predicted is allocated",
    ),
)


def predict_gib(row):
    config = preset(row.model)
    ledger = predict_ledger(config, Workload(**row.workload))
    standing = ("parameter", "gradient", "optimizer")
    if row.num_shards:
        activations = sum(entry.bytes for entry in ledger.alive(ledger.peak) if entry.kind not in standing)
        num_parameters = ledger.kind_bytes("parameter") // 2
        return (activations + 16 * num_parameters / row.num_shards) / GIB
    hidden = 2 * row.workload["batch"] * row.workload["seq"] * config.embed_dim
    return (ledger.bytes_at(ledger.peak) - row.offloads * config.num_layers * hidden) / GIB


def table():
    lines = []
    for row in (*PUBLISHED, *MISSED):
        ours = predict_gib(row)
        lines.append(f"{row.what:50} {row.gib:6.1f} GiB measured, {ours:6.1f} predicted, {ours / row.gib - 1:+.1%}")
    return "\n".join(lines)


def missed(row):
    return pytest.param(row, id=row.what, marks=pytest.mark.xfail(reason=row.why, strict=True))


@pytest.mark.parametrize("row", [*(pytest.param(row, id=row.what) for row in PUBLISHED), *map(missed, MISSED)])
def test_predictions_are_within_a_tenth_of_published_peaks(row):
    assert abs(predict_gib(row) / row.gib - 1) <= 0.1, table()
