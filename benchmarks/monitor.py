"""What does watching the heads cost a training? `python -m benchmarks.monitor [--json] [--quick] [--device cuda]`.

A training step (forward, backward, AdamW) of a Hugging Face model of BERT-base's or Llama's shape with random weights,
plain and sampled by `AttentionMonitor` with a plain function as its log. Three things are measured, each by itself:

- what a sampled step takes more than a plain one: the median over many pairs of neighbouring steps, the order turned
  from pair to pair, so that what else the machine does falls on both of a pair alike. Beside it the interval that holds
  the true median in 95 of 100 such measurements, whatever the noise is like, from the ranks of the differences;
- what of it passes inside the monitor, by its own clock: far less noisy, and a lower bound;
- what a step takes more that is not sampled, over a thousand calls with no model between them: no hook is there then.

The share is what one sampled step and `every - 1` others take more, as a part of `every` plain steps (`every` is 50,
the monitor's default): the target is 3 %. It holds where the upper end of the interval is below the target, is missed
where the lower end is above it, and is open between. Counted beside, and the same on any machine: FLOPs and bytes
written that a sampled step adds.
"""

import argparse
import json
import math
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
import transformers
from benchmarks.attention import describe_machine
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from headwise.collector import without_collections
from headwise.inspection.monitoring.monitor import AttentionMonitor

EVERY = 50
TARGET = 0.03
MIN_PAIRS = 8  # fewer have no interval of 95 % that leaves out the extremes
IDLE_CALLS = 1000
VOCAB = 1000


def bert(layers: int) -> nn.Module:
    config = transformers.BertConfig(vocab_size=VOCAB, num_hidden_layers=layers)
    return transformers.BertForMaskedLM(config)


def llama(layers: int) -> nn.Module:
    config = transformers.LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=576,
        intermediate_size=1536,
        num_attention_heads=9,
        num_key_value_heads=3,
        num_hidden_layers=layers,
    )
    return transformers.LlamaForCausalLM(config)


CASES: tuple[tuple[str, Callable[[int], nn.Module], int, int], ...] = (
    ("bert-base", bert, 8, 128),
    ("bert-base", bert, 2, 512),
    ("smollm2-135m", llama, 1, 2048),
)


class WrittenBytes(TorchDispatchMode):
    """Adds up the bytes that operations write."""

    def __init__(self) -> None:
        super().__init__()
        self.num_bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, tuple | list) else [result]:
            if isinstance(tensor, torch.Tensor) and not func.is_view:
                self.num_bytes += tensor.numel() * tensor.element_size()
        return result


def time_pairs(
    plain: Callable[[], None], sampled: Callable[[], None], *, pairs: int, max_seconds: float, wait: Callable[[], None]
) -> tuple[list[float], list[float]]:
    """Time plain and sampled steps in pairs, the order turned from pair to pair; no pair begins after `max_seconds`."""
    turns: dict[Callable[[], None], list[float]] = {plain: [], sampled: []}
    begun = time.perf_counter()
    with without_collections():
        for number in range(pairs):
            if number >= MIN_PAIRS and time.perf_counter() - begun > max_seconds:
                break
            for step in (plain, sampled) if number % 2 == 0 else (sampled, plain):
                wait()
                started = time.perf_counter()
                step()
                wait()
                turns[step].append(time.perf_counter() - started)
    return turns[plain], turns[sampled]


def median_interval(values: Sequence[float]) -> tuple[float, float]:
    """Return the ends of the interval that holds the true median in 95 of 100 cases; the extremes where there is none.

    Of n values that lie on either side of the median with equal chance, the k-th least and the k-th largest have it
    between them but for twice the chance of fewer than k heads in n throws of a coin.
    """
    ordered, n = sorted(values), len(values)
    k = 0
    while k < n // 2 and 2 * sum(math.comb(n, below) for below in range(k + 1)) <= 0.05 * 2**n:
        k += 1
    return ordered[max(k - 1, 0)], ordered[n - max(k, 1)]


def idle_seconds(monitor: AttentionMonitor) -> float:
    """Return what a step that is not sampled takes more: what the monitor does around it."""
    best = math.inf
    for _ in range(5):
        started = time.perf_counter()
        for _ in range(IDLE_CALLS):
            with monitor.step(1):
                pass
        best = min(best, (time.perf_counter() - started) / IDLE_CALLS)
    return best


