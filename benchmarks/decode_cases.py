"""The rows of `benchmarks.decode` about one token's attention and about caches alone."""

from collections.abc import Callable
from itertools import cycle
from typing import Any

import torch
from benchmarks.contest import Check, Row, time_all
from torch.nn import functional

import headwise
from headwise.ops.products import has_onednn, onednn_linear

OURS, PEER, READ = "ours", "torch, enable_gqa", "sum of the keys and values"
PRODUCT = "one product of as many multiplications"
LIVE, FULL = "256 live of 8192 slots", "a cache of exactly 256"
STEP, BARE = "a cache that grows to 4096, with attention", "attention alone"


def one_token(repeats: int, batch: int, num_heads: int, num_kv_heads: int, key_len: int, target: float) -> Row:
    """Measure one token's attention beside torch's, and beside what the machine can do.

    Its limits are the fastest turns of a sum over the keys and values (how fast memory is read), and of a square
    product of as many multiplications, by oneDNN where it is there. Calls take three sets of keys and values by turns,
    as a model's layers do: of large ones nothing is found in a processor's cache.
    """
    head_dim = 128
    query = torch.randn(batch, num_heads, 1, head_dim)
    sets = [[torch.randn(batch, num_kv_heads, key_len, head_dim) for _ in range(2)] for _ in range(3)]
    by_turns = {name: cycle(sets) for name in (OURS, PEER, READ)}
    side = round((2 * batch * num_heads * key_len * head_dim) ** (1 / 3))
    left, right = torch.randn(side, side), torch.randn(side, side)
    took, least = time_all(
        {
            OURS: lambda: headwise.attention(query, *next(by_turns[OURS])).output,
            PEER: lambda: functional.scaled_dot_product_attention(query, *next(by_turns[PEER]), enable_gqa=True),
            READ: lambda: [one.sum() for one in next(by_turns[READ])],
            PRODUCT: lambda: onednn_linear(left, right) if has_onednn() else left @ right.T,
        },
        repeats,
    )
    reads_most = num_heads <= 8 * num_kv_heads
    checks = (
        Check("time of torch's / ours", took[PEER] / took[OURS], target),
        Check("share of the rate of reading", least[READ] / took[OURS], 0.5 if reads_most else None),
        Check("share of the rate of multiplying", least[PRODUCT] / took[OURS]),
        Check("what ours would be at that rate, times torch's", took[PEER] / max(least[PRODUCT], least[READ])),
    )
    batched = f", batch {batch}" if reads_most else ""
    return Row(f"{num_heads} heads on {num_kv_heads} of {head_dim}, {key_len} keys{batched}", took, checks)


def static_cache(repeats: int) -> Row:
    """Measure a step of a layer beside 256 live tokens, in a large buffer and in one of that size."""
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
    took, _ = time_all(calls, repeats)
    return Row("static cache", took, (Check(f"time of {LIVE} / {FULL}", took[LIVE] / took[FULL], 1.3, at_least=False),))


def growing_cache(repeats: int) -> Row:
    """Measure a cache that grows token by token to 4096, each attending to all, beside the attention alone."""
    heads, head_dim, last = 8, 64, 4096
    keys, values = (torch.randn(1, heads, last, head_dim) for _ in range(2))
    query = torch.randn(1, heads, 1, head_dim)

    def steps() -> None:
        cache = headwise.GrowingCache()
        for at in range(last):
            view = cache.update(keys[:, :, at : at + 1], values[:, :, at : at + 1])
            headwise.attention(query, view.keys, view.values)

    def bare() -> None:
        for at in range(last):
            headwise.attention(query, keys[:, :, : at + 1], values[:, :, : at + 1])

    took, _ = time_all({STEP: steps, BARE: bare}, repeats)
    return Row("growing cache", took, (Check("time with the cache / without", took[STEP] / took[BARE], 1.3, False),))


def shared_prefix(_: int) -> Row:
    """Measure what eight prompts with 1024 tokens in common hold, in all layers of a model, as tensors."""
    prefix, tail, batch, num_layers, size = 1024, 64, 8, 4, (3, 64)

    def tokens(batch: int, length: int) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.randn(batch, size[0], length, size[1]), torch.randn(batch, size[0], length, size[1])

    with headwise.track() as ledger:
        caches = [headwise.PagedCache() for _ in range(num_layers)]
        for cache in caches:
            cache.update(*tokens(1, prefix))
            cache.reorder([0] * batch)
            cache.update(*tokens(batch, tail))
    held = sum(entry.bytes for entry in ledger.alive(len(ledger.moments) - 1))
    needed = num_layers * (prefix + batch * tail) * 2 * size[0] * size[1] * 4
    alone = num_layers * batch * (prefix + tail) * 2 * size[0] * size[1] * 4
    checks = (
        Check("bytes held / one prefix and eight tails", held / needed, 1.05, at_least=False),
        Check("bytes of eight caches without sharing / held", alone / held),
    )
    return Row("eight prompts sharing 1024 tokens, paged", {}, checks)


def attention_cases(repeats: int) -> dict[str, Callable[[], Any]]:
    """Return how each row is measured, by name."""
    return {
        "grouped": lambda: one_token(repeats, 1, 32, 8, 16384, 3.0),
        "grouped-batch": lambda: one_token(repeats, 4, 32, 8, 16384, 3.0),
        "multi-query": lambda: one_token(repeats, 1, 64, 1, 8192, 8.0),
        "static": lambda: static_cache(repeats),
        "growing": lambda: growing_cache(repeats),
        "paged": lambda: shared_prefix(repeats),
    }
