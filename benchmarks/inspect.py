"""What does it cost to see the heads? `python -m benchmarks.inspect [--json] [--repeats N]`.

All statistics of a model's heads beside its eager pass with `output_attentions=True` and like statistics of full maps;
the exact weights of one head beside a plain pass. Times are taken in turns, ratios are of medians. Extra memory is what
torch's allocator takes beyond what stood before, at its highest.
"""

import argparse
import json
from collections.abc import Callable
from typing import Any

import torch
from benchmarks.attention import describe_machine
from benchmarks.decode_cases import Check, Row, time_all
from torch import Tensor

from headwise.cost.running.peaks import record_peaks
from headwise.inspection.capture.readers import open_reader
from headwise.inspection.exact import weights_of_heads
from headwise.inspection.statistics.kinds import TokenKinds
from headwise.inspection.statistics.sums import LayerSums
from headwise.loading.module import load_sample

OURS, MAPS, PLAIN, ONE_HEAD = "statistics, in blocks", "statistics of full maps", "a plain pass", "one head's weights"


def sums_of(reader: Any, inputs: dict[str, Tensor]) -> list[LayerSums]:
    """Return the statistics of all heads, read in blocks."""
    kinds = TokenKinds(inputs["attention_mask"].bool(), torch.zeros_like(inputs["input_ids"], dtype=torch.bool))
    sums: list[LayerSums] = []

    def add(number: int, layer: Any) -> None:
        if number == len(sums):
            sums.append(LayerSums(layer.shape[1]))
        sums[number].add(layer, kinds)

    reader.read(inputs, add)
    return sums


def sums_of_maps(model: Any, inputs: dict[str, Tensor]) -> list[dict[str, Tensor]]:
    """Return as many statistics, written the plain way, of the maps that an eager pass returns all at once."""
    maps = model(**inputs, output_attentions=True).attentions
    found = []
    length = inputs["input_ids"].shape[1]
    places = torch.arange(length)
    distance = (places[:, None] - places).abs().float()
    for weights in maps:
        entropy = torch.special.entr(weights).sum(-1)
        spread = (weights * distance.square()).sum(-1) - (weights * distance).sum(-1).square()
        found.append(
            {
                "entropy": entropy.mean((0, 2)),
                "normalised": (entropy / torch.tensor(float(length)).log()).mean((0, 2)),
                "effective keys": entropy.exp().mean((0, 2)),
                "sparsity": (weights * length < 0.1).float().mean((0, 2, 3)),
                "distance": (weights * distance).sum(-1).mean((0, 2)),
                "spread": spread.clamp(min=0).sqrt().mean((0, 2)),
                "sink": weights[..., 0].mean((0, 2)),
                "largest": weights.amax(-1).mean((0, 2)),
                "near": (weights * (distance <= 2)).sum(-1).mean((0, 2)),
                "block": (weights * (places[:, None] // 16 == places // 16)).sum(-1).mean((0, 2)),
                "previous": weights.diagonal(-1, 2, 3).mean((0, 2)),
                "next": weights.diagonal(1, 2, 3).mean((0, 2)),
                "self": weights.diagonal(0, 2, 3).mean((0, 2)),
            }
        )
    return found


def extra_bytes(call: Callable[[], object]) -> int:
    """Return the highest that the allocator takes beyond what stood before."""
    with record_peaks(torch.device("cpu")) as peaks:
        with peaks.moment("call"):
            found = call()
        del found
    return peaks.bytes_by_moment["call"]


def statistics(repeats: int) -> Row:
    """Measure all statistics of the small checkpoint on 8 texts of 512 tokens."""
    from transformers import AutoModel

    loaded = load_sample()
    ids = torch.randint(1000, 30_000, (8, 512), generator=torch.Generator().manual_seed(0))
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    eager = AutoModel.from_config(loaded.module.config, attn_implementation="eager").eval()
    eager.load_state_dict(loaded.module.state_dict())
    reader = open_reader(loaded.module, inputs)
    calls: dict[str, Callable[[], object]] = {
        OURS: lambda: sums_of(reader, inputs),
        MAPS: lambda: sums_of_maps(eager, inputs),
        PLAIN: lambda: loaded.module(**inputs),
        ONE_HEAD: lambda: weights_of_heads(reader, inputs, [(0, 2)]),
    }
    held = {name: extra_bytes(call) for name, call in calls.items()}
    took, _ = time_all(calls, repeats)
    checks = (
        Check("time in blocks / of full maps", took[OURS] / took[MAPS], 1.0, at_least=False),
        Check("extra memory in blocks / of full maps", held[OURS] / held[MAPS], 1 / 8, at_least=False),
        Check("time of one head's weights / a plain pass", took[ONE_HEAD] / took[PLAIN], 1.2, at_least=False),
    )
    return Row("MiniLM, 8 texts of 512 tokens", took, checks)


def main() -> None:
    """Run what was asked for and print it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--repeats", type=int, default=5, help="turns of each contestant")
    options = parser.parse_args()
    with torch.no_grad():
        row = statistics(options.repeats)
    checks = [{**check._asdict(), "holds": check.holds} for check in row.checks]
    if options.json:
        print(json.dumps({"machine": describe_machine(), "rows": [{"case": row.case, "checks": checks}]}))
        return
    print(describe_machine())
    print(row.case)
    for name, seconds in row.seconds.items():
        print(f"    {name:<50} {1e3 * seconds:9.1f} ms")
    for check in row.checks:
        print(f"    {check.what:<50} {check.value:9.3f}  target {check.target:.3f}  {check.holds}")


if __name__ == "__main__":
    main()