def measure(case: tuple[str, Callable[[int], nn.Module], int, int], layers: int, options: Any) -> dict[str, Any]:
    """Time and count a plain and a sampled step."""
    name, make, batch, seq = case
    torch.manual_seed(0)
    device = torch.device(options.device)
    model = make(layers).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    ids = torch.randint(0, VOCAB, (batch, seq), device=device)
    monitor = AttentionMonitor(model, every=1, log=lambda values: None)
    inside: list[float] = []

    def plain() -> None:
        model(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    def sampled() -> None:
        with monitor.step():
            model(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if monitor.sample is not None:
            inside.append(monitor.sample.seconds)

    def wait() -> None:
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    plain()  # the optimizer's states are made in the first step
    counts = {}
    for kind, step in (("plain", plain), ("sampled", sampled)):
        with FlopCounterMode(display=False) as flops, WrittenBytes() as written:
            step()
        counts[kind] = (flops.get_total_flops(), written.num_bytes)
    for step in (plain, sampled):
        step()
    inside.clear()
    of_plain, of_sampled = time_pairs(plain, sampled, pairs=options.pairs, max_seconds=options.seconds, wait=wait)
    if monitor.error is not None:
        raise monitor.error
    idle = idle_seconds(AttentionMonitor(model, every=EVERY, log=lambda values: None))
    one = statistics.median(of_plain)
    more = [late - early for early, late in zip(of_plain, of_sampled, strict=True)]

    def share(extra: float) -> float:
        return (extra + (EVERY - 1) * idle) / (EVERY * one)

    low, high = map(share, median_interval(more))
    return {
        "case": name,
        "layers": layers,
        "batch": batch,
        "seq": seq,
        "pairs": len(more),
        "seconds": {"plain": one, "sampled": statistics.median(of_sampled)},
        "added_seconds": statistics.median(more),
        "inside_seconds": statistics.median(inside),
        "idle_seconds": idle,
        "share": share(statistics.median(more)),
        "share_low": low,
        "share_high": high,
        "share_inside": share(statistics.median(inside)),
        "holds": True if high < TARGET else False if low > TARGET else None,
        "flops": counts["plain"][0],
        "added_flops": counts["sampled"][0] - counts["plain"][0],
        "written_bytes": counts["plain"][1],
        "added_bytes": counts["sampled"][1] - counts["plain"][1],
    }


VERDICTS = {True: "holds", False: "MISSED", None: "OPEN: too noisy to tell"}


def print_row(row: dict[str, Any]) -> None:
    """Print one case in lines of 80 columns."""
    print(
        f"{row['case']}, {row['layers']} layers, {row['batch']} x {row['seq']:,} tokens, {row['pairs']} pairs of steps"
    )
    for what, seconds in (
        ("plain step", row["seconds"]["plain"]),
        ("sampled step, more", row["added_seconds"]),
        ("    of it inside the monitor", row["inside_seconds"]),
        ("step that is not sampled, more", row["idle_seconds"]),
    ):
        print(f"    {what:<40} {1e3 * seconds:12.4f} ms")
    for what, added, whole in (("FLOPs", "added_flops", "flops"), ("bytes written", "added_bytes", "written_bytes")):
        print(f"    {what + ' added to a sampled step':<40} {100 * row[added] / row[whole]:12.4f} %")
    print(f"    {f'share of a training, 1 step in {EVERY}':<40} {100 * row['share']:12.4f} %")
    print(f"        {100 * row['share_low']:.3f} to {100 * row['share_high']:.3f} %; at least", end=" ")
    print(f"{100 * row['share_inside']:.3f} %; target {100 * TARGET:g} %: {VERDICTS[row['holds']]}")


def main() -> None:
    """Run all cases and print them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--quick", action="store_true", help="models of one layer, one text of 128 tokens")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--pairs", type=int, default=40, help="pairs of a plain and a sampled step")
    parser.add_argument("--seconds", type=float, default=60.0, help="no further pair of a case begins after so many")
    options = parser.parse_args()
    most = 128 if options.quick else max(seq for *_, seq in CASES)
    layers = 1 if options.quick else options.layers
    cases = [(*case[:2], 1 if options.quick else case[2], case[3]) for case in CASES if case[3] <= most]
    rows = [measure(case, layers, options) for case in cases]
    if options.json:
        print(json.dumps({"machine": describe_machine(), "every": EVERY, "target": TARGET, "rows": rows}))
        return
    print(describe_machine())
    for row in rows:
        print_row(row)


if __name__ == "__main__":
    main()
