"""`headwise.fit`: does a step fit, what fills it, and which single change frees how much."""

import json
import math
from dataclasses import replace

import pytest

import headwise
from headwise.api import traced_fit
from headwise.cost.devices import DEVICES, find_device
from headwise.cost.memory import predict_step
from headwise.cost.planning.closed_form import ClosedForm
from headwise.cost.planning.positions import with_positions
from headwise.cost.planning.setup import Setup
from headwise.cost.planning.verdict import judge_setup
from headwise.cost.workload import Workload
from headwise.errors import ConfigError, HeadwiseError, ModelError, OutputError

GIB = 2**30
V100 = {"gpu": "v100-32gb", "batch": 32, "seq": 2048, "attention": "eager"}


@pytest.fixture(scope="module")
def reported():
    """Claim 8: BERT-base, float32, eager, batch 32, length 2048, on a V100 with 32 GB, dropout 0.1."""
    return headwise.fit("bert-base", **V100)


@pytest.fixture(scope="module")
def rows(reported):
    return {change.key: change for change in reported.changes}


def one_layer(name="gpt2"):
    """A preset with its first layer alone, which is predicted three times as fast."""
    config = headwise.preset(name)
    return replace(config, blocks=config.blocks[:1])


def bert_at_2048():
    return replace(headwise.preset("bert-base"), position_table_size=2048, max_positions=2048)


def test_the_reported_step_does_not_fit_because_of_scores_of_six_gib_each(reported):
    assert reported.fits == "no"
    assert reported.peak_bytes > 200 * GIB
    scores = 32 * 12 * 2048 * 2048 * 4
    assert scores == 6 * GIB
    assert [entry.bytes for entry in reported.largest] == 10 * [scores]
    assert all(entry.shape == (32, 12, 2048, 2048) for entry in reported.largest)
    assert sum(entry.bytes == scores and entry.is_alive(reported.ledger.peak) for entry in reported.ledger.entries) > 24


def test_sixteen_heads_make_scores_of_eight_gib():
    largest = headwise.fit(one_layer("bert-large"), **V100).largest
    assert [entry.bytes for entry in largest[:3]] == 3 * [8 * GIB]


def test_a_length_beyond_the_table_of_positions_is_reckoned_with_a_longer_one(reported):
    assert "positions for 512 tokens: 2,048 are reckoned with a longer table" in " ".join(reported.notes)
    table = next(entry for entry in reported.ledger.entries if entry.name == "position table")
    assert table.shape == (2048, 768)


@pytest.mark.parametrize(
    ("key", "settings"),
    [
        ("sdpa", {"attention": "sdpa"}),
        ("checkpoint-selective", {"checkpoint": "selective"}),
        ("checkpoint-full", {"checkpoint": "full"}),
        ("amp-fp16", {"precision": "amp-fp16"}),
        ("fp16", {"precision": "fp16"}),
        ("fused-step", {"optimizer_step": "fused"}),
        ("adamw8bit", {"optimizer": "adamw8bit"}),
    ],
)
def test_a_row_is_the_difference_of_two_predictions(reported, rows, key, settings):
    workload = {"batch": 32, "seq": 2048, "attention": "eager", "compute_capability": (7, 0)}
    changed = predict_step(bert_at_2048(), Workload(**workload | settings)).peak_bytes
    assert rows[key].peak_bytes == changed
    assert rows[key].frees_bytes == reported.peak_bytes - changed


def test_what_brings_the_reported_step_in_and_by_how_much(reported, rows):
    """Of the techniques full checkpointing alone does, with 24.4 GiB; fused attention does beside half precision."""
    techniques = ("sdpa", "checkpoint-selective", "amp-fp16", "fp16", "fused-step", "adamw8bit", "heads", "lora")
    assert {rows[key].fits for key in techniques} == {"no"}
    assert {rows[key].fits for key in ("checkpoint-full", "accumulate", "batch", "seq")} == {"yes"}
    pairs = {path.keys for path in reported.paths if len(path.keys) == 2}
    assert ("sdpa", "amp-fp16") in pairs
    assert not any({"checkpoint-full"} < set(pair) for pair in pairs), "it is enough by itself"
    assert (reported.largest_batch, rows["batch"].peak_bytes < 31.74 * GIB) == (4, True)


def test_a_v100_has_no_bfloat16(rows):
    for key in ("bf16", "amp-bf16"):
        assert not rows[key].applies
        assert "no bfloat16 units" in rows[key].why


@pytest.fixture(scope="module")
def crowded():
    """One layer of GPT-2 and its scores of the vocabulary, too much for a T4."""
    return headwise.fit(one_layer(), gpu="t4", batch=64, seq=1024, sweep=("batch=1..4", "seq=256,1024"))


def test_the_path_fits_when_its_changes_are_made(crowded):
    plan = crowded
    assert plan.fits == "no"
    best = plan.paths[0]
    assert plan.path == best.changes
    assert best.fits == "yes"
    assert best.peak_bytes <= DEVICES["t4"].memory_bytes


