"""Fits and explained messages of made-up numbers; read by conftest files, never imported."""

from dataclasses import replace

from headwise.api.fit_results import FitPlan, FitVerification, OomAnswer, TrackedStep, VerifiedChange
from headwise.api.results import ModelSummary
from headwise.cost.oom.results import Candidate, Frame, OomMessage
from headwise.cost.planning.moments import describe_moment
from headwise.cost.planning.results import (
    Change,
    FrontierPoint,
    Moment,
    Path,
    Sweep,
    SweepPoint,
    TimeEstimate,
)
from headwise.cost.results import Device, Ledger, LedgerEntry, Unmodelled
from headwise.cost.sharding.results import Travel
from headwise.cost.workload import Workload
from headwise.kernels import KernelChoice

GIB, MIB = 2**30, 2**20
KINDS = ("parameter", "gradient", "optimizer", "saved", "temporary", "input")

MODEL = ModelSummary(
    name="bert-base",
    source="preset bert-base",
    model_type="bert",
    num_layers=4,
    num_heads=12,
    num_kv_heads=12,
    embed_dim=768,
    head_dim=64,
    max_positions=512,
)
DEVICE = Device(
    name="v100-32gb",
    description="NVIDIA V100 32 GB",
    memory_bytes=32 * GIB,
    kind="cuda",
    source="out-of-memory message of torch",
    date="2023-07-11",
    compute_capability=(7, 0),
)
UNMODELLED = (
    Unmodelled(what="CUDA context", low=256 * MIB, high=2 * GIB, source="pytorch/pytorch#86509"),
    Unmodelled(what="cuBLAS workspace", low=0, high=40 * MIB, source="CublasHandlePool.cpp"),
)
SAME, ALTERS = "same", "alters"


def make_ledger(num_layers=4, scores_bytes=6 * GIB):
    """A step that keeps one score-sized tensor and one hidden state a layer; its peak is where backward begins."""
    forward = [f"forward: layer {layer}" for layer in range(num_layers)]
    backward = [f"backward: layer {layer}" for layer in reversed(range(num_layers))]
    moments = ("forward: embeddings", *forward, "loss", *backward, "optimizer step")
    last = len(moments) - 1
    entries = [
        LedgerEntry(
            name="token table",
            kind="parameter",
            bytes=89 * MIB,
            shape=(30522, 768),
            dtype="float32",
            owner="embeddings",
            born=0,
            freed=None,
        )
    ]
    for layer in range(num_layers):
        born, freed = 1 + layer, last - layer
        for name, kind, num_bytes, shape, first, end in (
            ("q_proj weight", "parameter", 2 * MIB, (768, 768), 0, None),
            ("exp_avg of q_proj weight", "optimizer", 2 * MIB, (768, 768), 0, None),
            ("attention scores", "saved", scores_bytes, (32, 12, 2048, 2048), born, freed),
            ("hidden states", "saved", 192 * MIB, (32, 2048, 768), born, freed),
            ("gradient of q_proj weight", "gradient", 2 * MIB, (768, 768), freed - 1, last),
        ):
            owner = f"layer {layer} attention"
            entries.append(
                LedgerEntry(
                    name=name,
                    kind=kind,
                    bytes=num_bytes,
                    shape=shape,
                    dtype="float32",
                    owner=owner,
                    born=first,
                    freed=end,
                )
            )
    entries.append(
        LedgerEntry(
            name="gradient of attention scores",
            kind="temporary",
            bytes=scores_bytes,
            shape=(32, 12, 2048, 2048),
            dtype="float32",
            owner=f"layer {num_layers - 1} attention",
            born=num_layers + 2,
            freed=num_layers + 3,
        )
    )
    return Ledger(moments=moments, entries=tuple(entries))


def make_timeline(ledger):
    """Bytes by kind at every moment of a ledger, added up one by one."""
    rows = [dict.fromkeys(KINDS, 0) for _ in ledger.moments]
    for entry in ledger.entries:
        for moment in range(entry.born, len(rows) if entry.freed is None else entry.freed):
            rows[moment][entry.kind] += entry.bytes
    return tuple(Moment(moment=name, **row) for name, row in zip(ledger.moments, rows, strict=True))


