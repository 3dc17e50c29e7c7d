"""How fast and how lean is decoding? `python -m benchmarks.decode [--json] [--only NAME] [--repeats N]`.

float32, without gradients: one token's attention beside torch's call with `enable_gqa=True` and beside what the machine
can do; caches beside the attention that reads them; a model beside transformers' `generate`; bytes. What is timed is
timed in turns, and figures are ratios of medians.
"""

import argparse

import torch
from benchmarks.contest import show_all
from benchmarks.decode_cases import attention_cases
from benchmarks.decode_models import model_cases


@torch.no_grad()
def main() -> None:
    """Run what was asked for and print it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--repeats", type=int, default=15, help="turns of each contestant")
    names = list({**attention_cases(0), **model_cases(0)})
    parser.add_argument("--only", metavar="NAME", nargs="+", choices=names, default=names, help=", ".join(names))
    options = parser.parse_args()
    # From here on the allocator gives memory of up to so much back to the process alone, as in one that runs a model.
    large = torch.ones(31 * 2**18)
    del large
    cases = {**attention_cases(options.repeats), **model_cases(options.repeats)}
    show_all([cases[name] for name in options.only], as_json=options.json)


if __name__ == "__main__":
    main()
