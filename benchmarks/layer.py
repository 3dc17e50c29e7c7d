"""How fast and how lean is the layer? `python -m benchmarks.layer [--json] [--only NAME] [--quick]`.

A training step (forward and backward of the sum of the output, of inputs and weights) of `headwise.MultiHeadAttention`
beside `torch.nn.MultiheadAttention` with the same weights: width 512, 8 heads, one text, float32. All are measured in
turns, so that what else the machine does falls on all alike; figures are ratios of medians, in brackets of the shortest
times.

Where a mask leaves out pairs, the layer should gain what the bare operation gains: seconds that `impl="sdpa"` takes
more than `impl="auto"`, of the layer as a share of those of `headwise.attention` on the same heads. The memory of a
step is what `headwise.track` sees at its peak, beside the ledger's prediction from the config alone.
"""

import argparse
import json
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from benchmarks.attention import describe_machine
from torch import Tensor, nn

import headwise
from headwise.api.bench_timing import time_in_turns
from headwise.masks.patterns import Causal, Full, Mask, SlidingWindow
from headwise.masks.tables import Documents

WIDTH, NUM_HEADS = 512, 8
LENGTHS = (128, 512, 1024, 2048, 4096)
OURS, TORCH, TORCH_WEIGHTS = "ours", "torch", "torch, its default"
LAYER_SDPA, BARE, BARE_SDPA = "ours by sdpa", "bare", "bare by sdpa"


class Row(NamedTuple):
    """One case: what is timed, and the figures, each with its target and whether it must be at least that."""

    name: str
    seq: int
    calls: dict[str, Callable[[], object]]
    checks: list[tuple[str, Callable[[dict[str, float]], float], float, bool]]


def make_layers(mask: Mask, impl: str = "auto") -> tuple[headwise.MultiHeadAttention, nn.MultiheadAttention]:
    torch.manual_seed(0)
    ours = headwise.MultiHeadAttention(WIDTH, NUM_HEADS, mask=mask if mask.is_structural else Full(), impl=impl)
    return ours, headwise.to_torch(headwise.MultiHeadAttention(WIDTH, NUM_HEADS))


def step_of(forward: Callable[[Tensor], Tensor], module: nn.Module, seq: int) -> Callable[[], object]:
    x = torch.randn(1, seq, WIDTH, requires_grad=True)
    learned = [x, *module.parameters()]
    return lambda: torch.autograd.grad(forward(x).sum(), learned)