def make_change(key, change, frees_gib=0.0, *, peak_gib=None, flops=0.0, fits="no", **fields):
    return Change(
        **{
            "key": key,
            "change": change,
            "list": SAME,
            "applies": True,
            "frees_bytes": int(frees_gib * GIB),
            "peak_bytes": None if peak_gib is None else int(peak_gib * GIB),
            "extra_flops_fraction": flops,
            "fits": fits,
            **fields,
        }
    )


CHANGES = (
    make_change("fused_attention", "fused attention (torch's efficient kernel)", 24.0, peak_gib=7.3, fits="yes"),
    make_change(
        "fused_optimizer", "fused optimizer step", 0.0, peak_gib=31.3, why="the peak is in backward, not there"
    ),
    make_change("checkpoint_full", "full checkpointing", 17.5, peak_gib=13.8, flops=1 / 3, fits="tight"),
    make_change(
        "zero3",
        "ZeRO-3 (FSDP) over 8 devices",
        0.1,
        peak_gib=31.2,
        travels=(
            Travel(what="weights", collective="all-gather", sent_bytes=3 * GIB),
            Travel(what="gradients", collective="reduce-scatter", sent_bytes=GIB),
        ),
        other_gpus=7,
    ),
    make_change("batch", "batch 16 in place of 32", 15.6, peak_gib=15.7, flops=-0.5, fits="yes", list=ALTERS),
    make_change(
        "window",
        "a window of 256 tokens",
        -0.5,
        peak_gib=31.8,
        list=ALTERS,
        why="eager attention masks, it skips nothing",
    ),
    make_change(
        "bf16", "bfloat16", applies=False, flops=None, fits=None, list=ALTERS, why="a V100 has no units for bfloat16"
    ),
)


def make_plan(ledger=None, **changes):
    """A fit with every section filled in, whose figures agree with one another; `changes` replaces fields of it."""
    ledger = make_ledger() if ledger is None else ledger
    device = changes.get("device", DEVICE)
    unmodelled = changes.get("unmodelled", UNMODELLED)
    peak_bytes = changes.get("peak_bytes", ledger.bytes_at(ledger.peak))
    capacity = changes.get("capacity_bytes", device.memory_bytes)
    reserved = changes.get("reserved_bytes")
    low, high = sum(part.low for part in unmodelled), sum(part.high for part in unmodelled)
    most = (peak_bytes if reserved is None else reserved) + high
    fits = "yes" if most <= capacity else "no" if peak_bytes + low > capacity else "tight"
    fields = {
        "model": MODEL,
        "workload": Workload(batch=32, seq=2048, attention="eager", compute_capability=(7, 0)),
        "sharding": None,
        "device": device,
        "fits": fits,
        "reason": "tensors need more than there is",
        "peak_bytes": peak_bytes,
        "reserved_bytes": reserved,
        "capacity_bytes": capacity,
        "spare_bytes": capacity - most,
        "peak_moment": ledger.moments[ledger.peak],
        "peak_label": describe_moment(ledger.moments[ledger.peak]),
        "largest": tuple(ledger.alive(ledger.peak)[:10]),
        "timeline": make_timeline(ledger),
        "ledger": ledger,
        "kernel": KernelChoice(name="math", reasons=("flash is not taken: it needs compute capability 8.0",)),
        "changes": CHANGES,
        "path": ("fused_attention", "checkpoint_full"),
        "paths": (
            Path(
                keys=("fused_attention", "checkpoint_full"),
                changes=("fused attention", "full checkpointing"),
                list=SAME,
                peak_bytes=3 * GIB,
                extra_flops_fraction=1 / 3,
                fits="yes",
            ),
            Path(
                keys=("fused_attention", "batch"),
                changes=("fused attention", "batch 16 in place of 32"),
                list=ALTERS,
                peak_bytes=4 * GIB,
                extra_flops_fraction=None,
                fits="tight",
            ),
        ),
        "largest_batch": 31,
        "largest_seq": 2011,
        "unmodelled": unmodelled,
        "time": TimeEstimate(
            seconds=3.5,
            flops_seconds=3.2,
            bytes_seconds=1.3,
            binds="FLOPs",
            flops=50_000_000_000_000,
            moved_bytes=1_200_000_000_000,
            flops_per_second=15.7e12,
            bytes_per_second=900e9,
            source="NVIDIA V100 data sheet",
        ),
        "notes": ("the position table is taken to be 2,048 long: the model's own has 512",),
    }
    return FitPlan(**{**fields, **changes})


