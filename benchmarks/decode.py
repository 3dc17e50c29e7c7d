"""How fast and how lean is decoding? `python -m benchmarks.decode [--json] [--only NAME] [--repeats N]`.

One token against keys of earlier ones, float32, without gradients: `headwise.attention` beside torch's call with
`enable_gqa=True`, as a share of the rate at which this machine reads memory (a sum over as many numbers, the fastest of
its turns). Caches beside the attention that reads them. All are measured in turns; figures are ratios of medians, in
brackets of the shortest times.
"""

import argparse
import json
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from benchmarks.attention import describe_machine
from torch.nn import functional

import headwise
from headwise.api.bench_timing import time_in_turns

OURS, PEER, READ = "ours", "torch, enable_gqa", "sum of as many numbers"
LIVE, FULL = "256 live of 8192 slots", "a cache of exactly 256"
STEP, BARE = "step of a growing cache", "attention alone"


class Check(NamedTuple):
    """A figure, and the bound that it is to keep: at least or at most."""

    what: str
    value_of: Callable[[dict[str, float]], float]
    target: float
    at_least: bool


class Case(NamedTuple):
    """What is timed in turns; nothing is made before `make` is called."""

    name: str
    make: Callable[[], dict[str, Callable[[], object]]]
    checks: tuple[Check, ...]


def cases() -> Iterator[Case]:
    """Yield all cases."""
    share = Check("share of the rate of reading", lambda took: took[READ] / took[OURS], 0.5, True)
    for batch in (1, 4):
        faster = Check("time of torch's / ours", lambda took: took[PEER] / took[OURS], 3.0, True)
        name = f"32 heads on 8 of 128, 16384 keys, batch {batch}"
        yield Case(name, lambda batch=batch: one_token(batch, 32, 8, 16384, 128), (faster, share))
    faster = Check("time of torch's / ours", lambda took: took[PEER] / took[OURS], 8.0, True)
    yield Case("64 heads on one of 128, 8192 keys", lambda: one_token(1, 64, 1, 8192, 128), (faster,))
    ratio = Check(f"time of {LIVE} / {FULL}", lambda took: took[LIVE] / took[FULL], 1.3, False)
    yield Case("static cache", static_cache, (ratio,))
    ratio = Check(f"time of a {STEP} / {BARE}", lambda took: took[STEP] / took[BARE], 1.3, False)
    yield Case("growing cache to 4096 tokens", growing_cache, (ratio,))


def one_token(batch: int, num_heads: int, num_kv_heads: int, key_len: int, head_dim: int) -> dict[str, Any]:
    """Return the contestants of one token's attention."""
    query = torch.randn(batch, num_heads, 1, head_dim)
    key, value = (torch.randn(batch, num_kv_heads, key_len, head_dim) for _ in range(2))
    numbers = torch.randn(2 * key.numel())
    return {
        OURS: lambda: headwise.attention(query, key, value).output,
        PEER: lambda: functional.scaled_dot_product_attention(query, key, value, enable_gqa=True),
        READ: numbers.sum,
    }


def static_cache() -> dict[str, Any]:
    """Return a step of a layer beside 256 live tokens, in a large buffer and in one of that size."""
    layer = headwise.MultiHeadAttention(512, 8, num_kv_heads=8, mask=headwise.Causal()).eval()
    calls = {}
    for name, capacity in ((LIVE, 8192), (FULL, 256)):
        cache = headwise.StaticCache(capacity)
        layer(torch.randn(4, 255, 512), cache=cache)
        token = torch.randn(4, 1, 512)

        def step(cache: headwise.StaticCache = cache, token: torch.Tensor = token) -> object:
            output = layer(token, cache=cache)
            cache.crop(255)
            return output

        calls[name] = step
    return calls


def growing_cache() -> dict[str, Any]:
    """Return 64 steps of a cache towards 4096 tokens, its growth included, and the attention of as many."""
    heads, head_dim, last = 8, 64, 4096
    keys, values = (torch.randn(1, heads, last, head_dim) for _ in range(2))
    query = torch.randn(1, heads, 1, head_dim)

    def steps() -> None:
        cache = headwise.GrowingCache()
        cache.update(keys[:, :, : last - 64], values[:, :, : last - 64])
        for at in range(last - 64, last):
            view = cache.update(keys[:, :, at : at + 1], values[:, :, at : at + 1])
            headwise.attention(query, view.keys, view.values)

    def bare() -> None:
        for at in range(last - 64, last):
            headwise.attention(query, keys[:, :, : at + 1], values[:, :, : at + 1])

    return {STEP: steps, BARE: bare}


def measure(case: Case, repeats: int) -> dict[str, Any]:
    """Time the contestants of a case and judge its figures."""
    timings = time_in_turns(case.make(), repeats=repeats, max_seconds=30.0)
    took, least = (
        {name: getattr(one, field) for name, one in timings.items()} for field in ("seconds", "least_seconds")
    )
    if READ in took:
        took[READ] = least[READ]  # the machine's own limit is what it can do
    checks = [
        {
            "what": check.what,
            "value": check.value_of(took),
            "value_of_least": check.value_of(least),
            "target": check.target,
            "holds": check.value_of(took) >= check.target if check.at_least else check.value_of(took) <= check.target,
        }
        for check in case.checks
    ]
    return {"case": case.name, "seconds": took, "checks": checks}


@torch.no_grad()
def main() -> None:
    """Run what was asked for and print it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--only", metavar="NAME", default="", help="cases whose name has this")
    parser.add_argument("--repeats", type=int, default=15, help="turns of each contestant")
    options = parser.parse_args()
    rows = [measure(case, options.repeats) for case in cases() if options.only in case.name]
    if options.json:
        print(json.dumps({"machine": describe_machine(), "rows": rows}))
        return
    print(describe_machine())
    for row in rows:
        print(row["case"])
        for name, seconds in row["seconds"].items():
            print(f"    {name:<50} {1e3 * seconds:8.3f} ms")
        for check in row["checks"]:
            verdict = "holds" if check["holds"] else "MISSED"
            least = f"({check['value_of_least']:.3f})"
            print(f"    {check['what']:<50} {check['value']:8.3f} {least}  target {check['target']}  {verdict}")


if __name__ == "__main__":
    main()