def bare_step(mask: Mask, impl: str, seq: int) -> Callable[[], object]:
    heads = [torch.randn(1, seq, NUM_HEADS, WIDTH // NUM_HEADS).transpose(1, 2).requires_grad_() for _ in range(3)]
    return lambda: torch.autograd.grad(headwise.attention(*heads, mask=mask, impl=impl).output.sum(), heads)


def plain_rows() -> Iterator[Row]:
    for seq in (16, *LENGTHS):
        ours, twin = make_layers(Full())
        calls = {
            OURS: step_of(ours, ours, seq),
            TORCH: step_of(lambda x, twin=twin: twin(x, x, x, need_weights=False)[0], twin, seq),
        }
        checks = [("time of torch's / ours", lambda took: took[TORCH] / took[OURS], 1.0, True)]
        if seq in (2048, 4096):
            calls[TORCH_WEIGHTS] = step_of(lambda x, twin=twin: twin(x, x, x)[0], twin, seq)
            target = {2048: 1.4, 4096: 2.2}[seq]
            checks.append(
                ("time of torch's, its default / ours", lambda took: took[TORCH_WEIGHTS] / took[OURS], target, True)
            )
        yield Row("all pairs", seq, calls, checks)


def masked_rows() -> Iterator[Row]:
    masks = {
        "window 256": lambda seq: SlidingWindow(256),
        "packed": lambda seq: Causal() & Documents(torch.full((seq // 256,), 256)),
    }
    for (name, make), seq in ((mask, seq) for mask in masks.items() for seq in (2048, 4096)):
        mask = make(seq)

        def layer_step(impl: str, mask: Mask = mask, seq: int = seq) -> Callable[[], object]:
            layer, _ = make_layers(mask, impl)
            given = None if mask.is_structural else mask
            return step_of(lambda x: layer(x, mask=given), layer, seq)

        calls = {
            OURS: layer_step("auto"),
            LAYER_SDPA: layer_step("sdpa"),
            BARE: bare_step(mask, "auto", seq),
            BARE_SDPA: bare_step(mask, "sdpa", seq),
        }

        def gain(took: dict[str, float]) -> float:
            return (took[LAYER_SDPA] - took[OURS]) / (took[BARE_SDPA] - took[BARE])

        yield Row(name, seq, calls, [("gained by the layer / by the bare operation", gain, 0.9, True)])


def measure(row: Row, repeats: int) -> dict[str, Any]:
    timings = time_in_turns(row.calls, repeats=repeats, max_seconds=40)
    took, least = (
        {name: getattr(one, field) for name, one in timings.items()} for field in ("seconds", "least_seconds")
    )
    checks = [
        {
            "what": what,
            "value": value(took),
            "value_of_least": value(least),
            "target": target,
            "holds": value(took) >= target,
        }
        for what, value, target, _ in row.checks
    ]
    return {"case": row.name, "seq": row.seq, "seconds": took, "checks": checks}


def memory_rows(seq: int) -> Iterator[dict[str, Any]]:
    cases = {"all pairs": {}, "window": {"mask": SlidingWindow(256)}, "grouped": {"num_kv_heads": 2, "mask": Causal()}}
    for name, settings in cases.items():
        yield measure_memory(name, seq, **settings)


def measure_memory(name: str, seq: int, **settings: Any) -> dict[str, Any]:
    """Compare the tracked peak of a step of a block with the one that its config foretells."""
    attention = headwise.AttentionConfig(embed_dim=WIDTH, num_heads=NUM_HEADS, **settings)
    feed_forward = headwise.FeedForwardConfig(embed_dim=WIDTH, hidden_dim=WIDTH)
    config = headwise.ModelConfig(
        name=name,
        model_type="headwise",
        kind="decoder",
        embed_dim=WIDTH,
        vocab_size=97,
        max_positions=seq,
        blocks=(headwise.BlockConfig(attention=attention, feed_forward=feed_forward),),
    )
    model, ids = headwise.build(config), torch.randint(97, (1, seq))
    model(ids).sum().backward()
    model.zero_grad(set_to_none=True)
    with headwise.track(model) as ledger:
        model(ids).sum().backward()
    tracked = ledger.bytes_at(ledger.peak)
    workload = headwise.Workload(batch=1, seq=seq, device="cpu", optimizer="sgd")
    predicted = headwise.predict_step(config, workload).peak_bytes
    value = predicted / tracked
    check = {"what": "predicted peak / tracked", "value": value, "target": 0.01, "holds": abs(value - 1) <= 0.01}
    return {
        "case": f"memory, {name}",
        "seq": seq,
        "bytes": {"tracked": tracked, "predicted": predicted},
        "checks": [check],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--only", metavar="NAME", help="cases whose name has this")
    parser.add_argument("--quick", action="store_true", help="lengths up to 512 alone")
    parser.add_argument("--repeats", type=int, default=9, help="turns of each contestant")
    options = parser.parse_args()
    most = 512 if options.quick else max(LENGTHS)
    rows = [
        measure(row, options.repeats)
        for row in (*plain_rows(), *masked_rows())
        if _is_asked(row.name, row.seq, options.only, most)
    ]
    rows += [row for row in memory_rows(min(most, 2048)) if _is_asked(row["case"], 0, options.only, most)]
    if options.json:
        print(json.dumps({"machine": describe_machine(), "rows": rows}))
        return
    print(describe_machine())
    for row in rows:
        print(
            f"{row['case']}, L = {row['seq']:,}",
            {name: round(1e3 * one, 2) for name, one in row.get("seconds", {}).items()},
        )
        for check in row["checks"]:
            verdict = "holds" if check["holds"] else "MISSED"
            print(f"    {check['what']:<50} {check['value']:.3f}  target {check['target']}  {verdict}")


def _is_asked(name: str, seq: int, only: str | None, most: int) -> bool:
    return seq <= most and (only is None or only in name)


if __name__ == "__main__":
    main()