def make_sweep(batches=(1, 2, 4), seqs=(512, 1024, 2048)):
    """A grid in which a GiB is taken by every 512 tokens, against 5 GiB."""
    words = {True: "yes", False: "no"}
    return Sweep(
        points=tuple(
            SweepPoint(
                batch=b, seq=s, peak_bytes=b * s * GIB // 512, fits="tight" if b * s == 2048 else words[b * s < 2048]
            )
            for b in batches
            for s in seqs
        ),
        frontier=tuple(
            FrontierPoint(batch=b, largest_seq=2500 // b if b < 2500 else None, is_limit=b == 1) for b in batches
        ),
    )


def make_verification(*, holds=True):
    return FitVerification(
        model=replace(MODEL, name="bert-base, scaled down"),
        workload=Workload(batch=2, seq=16, device="cpu"),
        changes=(
            VerifiedChange(
                key="base",
                change="as it is",
                predicted_peak_bytes=10_000_000,
                measured_peak_bytes=10_010_000,
                predicted_saved_bytes=4_000_000,
                measured_saved_bytes=4_000_000,
                tolerance=0.01,
                holds=True,
            ),
            VerifiedChange(
                key="checkpoint_full",
                change="full checkpointing",
                predicted_peak_bytes=7_000_000,
                measured_peak_bytes=7_000_000 if holds else 9_000_000,
                predicted_saved_bytes=1_000_000,
                measured_saved_bytes=1_000_000,
                tolerance=0.01,
                holds=holds,
            ),
        ),
        notes=("random weights",),
    )


def make_history(num_steps=2):
    return tuple(
        TrackedStep(
            when=f"2026-11-{1 + step % 28:02} 12:00",
            model="bert-base",
            device="cpu",
            batch=2,
            seq=128,
            predicted_peak_bytes=None if step == 1 else 990 * MIB,
            measured_peak_bytes=1000 * MIB,
        )
        for step in range(num_steps)
    )


def make_oom(**changes):
    """A message about one score matrix, with candidates and changes."""
    plan = make_plan()

    def candidate(name, shape, owner, batch, seq, score, why):
        return Candidate(
            name=name,
            shape=shape,
            dtype="float32",
            owner=owner,
            batch=batch,
            seq=seq,
            bytes=6 * GIB,
            score=score,
            why=why,
            alternatives=((128, 1024),),
        )

    fields = {
        "kind": "one huge tensor",
        "requested_bytes": 6 * GIB,
        "message": OomMessage(
            backend="cuda",
            wording="torch 2.1 and later",
            requested_text="6.00 GiB",
            requested_low_bytes=6 * GIB - 5 * MIB,
            requested_high_bytes=6 * GIB + 5 * MIB,
            device_index=0,
            capacity_bytes=32 * GIB,
            free_bytes=3 * GIB,
            allocated_bytes=27 * GIB,
            reserved_bytes=28 * GIB,
            traceback=(
                Frame(file="train.py", line=41, function="main", code="loss = model(**batch).loss"),
                Frame(file="modeling_bert.py", line=137, function="forward", code="scores = query @ key.mT"),
            ),
        ),
        "evidence": ("it asked for 6.00 GiB at once, 19 % of the card",),
        "advice": ("take a kernel that builds no score matrix", "or make the batch smaller"),
        "candidates": (
            candidate("attention scores", (32, 12, 2048, 2048), "one layer", 32, 2048, 1.0, "the line names scores"),
            candidate("logits", (32, 2048, 24576), "head", 32, 2048, 0.2, "the vocabulary would be 24,576"),
        ),
        "model": plan.model,
        "workload": plan.workload,
        "peak_moment": "forward: layer 3",
        "alive": plan.largest,
        "changes": plan.changes,
        "path": ("fused attention (sdpa)", "checkpoint every layer"),
        "path_peak_bytes": 3 * GIB,
        "notes": ("the batch and the length are solved from the size",),
    }
    return OomAnswer(**{**fields, **changes})
