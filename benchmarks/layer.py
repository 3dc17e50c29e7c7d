"""How fast and how lean is the layer? `python -m benchmarks.layer [--json] [--only NAME] [--quick]`.

A training step (forward and backward of the sum of the output, of inputs and weights) of `headwise.MultiHeadAttention`
beside `torch.nn.MultiheadAttention` with the same weights: width 512, 8 heads, one text, float32. All are measured in
turns, so that what else the machine does falls on all alike; figures are ratios of medians, in brackets of the shortest
times. How fast this machine multiplies tiles of attention is printed beside, and what share of that a step reaches.

Where a mask leaves out pairs, the layer should gain what the bare operation gains: seconds that `impl="sdpa"` takes
more than `impl="auto"`, of the layer as a share of those of `headwise.attention` on the same heads. Models of
transformers (two layers, 8 heads on 2) run by `attn_implementation="headwise"` and by their own "sdpa". The memory of a
step is what `headwise.track` sees at its peak, beside the ledger's prediction from the config alone.
"""

import argparse
import json
from typing import Any

import torch
from benchmarks.attention import describe_machine
from benchmarks.layer_cases import LENGTHS, NUM_HEADS, OURS, WIDTH, Case, cases, memory_rows

from headwise.api.bench_limits import measure_limits
from headwise.api.bench_timing import time_in_turns


def measure(case: Case, repeats: int, limit: float) -> dict[str, Any]:
    """Time the contestants of a case and judge its figures; `limit` is how many FLOPs a second the machine can do."""
    timings = time_in_turns(case.make(), repeats=repeats, max_seconds=40.0)
    took, least = (
        {name: getattr(one, field) for name, one in timings.items()} for field in ("seconds", "least_seconds")
    )
    checks = []
    for what, value_of, target in case.checks:
        value = value_of(took)
        holds = None if target is None else value >= target
        checks.append(
            {"what": what, "value": value, "value_of_least": value_of(least), "target": target, "holds": holds}
        )
    share = None if case.flops is None else case.flops / (took[OURS] * limit)
    return {"case": case.name, "seq": case.seq, "seconds": took, "share_of_limit": share, "checks": checks}


def main() -> None:
    """Run what was asked for and print it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--only", metavar="NAME", default="", help="cases whose name has this")
    parser.add_argument("--quick", action="store_true", help="lengths up to 512 alone, and memory at 512")
    parser.add_argument("--repeats", type=int, default=9, help="turns of each contestant")
    options = parser.parse_args()
    most = 512 if options.quick else max(LENGTHS)
    asked = [case for case in cases() if case.seq <= most and options.only in case.name]
    cpu = torch.device("cpu")
    limits = measure_limits(num_heads=NUM_HEADS, head_dim=WIDTH // NUM_HEADS, dtype=torch.float32, device=cpu)
    rows = [measure(case, options.repeats, limits.flops_per_second) for case in asked]
    rows += [row for row in memory_rows(min(most, 2048)) if options.only in row["case"]]
    machine = {**describe_machine(), "gflops_per_second": round(limits.flops_per_second / 1e9, 1)}
    setting = {"width": WIDTH, "heads": NUM_HEADS, "batch": 1, "dtype": "float32", "repeats": options.repeats}
    if options.json:
        print(json.dumps({"machine": machine, "setting": setting, "rows": rows}))
        return
    print(machine, setting)
    for row in rows:
        print(f"{row['case']}, L = {row['seq']:,}")
        for name, seconds in row.get("seconds", {}).items():
            print(f"    {name:<50} {1e3 * seconds:8.2f} ms")
        if row.get("share_of_limit") is not None:
            print(f"    {'share of what the machine multiplies':<50} {row['share_of_limit']:8.3f}")
        for check in row["checks"]:
            print_check(**check)


def print_check(what: str, value: float, target: float | None, holds: bool | None, **more: float) -> None:
    """Print a figure, of the shortest times in brackets, and whether its target is reached."""
    brackets = "".join(f" ({least:.3f})" for least in more.values())
    verdict = "" if target is None else f"  target {target}  {'holds' if holds else 'MISSED'}"
    print(f"    {what:<50} {value:8.3f}{brackets}{verdict}")


if __name__ == "__main__":
    main()
