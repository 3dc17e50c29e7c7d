"""How long `headwise fit` takes for every preset: `python -m benchmarks.fit_presets [--json] [--repeats N]`.

Every preset is fitted to a small and a large device, in float32 and bfloat16, each in a fresh interpreter, with its
start and its text. The figure of a fit is the least of its repeats: what else the machine does only adds to it. Beside
it stands an interpreter that imports torch, which `fit` does not.
"""

import argparse
import json
import subprocess
import sys
import time
from itertools import product
from statistics import median

from headwise.config.presets import PRESETS

DEVICES = ("t4", "h100-80gb")
PRECISIONS = ("fp32", "bf16")
TARGET_SECONDS = 1.0
EXIT_CODES = (0, 1)  # it fits; it does not


def seconds(*words: str) -> float:
    """Return how long an interpreter takes to run some words to their end."""
    started = time.perf_counter()
    code = subprocess.run([sys.executable, *words], capture_output=True, check=False).returncode
    if code not in EXIT_CODES:
        raise SystemExit(f"{' '.join(words)} ended with exit code {code}")
    return time.perf_counter() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    timed: list[tuple[float, dict[str, str]]] = []
    for name, device, precision in product(PRESETS, DEVICES, PRECISIONS):
        words = ("-m", "headwise.cli", "fit", name, "--gpu", device, "--precision", precision)
        least = min(seconds(*words) for _ in range(options.repeats))
        timed.append((least, {"model": name, "gpu": device, "precision": precision}))
    timed.sort(key=lambda one: -one[0])
    times = [taken for taken, _ in timed]
    result = {
        "median_seconds": round(median(times), 3),
        "slowest_seconds": round(times[0], 3),
        "num_fits": len(times),
        "num_above_target": sum(taken > TARGET_SECONDS for taken in times),
        "import_torch_seconds": round(min(seconds("-c", "import torch") for _ in range(options.repeats)), 3),
        "rows": [{**fitted, "seconds": round(taken, 3)} for taken, fitted in timed],
    }
    if options.json:
        print(json.dumps(result))
        return
    for taken, fitted in timed[:10]:
        print(f"{taken:6.2f} s  {fitted['model']} on {fitted['gpu']}, {fitted['precision']}")
    print(f"median {result['median_seconds']:.2f} s; importing torch takes {result['import_torch_seconds']:.2f} s")
    print(f"{result['num_above_target']} of {len(times)} fits take more than {TARGET_SECONDS:.0f} s")


if __name__ == "__main__":
    main()