def fits(batch=64, seq=1024):
    """Judge the step of `crowded` at another size, by what `fit` judges with."""
    config = with_positions(one_layer(), seq)
    workload = Workload(batch=batch, seq=seq, loss="cross_entropy", compute_capability=(7, 5))
    return judge_setup(ClosedForm(), Setup(config=config, workload=workload), find_device("t4")).fits


def test_more_than_the_largest_batch_or_length_does_not_fit(crowded):
    assert fits(batch=crowded.largest_batch) == "yes"
    assert fits(batch=crowded.largest_batch + 1) != "yes"
    assert fits(seq=crowded.largest_seq) == "yes"
    assert fits(seq=crowded.largest_seq + 1) != "yes"


def test_a_language_model_trains_on_cross_entropy_unless_told_otherwise(crowded, reported):
    assert crowded.workload.loss == "cross_entropy"
    assert reported.workload.loss == "sum"
    with_head = headwise.fit("bert-base", gpu="t4", head=True)
    assert with_head.workload.loss == "cross_entropy"
    assert any(entry.shape == (1, 512, 30522) for entry in with_head.ledger.entries)
    assert headwise.fit(one_layer(), gpu="t4", phase="prefill").workload.loss == "sum"


def test_the_bytes_of_the_timeline_and_the_ledger_are_the_same(reported):
    assert [moment.moment for moment in reported.timeline] == list(reported.ledger.moments)
    assert tuple(moment.total for moment in reported.timeline) == reported.ledger.bytes_by_moment
    assert max(reported.ledger.bytes_by_moment) == reported.peak_bytes


def test_spare_is_what_is_left_with_the_upper_bounds(reported):
    high = sum(part.high for part in reported.unmodelled)
    assert reported.spare_bytes == reported.capacity_bytes - reported.reserved_bytes - high < 0
    roomy = headwise.fit(one_layer(), gpu="h100-80gb")
    assert roomy.fits == "yes"
    assert roomy.spare_bytes > 0
    assert roomy.path == ()


def test_the_json_has_what_is_promised(reported):
    answer = reported.to_dict()
    promised = (
        "fits peak_bytes reserved_bytes capacity_bytes peak_moment ledger kernel changes path largest_batch "
        "largest_seq unmodelled"
    )
    assert set(promised.split()) <= set(answer)
    assert {"name", "bytes", "shape", "dtype", "owner", "born", "freed"} <= set(answer["ledger"][0])
    assert {"change", "frees_bytes", "extra_flops_fraction", "fits", "list"} <= set(answer["changes"][0])
    assert {"what", "low", "high"} <= set(answer["unmodelled"][0])
    json.dumps(answer, allow_nan=False)


def test_a_device_may_be_a_size_alone_or_a_known_one_with_another():
    alone = headwise.fit(one_layer(), gpu_memory="24GiB")
    assert (alone.capacity_bytes, alone.device.kind) == (24 * GIB, "cuda")
    known = headwise.fit(one_layer(), gpu="v100-32gb", gpu_memory="16GiB")
    assert known.capacity_bytes == 16 * GIB
    assert known.device.compute_capability == (7, 0)
    assert headwise.fit(one_layer(), gpu=find_device("t4")).device.name == "t4"


def test_this_machine_is_the_default():
    plan = headwise.fit(one_layer())
    assert plan.device.name == "here"
    if plan.device.kind == "cpu":
        assert plan.workload.device == "cpu"
        assert plan.reserved_bytes is None


def test_a_sweep_goes_over_the_grid_and_its_edge_fits(crowded):
    plan = crowded
    assert [(point.batch, point.seq) for point in plan.sweep.points] == [
        (batch, seq) for batch in (1, 2, 4) for seq in (256, 1024)
    ]
    edge = plan.sweep.frontier[1]
    assert (edge.batch, edge.is_limit) == (2, False)
    assert fits(batch=2, seq=edge.largest_seq) == "yes"
    assert fits(batch=2, seq=edge.largest_seq + 1) != "yes"


def test_sharding_weighs_one_of_the_devices():
    sharded = headwise.fit("llama-3-8b", gpu="a100-80gb", precision="bf16", shard="zero3", num_gpus=8)
    alone = predict_step(headwise.preset("llama-3-8b"), replace(sharded.workload))
    assert sharded.fits == "yes"
    assert sharded.sharding.num_devices == 8
    assert sharded.peak_bytes < alone.peak_bytes / 2


@pytest.fixture
def few_traces(monkeypatch):
    monkeypatch.setattr(traced_fit, "MAX_TRACES", 4)


