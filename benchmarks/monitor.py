"""What does watching the heads cost a training? `python -m benchmarks.monitor [--json] [--quick] [--device cuda]`.

A training step (forward, backward, AdamW) of a Hugging Face model of BERT-base's or Llama's shape with random weights,
plain and sampled by `AttentionMonitor` with a plain function as its log. Both are measured in turns, so that what else
the machine does falls on both alike; figures are of medians, in brackets of the shortest times. The share is what a
sampled step takes more, divided by the steps from one sample to the next (`every`, 50 by default), as a part of a plain
step: the target is 3 %. Counted beside, and the same on any machine: FLOPs and bytes written that a sampled step adds.
"""

import argparse
import json
from collections.abc import Callable
from typing import Any

import torch
import transformers
from benchmarks.attention import describe_machine
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from headwise.api.bench_timing import time_in_turns
from headwise.inspection.monitoring.monitor import AttentionMonitor

EVERY = 50
TARGET = 0.03
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


def measure(case: tuple[str, Callable[[int], nn.Module], int, int], layers: int, options: Any) -> dict[str, Any]:
    """Time and count a plain and a sampled step."""
    name, make, batch, seq = case
    torch.manual_seed(0)
    device = torch.device(options.device)
    model = make(layers).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    ids = torch.randint(0, VOCAB, (batch, seq), device=device)
    monitor = AttentionMonitor(model, every=1, log=lambda values: None)

    def plain() -> None:
        model(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    def sampled() -> None:
        with monitor.step():
            model(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    plain()  # the optimizer's states are made in the first step
    counts = {}
    for kind, step in (("plain", plain), ("sampled", sampled)):
        with FlopCounterMode(display=False) as flops, WrittenBytes() as written:
            step()
        counts[kind] = (flops.get_total_flops(), written.num_bytes)
    timings = time_in_turns(
        {"plain": plain, "sampled": sampled}, repeats=options.repeats, max_seconds=60.0, device=device
    )
    if monitor.error is not None:
        raise monitor.error

    def share(field: str) -> float:
        one, more = (getattr(timings[kind], field) for kind in ("plain", "sampled"))
        return (more - one) / one / EVERY

    return {
        "case": name,
        "layers": layers,
        "batch": batch,
        "seq": seq,
        "seconds": {kind: timing.seconds for kind, timing in timings.items()},
        "share": share("seconds"),
        "share_of_least": share("least_seconds"),
        "holds": share("seconds") < TARGET,
        "flops": counts["plain"][0],
        "added_flops": counts["sampled"][0] - counts["plain"][0],
        "written_bytes": counts["plain"][1],
        "added_bytes": counts["sampled"][1] - counts["plain"][1],
    }


def main() -> None:
    """Run all cases and print them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--quick", action="store_true", help="models of one layer, one text of 128 tokens")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=9, help="turns of each kind of step")
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
        print(f"{row['case']}, {row['layers']} layers, {row['batch']} x {row['seq']:,} tokens")
        for kind, seconds in row["seconds"].items():
            print(f"    {kind + ' step':<40} {1e3 * seconds:10.2f} ms")
        verdict = "holds" if row["holds"] else "MISSED"
        print(
            f"    {f'share of a training, one step in {EVERY}':<40} {100 * row['share']:10.3f} % "
            f"({100 * row['share_of_least']:.3f} %)  target {100 * TARGET:g} %  {verdict}"
        )
        for what, added, whole in (
            ("FLOPs", "added_flops", "flops"),
            ("bytes written", "added_bytes", "written_bytes"),
        ):
            print(f"    {what + ' added to a sampled step':<40} {100 * row[added] / row[whole]:10.3f} %")


if __name__ == "__main__":
    main()
