"""The machine's own limits, as attention meets them: how fast it multiplies, and how fast it moves bytes."""

from collections.abc import Callable
from dataclasses import replace

import torch

from headwise.api.bench_results import Limits, ProductRate
from headwise.api.bench_timing import time_in_turns

# (queries, keys) of a tile: from what a fused kernel holds in a core's cache to what a batched product of tiles is
TILES = ((64, 512), (256, 512), (512, 512), (512, 1024))
COPIED_BYTES = 2**27  # of the source alone; more than any cache holds
REPEATS = 7
MAX_SECONDS = 2.0


def measure_limits(*, num_heads: int, head_dim: int, dtype: torch.dtype, device: torch.device) -> Limits:
    """Measure the best rate of matrix products at attention's tiles, and of a copy.

    A tile is the two products of attention, scores and their mix of values, of so many heads at once, into memory that
    is there already: `4 queries keys head_dim` FLOPs a head.

    Args:
        num_heads: products side by side.
        head_dim: numbers of a head.
        dtype: of all factors.
        device: where they are.
    """
    calls = {str(tile): make_product(tile, num_heads, head_dim, dtype, device) for tile in TILES}
    source = torch.ones(COPIED_BYTES // 4, dtype=torch.float32, device=device)
    target = torch.empty_like(source)
    calls["copy"] = lambda: target.copy_(source)
    timings = time_in_turns(calls, repeats=REPEATS, max_seconds=MAX_SECONDS, device=device)
    products = tuple(
        ProductRate(
            queries=queries,
            keys=keys,
            head_dim=head_dim,
            flops_per_second=product_flops((queries, keys), num_heads, head_dim)
            / timings[str((queries, keys))].least_seconds,
        )
        for queries, keys in TILES
    )
    return Limits(
        flops_per_second=max(product.flops_per_second for product in products),
        bytes_per_second=2 * COPIED_BYTES / timings["copy"].least_seconds,
        num_threads=torch.get_num_threads(),
        products=products,
    )


def best_of(one: Limits, other: Limits) -> Limits:
    """Return the better of two measurements of one machine, rate by rate: what else ran meanwhile only slows."""
    products = tuple(
        max(pair, key=lambda product: product.flops_per_second)
        for pair in zip(one.products, other.products, strict=True)
    )
    return replace(
        one,
        flops_per_second=max(one.flops_per_second, other.flops_per_second),
        bytes_per_second=max(one.bytes_per_second, other.bytes_per_second),
        products=products,
    )


def make_product(
    tile: tuple[int, int], num_heads: int, head_dim: int, dtype: torch.dtype, device: torch.device
) -> Callable[[], object]:
    """Return a call that computes the scores of a tile and their mix of values for each head."""
    queries, keys = tile
    query = torch.ones(num_heads, queries, head_dim, dtype=dtype, device=device)
    key = torch.ones(num_heads, keys, head_dim, dtype=dtype, device=device)
    scores = torch.empty(num_heads, queries, keys, dtype=dtype, device=device)
    mixed = torch.empty_like(query)

    def multiply() -> None:
        torch.bmm(query, key.mT, out=scores)
        torch.bmm(scores, key, out=mixed)

    return multiply


def product_flops(tile: tuple[int, int], num_heads: int, head_dim: int) -> int:
    """Return the FLOPs of `make_product`'s call."""
    return 4 * num_heads * tile[0] * tile[1] * head_dim