def test_a_family_without_a_closed_form_is_traced(tmp_path, few_traces):
    content = {"model_type": "bloom", "hidden_size": 32, "n_layer": 1, "n_head": 2, "vocab_size": 97}
    path = tmp_path / "config.json"
    path.write_text(json.dumps(content))
    plan = headwise.fit(path, gpu_memory="2MiB", seq=7)
    assert plan.source_of == "trace"
    assert plan.fits == "no"
    applied = {change.key for change in plan.changes if change.applies}
    assert {"checkpoint-full", "amp-bf16"} <= applied
    assert "There is no closed form" in " ".join(plan.notes)
    assert plan.workload.attention == "eager"  # transformers has no other for it
    fused = next(change for change in plan.changes if change.key == "sdpa")
    assert (fused.applies, "eager attention only" in fused.why) == (False, True)


def test_a_module_of_the_users_own_is_traced(tmp_path, monkeypatch, few_traces):
    (tmp_path / "users_model.py").write_text(
        "from torch import nn\n"
        "class Tagger(nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.table = nn.Embedding(97, 32)\n"
        "        self.layer = nn.TransformerEncoderLayer(32, 2, 64, batch_first=True)\n"
        "    def forward(self, ids):\n"
        "        return self.layer(self.table(ids))\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    plan = headwise.fit("users_model:Tagger", batch=3, seq=11, gpu_memory="24GiB")
    assert plan.source_of == "trace"
    assert plan.model.name == "Tagger"
    assert any("layer" in entry.owner for entry in plan.ledger.entries)
    assert plan.fits == "yes"
    assert plan.largest_batch > 10_000 and plan.largest_seq > 10_000, "the search has not ended with its traces"


def test_a_prefill_checkpoints_nothing_and_needs_no_trace_for_it():
    asked = {"head": True, "phase": "prefill", "gpu": "t4", "seq": 61}
    checkpointed, plain = headwise.fit("t5-small", checkpoint="full", **asked), headwise.fit("t5-small", **asked)
    assert checkpointed.source_of == "config"
    assert checkpointed == plain


def test_what_cannot_be_is_one_clear_line(tmp_path):
    cases = [
        (ConfigError, "no device", {"gpu": "v10032gb"}),
        (ConfigError, "memory of a GPU", {"gpu_memory": "much"}),
        (ConfigError, 'shard must be "zero1"', {"shard": "zero4"}),
        (ConfigError, "num_gpus", {"num_gpus": 1}),
        (ConfigError, "phase", {"phase": "dream"}),
        (ConfigError, "batch", {"batch": 0}),
        (ConfigError, "a sweep must", {"sweep": ("batch=1..64", "sequence=3")}),
        (ConfigError, "at most", {"sweep": ("batch=1..1000000", "seq=1..1000000")}),
        (HeadwiseError, "is not there|no such|cannot be read", {"history": tmp_path / "none.jsonl"}),
        (OutputError, "cannot write", {"out": tmp_path / "no" / "page.html"}),
        (HeadwiseError, "rank must be", {"lora_rank": 0}),
    ]
    for kind, text, settings in cases:
        with pytest.raises(kind, match=text):
            headwise.fit(one_layer(), **{"gpu": "t4", **settings})
    with pytest.raises(ModelError, match="neither a preset"):
        headwise.fit("gpt-2000", gpu="t4")
    with pytest.raises(HeadwiseError, match="got None"):
        headwise.fit(None, gpu="t4")


@pytest.mark.parametrize("gpu", ["apple-m-24gb", "tpu-v5e"])
def test_where_kernels_are_unknown_a_step_fits_only_if_it_does_with_its_score_matrix(gpu):
    """BERT-base, batch 4, length 2048: 12 layers keep three score matrices each of 768 MiB, or a mask beside two."""
    step = {"gpu": gpu, "batch": 4, "seq": 2048, "dropout": False}
    plan = headwise.fit("bert-base", **step)
    scores = 4 * 12 * 2048 * 2048 * 4
    assert scores == 768 * 2**20
    assert plan.peak_bytes > 12 * scores
    assert plan.fits == "no"
    assert (plan.workload.attention, plan.kernel.name, plan.kernel.reasons) == ("sdpa", "math", ())
    assert "score matrix" in " ".join(plan.notes)
    with_fused = headwise.fit("bert-base", **step | {"gpu": "a100-80gb"})
    assert with_fused.peak_bytes < plan.peak_bytes / 2
    eager = headwise.fit("bert-base", **step, attention="eager")
    (fused,) = (change for change in eager.changes if change.key == "sdpa")
    assert fused.peak_bytes == plan.peak_bytes, "the change is judged as the step itself"


def test_a_time_estimate_says_what_binds():
    plan = headwise.fit(one_layer("llama-3-8b"), gpu="h100-80gb", phase="decode", precision="bf16", batch=1)
    assert plan.time.binds == "bandwidth"
    assert math.isclose(plan.time.seconds, plan.time.bytes_seconds, rel_tol=1e-9)
    assert headwise.fit(one_layer(), gpu="v100-32gb", batch=8, seq=1024).time.binds == "FLOPs"
