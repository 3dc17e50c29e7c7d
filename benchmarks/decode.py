"""How fast and how lean is decoding? `python -m benchmarks.decode [--json] [--only NAME] [--repeats N]`.

float32, without gradients: one token's attention beside torch's call with `enable_gqa=True` and beside what the machine
can do; caches beside the attention that reads them; a model beside transformers' `generate`; bytes. What is timed is
timed in turns, and figures are ratios of medians.
"""

import argparse
import json

import torch
from benchmarks.attention import describe_machine
from benchmarks.decode_cases import Row, attention_cases
from benchmarks.decode_models import model_cases


def as_dict(row: Row) -> dict[str, object]:
    """Return a row for JSON."""
    checks = [{**check._asdict(), "holds": check.holds} for check in row.checks]
    return {"case": row.case, "seconds": row.seconds, "checks": checks}


def show(row: Row) -> None:
    """Print a row."""
    print(row.case)
    for name, seconds in row.seconds.items():
        print(f"    {name:<50} {1e3 * seconds:9.3f} ms")
    for check in row.checks:
        verdict = "" if check.target is None else f"  target {check.target}  {'holds' if check.holds else 'MISSED'}"
        print(f"    {check.what:<50} {check.value:9.4g}{verdict}")


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
    rows = []
    if not options.json:
        print(describe_machine())
    for name in options.only:
        rows.append(cases[name]())
        if not options.json:
            show(rows[-1])
    if options.json:
        print(json.dumps({"machine": describe_machine(), "rows": [as_dict(row) for row in rows]}))


if __name__ == "__main__":
    main()
