"""How much more than its peak must a device hold? `python -m benchmarks.holes [--json] [--cases N] [--seed N]`.

Steps are drawn at random: a preset of at most 32 layers, training or prefill, precision, attention, checkpointing,
optimizer, loss, a batch up to 512 and a length up to 9,000, on one device or as one of several; those whose peak is 2
to 256 GiB. Of each, the least capacity is sought by bisection with which a replay of torch's allocator does not fail.
What is more than the peak are holes between blocks. `cost.planner` has its bounds from here: none may be reached.

No GPU runs: the allocator is replayed on paper.
"""

import argparse
import json
import random
from collections import defaultdict
from collections.abc import Iterator
from statistics import median
from typing import Any

from headwise.config.presets import PRESETS, preset
from headwise.cost.allocator import replay
from headwise.cost.devices import DEVICES
from headwise.cost.planner import holes_percent
from headwise.cost.planning.closed_form import ClosedForm, setup_events
from headwise.cost.planning.positions import with_positions
from headwise.cost.planning.setup import Setup
from headwise.cost.sharding.results import SHARDINGS, Sharding
from headwise.cost.workload import Workload
from headwise.errors import HeadwiseError
from headwise.results import BYTES_PER_GIB

MAX_LAYERS = 32
PEAKS = range(2 * BYTES_PER_GIB, 256 * BYTES_PER_GIB)
STEPS = 7  # of bisection: 1/128 of the peak
A100 = DEVICES["a100-80gb"]


def draw_setup(rng: random.Random) -> Setup:
    """Draw a step; not all can be told."""
    name = rng.choice([name for name in PRESETS if preset(name).num_layers <= MAX_LAYERS])
    config = preset(name, head=rng.random() < 0.7)
    seq = rng.choice((rng.randint(16, 9000), 2 ** rng.randint(5, 13)))
    if config.patches is not None:
        seq = config.patches.num_tokens
    workload = Workload(
        batch=rng.choice((rng.randint(1, 300), 2 ** rng.randint(0, 9))),
        seq=seq,
        phase=rng.choice(("train", "train", "train", "prefill")),
        precision=rng.choice(("fp32", "amp-bf16", "bf16", "amp-fp16")),
        optimizer=rng.choice(("adamw", "sgd", "momentum", "adamw8bit")),
        optimizer_step=rng.choice(("foreach", "fused")),
        attention=rng.choice(("eager", "sdpa", "sdpa")),
        checkpoint=rng.choice(("none", "selective", "full")),
        accumulation=rng.choice((1, 1, 4)),
        loss=rng.choice(("sum", "cross_entropy", "chunked_cross_entropy")),
        dropout=rng.random() < 0.5,
    )
    sharding = Sharding(kind=rng.choice(SHARDINGS), num_devices=rng.choice((2, 4, 8))) if rng.random() < 0.3 else None
    return Setup(config=with_positions(config, seq), workload=workload, sharding=sharding)


def draw_steps(rng: random.Random, count: int) -> Iterator[tuple[Setup, int]]:
    """Give so many steps that can be told and are of a size in question, with their peaks."""
    predictor = ClosedForm()
    while count:
        try:
            setup = draw_setup(rng)
            peak_bytes = predictor.step(setup).peak_bytes
        except HeadwiseError:
            continue
        if peak_bytes in PEAKS:
            count -= 1
            yield setup, peak_bytes


def measure_holes(setup: Setup, peak_bytes: int) -> float:
    """Return by how many percent of the peak the least capacity that suffices is above it."""
    events = list(setup_events(setup))
    low, high = 0.0, 1.0
    while replay(events, capacity_bytes=int((1 + high) * peak_bytes)).out_of_memory is not None:
        low, high = high, 2 * high
    for _ in range(STEPS):
        middle = (low + high) / 2
        fails = replay(events, capacity_bytes=int((1 + middle) * peak_bytes)).out_of_memory is not None
        low, high = (middle, high) if fails else (low, middle)
    return 100 * high


def kind_of(setup: Setup) -> str:
    """Return how a step is called in the table."""
    workload = setup.workload
    return f"training, checkpoint {workload.checkpoint}" if workload.phase == "train" else workload.phase


def main() -> None:
    """Draw, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--cases", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    found = defaultdict(list)
    bounds = {}
    for setup, peak_bytes in draw_steps(random.Random(options.seed), options.cases):
        kind = kind_of(setup)
        found[kind].append(measure_holes(setup, peak_bytes))
        bounds[kind] = holes_percent(A100, setup.workload)
    rows: list[dict[str, Any]] = [
        {
            "step": kind,
            "cases": len(holes),
            "median_percent": round(median(holes), 1),
            "most_percent": round(max(holes), 1),
            "allowed_percent": bounds[kind],
        }
        for kind, holes in sorted(found.items())
    ]
    if options.json:
        print(json.dumps(rows))
        return
    print(f"{'step':32}{'cases':>7}{'median':>9}{'most':>9}{'allowed':>9}")
    for row in rows:
        print(
            f"{row['step']:32}{row['cases']:7}{row['median_percent']:8}%{row['most_percent']:8}%"
            f"{row['allowed_percent']:8}%"
        )


if __name__ == "__main__":
    main()
