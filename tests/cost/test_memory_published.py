"""Predicted peaks beside published ones, nothing tuned: within a tenth, or in the list of those that are missed."""

from dataclasses import dataclass
from typing import Any

import pytest

from headwise.config.presets import preset
from headwise.cost.allocator import replay
from headwise.cost.memory import predict_ledger
from headwise.cost.sharding.predict import sharded_events
from headwise.cost.sharding.results import Sharding
from headwise.cost.workload import Lora, Workload

GIB = 2**30
TORCHTUNE = "torchtune README at 7d470bf, 'Optimization flags': A100, batch 2, 4096 tokens, bf16; peak active memory"
TORCHTUNE_8B = "torchtune README at 7d470bf, 'Memory and training speed': batch 2, 2048 tokens, bf16, compiled"
TORCHTITAN = "torchtitan benchmarks/llama3_h100_202412 at 31a17bf, table 2: FSDP over 8 H100, 32768 tokens"
ADAPTED = ("q_proj", "v_proj", "out_proj", "gate_proj", "up_proj", "down_proj")


@dataclass(frozen=True)
class Published:
    """A measured peak, and the workload that comes nearest to it.

    `offloads`: inputs of checkpointed layers wait on the host there. `num_shards`: weights, gradients and states are
    spread over so many devices (torch's FSDP2 in mixed precision), and the figure is reserved memory.
    `compiled_off_gib`: what compiling alone took off in the same table, which is not predicted. `why`: what is not the
    same there.
    """

    what: str
    source: str
    gib: float
    model: str
    workload: dict[str, Any]
    offloads: bool = False
    num_shards: int | None = None
    compiled_off_gib: float = 0.0
    why: str = ""


ROW = {"batch": 2, "seq": 4096, "precision": "bf16", "optimizer_step": "fused"}
CHUNKED = ROW | {"loss": "chunked_cross_entropy"}
CHECKPOINTED = CHUNKED | {"checkpoint": "full"}
PUBLISHED = (
    Published("full, packed", TORCHTUNE, 60.0, "llama-3.2-3b", ROW | {"loss": "cross_entropy"}),
    Published("+ chunked cross-entropy", TORCHTUNE, 42.9, "llama-3.2-3b", CHUNKED, compiled_off_gib=60.0 - 51.0),
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
    Published(
        "full, checkpointed, sharded",
        TORCHTITAN,
        83.9,
        "llama-3-8b",
        {"batch": 1, "seq": 32768, "precision": "amp-bf16", "loss": "cross_entropy", "checkpoint": "full"}
        | {"optimizer_step": "fused", "compute_capability": (9, 0)},
        num_shards=8,
    ),
)
MISSED = (
    Published(
        "LoRA of rank 8",
        TORCHTUNE_8B,
        30.3,
        "llama-3-8b",
        CHUNKED | {"seq": 2048, "lora": Lora(rank=8, targets=("q_proj", "v_proj", "out_proj"))},
        why="12 % above: compiled there, which fuses norms and products and keeps less of them",
    ),
)


def predict_gib(row):
    config = preset(row.model)
    if row.num_shards:
        sharding = Sharding(kind="zero3", num_devices=row.num_shards)
        return replay(sharded_events(config, Workload(**row.workload), sharding)).reserved_peak_bytes / GIB
    ledger = predict_ledger(config, Workload(**row.workload))
    hidden = 2 * row.workload["batch"] * row.workload["seq"] * config.embed_dim
    return (ledger.bytes_at(ledger.peak) - row.offloads * config.num_layers * hidden) / GIB


def gap(row):
    """How far the prediction is off, as a share of what was published for a step that is not compiled."""
    return predict_gib(row) / (row.gib + row.compiled_off_gib) - 1


def table():
    lines = []
    for row in (*PUBLISHED, *MISSED):
        measured = row.gib + row.compiled_off_gib
        lines.append(f"{row.what:50} {measured:6.1f} GiB measured, {predict_gib(row):6.1f} predicted, {gap(row):+.1%}")
    return "\n".join(lines)


def missed(row):
    return pytest.param(row, id=row.what, marks=pytest.mark.xfail(reason=row.why, strict=True))


@pytest.mark.parametrize("row", [*(pytest.param(row, id=row.what) for row in PUBLISHED), *map(missed, MISSED)])
def test_predictions_are_within_a_tenth_of_published_peaks(row):
    assert abs(gap(row)) <= 0.1, table()
