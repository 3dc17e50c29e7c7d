"""How fast and how lean is attention? `python -m benchmarks.attention [--json] [--only NAME] [--quick] [--flex]`.

Each case is measured in turns with its peers and with the products that bound it, so that what else the machine does
falls on all alike: ours, a peer, the limit, ours, ... Figures are ratios of medians; in brackets the same of the
shortest times, which a busy machine disturbs less. A share of the limit is the time
that the allowed pairs alone would take at the rate at which this machine multiplies attention's tiles: 4 head_dim FLOPs
a pair and head forward, and 2.5 times as many backward. Masks of peers are built before the clock starts, ours inside.
Memory is the most bytes alive beyond query, key, value and the output's gradient, by torch's record of allocations,
what kernels take for themselves included.

8 heads of 64 numbers, one row, float32. What an implementation does not do yet is printed so, and fails nothing.
"""

import argparse
import json
import os
import platform
import sys
import warnings
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

import torch
from benchmarks.attention_cases import (
    FLEX,
    HEAD_DIM,
    NUM_HEADS,
    OURS,
    PLAIN,
    SDPA,
    SDPA_CAUSAL,
    SDPA_MASK,
    SHORTER,
    Case,
    Check,
    Measured,
    cases,
)
from torch import Tensor
from torch.nn import functional

from headwise.api.bench_limits import make_product, measure_limits, product_flops
from headwise.api.bench_memory import free_bytes, measure_call, predict_least_bytes, tensor_bytes
from headwise.api.bench_results import BenchCase, Limits
from headwise.api.bench_rows import work_of
from headwise.api.bench_timing import time_in_turns
from headwise.errors import HeadwiseError, describe
from headwise.masks.dense import dense_mask
from headwise.masks.patterns import Causal
from headwise.ops.attention import attention, choose_impl

CPU = torch.device("cpu")
LIMIT = "limit"
FREE_SHARE = 0.75
Inputs = tuple[Tensor, Tensor, Tensor]


class NotYetError(Exception):
    """Our attention does not do what a case asks for, or not within this machine's memory."""


def make_inputs(case: Case, seq: int) -> Inputs:
    generator = torch.Generator().manual_seed(0)
    shape = (1, NUM_HEADS, seq, HEAD_DIM)
    query, key, value = (
        torch.randn(shape, generator=generator, requires_grad=case.is_training) for _ in ("query", "key", "value")
    )
    return query, key, value


def make_step(
    case: Case, function: Callable[..., Tensor], inputs: Inputs, learned: tuple[Tensor, ...] = ()
) -> Callable[[], object]:
    """Return a function that computes the output, and in training the gradients of inputs and of what is learned."""

    def forward() -> Tensor:
        with torch.no_grad():
            return function(*inputs)

    gradient = torch.ones_like(inputs[0])

    def train() -> tuple[Tensor, ...]:
        return torch.autograd.grad(function(*inputs), (*inputs, *learned), gradient)

    return train if case.is_training else forward


def make_ours(case: Case, impl: str, inputs: Inputs) -> tuple[Callable[[], object], dict[str, Any]]:
    """Return our call, and what serves it.

    Raises:
        NotYetError: the call has not this argument or implementation yet, or would not fit in the memory.
    """
    seq = inputs[0].shape[2]
    mask, extras = case.mask(seq), case.extras()
    learned = tuple(one for one in extras.values() if isinstance(one, Tensor) and one.requires_grad)
    try:
        with torch.set_grad_enabled(case.is_training):
            choice = choose_impl(*inputs, mask=mask, impl=impl, **extras)
    except TypeError as error:
        if "unexpected keyword" not in str(error):
            raise
        raise NotYetError(describe(error)) from None
    except HeadwiseError as error:
        raise NotYetError(str(error).splitlines()[-1].strip()) from None
    bench_case = describe_case(case)
    needs = predict_least_bytes(bench_case, seq, mask, impl=choice.impl, kernel=choice.kernel)
    if needs > FREE_SHARE * free_bytes(CPU):
        raise NotYetError(f"{choice.impl} takes at least {needs:,} bytes")
    step = make_step(case, lambda *qkv: attention(*qkv, mask=mask, impl=impl, **extras).output, inputs, learned)
    return step, {"impl": choice.impl, "kernel": choice.kernel, "reasons": list(choice.reasons)}


