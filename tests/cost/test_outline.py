"""An outline says of a step what its ledger says, without a list of every tensor."""

from dataclasses import replace
from itertools import product

import pytest

from headwise.config.presets import preset
from headwise.cost.memory import predict_ledger
from headwise.cost.outline import outline_of, predict_outline
from headwise.cost.results import Ledger, LedgerEntry
from headwise.cost.sharding.predict import predict_sharded_ledger, predict_sharded_outline
from headwise.cost.sharding.results import SHARDINGS, Sharding
from headwise.cost.workload import Lora, Workload

STEPS = [
    {},
    {"checkpoint": "full", "precision": "amp-bf16"},
    {"phase": "prefill"},
    {"phase": "decode"},
    {"lora": Lora(rank=3)},
    {"frozen_layers": 5, "accumulation": 2},
    {"optimizer_step": "loop", "loss": "cross_entropy"},
]


@pytest.mark.parametrize(
    ("name", "changes"),
    [*product(["gpt2", "qwen3-4b", "gemma-3-27b"], STEPS), ("t5-small", {}), ("t5-small", {"phase": "prefill"})],
    ids=str,
)
def test_the_outline_of_a_step_is_that_of_its_ledger(name, changes):
    config = preset(name)
    workload = replace(Workload(batch=3, seq=127, device="cuda", compute_capability=(9, 0)), **changes)
    assert predict_outline(config, workload) == outline_of(predict_ledger(config, workload))


@pytest.mark.parametrize("kind", SHARDINGS)
def test_the_outline_of_one_device_is_that_of_its_ledger(kind):
    config = preset("llama-3.2-1b")
    workload = Workload(batch=2, seq=128, device="cuda", compute_capability=(9, 0), precision="bf16")
    sharding = Sharding(kind=kind, num_devices=4)
    ledger = predict_sharded_ledger(config, workload, sharding)
    assert predict_sharded_outline(config, workload, sharding) == outline_of(ledger)


def entry(name, kind, shape, born, freed, dtype="float32", num_bytes=None):
    num_bytes = 4 * shape[0] if num_bytes is None else num_bytes
    return LedgerEntry(
        name=name, kind=kind, bytes=num_bytes, shape=shape, dtype=dtype, owner="o", born=born, freed=freed
    )


def test_what_stands_is_one_group_and_the_rest_are_grouped_by_name_shape_and_dtype():
    entries = (
        entry("q weight", "parameter", (2,), 0, None),
        entry("k weight", "parameter", (3,), 0, None),
        entry("x", "saved", (5,), 0, 2),
        entry("x", "temporary", (5,), 1, None),
        entry("x", "saved", (5,), 1, 2, "bfloat16", 10),
        entry("gone", "saved", (7,), 0, 1),
    )
    outline = outline_of(Ledger(moments=("forward", "loss"), entries=entries))
    assert outline.bytes_by_moment == (68, 70)
    assert (outline.peak, outline.peak_bytes) == (1, 70)
    assert [(one.name, one.shape, one.dtype, one.count, one.bytes) for one in outline.groups] == [
        ("x", (5,), "float32", 2, 40),
        ("weights", None, "", 2, 20),
        ("x", (5,), "bfloat16", 1, 10),
    ]