def make_peer(case: Case, name: str, inputs: Inputs) -> Callable[[], object]:
    """Return a peer's call; its mask is made here, before the clock starts."""
    seq = inputs[0].shape[2]
    mask = case.mask(seq)
    if name == PLAIN:
        assert case.plain is not None
        return make_step(case, case.plain, inputs)
    if name in (SDPA, SDPA_CAUSAL):
        is_causal = name == SDPA_CAUSAL or mask == Causal()
        return make_step(case, lambda *qkv: functional.scaled_dot_product_attention(*qkv, is_causal=is_causal), inputs)
    if name == SDPA_MASK:
        allowed = dense_mask(mask, batch_size=1, num_heads=NUM_HEADS, query_len=seq, key_len=seq)
        return make_step(case, lambda *qkv: functional.scaled_dot_product_attention(*qkv, attn_mask=allowed), inputs)
    assert name == FLEX
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    def allows(batch: Tensor, head: Tensor, query_index: Tensor, key_index: Tensor) -> Tensor:  # a plain function
        return mask.allows(batch, head, query_index, key_index)

    blocks = create_block_mask(allows, None, None, seq, seq, device="cpu")
    compiled = torch.compile(flex_attention)
    return make_step(case, lambda *qkv: compiled(*qkv, block_mask=blocks), inputs)


def describe_case(case: Case) -> BenchCase:
    return BenchCase(
        batch=1,
        num_heads=NUM_HEADS,
        num_kv_heads=NUM_HEADS,
        head_dim=HEAD_DIM,
        mask=case.name,
        phase="train" if case.is_training else "forward",
        dtype="float32",
        device="cpu",
    )


def measure(case: Case, options: argparse.Namespace, tile: tuple[int, int]) -> dict[str, Any]:
    """Measure one case beside its peers."""
    row: dict[str, Any] = {"case": case.name, "seq": case.seq, "phase": case.phase, "not_yet": None}
    inputs = make_inputs(case, case.seq)
    try:
        ours, chosen = make_ours(case, options.impl, inputs)
        calls = {OURS: ours}
        if case.shorter is not None:
            calls[SHORTER] = make_ours(case, options.impl, make_inputs(case, case.shorter))[0]
        ours()
    except NotYetError as error:
        return row | {"not_yet": str(error)}
    except (HeadwiseError, RuntimeError) as error:
        return row | {"not_yet": describe(error)}
    calls |= {peer: make_peer(case, peer, inputs) for peer in case.peers}
    calls[LIMIT] = make_product(tile, NUM_HEADS, HEAD_DIM, torch.float32, CPU)
    timings = time_in_turns(
        calls, repeats=options.repeats, max_seconds=options.seconds, warm_ups=1 if case.seq >= 4096 else 3
    )
    limit = timings.pop(LIMIT)
    del calls[LIMIT]
    pairs = case.mask(case.seq).count_pairs(case.seq, case.seq, num_heads=NUM_HEADS)
    flops = work_of(describe_case(case), pairs, case.seq)[0]
    memory = {name: measure_call(call, CPU) for name, call in calls.items()}
    found, least = (
        Measured(
            seconds={name: getattr(timing, field) for name, timing in timings.items()},
            peak_bytes={name: peak_bytes for name, (peak_bytes, _) in memory.items()},
            limit_seconds=flops / product_flops(tile, NUM_HEADS, HEAD_DIM) * getattr(limit, field),
            data_bytes=sum(tensor_bytes(describe_case(case), case.seq)),
            length_ratio=case.seq / (case.shorter or case.seq),
        )
        for field in ("seconds", "least_seconds")
    )
    return row | {
        **chosen,
        "kernels_seen": list(memory[OURS][1]),
        "calls": {name: timing.num_calls for name, timing in timings.items()},
        "seconds": found.seconds,
        "least_seconds": least.seconds,
        "peak_bytes": found.peak_bytes,
        "data_bytes": found.data_bytes,
        "pairs": pairs,
        "flops": flops,
        "matmul_flops_per_second": flops / found.limit_seconds,
        "share_of_limit": found.share_of_limit,
        "checks": [judge(check, found, least) for check in case.checks],
    }


def judge(check: Check, found: Measured, least: Measured) -> dict[str, Any]:
    is_measured = all(name in found.seconds for name in check.needs)
    value, value_of_least = (check.value_of(one) if is_measured else None for one in (found, least))
    return {
        "what": check.what,
        "value": value,
        "value_of_least": value_of_least,
        "target": check.target,
        "at_least": check.at_least,
        "holds": None if value is None else check.holds(value),
    }


def describe_machine() -> dict[str, Any]:
    return {
        "python": platform.python_version(),
        "torch": version("torch"),
        "headwise": version("headwise"),
        "processor": platform.machine(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "capability": torch.backends.cpu.get_cpu_capability(),
    }


def print_row(row: dict[str, Any]) -> None:
    name = f"{row['case']}, L = {row['seq']:,}, {row['phase']}"
    if row["not_yet"] is not None:
        print(f"{name:<40} not yet: {row['not_yet']}")
        return
    kernels = f" ({', '.join(row['kernels_seen'])})" if row["kernels_seen"] else ""
    print(
        f"{name:<40} ours {1e3 * row['seconds'][OURS]:.4g} ms by {row['impl']}{kernels}, "
        f"{row['share_of_limit']:.0%} of the limit, {row['peak_bytes'][OURS] / row['data_bytes']:.2f} x the data"
    )
    others = {name: seconds for name, seconds in row["seconds"].items() if name != OURS}
    print("    " + ", ".join(f"{name} {1e3 * seconds:.4g} ms" for name, seconds in others.items()))
    for check in row["checks"]:
        sign = ">=" if check["at_least"] else "<="
        value, least = ("-" if check[key] is None else f"{check[key]:.3f}" for key in ("value", "value_of_least"))
        verdict = {True: "holds", False: "MISSED", None: "not measured"}[check["holds"]]
        print(f"    {check['what']:<54}{value:>9} {f'({least})':>11}  {sign} {check['target']:<5g} {verdict}")


def print_limits(limits: Limits) -> None:
    print(
        f"matmul limit {limits.flops_per_second / 1e9:.0f} GFLOP/s, memory {limits.bytes_per_second / 1e9:.1f} GB/s, "
        f"{limits.num_threads} threads"
    )
    for one in limits.products:
        print(f"    {one.queries} x {one.keys} x {one.head_dim}: {one.flops_per_second / 1e9:.0f} GFLOP/s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--impl", default="auto", help="ours")
    parser.add_argument("--only", action="append", metavar="NAME", help="cases whose name has this; may be repeated")
    parser.add_argument("--phase", choices=("forward", "train"), help="only this one")
    parser.add_argument("--seq", type=int, help="only this length")
    parser.add_argument("--quick", action="store_true", help="all sizes divided by 8")
    parser.add_argument("--flex", action="store_true", help="compile FlexAttention too, which takes a minute")
    parser.add_argument("--repeats", type=int, default=9, help="turns of each contestant")
    parser.add_argument("--seconds", type=float, default=40.0, help="after which no round of turns begins")
    parser.add_argument("--threads", type=int, help="of torch")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    if options.threads:
        torch.set_num_threads(options.threads)
    limits = measure_limits(num_heads=NUM_HEADS, head_dim=HEAD_DIM, dtype=torch.float32, device=CPU)
    fastest = max(limits.products, key=lambda product: product.flops_per_second)
    machine = describe_machine()
    if not options.json:
        print(machine)
        print_limits(limits)
    rows = []
    for case in cases(quick=options.quick, with_flex=options.flex):
        is_named = options.only is None or any(name in case.name for name in options.only)
        if is_named and options.phase in (None, case.phase) and options.seq in (None, case.seq):
            rows.append(measure(case, options, (fastest.queries, fastest.keys)))
            if options.json:
                print(f"{case.name}, {case.seq}, {case.phase}", file=sys.stderr)
            else:
                print_row(rows[-1])
    checks = [check for row in rows for check in row.get("checks", ())]
    held = {
        "held": sum(check["holds"] is True for check in checks),
        "missed": sum(check["holds"] is False for check in checks),
        "not_measured": sum(check["holds"] is None for check in checks),
        "cases_not_yet": sum(row["not_yet"] is not None for row in rows),
    }
    if options.json:
        print(json.dumps({"machine": machine, "limits": limits.to_dict(), "rows": rows, "checks": held}))
    else:
        print(held)


if __name__ == "__main__":
    main()
